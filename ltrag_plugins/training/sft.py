"""TRL's `SFTTrainer` with our loss, its checkpoints whole or not there, and no reports home.

Examples as tokens: the prompt as at inference, then the answer and the token that ends it.

Our settings in the words of TRL and PEFT.

The loss over answers: logits where an answer stands, and nowhere else.

Of a prompt of 700 tokens and an answer of five, projecting every position onto a vocabulary of
49,152 is a quarter of a small model's arithmetic, for nothing.
"""

import hashlib
import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import InvalidInput, ModelError, UnwritableArtifact, missing_extra
from ltrag_plugins.llm.prompting import Prompting, pieces_of
from ltrag_plugins.llm.transformers import end_tokens
from ltrag_plugins.training.examples import Dataset, Example
from ltrag_plugins.training.settings import FinetuneSettings

try:
    import torch
    from datasets import Dataset as Rows
    from peft import LoraConfig
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
    from transformers.pytorch_utils import Conv1D
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer
except ImportError as error:
    raise missing_extra("trl and peft", "train") from error

_CONTENT = "Paris"
"""An answer whose place in the chat template shows what ends a turn."""


@dataclass(frozen=True, slots=True)
class Row:
    """One example as tokens."""

    id: str
    """Its question's, or where it has none its place in the data."""
    prompt: list[int]
    answer: list[int]
    """The target and the token that ends the turn: what the loss is over."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class TooLong:
    """An example that was left out."""

    id: str
    tokens: int


def dataset_hash(dataset: Dataset) -> str:
    """SHA-256 of the ids, prompts and targets, in order."""
    digest = hashlib.sha256()
    for one in dataset.examples:
        digest.update(json.dumps([one.id, one.prompt, one.target]).encode() + b"\n")
    return digest.hexdigest()


def rows_of(
    dataset: Dataset, prompting: Prompting, end: int, *, max_tokens: int | None
) -> tuple[list[Row], list[TooLong]]:
    """The examples that fit, and those that do not.

    Args:
        max_tokens: longest row; None: what the model reads.

    Raises:
        InvalidInput: there is no example, one has no target, or none fits.
    """
    if not dataset.examples:
        raise InvalidInput("there are no examples to learn from; build a data set first.")
    limit = min((n for n in (max_tokens, prompting.limit) if n is not None), default=None)
    rows, long = [], []
    for number, one in enumerate(dataset.examples, start=1):
        row = _row(one, one.id or f"example {number}", prompting, end)
        if limit is not None and len(row) > limit:
            long.append(TooLong(row.id, len(row)))
        else:
            rows.append(row)
    if not rows:
        raise InvalidInput(
            f"all {len(long)} examples are longer than {limit:,} tokens (the shortest has "
            f"{min(one.tokens for one in long):,}); show fewer or shorter documents, or raise "
            "max_tokens as far as the model reads."
        )
    return rows, long


def split(rows: Sequence[Row], held_out: float, seed: int) -> tuple[list[Row], list[Row]]:
    """To learn from, and held out; a question is wholly on one side, and one is left to learn."""
    ids = sorted({row.id for row in rows})
    order = np.random.default_rng([seed, 7]).permutation(len(ids))
    kept = {ids[i] for i in order[: min(round(len(ids) * held_out), len(ids) - 1)]}
    return [r for r in rows if r.id not in kept], [r for r in rows if r.id in kept]


def end_token(model: PreTrainedModel, prompting: Prompting) -> int:
    """What the model has to write after an answer for generation to stop.

    Raises:
        InvalidInput: neither the tokenizer nor the model names one.
    """
    tokenizer, ends = prompting.tokenizer, end_tokens(model, prompting.tokenizer)
    if prompting.chat:
        turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _CONTENT}]
        after = str(tokenizer.apply_chat_template(turn, tokenize=False)).rpartition(_CONTENT)[2]
        for token in tokenizer.encode(after, add_special_tokens=False):
            if token in ends:
                return token
    if isinstance(tokenizer.eos_token_id, int):
        return tokenizer.eos_token_id
    if ends:
        return min(ends)
    raise InvalidInput(
        "neither tokenizer nor model names a token that ends a text, so the model cannot learn "
        "to stop; set tokenizer.eos_token."
    )


def _row(example: Example, name: str, prompting: Prompting, end: int) -> Row:
    if not example.target.strip():
        raise InvalidInput(f"the target of {name!r} is empty; leave the example out.")
    target = example.target
    # without a template the answer goes on in the prompt's own line, as a word of its own
    if not prompting.chat and not (example.prompt[-1:].isspace() or target[:1].isspace()):
        target = f" {target}"
    answer, _ = pieces_of(prompting.tokenizer, target)
    return Row(name, prompting.ids(example.prompt), [*answer, end])


MICRO_TOKENS = 16_384
"""Most tokens of a micro-batch that is chosen here, on a GPU."""


def micro_batch(rows: Sequence[Row], batch: int, device: torch.device) -> int:
    """The largest divisor of `batch` whose rows fit; 1 on the CPU."""
    fits = 1 if device.type == "cpu" else max(1, MICRO_TOKENS // max(map(len, rows)))
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= fits)


def lora(settings: FinetuneSettings, model: PreTrainedModel) -> LoraConfig:
    """An adapter beside all linear parts of the layers that are trained; not the output's."""
    count = int(model.config.get_text_config().num_hidden_layers)
    first = count - min(settings.layers or count, count)
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=2 * settings.rank if settings.alpha is None else settings.alpha,  # type: ignore
        lora_dropout=settings.dropout,
        target_modules=_linear(model) if first else "all-linear",
        layers_to_transform=list(range(first, count)) if first else None,
    )


