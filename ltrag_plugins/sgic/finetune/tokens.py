"""Examples as tokens: the prompt as at inference, then the answer and the token that ends it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.llm.local.prompting import Prompting
from ltrag_plugins.llm.local.spelling import pieces_of
from ltrag_plugins.llm.local.writing import end_tokens
from ltrag_plugins.sgic.dataset.corpus import Dataset, Example

try:
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error

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
