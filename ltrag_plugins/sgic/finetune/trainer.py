"""TRL's `SFTTrainer` with our loss, its checkpoints whole or not there, and no reports home."""

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
from ltrag_plugins.sgic.finetune.config import arguments, lora, micro_batch
from ltrag_plugins.sgic.finetune.loss import IGNORED, answer_loss, collate, labelled
from ltrag_plugins.sgic.finetune.run import mark_whole
from ltrag_plugins.sgic.finetune.settings import FinetuneSettings
from ltrag_plugins.sgic.finetune.tokens import Row

try:
    import torch
    from datasets import Dataset
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.sft_trainer import SFTTrainer
except ImportError as error:
    raise missing_extra("trl and peft", "train") from error


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
        train_dataset=Dataset.from_list([labelled(row) for row in rows]),
        processing_class=tokenizer,
        data_collator=lambda batch: collate(batch, pad=pad),
        peft_config=lora(settings, model) if settings.method == "lora" else None,
        callbacks=[watch],
        on_step=on_step,
    )
    watch.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    return trainer
