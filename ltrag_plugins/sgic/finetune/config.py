"""Our settings in the words of TRL and PEFT."""

from collections.abc import Sequence
from pathlib import Path

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.sgic.finetune.settings import FinetuneSettings
from ltrag_plugins.sgic.finetune.tokens import Row

try:
    import torch
    from peft import LoraConfig
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D
    from trl.trainer.sft_config import SFTConfig
except ImportError as error:
    raise missing_extra("trl and peft", "train") from error

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
