"""What a fine-tuning run leaves on disk: adapter or model, history, manifest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import DAMAGE
from ltrag_plugins.errors import UnreadableArtifact, missing_extra
from ltrag_plugins.llm.local.adapters import (
    CONFIG,
    FORMAT,
    MANIFEST,
    WEIGHTS,
    read_adapter,
    read_manifest,
)
from ltrag_plugins.llm.local.loading import fingerprints, quiet
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic.finetune.run import RunFolder
from ltrag_plugins.sgic.finetune.settings import FinetuneSettings
from ltrag_plugins.sgic.finetune.tokens import TooLong
from ltrag_plugins.sgic.finetune.trainer import AnswerTrainer, FinetuneStep

try:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save as save_tensors
except ImportError as error:
    raise missing_extra("peft", "train") from error

HISTORY = "history.json"
VERSIONED = ("torch", "transformers", "trl", "peft", "ltrag-plugins")


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """What a fine-tuning run leaves."""

    folder: Path
    """Holds the adapter, or with method="full" the whole model, and `finetune.json`."""
    history: tuple[FinetuneStep, ...]
    validation: tuple[tuple[int, float], ...]
    """(steps taken, mean loss of the held-out answers' tokens in nats), before the first step
    and after each epoch; empty where nothing was held out."""
    examples: int
    """Learned from."""
    held_out: int
    dropped: tuple[TooLong, ...]
    """Left out, being longer than the model reads or `max_tokens`."""


def told(
    trainer: AnswerTrainer, learned: int, held_out: int, dropped: list[TooLong]
) -> dict[str, Any]:
    """What `history.json` says of a run that has come to its end."""
    logged = trainer.state.log_history
    names = FinetuneStep.__dataclass_fields__
    return {
        "steps": [
            {n: entry[n] for n in names} | {"epoch": round(entry["epoch"], 4)}
            for entry in logged
            if "loss" in entry
        ],
        "validation": [
            [entry["step"], entry["validation_loss"]]
            for entry in logged
            if "validation_loss" in entry
        ],
        "examples": learned,
        "held_out": held_out,
        "dropped": [asdict(one) for one in dropped],
    }


def finish(
    trainer: AnswerTrainer,
    folder: RunFolder,
    identity: Mapping[str, Any],
    history: Mapping[str, Any],
    llm: TransformersLLM,
    settings: FinetuneSettings,
) -> None:
    """Write the result, its manifest last; then nothing is left to go on with."""
    folder.write(HISTORY, history)
    files = _adapter_files(trainer) if settings.method == "lora" else {}
    for name, content in files.items():
        folder.write_bytes(name, content)
    if settings.method == "full":
        _write_model(trainer, llm, folder)
    steps = history["steps"]
    folder.write(
        MANIFEST,
        {
            "format": FORMAT,
            "method": settings.method,
            "base": {
                "label": llm.name.partition("@")[0],
                "fingerprints": fingerprints(llm.model),
            },
            "files": {n: hashlib.sha256(content).hexdigest() for n, content in files.items()},
            **{k: v for k, v in identity.items() if k != "base"},
            "losses": {
                "first": steps[0]["loss"],
                "last": steps[-1]["loss"],
                "validation": history["validation"],
            },
            "examples": history["examples"],
            "held_out": history["held_out"],
            "dropped": history["dropped"],
            "versions": {name: version(name) for name in VERSIONED},
        },
    )
    folder.drop_checkpoints()


def _adapter_files(trainer: AnswerTrainer) -> dict[str, bytes]:
    model: Any = trainer.model
    tensors = {
        k: v.detach().cpu().contiguous() for k, v in get_peft_model_state_dict(model).items()
    }
    config = model.peft_config["default"].to_dict() | {"inference_mode": True}
    config["base_model_name_or_path"] = None  # a path of the machine it was trained on
    told = json.dumps(config, indent=1, sort_keys=True, default=lambda value: sorted(value))
    return {WEIGHTS: save_tensors(tensors, metadata={"format": "pt"}), CONFIG: told.encode()}


def _write_model(trainer: AnswerTrainer, llm: TransformersLLM, folder: RunFolder) -> None:
    model: Any = trainer.model
    with quiet():
        model.save_pretrained(folder.path)
        llm.tokenizer.save_pretrained(folder.path)


def read_result(folder: RunFolder) -> FinetuneResult:
    """What a finished run left.

    Raises:
        UnreadableArtifact: it is damaged.
    """
    if read_manifest(folder.path)["method"] == "lora":
        read_adapter(folder.path)
    try:
        history = json.loads((folder.path / HISTORY).read_bytes())
        return FinetuneResult(
            folder.path,
            tuple(FinetuneStep(**step) for step in history["steps"]),
            tuple((step, loss) for step, loss in history["validation"]),
            history["examples"],
            history["held_out"],
            tuple(TooLong(**one) for one in history["dropped"]),
        )
    except DAMAGE as error:
        raise UnreadableArtifact(
            f"{folder.path / HISTORY} cannot be read ({type(error).__name__}: {error}). The "
            "weights are fine; to train again, name another folder."
        ) from error
