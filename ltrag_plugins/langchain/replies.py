"""What a LangChain model replied, as our `Generation`, and back."""

from collections.abc import Sequence
from dataclasses import replace

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.outputs import Generation as LangChainGeneration

from ltrag_plugins.llm.openai_format import logprobs_of, tokens_of
from ltrag_plugins.types import Generation


def generation_of(reply: BaseMessage | LangChainGeneration | str, model: str) -> Generation:
    """Text, token log-probabilities and token counts, as far as the reply has them.

    Raises:
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    match reply:
        case ChatGeneration():
            return generation_of(reply.message, model)
        case LangChainGeneration():
            logprobs = (reply.generation_info or {}).get("logprobs")
            return Generation(reply.text, tokens_of(logprobs, reply.text, model))
        case BaseMessage():
            text = str(reply.text)
            used = (reply.usage_metadata if isinstance(reply, AIMessage) else None) or {}
            return Generation(
                text,
                tokens_of(reply.response_metadata.get("logprobs"), text, model),
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


def _info(generation: Generation) -> dict[str, object] | None:
    logprobs = logprobs_of(generation.tokens)
    return None if logprobs is None else {"logprobs": logprobs}
