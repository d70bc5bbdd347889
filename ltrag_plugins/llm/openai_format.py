"""Token log-probabilities in the shapes of OpenAI's APIs, which most providers hand on.

::

    {"content": [{"token": "Hi", "logprob": -0.1, "top_logprobs": [{"token": "Hi", ...}]}]}
    {"tokens": ["Hi"], "token_logprobs": [-0.1], "top_logprobs": [{"Hi": -0.1}]}
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.types import Token


def tokens_of(logprobs: object, text: str, model: str) -> tuple[Token, ...] | None:
    """The tokens in a choice's `logprobs`, of the chat or the completion API.

    None where they, or the log-probability of a single one, are missing.

    Args:
        logprobs: mappings or objects; a list is taken for the chat API's `content`.
        text: what the tokens belong to; no tokens spell no text.
        model: its name, for errors.
    """
    entries = logprobs if isinstance(logprobs, list) else field_of(logprobs, "content")
    entries = _chat_entries(logprobs) if entries is None else entries
    if not isinstance(entries, Sequence) or (text and not entries):
        return None
    pieces = [str(field_of(entry, "token") or "") for entry in entries]
    if all(isinstance(field_of(entry, "bytes"), list) for entry in entries):
        # a character of several tokens belongs to its last one
        decode, last = codecs.getincrementaldecoder("utf-8")("replace").decode, len(entries) - 1
        spelled = enumerate(bytes(field_of(entry, "bytes")) for entry in entries)
        pieces = [decode(piece, i == last) for i, piece in spelled]
    tokens = []
    for entry, piece in zip(entries, pieces, strict=True):
        logprob = field_of(entry, "logprob")
        if not isinstance(logprob, int | float):
            return None
        others = field_of(entry, "top_logprobs") or ()
        pairs = ((str(field_of(o, "token")), float(field_of(o, "logprob"))) for o in others)
        token = Token(piece, float(logprob), alternatives=best_first(pairs))
        tokens.append(checked_token(token, model))
    return tuple(tokens)


def logprobs_of(tokens: Sequence[Token] | None) -> dict[str, Any] | None:
    """Our tokens in the chat API's shape, where `tokens_of` finds them again."""
    if tokens is None:
        return None
    return {"content": [_entry(t.text, t.logprob, t.alternatives) for t in tokens]}


def field_of(value: Any, name: str) -> Any:
    """A field of a mapping or of an object; None where it has none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def best_first(pairs: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Tokens with their log-probabilities, the likeliest first."""
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


def _chat_entries(logprobs: Any) -> list[dict[str, Any]] | None:
    """The completion API's tokens as the chat API's; None where they are not all there."""
    texts, values = field_of(logprobs, "tokens"), field_of(logprobs, "token_logprobs")
    complete = isinstance(texts, Sequence) and isinstance(values, Sequence)
    if not complete or len(texts) != len(values):
        return None
    tops = field_of(logprobs, "top_logprobs") or [None] * len(texts)
    return [
        _entry(text, value, (top or {}).items())
        for text, value, top in zip(texts, values, tops, strict=True)
    ]


def _entry(text: str, logprob: float, others: Iterable[tuple[str, float]]) -> dict[str, Any]:
    tops = [{"token": token, "logprob": value} for token, value in others]
    return {"token": text, "logprob": logprob, "top_logprobs": tops}
