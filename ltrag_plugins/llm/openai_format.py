"""Replies in the shapes of OpenAI's APIs, which most providers hand on.

::

    {"content": [{"token": "Hi", "logprob": -0.1, "top_logprobs": [{"token": "Hi", ...}]}]}
    {"tokens": ["Hi"], "token_logprobs": [-0.1], "top_logprobs": [{"Hi": -0.1}]}
"""

import codecs
import logging
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import Any

from ltrag_plugins.errors import ModelFailed
from ltrag_plugins.llm.base import checked_token, stopped
from ltrag_plugins.types import Generation, GenerationSettings, Token

REFUSABLE = ("top_logprobs", "logprobs", "temperature", "stop")
"""Settings that some servers refuse; the first contains the second."""


def generation_of(
    text: str, logprobs: Any, usage: Any, reason: Any, model: str, settings: GenerationSettings
) -> Generation:
    """What a reply says, ended before the first stop string. Tokens are the last run of those
    reported that spells the text, without the reasoning before it or the end-of-text token after
    it; None where no run does.

    Args:
        logprobs: of the chat API (or its `content`) or of the completion API.
        usage: what holds the token counts; None is kept for what is no count.
        reason: why the text ends, kept where it is a text.
        text, model, settings: what the model wrote, its name, and what was asked for.

    Raises:
        ModelFailed: the text is broken or out of proportion to `max_tokens`, or the
            log-probabilities have no shape that is known.
        InvalidLogProbability: one is null, NaN, infinite or above 0.
    """
    whole, asked, error = _whole(text), settings.max_tokens, None
    tokens, fault, count = None, "", len(text)
    if count > _LONGEST * max(asked, _LEAST_BOUND):
        fault = f"{count} characters for at most {asked} tokens; see that it keeps to max_tokens"
    elif text != whole:
        fault = f"half a character in {whole[-40:]!r}; raise max_tokens, which may have cut it"
    try:
        tokens = None if fault else _tokens_of(logprobs, text, model, settings.stop)
    except (TypeError, ValueError, AttributeError, OverflowError) as wrong:
        fault, error = f"log-probabilities in no known shape: {logprobs!r:.200}", wrong
    if fault:
        remedy = "Nothing of it is kept; mend the server, and ask again."
        raise ModelFailed(f"{model} sent {fault}. {remedy}") from error
    counts = [_count(usage, *names) for names in _COUNTS]
    reason = reason if isinstance(reason, str) else None
    return stopped(Generation(text, tokens, *counts, finish_reason=reason), settings.stop)


def logprobs_of(tokens: Sequence[Token] | None) -> dict[str, Any] | None:
    """Our tokens in the chat API's shape, where `generation_of` finds them again."""
    if tokens is None:
        return None
    return {"content": [_entry(t.text, t.logprob, t.alternatives) for t in tokens]}


def usage_of(generations: Sequence[Generation]) -> dict[str, int]:
    """What these took in tokens, under the chat API's names, as far as it is known of each."""
    used = dict[str, int]()
    for name in ("prompt_tokens", "completion_tokens"):
        counts = [getattr(generation, name) for generation in generations]
        used |= {} if None in counts else {name: sum(counts)}
    return used | ({"total_tokens": sum(used.values())} if len(used) == 2 else {})


def text_in(content: object) -> str | None:
    """The text of a message's content, or of its text blocks; None where it is neither."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else "" if content is None else None
    blocks = (b for b in content if isinstance(b, str) or field_of(b, "type") in _TEXT_BLOCKS)
    texts = (block if isinstance(block, str) else field_of(block, "text") for block in blocks)
    return "".join(text for text in texts if isinstance(text, str))


def logprobs_in(content: object) -> list[Any] | None:
    """The log-probabilities of Responses-style content, which stand in its text blocks."""
    found: list[Any] = []
    for block in content if isinstance(content, list) else ():
        if field_of(block, "type") in _TEXT_BLOCKS:
            extras = field_of(block, "extras")
            found += field_of(block, "logprobs") or field_of(extras, "logprobs") or []
    return found or None


def refused_setting(error: Exception, model: str, known: Container[str]) -> str | None:
    """The setting that a server's refusal names, beyond those `known`; it is logged once."""
    said = str(error) if getattr(error, "status_code", None) in (400, 403, 422) else ""
    for name in REFUSABLE:
        word = r"['\"]stop['\"]" if name == "stop" else name  # unquoted it may be any text's
        if name not in known and re.search(word, said):
            with _ONE_AT_A_TIME:  # threads that come at once would each find it unsaid
                _say_once(model, name)
            return name
    return None


