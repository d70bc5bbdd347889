"""What a LangChain model replied, as our `Generation`, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.outputs import Generation as LangChainGeneration

from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.types import Generation, Token


def generation_of(reply: BaseMessage | LangChainGeneration | str, model: str) -> Generation:
    """Text, token log-probabilities and token counts, as far as the reply has them.

    Raises:
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    match reply:
        case ChatGeneration():
            return generation_of(reply.message, model)
        case LangChainGeneration():
            return Generation(reply.text, _tokens(reply.generation_info or {}, reply.text, model))
        case BaseMessage():
            text = str(reply.text)
            used = (reply.usage_metadata if isinstance(reply, AIMessage) else None) or {}
            return Generation(
                text,
                _tokens(reply.response_metadata, text, model),
                prompt_tokens=used.get("input_tokens"),
                completion_tokens=used.get("output_tokens"),
            )
        case _:
            return Generation(str(reply))


def generations_of(result: LLMResult, model: str) -> list[Generation]:
    """The first generation for each prompt; a call's token counts where it had one prompt."""
    read = [generation_of(options[0], model) for options in result.generations]
    used = (result.llm_output or {}).get("token_usage") or {}
    if len(read) != 1:
        return read
    return [
        replace(
            read[0],
            prompt_tokens=used.get("prompt_tokens"),
            completion_tokens=used.get("completion_tokens"),
        )
    ]


def result_of(generations: Sequence[Generation]) -> LLMResult:
    """Our generations in LangChain's form, their tokens where `generations_of` finds them."""
    counts = {
        "prompt_tokens": [g.prompt_tokens for g in generations],
        "completion_tokens": [g.completion_tokens for g in generations],
    }
    used = {name: sum(known) for name, n in counts.items() if (known := _all_known(n)) is not None}
    return LLMResult(
        generations=[
            [LangChainGeneration(text=g.text, generation_info=_info(g))] for g in generations
        ],
        llm_output={"token_usage": used},
    )


def _all_known(counts: list[int | None]) -> list[int] | None:
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


def _info(generation: Generation) -> dict[str, Any] | None:
    if generation.tokens is None:
        return None
    content = [
        {
            "token": token.text,
            "logprob": token.logprob,
            "top_logprobs": [{"token": t, "logprob": p} for t, p in token.alternatives],
        }
        for token in generation.tokens
    ]
    return {"logprobs": {"content": content}}


def _tokens(metadata: Mapping[str, Any], text: str, model: str) -> tuple[Token, ...] | None:
    """The tokens, or None where they, or a single log-probability among them, are missing."""
    logprobs = metadata.get("logprobs")
    if isinstance(logprobs, Mapping):
        entries = logprobs.get("content")
        if entries is None:
            entries = _from_columns(logprobs)
    else:
        entries = logprobs
    if not isinstance(entries, Sequence) or (text and not entries):
        return None
    tokens = [_token(entry) for entry in entries]
    known = tuple(checked_token(token, model) for token in tokens if token is not None)
    return known if len(known) == len(tokens) else None


def _token(entry: Any) -> Token | None:
    if not isinstance(entry, Mapping) or entry.get("logprob") is None:
        return None
    ranked = sorted(
        (
            (str(other["token"]), float(other["logprob"]))
            for other in entry.get("top_logprobs") or ()
        ),
        key=lambda pair: -pair[1],
    )
    return Token(str(entry["token"]), float(entry["logprob"]), alternatives=tuple(ranked))


def _from_columns(logprobs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The completion API's parallel lists, as the chat API's list of entries."""
    texts, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not texts or not values or len(texts) != len(values):
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(texts)
    return [
        {
            "token": text,
            "logprob": value,
            "top_logprobs": [{"token": t, "logprob": p} for t, p in (top or {}).items()],
        }
        for text, value, top in zip(texts, values, tops, strict=True)
    ]
