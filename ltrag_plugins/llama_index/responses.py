"""What LlamaIndex's responses carry, as our values.

Token log-probabilities are read from `response.raw` first, in the shapes of OpenAI's chat
completions (`choices[0].logprobs.content`) and completions (`choices[0].logprobs.tokens`),
as objects or as dictionaries. `response.logprobs` lists the likeliest tokens of each
position without saying which one was written; it is read only where the likeliest ones
join to the very text that came.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from llama_index.core.base.llms.types import ChatResponse, CompletionResponse

from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.types import Generation, Token

Response = CompletionResponse | ChatResponse


def text_of(response: Response) -> str:
    """The text of a reply; empty when there is none."""
    if isinstance(response, ChatResponse):
        return response.message.content or ""
    return response.text or ""


def generation_of(response: Response, model: str) -> Generation:
    """The reply as a `Generation`.

    `tokens` is None where the provider gave none, or left out a single log-probability.

    Raises:
        InvalidLogProbability: one is NaN or above 0.
    """
    text = text_of(response)
    usage = _get(response.raw, "usage") or response.additional_kwargs
    return Generation(
        text=text,
        tokens=_tokens(response, text, model),
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(usage, "completion_tokens", "output_tokens"),
    )


def response_of(written: Generation) -> CompletionResponse:
    """Our generation as a response, its tokens in `raw` in the shape of chat completions."""
    content = [
        {"token": token.text, "logprob": token.logprob, "top_logprobs": _tops(token)}
        for token in written.tokens or ()
    ]
    counts = {
        "prompt_tokens": written.prompt_tokens,
        "completion_tokens": written.completion_tokens,
    }
    usage = {name: count for name, count in counts.items() if count is not None}
    logprobs = None if written.tokens is None else {"content": content}
    raw = {"choices": [{"text": written.text, "logprobs": logprobs}], "usage": usage}
    return CompletionResponse(text=written.text, raw=raw, additional_kwargs=dict(usage))


def _tokens(response: Response, text: str, model: str) -> tuple[Token, ...] | None:
    found = _from_raw(response.raw)
    if text and not found:
        found = _from_likeliest(response, text)
    if found is None or None in found:
        return None
    return tuple(checked_token(token, model) for token in found if token is not None)


def _from_raw(raw: Any) -> list[Token | None] | None:
    choices = _get(raw, "choices")
    logprobs = _get(choices[0], "logprobs") if choices else None
    content = _get(logprobs, "content")
    if content is not None:
        return [_token(entry) for entry in content]
    texts, values = _get(logprobs, "tokens"), _get(logprobs, "token_logprobs")
    if texts is None or values is None:
        return None
    tops = _get(logprobs, "top_logprobs") or [None] * len(texts)
    return [
        None
        if value is None
        else Token(text, float(value), alternatives=_best((top or {}).items()))
        for text, value, top in zip(texts, values, tops, strict=True)
    ]


def _token(entry: Any) -> Token | None:
    logprob = _get(entry, "logprob")
    if logprob is None:
        return None
    tops = ((_get(top, "token"), _get(top, "logprob")) for top in _get(entry, "top_logprobs") or ())
    return Token(_get(entry, "token"), float(logprob), alternatives=_best(tops))


def _tops(token: Token) -> list[dict[str, Any]]:
    return [{"token": text, "logprob": logprob} for text, logprob in token.alternatives]


def _from_likeliest(response: Response, text: str) -> list[Token | None] | None:
    tops = [
        _best((entry.token, entry.logprob) for entry in position)
        for position in response.logprobs or ()
    ]
    if not tops or not all(tops) or "".join(top[0][0] for top in tops) != text:
        return None
    return [Token(*top[0], alternatives=top) for top in tops]


def _best(pairs: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


def _count(usage: Any, *names: str) -> int | None:
    found = (_get(usage, name) for name in names)
    return next((count for count in found if isinstance(count, int)), None)


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
