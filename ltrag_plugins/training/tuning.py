r"""Fine-tune a model on calibrated examples, with TRL and PEFT.

The prompt is rendered as at inference; the loss is over the answer and the token that ends it:

.. math:: L = - \frac{1}{\sum_i T_i} \sum_i \sum_{t=1}^{T_i} \log p(y_{i,t} | x_i, y_{i,<t})

References:
    Chen et al. (SGIC), section 3.3 and appendix A.1.

The folder of a run: `run.json` names the run from its first moment, `checkpoints/` holds the last
two, and `finetune.json` is written last, when there is a result. A checkpoint counts once
`complete.json` in it has the hashes of its files, so that a killed run goes on from the last whole
one. Checkpoints hold the optimizer's state as torch saves it; it is read back with
``weights_only=True``, which builds numbers and nothing else, and only from here.
"""

import copy
import hashlib
import json
import random
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ltrag_plugins.artifacts import DAMAGE, differences, replace_file, writing
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, UnreadableArtifact, missing_extra
from ltrag_plugins.llm.loading import (
    CONFIG,
    FORMAT,
    MANIFEST,
    WEIGHTS,
    fingerprint,
    fingerprints,
    quiet,
    read_adapter,
    read_adapter_manifest,
)
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training.examples import Dataset
from ltrag_plugins.training.settings import FinetuneSettings
from ltrag_plugins.training.sft import (
    AnswerTrainer,
    FinetuneStep,
    TokenizedExample,
    TooLong,
    end_token,
    is_whole,
    rows_of,
    split,
    trainer_for,
)

try:
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save as save_tensors
    from torch import nn
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("peft", "train") from error

_RUN, _CHECKPOINTS, _HISTORY = "run.json", "checkpoints", "history.json"
_VERSIONED = ("torch", "transformers", "trl", "peft", "ltrag-plugins")
_NOT_THE_NUMBERS = ("save_every",)
"""Settings that change no number of the result."""


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
    dataset: Dataset,
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
        dataset: what to learn; see `ltrag_plugins.training.examples`.
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
    numbers = {k: v for k, v in asdict(settings).items() if k not in _NOT_THE_NUMBERS}
    identity = {
        "dataset": _dataset_hash(dataset),
        "base": fingerprint(llm.model),
        "prompting": llm.prompting.name,
        "settings": numbers,
    }
    folder = Path(out).expanduser()
    _begin(folder, identity, resume=resume)
    if not (folder / MANIFEST).exists():
        trainer = _trained(llm, learned, held_out, settings, folder, on_step)
        history = _history(trainer) | {
            "examples": len(learned),
            "held_out": len(held_out),
            "dropped": [asdict(one) for one in dropped],
        }
        _finish(trainer, folder, identity, history, llm, settings)
    return _read_result(folder)


