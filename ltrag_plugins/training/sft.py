"""TRL's `SFTTrainer` on our examples: prompts as at inference, checkpoints whole or not there.

The loss is TRL's own, over the answers alone; it computes logits only where an answer stands.
"""

import hashlib
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
from ltrag_plugins.llm.prompting import Prompting, end_tokens, pieces_of
from ltrag_plugins.training.examples import Dataset, Example
from ltrag_plugins.training.settings import FinetuneSettings

try:
    import torch
    from datasets import Dataset as Rows
    from peft import LoraConfig
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
    from transformers.pytorch_utils import Conv1D
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer
except ImportError as error:
    raise missing_extra("trl and peft", "train") from error

_CONTENT = "Paris"
"""An answer whose place in the chat template shows what ends a turn."""
_IGNORED = -100
"""The label of a position without a loss."""
_MICRO_TOKENS = 16_384
"""Most tokens of a micro-batch that is chosen here, on a GPU."""
_COMPLETE = "complete.json"
"""Written last into a checkpoint, with the hashes of its files."""


@dataclass(frozen=True, slots=True)
class TokenizedExample:
    """One example as tokens."""

    id: str
    """Its question's, or where it has none its place in the data."""
    prompt: list[int]
    answer: list[int]
    """The target and the token that ends the turn: what the loss is over."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)

    @property
    def labelled(self) -> dict[str, list[int]]:
        """As the trainer takes it; the prompt has no loss."""
        labels = [_IGNORED] * len(self.prompt) + self.answer
        return {"input_ids": self.prompt + self.answer, "labels": labels}


@dataclass(frozen=True, slots=True)
class TooLong:
    """An example that was left out."""

    id: str
    tokens: int


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

    @property
    def tokens_per_second(self) -> float:
        """How fast it went."""
        return self.tokens / self.seconds if self.seconds else math.inf


def rows_of(
    dataset: Dataset, prompting: Prompting, end: int, *, max_tokens: int | None
) -> tuple[list[TokenizedExample], list[TooLong]]:
    """The examples that fit, and those that do not.

    Args:
        max_tokens: longest row; None: what the model reads.
    """
    if not dataset.examples:
        raise InvalidInput("there are no examples to learn from; build a data set first.")
    limit = min((n for n in (max_tokens, prompting.limit) if n is not None), default=math.inf)
    found = [
        _row(one, one.id or f"example {number}", prompting, end)
        for number, one in enumerate(dataset.examples, start=1)
    ]
    rows = [row for row in found if len(row) <= limit]
    long = [TooLong(row.id, len(row)) for row in found if len(row) > limit]
    if not rows:
        raise InvalidInput(
            f"all {len(long)} examples are longer than {limit:,} tokens (the shortest has "
            f"{min(one.tokens for one in long):,}); show fewer or shorter documents, or raise "
            "max_tokens as far as the model reads."
        )
    return rows, long


def _row(example: Example, name: str, prompting: Prompting, end: int) -> TokenizedExample:
    if not example.target.strip():
        raise InvalidInput(f"the target of {name!r} is empty; leave the example out.")
    target = example.target
    # without a template the answer goes on in the prompt's own line, as a word of its own
    if not prompting.chat and not (example.prompt[-1:].isspace() or target[:1].isspace()):
        target = f" {target}"
    answer, _ = pieces_of(prompting.tokenizer, target)
    return TokenizedExample(name, prompting.ids(example.prompt), [*answer, end])


def split(
    rows: Sequence[TokenizedExample], held_out: float, seed: int
) -> tuple[list[TokenizedExample], list[TokenizedExample]]:
    """To learn from, and held out; a question is wholly on one side, and one is left to learn."""
    ids = sorted({row.id for row in rows})
    order = np.random.default_rng([seed, 7]).permutation(len(ids))
    kept = {ids[i] for i in order[: min(round(len(ids) * held_out), len(ids) - 1)]}
    return [r for r in rows if r.id not in kept], [r for r in rows if r.id in kept]


def end_token(model: PreTrainedModel, prompting: Prompting) -> int:
    """What the model has to write after an answer for generation to stop."""
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


class AnswerTrainer(SFTTrainer):
    """The trainer; it sends nothing to anyone, and stops at the first loss that is no number."""

    def __init__(self, *args: Any, on_step: Callable[[FinetuneStep], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_step = on_step
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
        tokens = inputs["input_ids"].numel()
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ModelError(
                f"the loss of step {self.state.global_step + 1} is {value}. The weights before it "
                "are as they were saved; lower the learning rate, or compute in float32."
            )
        self._loss += value
        self._tokens += tokens
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
            logs = {name: getattr(step, name) for name in _LOGGED}
            self._on_step(step)
        super().log(logs, start_time)

    def validation_loss(self, rows: Sequence[TokenizedExample]) -> float:
        """Mean negative log-likelihood of the held-out answers' tokens, in nats."""
        model: Any = self.model
        total = 0.0
        model.eval()
        with torch.no_grad(), self.compute_loss_context_manager():
            for row in rows:
                inputs = self._prepare_inputs(self.data_collator([row.labelled]))
                total += len(row.answer) * float(super().compute_loss(model, inputs))
        model.train()
        return total / sum(len(row.answer) for row in rows)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        try:
            with writing(folder):
                super()._save_checkpoint(model, trial)
                _mark_whole(folder / f"checkpoint-{self.state.global_step}")
        except (RuntimeError, SafetensorError) as error:  # what torch raises on a full disk
            raise UnwritableArtifact(f"cannot write a checkpoint to {folder}: {error}") from error

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None: what a run was is in its manifest."""

    def _send_telemetry(self) -> None:
        # the trainer's base class reports each construction to its makers' server
        pass


_LOGGED = ("steps", "loss", "learning_rate", "tokens", "seconds")


class _Watch(TrainerCallback):
    """Validation at the start and after each epoch; no step on gradients that are no numbers."""

    def __init__(self, held_out: Sequence[TokenizedExample], steps_per_epoch: int) -> None:
        self.held_out, self.steps_per_epoch = held_out, steps_per_epoch
        self.trainer: AnswerTrainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._validate(state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.trainer.rate = found["optimizer"].param_groups[0]["lr"]
        for weight in found["model"].parameters():
            if weight.grad is not None and not torch.isfinite(weight.grad).all():
                raise ModelError(
                    f"a gradient of step {state.global_step + 1} is not finite. The weights "
                    "before it are as they were saved; lower the learning rate, or compute in "
                    "float32."
                )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # before the checkpoint is written, so that it holds the figure
        if state.global_step % self.steps_per_epoch == 0 or state.global_step == state.max_steps:
            self._validate(state)

    def _validate(self, state: Any) -> None:
        if self.held_out:
            loss = self.trainer.validation_loss(self.held_out)
            # not by trainer.log, which would take the step's own entry for written
            state.log_history.append({"step": state.global_step, "validation_loss": loss})


def trainer_for(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[TokenizedExample],
    held_out: Sequence[TokenizedExample],
    settings: FinetuneSettings,
    folder: Path,
    on_step: Callable[[FinetuneStep], None],
) -> AnswerTrainer:
    """A trainer whose checkpoints go to `folder`."""
    micro = settings.micro_batch or _micro_batch(rows, settings.batch, model.device)
    pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    watch = _Watch(held_out, steps_per_epoch=-(-len(rows) // settings.batch))
    trainer = AnswerTrainer(
        model,
        args=arguments(settings, folder, rows=len(rows), micro=micro, device=model.device),
        train_dataset=Rows.from_list([row.labelled for row in rows]),
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(pad_token_id=pad),
        peft_config=_lora(settings, model) if settings.method == "lora" else None,
        callbacks=[watch],
        on_step=on_step,
    )
    watch.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    return trainer


def _micro_batch(rows: Sequence[TokenizedExample], batch: int, device: torch.device) -> int:
    """The largest divisor of `batch` whose rows fit; 1 on the CPU."""
    fits = 1 if device.type == "cpu" else max(1, _MICRO_TOKENS // max(map(len, rows)))
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= fits)


def _lora(settings: FinetuneSettings, model: PreTrainedModel) -> LoraConfig:
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
    parts = ((name, part) for name, part in model.named_modules() if part is not head)
    return sorted(
        {n.rpartition(".")[2] for n, part in parts if isinstance(part, nn.Linear | Conv1D)}
    )


def arguments(
    settings: FinetuneSettings, folder: Path, *, rows: int, micro: int, device: torch.device
) -> SFTConfig:
    """The trainer's settings; what is not named here has the trainer's default."""
    on_cpu = device.type == "cpu"
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    constant = settings.schedule == "constant"
    steps = settings.epochs * -(-rows // settings.batch)
    steps = min(steps, settings.steps or steps)
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
    if config.device.type == "cuda":
        config._n_gpu = 1  # one model on one device; several would be wrapped together
    return config


def _mark_whole(checkpoint: Path) -> None:
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
    found = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(_COMPLETE):
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
