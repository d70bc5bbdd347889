"""Fine-tune a model on calibrated examples, with TRL and PEFT.

The prompt is rendered as at inference; the loss is over the answer and the token that ends it:

.. math:: L = - \\frac{1}{\\sum_i T_i} \\sum_i \\sum_{t=1}^{T_i} \\log p(y_{i,t} | x_i, y_{i,<t})

References:
    Chen et al. (SGIC), section 3.3 and appendix A.1.
"""

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.adapters import MANIFEST
from ltrag_plugins.llm.local.loading import fingerprint, quiet
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic.dataset.corpus import Dataset
from ltrag_plugins.sgic.finetune.result import FinetuneResult, finish, read_result, told
from ltrag_plugins.sgic.finetune.run import RunFolder
from ltrag_plugins.sgic.finetune.settings import FinetuneSettings
from ltrag_plugins.sgic.finetune.tokens import (
    Row,
    TooLong,
    dataset_hash,
    end_token,
    rows_of,
    split,
)
from ltrag_plugins.sgic.finetune.trainer import AnswerTrainer, FinetuneStep, trainer_for

try:
    import torch
    from torch import nn
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("torch", "train") from error

__all__ = ["FinetuneResult", "FinetuneSettings", "FinetuneStep", "TooLong", "finetune"]
NOT_THE_NUMBERS = ("save_every",)
"""Settings that change no number of the result."""


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
        dataset: what to learn; see `ltrag_plugins.sgic.dataset.corpus`.
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
        history = told(trainer, len(learned), len(held_out), dropped)
        finish(trainer, folder, identity, history, llm, settings)
    return read_result(folder)


def _trained(
    llm: TransformersLLM,
    rows: list[Row],
    held_out: list[Row],
    settings: FinetuneSettings,
    folder: RunFolder,
    on_step: Callable[[FinetuneStep], None] | None,
) -> AnswerTrainer:
    with _own_randomness(settings.seed), quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the libraries', about one another
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


def _identity(dataset: Dataset, llm: TransformersLLM, settings: FinetuneSettings) -> dict[str, Any]:
    told = {k: v for k, v in asdict(settings).items() if k not in NOT_THE_NUMBERS}
    return {
        "dataset": dataset_hash(dataset),
        "base": fingerprint(llm.model),
        "prompting": llm.prompting.name,
        "settings": told,
    }
