r"""Fine-tune a model on calibrated examples, with TRL and PEFT.

The prompt is rendered as at inference; the loss is TRL's own, over the answer and the token that
ends it, and logits are computed only there:

.. math:: L = - \frac{1}{\sum_i T_i} \sum_i \sum_{t=1}^{T_i} \log p(y_{i,t} | x_i, y_{i,<t})

References:
    Chen et al. (SGIC), section 3.3 and appendix A.1.

`run.json` names a run from its first moment; `finetune.json` is written last. A checkpoint counts
once `complete.json` in it has the hashes of its files. What torch saved in it is read back with
``weights_only=True``, which builds numbers and nothing else.
"""

import copy
import hashlib
import json
import math
import random
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from ltrag_plugins.artifacts import check_same, reading, replace_file, write_json, writing
from ltrag_plugins.errors import (
    InvalidInput,
    ModelError,
    UnwritableArtifact,
    missing_extra,
    path_of,
)
from ltrag_plugins.llm import loading
from ltrag_plugins.llm.loading import quiet
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training.dataset import Dataset
from ltrag_plugins.training.settings import FinetuneSettings

try:
    import torch
    from datasets import Dataset as Rows
    from peft import LoraConfig, get_peft_model_state_dict
    from safetensors.torch import save as save_tensors
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer
except ImportError as error:
    raise missing_extra("trl and peft", "train") from error

