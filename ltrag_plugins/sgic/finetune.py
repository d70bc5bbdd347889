"""Fine-tune a model on calibrated examples, with TRL and PEFT.

The prompt is rendered as at inference; the loss is over the answer and the token that ends it:

.. math:: L = - \\frac{1}{\\sum_i T_i} \\sum_i \\sum_{t=1}^{T_i} \\log p(y_{i,t} | x_i, y_{i,<t})

References:
    Chen et al. (SGIC), section 3.3 and appendix A.1.
"""

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.adapters import CONFIG, FORMAT, MANIFEST, WEIGHTS, read_manifest
from ltrag_plugins.llm.local.loading import fingerprints, quiet
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic.finetune_run import RunFolder
from ltrag_plugins.sgic.finetune_settings import FinetuneSettings
from ltrag_plugins.sgic.finetune_tokens import (
    Row,
    TooLong,
    TrainingSet,
    dataset_hash,
    end_token,
    rows_of,
    split,
)
from ltrag_plugins.sgic.finetune_trainer import AnswerTrainer, FinetuneStep, trainer_for

try:
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save as save_tensors
    from torch import nn
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("peft", "train") from error

__all__ = ["FinetuneResult", "FinetuneSettings", "FinetuneStep", "TooLong", "finetune"]
NOT_THE_NUMBERS = ("save_every",)
"""Settings that change no number of the result."""
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


def finetune(
    dataset: TrainingSet,
    model: TransformersLLM | str | Path,
    *,
    out: str | Path,
    settings: FinetuneSettings | None = None,
    resume: bool = True,
    on_step: Callable[[FinetuneStep], None] | None = None,
) -> FinetuneResult:
    """Train an adapter for `model`, or a copy of it.

    Equal arguments give equal weights on the CPU, to the last bit, whether or not the run was
    killed in between. Memory, beside the model: with "lora" the adapter three times (with its
    gradient and the optimizer's two moments) and the activations of one micro-batch, the frozen
    weights being shared with the model handed in; with "full" four times the float32 weights.

    Args:
        dataset: what to learn; see `ltrag_plugins.sgic.corpus`.
        model: the model, which is not changed, or what `TransformersLLM.load` takes.
        out: a new or empty folder, or the one of the same run.
        settings: see `FinetuneSettings`.
        resume: go on with the run in `out`; if it is finished, hand back its result.
        on_step: told of each step.

    Raises:
        InvalidInput: nothing to learn from, or `out` holds other files.
        ArtifactMismatch: `out` holds a run with other arguments.
        UnreadableArtifact: the run in `out` is damaged.
        UnwritableArtifact: `out` cannot be written to.
        ModelError: a loss or gradient is no number; what was saved before is kept.
    """
    settings = settings or FinetuneSettings()
    llm = model if isinstance(model, TransformersLLM) else TransformersLLM.load(model)
    end = end_token(llm.model, llm.prompting)
    rows, dropped = rows_of(dataset, llm.prompting, end, max_tokens=settings.max_tokens)
    learned, held_out = split(rows, settings.held_out, settings.seed)
    identity = _identity(dataset, llm, settings)
    folder = RunFolder(Path(out).expanduser())
    folder.begin(identity, resume=resume)
    if not (folder.path / MANIFEST).exists():
        trainer = _trained(llm, learned, held_out, settings, folder, on_step)
        told = _told(trainer, len(learned), len(held_out), dropped)
        folder.write("history.json", told)
        _finish(trainer, folder, identity, told, llm, settings)
        folder.drop_checkpoints()
    return _result(folder)


def _trained(
    llm: TransformersLLM,
    rows: list[Row],
    held_out: list[Row],
    settings: FinetuneSettings,
    folder: RunFolder,
    on_step: Callable[[FinetuneStep], None] | None,
) -> AnswerTrainer:
    with _own_randomness(settings.seed), quiet():
        trainer = trainer_for(
            _copied(llm.model, settings),
            llm.tokenizer,
            rows,
            held_out,
            settings,
            folder.checkpoints,
            on_step or (lambda _: None),
        )
        checkpoint = folder.last_checkpoint()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


def _copied(model: PreTrainedModel, settings: FinetuneSettings) -> PreTrainedModel:
    """A model of its own; what stays frozen shares its numbers with the one handed in."""
    shared: dict[int, Any] = {}
    if settings.method == "lora":
        frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
        shared = dict(frozen)
    own: Any = copy.deepcopy(model, shared)
    return own.to(_dtype(settings, model.device))


def _dtype(settings: FinetuneSettings, device: torch.device) -> torch.dtype:
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if settings.dtype == "bfloat16" or (
        settings.dtype == "auto" and half and settings.method == "lora"
    ):
        return torch.bfloat16
    return torch.float32


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """The trainer seeds all generators of the process; they are put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _identity(
    dataset: TrainingSet, llm: TransformersLLM, settings: FinetuneSettings
) -> dict[str, Any]:
    told = {k: v for k, v in asdict(settings).items() if k not in NOT_THE_NUMBERS}
    return {
        "dataset": dataset_hash(dataset),
        "base": fingerprints(llm.model)["float32"],
        "prompting": llm.prompting.name,
        "settings": told,
    }


def _told(
    trainer: AnswerTrainer, learned: int, held_out: int, dropped: list[TooLong]
) -> dict[str, Any]:
    logged = trainer.state.log_history
    names = FinetuneStep.__dataclass_fields__
    return {
        "steps": [{n: entry[n] for n in names} for entry in logged if "loss" in entry],
        "validation": [
            [entry["step"], entry["validation_loss"]]
            for entry in logged
            if "validation_loss" in entry
        ],
        "examples": learned,
        "held_out": held_out,
        "dropped": [asdict(one) for one in dropped],
    }


def _finish(
    trainer: AnswerTrainer,
    folder: RunFolder,
    identity: Mapping[str, Any],
    told: Mapping[str, Any],
    llm: TransformersLLM,
    settings: FinetuneSettings,
) -> None:
    """Write the result, its manifest last."""
    files = _adapter_files(trainer) if settings.method == "lora" else {}
    for name, content in files.items():
        folder.write_bytes(name, content)
    if settings.method == "full":
        _write_model(trainer, llm, folder)
    steps = told["steps"]
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
                "validation": told["validation"],
            },
            "examples": told["examples"],
            "held_out": told["held_out"],
            "dropped": told["dropped"],
            "versions": {name: version(name) for name in VERSIONED},
        },
    )


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


def _result(folder: RunFolder) -> FinetuneResult:
    manifest = read_manifest(folder.path)
    history = json.loads((folder.path / "history.json").read_bytes())
    return FinetuneResult(
        folder.path,
        tuple(FinetuneStep(**step) for step in history["steps"]),
        tuple((step, loss) for step, loss in history["validation"]),
        manifest["examples"],
        manifest["held_out"],
        tuple(TooLong(**one) for one in manifest["dropped"]),
    )
