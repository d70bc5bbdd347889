"""Completions as OpenAI-compatible servers send them: JSON in, a `Generation` out."""

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ltrag_plugins.errors import ModelFailed
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.types import Generation, Token


def generation_of(body: str, model: str) -> Generation:
    """The first choice of a chat completion or of a text completion.

    Raises:
        ModelFailed: the body is not a completion.
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    try:
        reply = json.loads(body)
    except ValueError as error:
        raise _no_completion(model, body) from error
    match reply:
        case {"choices": [{"message": {"content": str() | None as text}} as choice, *_]}:
            pass
        case {"choices": [{"text": str() as text} as choice, *_]}:
            pass
        case _:
            raise _no_completion(model, body)
    text = text or ""
    usage = reply.get("usage") or {}
    return Generation(
        text,
        tokens_of(choice.get("logprobs"), text, model),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
    )


def tokens_of(logprobs: object, text: str, model: str) -> tuple[Token, ...] | None:
    """The tokens in a choice's `logprobs`, of the chat or the completion API.

    None where they, or the log-probability of a single one, are missing.

    Raises:
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    entries = _entries(logprobs)
    if entries is None or (text and not entries):
        return None
    pieces = _pieces(entries)
    tokens = []
    for entry, piece in zip(entries, pieces, strict=True):
        if not isinstance(entry.get("logprob"), int | float):
            return None
        token = Token(piece, float(entry["logprob"]), alternatives=_ranked(entry))
        tokens.append(checked_token(token, model))
    return tuple(tokens)


def _entries(logprobs: object) -> list[Mapping[str, Any]] | None:
    match logprobs:
        case {"content": [*entries]}:
            return entries
        case {"tokens": [*texts], "token_logprobs": [*values], **rest} if len(texts) == len(values):
            tops = rest.get("top_logprobs") or [None] * len(texts)
            return [
                {"token": text, "logprob": value, "top_logprobs": _as_entries(top)}
                for text, value, top in zip(texts, values, tops, strict=True)
            ]
        case _:
            return None


def _as_entries(top: Mapping[str, float] | None) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": value} for token, value in (top or {}).items()]


def _ranked(entry: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    others = entry.get("top_logprobs") or ()
    pairs = ((str(other["token"]), float(other["logprob"])) for other in others)
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


def _pieces(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text of each token; a character of several tokens belongs to its last one."""
    spelled = [entry["bytes"] for entry in entries if isinstance(entry.get("bytes"), list)]
    if len(spelled) < len(entries):
        return [str(entry.get("token", "")) for entry in entries]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = len(spelled) - 1
    return [decoder.decode(bytes(piece), final=i == last) for i, piece in enumerate(spelled)]


def _no_completion(model: str, body: str) -> ModelFailed:
    return ModelFailed(
        f"{model} sent what is no completion: {body!r:.200}. Check that base_url is the address "
        "of an OpenAI-compatible server, and ends in /v1 where the server's paths do."
    )