_RUN, _CHECKPOINTS, _HISTORY = "run.json", "checkpoints", "history.json"
_VERSIONED = ("torch", "transformers", "trl", "peft", "ltrag-plugins")
_IGNORED = -100  # the label of a position without a loss
_MICRO_TOKENS = 16_384  # most of a micro-batch that is chosen here, on a GPU
_COMPLETE = "complete.json"  # written last into a checkpoint, with the hashes of its files
_FIXED: dict[str, Any] = {"optim": "adamw_torch", "max_length": None, "save_total_limit": 2}
_FIXED |= {"dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False}
_FIXED |= {"logging_steps": 1, "logging_nan_inf_filter": False, "report_to": "none"}
_FIXED |= {"disable_tqdm": True}
_Row = dict[str, Any]  # `input_ids` and `labels`, and the `id` of the question or the row's place


@dataclass(frozen=True, slots=True)
class FinetuneStep:
    """One step of the training."""

    step: int
    """From 1."""
    steps: int
    """In all."""
    epoch: float
    """Passes over the examples so far."""
    loss: float
    """Mean negative log-likelihood of the step's answer tokens, before the step; nats."""
    learning_rate: float
    tokens: int
    """Read in this step, prompts and padding included."""
    seconds: float


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
    dropped: tuple[tuple[str, int], ...]
    """(id, tokens) of those left out, being longer than the model reads or `max_tokens`."""


def finetune(
    dataset: Dataset,
    model: TransformersLLM | str | Path,
    *,
    out: str | Path,
    settings: FinetuneSettings | None = None,
    on_step: Callable[[FinetuneStep], None] | None = None,
) -> FinetuneResult:
    """Train an adapter for `model`, or a copy of it.

    Equal arguments give equal weights on the CPU, to the last bit, whether or not the run was
    killed in between. Memory, beside the model: with "lora" the activations of one micro-batch and
    the adapter, its gradient and two moments; with "full" four times the float32 weights.

    Args:
        model: is not changed; or what `TransformersLLM.load` takes.
        out: a new or empty folder, or that of the same run, which goes on; if it is finished, its
            result is handed back.

    Raises:
        InvalidInput: nothing to learn from, or `out` holds other files.
        ArtifactMismatch: `out` holds a run with other arguments.
        UnreadableArtifact, UnwritableArtifact: `out` is damaged, or cannot be written to.
        ModelError: a loss or gradient is no number; what was saved before is kept.
    """
    settings = settings or FinetuneSettings()
    llm = model if isinstance(model, TransformersLLM) else TransformersLLM.load(model)
    rows, held_out, dropped = _rows_of(dataset, llm, settings)
    said = [json.dumps([one.id, one.prompt, one.target]) + "\n" for one in dataset.examples]
    data = {"dataset": hashlib.sha256("".join(said).encode()).hexdigest()}
    how: dict[str, Any] = {"prompting": llm.prompting.name, "settings": asdict(settings)}
    del how["settings"]["save_every"]  # changes no number of the result
    folder, base = path_of(out), loading.fingerprints(llm.model)
    _begin(folder, {"format": loading.FORMAT, **data, "base": base["float32"], **how})
    if not (folder / loading.MANIFEST).exists():
        own, losses = _trained(llm, rows, held_out, settings, folder / _CHECKPOINTS, on_step)
        steps, left_out = losses["steps"], [{"id": name, "tokens": size} for name, size in dropped]
        counts = {"examples": len(rows), "held_out": len(held_out), "dropped": left_out}
        write_json(folder / _HISTORY, losses | counts)
        summary = {"first": steps[0]["loss"], "last": steps[-1]["loss"]}
        of = {"label": llm.name.partition("@")[0], "fingerprints": base}
        files = _save(folder, own, llm, settings.method)
        manifest: Any = {"format": loading.FORMAT, "method": settings.method, "base": of}
        manifest |= {"files": files, **data, **how}
        manifest |= {"losses": summary | {"validation": losses["validation"]}, **counts}
        manifest |= {"versions": {name: version(name) for name in _VERSIONED}}
        write_json(folder / loading.MANIFEST, manifest)
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
    loading.read_adapter(folder)
    remedy = "The weights are fine; to train again, name another folder."
    with reading(f"{folder / _HISTORY} cannot be read", remedy):
        history = json.loads((folder / _HISTORY).read_bytes())
        steps = tuple(FinetuneStep(**step) for step in history["steps"])
        losses = tuple((step, loss) for step, loss in history["validation"])
        left_out = tuple((one["id"], one["tokens"]) for one in history["dropped"])
        counts = history["examples"], history["held_out"]
        return FinetuneResult(folder, steps, losses, *counts, left_out)


def _begin(folder: Path, identity: Mapping[str, Any]) -> None:
    """Make the folder this run's, if it is empty or this run's already."""
    with writing(folder):
        there = {entry.name for entry in folder.iterdir() if entry.suffix != ".new"}
    if not there:
        write_json(folder / _RUN, identity)
        return
    if _RUN not in there:
        some = ", ".join(sorted(there)[:3])
        raise InvalidInput(f"{folder} holds other files ({some}); name a new or empty folder.")
    with reading(f"{folder / _RUN} cannot be read", "Name another folder."):
        before = dict(json.loads((folder / _RUN).read_bytes()))
    check_same(f"{folder} holds another run", before, identity, "Name another folder.")


def _save(folder: Path, model: Any, llm: TransformersLLM, method: str) -> dict[str, str]:
    """Write the adapter, and give its files' hashes; a whole model goes as its libraries do it."""
    if method == "full":
        with quiet():
            model.save_pretrained(folder)
            llm.tokenizer.save_pretrained(folder)
        return {}
    state = get_peft_model_state_dict(model).items()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state}
    config = model.peft_config["default"].to_dict() | {"inference_mode": True}
    config["base_model_name_or_path"] = None  # a path of the machine it was trained on
    text = json.dumps(config, indent=1, sort_keys=True, default=sorted)
    weights = save_tensors(tensors, metadata={"format": "pt"})
    files = {loading.WEIGHTS: weights, loading.CONFIG: text.encode()}
    with writing(folder):
        for name, content in files.items():
            replace_file(folder / name, content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _rows_of(
    dataset: Dataset, llm: TransformersLLM, settings: FinetuneSettings
) -> tuple[list[_Row], list[_Row], list[tuple[str, int]]]:
    """Rows to learn from, rows held out (each question wholly on one side), what is too long."""
    if not dataset.examples:
        raise InvalidInput("there are no examples to learn from; build a data set first.")
    prompting, end, found = llm.prompting, _end_token(llm), list[_Row]()
    for place, one in enumerate(dataset.examples, start=1):
        name, target = one.id or f"example {place}", one.target
        if not target.strip():
            raise InvalidInput(f"the target of {name!r} is empty; leave the example out.")
        # without a template the answer goes on in the prompt's own line, as a word of its own
        if not prompting.chat and not (one.prompt[-1:].isspace() or target[:1].isspace()):
            target = f" {target}"
        prompt, answer = prompting.ids(one.prompt), [*prompting.pieces(target)[0], end]
        labels = [_IGNORED] * len(prompt) + answer
        found.append({"id": name, "input_ids": prompt + answer, "labels": labels})
    limit = min(settings.max_tokens or math.inf, prompting.limit or math.inf)
    rows = [row for row in found if len(row["labels"]) <= limit]
    dropped = [(row["id"], len(row["labels"])) for row in found if len(row["labels"]) > limit]
    if not rows:
        shortest = min(tokens for _, tokens in dropped)
        raise InvalidInput(
            f"all {len(found)} examples are longer than {limit:,} tokens (the shortest has "
            f"{shortest:,}); show fewer or shorter documents, or raise max_tokens."
        )
    ids = sorted({row["id"] for row in rows})
    order = np.random.default_rng([settings.seed, 7]).permutation(len(ids))
    kept = {ids[i] for i in order[: min(round(len(ids) * settings.held_out), len(ids) - 1)]}
    learned = [row for row in rows if row["id"] not in kept]
    return learned, [row for row in rows if row["id"] in kept], dropped


def _end_token(llm: TransformersLLM) -> int:
    """What the model has to write after an answer for generation to stop."""
    tokenizer, ends = llm.tokenizer, llm.prompting.ends
    found: list[Any] = [tokenizer.eos_token_id, *sorted(ends)]
    if llm.prompting.chat:
        # what the template puts behind an answer
        turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Paris"}]
        after = str(tokenizer.apply_chat_template(turn, tokenize=False)).rpartition("Paris")[2]
        found[:0] = [i for i in tokenizer.encode(after, add_special_tokens=False) if i in ends]
    for token in found:
        if isinstance(token, int):
            return token
    raise InvalidInput("the tokenizer and the model name no end of a text; set eos_token.")


def _trained(
    llm: TransformersLLM,
    rows: Sequence[_Row],
    held_out: Sequence[_Row],
    settings: FinetuneSettings,
    folder: Path,
    on_step: Callable[[FinetuneStep], None] | None,
) -> tuple[Any, dict[str, Any]]:
    """The trained model, its steps and validation losses, from the last whole checkpoint on."""
    pad = llm.tokenizer.pad_token_id
    # the trainer seeds all generators of the process
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(), quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the libraries', about one another
        try:
            model = _copied(llm.model, settings)
            trainer = _AnswerTrainer(
                model,
                args=_arguments(settings, folder, rows, model.device),
                train_dataset=Rows.from_list(list(rows)),
                processing_class=llm.tokenizer,
                data_collator=DataCollatorForLanguageModeling(pad if isinstance(pad, int) else 0),
                peft_config=_lora(settings, model) if settings.method == "lora" else None,
            )
            trainer.held_out, trainer.on_step = held_out, on_step
            trainer.steps_per_epoch = -(-len(rows) // settings.batch)
            trainer.remove_callback(PrinterCallback)
            trainer.train(resume_from_checkpoint=_last_whole(folder))
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
    log, names = trainer.state.log_history, [field.name for field in fields(FinetuneStep)]
    steps = [{name: one[name] for name in names} for one in log if "loss" in one]
    losses = [[x["step"], x["validation_loss"]] for x in log if "validation_loss" in x]
    return trainer.model, {"steps": steps, "validation": losses}


def _copied(model: PreTrainedModel, settings: FinetuneSettings) -> PreTrainedModel:
    """A model of its own; what stays frozen shares its numbers with the one handed in."""
    lora, kind = settings.method == "lora", settings.dtype
    own: Any = loading.twin(model) if lora else copy.deepcopy(model)
    # PEFT would ask the hub about a base model with a name, at every checkpoint
    own.name_or_path = own.config._name_or_path = ""
    half = lora and _has_bfloat16(model.device) if kind == "auto" else kind == "bfloat16"
    return own.requires_grad_(not lora).to(torch.bfloat16 if half else torch.float32)


def _has_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


class _AnswerTrainer(SFTTrainer):
    """Validates before the first step and after each epoch; sends nothing to anyone."""

    held_out: Sequence[_Row]
    on_step: Callable[[FinetuneStep], None] | None
    steps_per_epoch: int
    _loss, _tokens, _since = 0.0, 0, 0.0

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self._since:  # the first one of this process
            if not self.state.log_history:
                self._validate()
            self._since = time.perf_counter()
        return super().training_step(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, *_: Any, num_items_in_batch: Any = None, **__: Any
    ) -> Any:
        # the micro-batch's share of the step's mean over answer tokens
        self._tokens += inputs["input_ids"].numel()
        loss = _answer_loss(model, inputs) / num_items_in_batch
        _check_finite(f"the loss of step {self.state.global_step + 1}", loss.item())
        self._loss += loss.item()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep what a step was, before its checkpoint; the trainer's own loss is rounded."""
        if "loss" not in logs:
            super().log(logs, start_time)
            return
        now, done = time.perf_counter(), self.state.global_step
        _check_finite(f"the gradient of step {done}", logs["grad_norm"])
        epoch, seconds = round(self.state.epoch or 0.0, 4), round(now - self._since, 3)
        figures = self._loss, logs["learning_rate"], self._tokens
        step = FinetuneStep(done, self.state.max_steps, epoch, *figures, seconds)
        self._loss, self._tokens, self._since = 0.0, 0, now
        if self.on_step is not None:
            self.on_step(step)
        super().log(asdict(step), start_time)
        self.state.log_history[-1]["epoch"] = epoch  # the trainer's is not rounded
        if done % self.steps_per_epoch == 0 or done == step.steps:
            self._validate()

    def _validate(self) -> None:
        """Log the mean negative log-likelihood of the held-out answers' tokens, in nats."""
        if not self.held_out:
            return
        model: Any = self.model
        sizes = [sum(label != _IGNORED for label in row["labels"]) for row in self.held_out]
        model.eval()
        with torch.no_grad(), self.compute_loss_context_manager():
            each = (self._prepare_inputs(self.data_collator([row])) for row in self.held_out)
            total = sum(float(_answer_loss(model, inputs)) for inputs in each)
        model.train()
        done, loss = self.state.global_step, total / sum(sizes)
        _check_finite(f"the validation loss after step {done}", loss)
        self.state.log_history.append({"step": done, "validation_loss": loss})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        try:
            with writing(folder):
                # past SFTTrainer's own, which adds a model card
                super(SFTTrainer, self)._save_checkpoint(model, trial)
                write_json(checkpoint / _COMPLETE, _hashes(checkpoint))
        except (RuntimeError, SafetensorError) as error:  # what torch raises on a full disk
            raise UnwritableArtifact(f"cannot write a checkpoint to {folder}: {error}") from error

    def _send_telemetry(self) -> None:
        """Nothing: the trainer's base class reports each construction to its makers' server."""


def _answer_loss(model: Any, inputs: Any) -> torch.Tensor:
    """The negative log-likelihood of the answers' tokens, in nats, summed; TRL's own loss computes
    the logits of the prompts too where there is no Triton."""
    after = inputs["labels"][:, 1:]
    places = (after != _IGNORED).any(0).nonzero().flatten()
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    logits = model(**given, use_cache=False, logits_to_keep=places).logits
    wanted = after[:, places].flatten()
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), wanted, ignore_index=_IGNORED, reduction="sum"
    )