def _begin(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Make the folder this run's, if it is empty or this run's already."""
    with writing(folder):
        there = {entry.name for entry in folder.iterdir()} - {f"{_RUN}.new"}
        if not there:
            _write(folder, _RUN, {"format": FORMAT, **identity})
            return
    if _RUN not in there:
        raise InvalidInput(
            f"{folder} holds other files ({', '.join(sorted(there)[:3])}); name a new or empty "
            "folder."
        )
    if not resume:
        raise ArtifactMismatch(f"{folder} holds a run already; name another folder, or resume it.")
    try:
        differ = differences(
            json.loads((folder / _RUN).read_bytes()), {"format": FORMAT, **identity}
        )
    except (OSError, ValueError, AttributeError) as error:
        raise UnreadableArtifact(
            f"{folder / _RUN} cannot be read ({type(error).__name__}: {error}); name another "
            "folder."
        ) from error
    if differ:
        raise ArtifactMismatch(
            f"{folder} holds another run: {'; '.join(differ)}. Name another folder, or go on with "
            "the same arguments."
        )


def _write(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    with writing(folder):
        replace_file(folder / name, json.dumps(content, indent=1, allow_nan=False).encode())


def _last_checkpoint(checkpoints: Path) -> str | None:
    """The last whole one; None where there is none."""
    found = {
        int(match[1]): path
        for path in checkpoints.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    return next(
        (str(found[step]) for step in sorted(found, reverse=True) if is_whole(found[step])), None
    )


def _trained(
    llm: TransformersLLM,
    rows: list[TokenizedExample],
    held_out: list[TokenizedExample],
    settings: FinetuneSettings,
    folder: Path,
    on_step: Callable[[FinetuneStep], None] | None,
) -> AnswerTrainer:
    checkpoints = folder / _CHECKPOINTS
    with _own_randomness(settings.seed), quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the libraries', about one another
        trainer = trainer_for(
            _copied(llm.model, settings),
            llm.tokenizer,
            rows,
            held_out,
            settings,
            checkpoints,
            on_step or (lambda _: None),
        )
        trainer.train(resume_from_checkpoint=_last_checkpoint(checkpoints))
    return trainer


def _copied(model: PreTrainedModel, settings: FinetuneSettings) -> PreTrainedModel:
    """A model of its own; what stays frozen shares its numbers with the one handed in."""
    shared: dict[int, Any] = {}
    if settings.method == "lora":
        frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
        shared = dict(frozen)
    own: Any = copy.deepcopy(model, shared)
    # PEFT would ask the hub about a base model with a name, at every checkpoint
    own.name_or_path = own.config._name_or_path = ""
    return own.requires_grad_(settings.method == "full").to(_dtype(settings, model.device))


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


def _dataset_hash(dataset: Dataset) -> str:
    """SHA-256 of the ids, prompts and targets, in order."""
    digest = hashlib.sha256()
    for one in dataset.examples:
        digest.update(json.dumps([one.id, one.prompt, one.target]).encode() + b"\n")
    return digest.hexdigest()


def _history(trainer: AnswerTrainer) -> dict[str, Any]:
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
    }


def _finish(
    trainer: AnswerTrainer,
    folder: Path,
    identity: Mapping[str, Any],
    history: Mapping[str, Any],
    llm: TransformersLLM,
    settings: FinetuneSettings,
) -> None:
    """Write the result, its manifest last; then nothing is left to go on with."""
    _write(folder, _HISTORY, history)
    files = _adapter_files(trainer) if settings.method == "lora" else {}
    for name, content in files.items():
        with writing(folder):
            replace_file(folder / name, content)
    if settings.method == "full":
        with quiet():
            trainer.model.save_pretrained(folder)  # type: ignore[union-attr]
            llm.tokenizer.save_pretrained(folder)
    steps = history["steps"]
    _write(
        folder,
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
            "versions": {name: version(name) for name in _VERSIONED},
        },
    )
    shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)


def _adapter_files(trainer: AnswerTrainer) -> dict[str, bytes]:
    model: Any = trainer.model
    tensors = {
        k: v.detach().cpu().contiguous() for k, v in get_peft_model_state_dict(model).items()
    }
    config = model.peft_config["default"].to_dict() | {"inference_mode": True}
    config["base_model_name_or_path"] = None  # a path of the machine it was trained on
    told = json.dumps(config, indent=1, sort_keys=True, default=lambda value: sorted(value))
    return {WEIGHTS: save_tensors(tensors, metadata={"format": "pt"}), CONFIG: told.encode()}


def _read_result(folder: Path) -> FinetuneResult:
    if read_adapter_manifest(folder)["method"] == "lora":
        read_adapter(folder)
    try:
        history = json.loads((folder / _HISTORY).read_bytes())
        return FinetuneResult(
            folder,
            tuple(FinetuneStep(**step) for step in history["steps"]),
            tuple((step, loss) for step, loss in history["validation"]),
            history["examples"],
            history["held_out"],
            tuple(TooLong(**one) for one in history["dropped"]),
        )
    except DAMAGE as error:
        raise UnreadableArtifact(
            f"{folder / _HISTORY} cannot be read ({type(error).__name__}: {error}). The "
            "weights are fine; to train again, name another folder."
        ) from error
