"""The loss over answers: logits where an answer stands, and nowhere else.

Of a prompt of 700 tokens and an answer of five, projecting every position onto a vocabulary of
49,152 is a quarter of a small model's arithmetic, for nothing.
"""

from collections.abc import Sequence

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.sgic.finetune.tokens import Row

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise missing_extra("torch", "train") from error

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