def _check_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise ModelError(f"{what} is {value}; lower the learning rate, or compute in float32.")


def _last_whole(folder: Path) -> str | None:
    """The last checkpoint whose files are all there, as they were written."""
    found = folder.glob("checkpoint-*")
    for path in sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        with suppress(OSError, ValueError):
            if json.loads((path / _COMPLETE).read_bytes()) == _hashes(path):
                return str(path)
    return None


def _hashes(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(_COMPLETE):
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _lora(settings: FinetuneSettings, model: PreTrainedModel) -> LoraConfig:
    """An adapter beside all linear parts of the layers that are trained; not the output's."""
    count = int(model.config.get_text_config().num_hidden_layers)
    first = max(0, count - (settings.layers or count))
    # PEFT takes "all-linear" for all layers alone; these are the names that it would find
    head, parts = model.get_output_embeddings(), model.named_modules()
    found = {n for n, part in parts if isinstance(part, nn.Linear | Conv1D) and part is not head}
    linear = {name.rpartition(".")[2] for name in found}
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=2 * settings.rank if settings.alpha is None else settings.alpha,  # type: ignore
        lora_dropout=settings.dropout,
        target_modules=sorted(linear) if first else "all-linear",
        layers_to_transform=list(range(first, count)) if first else None,
    )


def _arguments(
    settings: FinetuneSettings, folder: Path, rows: Sequence[_Row], device: torch.device
) -> SFTConfig:
    """The trainer's settings; what is not named here has the trainer's default."""
    on_cpu, half = device.type == "cpu", _has_bfloat16(device)
    steps = settings.epochs * -(-len(rows) // settings.batch)
    steps = min(steps, settings.steps or steps)
    # without a size given, the largest divisor of the batch whose rows fit
    fits = 1 if on_cpu else max(1, _MICRO_TOKENS // max(len(row["labels"]) for row in rows))
    micro = settings.micro_batch or max(
        n for n in range(1, settings.batch + 1) if settings.batch % n == 0 and n <= fits
    )
    constant = settings.schedule == "constant"
    config = SFTConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.batch // micro,
        train_sampling_strategy="random" if micro == 1 else "group_by_length",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if constant else settings.schedule,
        warmup_steps=int(settings.warmup * steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=half and settings.dtype != "float32",
        use_cpu=on_cpu,
        seed=settings.seed,
        dataloader_pin_memory=not on_cpu,
        save_steps=settings.save_every,
        **_FIXED,
    )
    if config.device.type == "cuda":
        config._n_gpu = 1  # one model on one device; several would be wrapped together
    return config
