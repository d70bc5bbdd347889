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

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import check_same, reading, replace_file, writing
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, missing_extra
from ltrag_plugins.llm.loading import (
    CONFIG,
    FORMAT,
    MANIFEST,
    WEIGHTS,
    fingerprint,
    fingerprints,
    quiet,
    read_adapter,
)
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training.dataset import Dataset
from ltrag_plugins.training.settings import FinetuneSettings
from ltrag_plugins.training.sft import FinetuneStep, TooLong, rows_of, trained

try:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save as save_tensors
except ImportError as error:
    raise missing_extra("peft", "train") from error

_RUN, _CHECKPOINTS, _HISTORY = "run.json", "checkpoints", "history.json"
_VERSIONED = ("torch", "transformers", "trl", "peft", "ltrag-plugins")


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
        dataset: what to learn; see `load`.
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
    rows, held_out, dropped = rows_of(dataset, llm, settings)
    digest = hashlib.sha256()
    for one in dataset.examples:
        digest.update(json.dumps([one.id, one.prompt, one.target]).encode() + b"\n")
    numbers = asdict(settings)
    del numbers["save_every"]  # changes no number of the result
    identity = {
        "dataset": digest.hexdigest(),
        "base": fingerprint(llm.model),
        "prompting": llm.prompting.name,
        "settings": numbers,
    }
    folder = Path(out).expanduser()
    _begin(folder, {"format": FORMAT, **identity}, resume=resume)
    if not (folder / MANIFEST).exists():
        own, losses = trained(llm, rows, held_out, settings, folder / _CHECKPOINTS, on_step)
        steps, left_out = losses["steps"], [asdict(one) for one in dropped]
        counts = {"examples": len(rows), "held_out": len(held_out), "dropped": left_out}
        _write(folder, _HISTORY, losses | counts)
        manifest = {
            "format": FORMAT,
            "method": settings.method,
            "base": {
                "label": llm.name.partition("@")[0],
                "fingerprints": fingerprints(llm.model),
            },
            "files": _save(folder, own, llm, settings),
            **{k: v for k, v in identity.items() if k != "base"},
            "losses": {
                "first": steps[0]["loss"],
                "last": steps[-1]["loss"],
                "validation": losses["validation"],
            },
            **counts,
            "versions": {name: version(name) for name in _VERSIONED},
        }
        _write(folder, MANIFEST, manifest)
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
    read_adapter(folder)
    remedy = "The weights are fine; to train again, name another folder."
    with reading(f"{folder / _HISTORY} cannot be read", remedy):
        history = json.loads((folder / _HISTORY).read_bytes())
        return FinetuneResult(
            folder,
            tuple(FinetuneStep(**step) for step in history["steps"]),
            tuple((step, loss) for step, loss in history["validation"]),
            history["examples"],
            history["held_out"],
            tuple(TooLong(**one) for one in history["dropped"]),
        )


def _begin(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Make the folder this run's, if it is empty or this run's already."""
    with writing(folder):
        there = {entry.name for entry in folder.iterdir()} - {f"{_RUN}.new"}
    if not there:
        _write(folder, _RUN, identity)
        return
    if _RUN not in there:
        raise InvalidInput(
            f"{folder} holds other files ({', '.join(sorted(there)[:3])}); name a new or empty "
            "folder."
        )
    if not resume:
        raise ArtifactMismatch(f"{folder} holds a run already; name another folder, or resume it.")
    with reading(f"{folder / _RUN} cannot be read", "Name another folder."):
        before = dict(json.loads((folder / _RUN).read_bytes()))
    remedy = "Name another folder, or go on with the same arguments."
    check_same(f"{folder} holds another run", before, identity, remedy)


def _write(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    with writing(folder):
        replace_file(folder / name, json.dumps(content, indent=1, allow_nan=False).encode())


def _save(
    folder: Path, model: Any, llm: TransformersLLM, settings: FinetuneSettings
) -> dict[str, str]:
    """Write the adapter, and give its files' hashes; a whole model goes as its libraries do it."""
    if settings.method == "full":
        with quiet():
            model.save_pretrained(folder)
            llm.tokenizer.save_pretrained(folder)
        return {}
    state = get_peft_model_state_dict(model).items()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state}
    config = model.peft_config["default"].to_dict() | {"inference_mode": True}
    config["base_model_name_or_path"] = None  # a path of the machine it was trained on
    text = json.dumps(config, indent=1, sort_keys=True, default=lambda value: sorted(value))
    files = {WEIGHTS: save_tensors(tensors, metadata={"format": "pt"}), CONFIG: text.encode()}
    with writing(folder):
        for name, content in files.items():
            replace_file(folder / name, content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
