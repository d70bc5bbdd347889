"""TRL's `SFTTrainer`, made to compute logits where an answer stands and nowhere else.

On the CPU the trainer's own loss projects every position onto the vocabulary; of a prompt of
700 tokens and an answer of five, that is most of the work of a small model for nothing.
"""

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import ModelError, UnwritableArtifact, missing_extra
from ltrag_plugins.sgic.finetune_run import mark_whole
from ltrag_plugins.sgic.finetune_settings import FinetuneSettings
from ltrag_plugins.sgic.finetune_tokens import Row

try:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer
except ImportError as error:
    raise missing_extra("trl and peft", "train") from error

IGNORED = -100
MICRO_TOKENS = 16_384
"""Most tokens of a micro-batch that is chosen here, on a GPU."""


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


class AnswerTrainer(SFTTrainer):
    """The trainer; it sends nothing to anyone, and stops at the first loss that is no number."""

    def __init__(self, *args: Any, on_step: Callable[[FinetuneStep], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        base = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
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
    on_cpu = model.device.type == "cpu"
    micro = settings.micro_batch or micro_batch(rows, settings.batch, on_cpu=on_cpu)
    pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    held = [collate([labelled(row)], pad=pad) for row in held_out]
    watch = Watch(held, steps_per_epoch=-(-len(rows) // settings.batch))
    trainer = AnswerTrainer(
        model,
        args=_arguments(settings, folder, micro, on_cpu=on_cpu, device=model.device),
        train_dataset=Dataset.from_list([labelled(row) for row in rows]),
        processing_class=tokenizer,
        data_collator=lambda batch: collate(batch, pad=pad),
        peft_config=_lora(settings, model) if settings.method == "lora" else None,
        callbacks=[watch],
        on_step=on_step,
    )
    watch.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    return trainer


def micro_batch(rows: Sequence[Row], batch: int, *, on_cpu: bool) -> int:
    """The largest divisor of `batch` whose rows fit; 1 on the CPU."""
    fits = 1 if on_cpu else max(1, MICRO_TOKENS // max(map(len, rows)))
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= fits)


def _lora(settings: FinetuneSettings, model: PreTrainedModel) -> LoraConfig:
    count = int(model.config.get_text_config().num_hidden_layers)
    first = count - min(settings.layers or count, count)
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # a float is fine
        lora_dropout=settings.dropout,
        target_modules="all-linear",
        layers_to_transform=list(range(first, count)) if first else None,
    )


def _arguments(
    settings: FinetuneSettings, folder: Path, micro: int, *, on_cpu: bool, device: torch.device
) -> SFTConfig:
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    arguments = SFTConfig(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        max_steps=-1 if settings.steps is None else settings.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.batch // micro,
        train_sampling_strategy="random" if micro == 1 else "group_by_length",
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule
        if settings.schedule != "constant"
        else "constant_with_warmup",
        warmup_steps=settings.warmup,
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
    if arguments.device.type == "cuda":
        arguments._n_gpu = 1  # one model on one device; several would be wrapped together
    return arguments