def _linear(model: PreTrainedModel) -> list[str]:
    """The names of the layers' linear parts, as "all-linear" would find them."""
    head = model.get_output_embeddings()
    found = (n for n, part in model.named_modules() if _is_linear(part) and part is not head)
    return sorted({name.rpartition(".")[2] for name in found})


def _is_linear(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear | Conv1D)


def arguments(
    settings: FinetuneSettings, folder: Path, *, rows: int, micro: int, device: torch.device
) -> SFTConfig:
    """The trainer's settings; what is not named here has the trainer's default."""
    on_cpu = device.type == "cpu"
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    steps = settings.epochs * -(-rows // settings.batch)
    steps = min(steps, settings.steps or steps)
    told = SFTConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.batch // micro,
        train_sampling_strategy="random" if micro == 1 else "group_by_length",
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule
        if settings.schedule != "constant"
        else "constant_with_warmup",
        warmup_steps=int(settings.warmup * steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        optim="adamw_torch",
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=half and settings.dtype != "float32",
        use_cpu=on_cpu,
        seed=settings.seed,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        remove_unused_columns=False,
        dataloader_pin_memory=not on_cpu,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=settings.save_every,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        trust_remote_code=False,
        push_to_hub=False,
    )
    if told.device.type == "cuda":
        told._n_gpu = 1  # one model on one device; several would be wrapped together
    return told


IGNORED = -100
"""The label of a position without a loss."""


def answer_loss(model: nn.Module, batch: dict[str, Tensor], *, keeps: bool) -> Tensor:
    """The summed negative log-likelihood of a batch's answer tokens, in nats.

    Args:
        batch: from `collate`.
        keeps: whether the model can leave out the logits of early positions.
    """
    labels = batch["labels"]
    # padded on the left, so that all answers stand at the end
    last = int((labels != IGNORED).sum(1).max()) + 1
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    more = {"logits_to_keep": last} if keeps else {}
    logits = model(**inputs, use_cache=False, **more).logits[:, -last:-1]
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(),
        labels[:, 1 - last :].flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def collate(rows: Sequence[dict[str, list[int]]], *, pad: int) -> dict[str, Tensor]:
    """Rows of one length as they are; of several, padded on the left."""
    width = max(len(row["input_ids"]) for row in rows)
    gaps = [width - len(row["input_ids"]) for row in rows]

    def filled(name: str, value: int) -> Tensor:
        padded = [[value] * gap + row[name] for gap, row in zip(gaps, rows, strict=True)]
        return torch.tensor(padded)

    batch = {"input_ids": filled("input_ids", pad), "labels": filled("labels", IGNORED)}
    if any(gaps):
        seen = torch.arange(width)[None] >= torch.tensor(gaps)[:, None]
        batch["attention_mask"] = seen.long()
        batch["position_ids"] = (seen.cumsum(1) - 1).clamp(min=0)
    return batch


def labelled(row: Row) -> dict[str, list[int]]:
    """A row as the trainer takes it: the prompt has no loss."""
    return {
        "input_ids": row.prompt + row.answer,
        "labels": [IGNORED] * len(row.prompt) + row.answer,
    }


@dataclass(frozen=True, slots=True)
class FinetuneStep:
    """One step of the training, as it was taken."""

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
    """Read in this step, prompts included."""
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """How fast it went."""
        return self.tokens / self.seconds if self.seconds else math.inf


class AnswerTrainer(SFTTrainer):
    """The trainer; it sends nothing to anyone, and stops at the first loss that is no number."""

    def __init__(self, *args: Any, on_step: Callable[[FinetuneStep], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wrapped: Any = self.model
        base = wrapped.get_base_model() if hasattr(wrapped, "peft_config") else wrapped
        self.keeps = "logits_to_keep" in inspect.signature(type(base).forward).parameters
        self._told = on_step
        self._loss, self._tokens, self._since = 0.0, 0, time.perf_counter()
        self.rate = 0.0

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The micro-batch's share of the step's mean over answer tokens."""
        total = answer_loss(model, inputs, keeps=self.keeps)
        loss = total / num_items_in_batch
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ModelError(
                f"the loss of step {self.state.global_step + 1} is {value}. The weights before it "
                "are as they were saved; lower the learning rate, or compute in float32."
            )
        self._loss += value
        self._tokens += inputs["input_ids"].numel()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep what a step was; the trainer's own figures are rounded."""
        if "loss" in logs:
            now = time.perf_counter()
            step = FinetuneStep(
                self.state.global_step,
                self.state.max_steps,
                round(self.state.epoch or 0.0, 4),
                self._loss,
                self.rate,
                self._tokens,
                round(now - self._since, 3),
            )
            self._loss, self._tokens, self._since = 0.0, 0, now
            logs = {name: getattr(step, name) for name in LOGGED}
            self._told(step)
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        try:
            with writing(folder):
                super()._save_checkpoint(model, trial)
                mark_whole(folder / f"checkpoint-{self.state.global_step}")
        except (RuntimeError, SafetensorError) as error:  # what torch raises on a full disk
            raise UnwritableArtifact(f"cannot write a checkpoint to {folder}: {error}") from error

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None: what a run was is in its manifest."""

    def _send_telemetry(self) -> None:
        # the trainer's base class reports each construction to its makers' server
        pass


LOGGED = ("steps", "loss", "learning_rate", "tokens", "seconds")


class Watch(TrainerCallback):
    """Validation at the start and after each epoch; no step on gradients that are no numbers."""

    def __init__(self, held_out: Sequence[dict[str, Tensor]], steps_per_epoch: int) -> None:
        self.held_out, self.steps_per_epoch = held_out, steps_per_epoch
        self.trainer: AnswerTrainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure what there is to improve."""
        if state.global_step == 0:
            self._validate(state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Refuse a gradient that would spoil the weights."""
        self.trainer.rate = found["optimizer"].param_groups[0]["lr"]
        for weight in found["model"].parameters():
            if weight.grad is not None and not torch.isfinite(weight.grad).all():
                raise ModelError(
                    f"a gradient of step {state.global_step + 1} is not finite. The weights "
                    "before it are as they were saved; lower the learning rate, or compute in "
                    "float32."
                )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure; before the checkpoint is written, so that it holds the figure."""
        if state.global_step % self.steps_per_epoch == 0 or state.global_step == state.max_steps:
            self._validate(state)

    def _validate(self, state: Any) -> None:
        if self.held_out:
            loss = validation_loss(self.trainer, self.held_out)
            # not by trainer.log, which would take the step's own entry for written
            state.log_history.append({"step": state.global_step, "validation_loss": loss})


def validation_loss(trainer: AnswerTrainer, batches: Sequence[dict[str, Tensor]]) -> float:
    """Mean negative log-likelihood of the held-out answers' tokens, in nats."""
    model: Any = trainer.model
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        for batch in batches:
            moved = {name: value.to(trainer.args.device) for name, value in batch.items()}
            total += float(answer_loss(model, moved, keeps=trainer.keeps))
            count += int((batch["labels"] != IGNORED).sum())
    model.train()
    return total / count


def trainer_for(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    held_out: Sequence[Row],
    settings: FinetuneSettings,
    folder: Path,
    on_step: Callable[[FinetuneStep], None],
) -> AnswerTrainer:
    """A trainer whose checkpoints go to `folder`."""
    micro = settings.micro_batch or micro_batch(rows, settings.batch, model.device)
    pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    held = [collate([labelled(row)], pad=pad) for row in held_out]
    watch = Watch(held, steps_per_epoch=-(-len(rows) // settings.batch))
    trainer = AnswerTrainer(
        model,
        args=arguments(settings, folder, rows=len(rows), micro=micro, device=model.device),
        train_dataset=Rows.from_list([labelled(row) for row in rows]),
        processing_class=tokenizer,
        data_collator=lambda batch: collate(batch, pad=pad),
        peft_config=lora(settings, model) if settings.method == "lora" else None,
        callbacks=[watch],
        on_step=on_step,
    )
    watch.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    return trainer


_COMPLETE = "complete.json"
"""Written last into a checkpoint, with the hashes of its files."""


def mark_whole(checkpoint: Path) -> None:
    """Say that all files of a checkpoint are written."""
    new = checkpoint / f"{_COMPLETE}.new"
    new.write_text(json.dumps(_hashes(checkpoint), indent=1))
    new.replace(checkpoint / _COMPLETE)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint's files are all there, as they were written."""
    try:
        return json.loads((checkpoint / _COMPLETE).read_bytes()) == _hashes(checkpoint)
    except (OSError, ValueError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.iterdir() if not path.name.startswith(_COMPLETE))
    return {path.name: _sha256(path) for path in sorted(files)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