@lru_cache(maxsize=256)
def _say_once(model: str, name: str) -> None:
    _log.warning("%s refuses %s; it is asked again without", model, name)


def field_of(value: Any, name: str) -> Any:
    """A field of a mapping or of an object; None where it has none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


_ONE_AT_A_TIME = Lock()
_log = logging.getLogger(__name__)
_TEXT_BLOCKS = ("text", "output_text")  # others hold what was thought, calls of tools, ...
_LONGEST = 100  # characters a token, far above any text's
_LEAST_BOUND = 1000  # tokens; some models know no max_tokens
_COUNTS = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")


def _whole(text: str) -> str:
    """The text with a "?" for each half of a character, which no file could hold."""
    return text.encode("utf-8", "replace").decode()


def _count(usage: object, *names: str) -> int | None:
    found = (field_of(usage, name) for name in names)
    return next((count for count in found if type(count) is int and count >= 0), None)


def _tokens_of(
    logprobs: object, text: str, model: str, stop: Sequence[str]
) -> tuple[Token, ...] | None:
    entries = logprobs if isinstance(logprobs, list) else field_of(logprobs, "content")
    entries = _chat_entries(logprobs) if entries is None else entries
    if entries is None or (text and not entries):
        return None
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise TypeError("the tokens are no list")
    pieces = [_whole(field_of(entry, "token") or "") for entry in entries]
    spelled = [field_of(entry, "bytes") for entry in entries]
    if in_bytes := all(isinstance(piece, list) for piece in spelled):
        # a character of several tokens belongs to its last one
        decode, last = codecs.getincrementaldecoder("utf-8")("replace").decode, len(entries) - 1
        pieces = [decode(bytes(piece), i == last) for i, piece in enumerate(spelled)]
    tokens = []
    for entry, piece in zip(entries, pieces, strict=True):
        others = field_of(entry, "top_logprobs") or ()
        pairs = [(_whole(field_of(o, "token")), _number(field_of(o, "logprob"))) for o in others]
        alternatives = tuple(sorted(pairs, key=lambda pair: -pair[1]))
        token = Token(piece, _number(field_of(entry, "logprob")), alternatives=alternatives)
        tokens.append(checked_token(token, model))
    if (found := _spelling(pieces, text, stop)) is None:
        return None
    first, end, head = found
    run = tokens[first:end]
    if run and head:
        run[0] = replace(run[0], text=run[0].text[head:])
    while in_bytes and first and not pieces[first - 1] and spelled[first - 1]:
        first -= 1  # the bytes with which the first character begins
        run.insert(0, tokens[first])
    return tuple(run)


def _spelling(pieces: Sequence[str], text: str, stop: Sequence[str]) -> tuple[int, int, int] | None:
    """The last run of pieces that spells the text: its first, the end, white space to cut off. Its
    last piece may go on, with white space or with a stop string that ended the text."""
    starts, joined = [*accumulate(map(len, pieces), initial=0)], "".join(pieces)
    at = joined.rfind(text) if text else -1
    while at >= 0:
        first, end = bisect_right(starts, at) - 1, bisect_left(starts, at + len(text))
        rest = joined[at + len(text) : starts[end]]
        cut = not rest.strip() or any(rest.startswith(s) or s.startswith(rest) for s in stop)
        if cut and not joined[starts[first] : at].strip():
            return first, end, at - starts[first]
        at = joined.rfind(text, 0, at + len(text) - 1)
    return None if text else (0, 0, 0)


def _number(value: object) -> float:
    """NaN, which no log-probability may be, for what is no finite number."""
    number = float(value) if isinstance(value, int | float) else math.nan
    return number if math.isfinite(number) else math.nan


def _chat_entries(logprobs: Any) -> list[dict[str, Any]] | None:
    """The completion API's tokens as the chat API's; None where there are none."""
    if isinstance(logprobs, str | int | float):
        raise TypeError("they are no object")
    texts, values = field_of(logprobs, "tokens"), field_of(logprobs, "token_logprobs")
    if texts is None or values is None:
        return None
    tops = field_of(logprobs, "top_logprobs") or [None] * len(texts)
    return [
        _entry(text, value, (top or {}).items())
        for text, value, top in zip(texts, values, tops, strict=True)
    ]


def _entry(text: str, logprob: float, others: Iterable[tuple[str, float]]) -> dict[str, Any]:
    tops = [{"token": token, "logprob": value} for token, value in others]
    return {"token": text, "logprob": logprob, "top_logprobs": tops}
