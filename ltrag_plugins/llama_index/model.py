"""Any LlamaIndex language model as ours, and our models as LlamaIndex's. Log-probabilities are read
from `response.raw`, else from `response.logprobs` where its likeliest tokens join to the text.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal

from llama_index.core import Settings
from llama_index.core.base.llms import generic_utils, types
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import LLM as FullLLM
from llama_index.core.llms import ChatMessage, ChatResponse, CompletionResponse, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from pydantic import computed_field

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import Flow, World, arun, ask, run
from ltrag_plugins.llama_index.embeddings import state_of
from ltrag_plugins.llm.base import LLM, fixed_arguments, fixed_digest
from ltrag_plugins.llm.concurrency import MAX_TOKENS_FIELDS, RequestLLM, inherits, seconds_of
from ltrag_plugins.llm.openai_format import (
    field_of,
    generation_of,
    logprobs_in,
    logprobs_of,
    usage_of,
)
from ltrag_plugins.types import Generation, GenerationSettings, Token

_Response = CompletionResponse | ChatResponse


def _generation_of(response: _Response, model: str, settings: GenerationSettings) -> Generation:
    text, choices = getattr(response, "text", ""), field_of(response.raw, "choices")
    if isinstance(response, ChatResponse):  # whose own `content` has a line for each block
        blocks = response.message.blocks
        text = "".join(block.text for block in blocks if isinstance(block, types.TextBlock))
    choice = choices[0] if choices else response.raw
    contents = [field_of(one, "content") or () for one in field_of(response.raw, "output") or ()]
    logprobs = field_of(choice, "logprobs") or logprobs_in([b for some in contents for b in some])
    logprobs = _likeliest(response, text) if logprobs is None else logprobs
    usage = field_of(response.raw, "usage") or response.additional_kwargs
    reason = field_of(choice, "finish_reason") or field_of(choice, "stop_reason")
    return generation_of(text, logprobs, usage, reason, model, settings)


def _response_of(written: Generation) -> CompletionResponse:
    """Our generation as a response, its tokens in `raw` in the shape of chat completions."""
    usage = usage_of([written])
    choice = {"text": written.text, "logprobs": logprobs_of(written.tokens)}
    choice |= {"finish_reason": written.finish_reason}
    raw, text = {"choices": [choice], "usage": usage}, written.text
    return CompletionResponse(text=text, delta=text, raw=raw, additional_kwargs=dict(usage))


def _likeliest(response: _Response, text: str) -> dict[str, Any] | None:
    tops = [
        tuple((e.token, e.logprob) for e in sorted(position, key=lambda e: -e.logprob))
        for position in response.logprobs or ()
    ]
    if not tops or not all(tops) or "".join(top[0][0] for top in tops) != text:
        return None
    return logprobs_of([Token(*top[0], alternatives=top) for top in tops])


_KEYWORDS: Mapping[str, str] = {key: key for key in ("max_tokens", "temperature", "stop", "seed")}
"""Our names for the settings of a call -> the keyword an OpenAI-like LLM takes for each."""
_LIKELY = 5  # how many likely tokens to ask for at each position, unless the caller says


class LlamaIndexLLM(RequestLLM):
    """A LlamaIndex LLM, chat or completion, as our `LLM` and `AsyncLLM`.

    A setting goes into the field that the LLM declares for it, on a copy whose `additional_kwargs`
    do not say it too, else along with the call as a keyword; stop strings are cut off in any case.
    What the server refuses is left out from then on. The LLM's own time-out, times its tries,
    bounds an answer as a whole.

    Args:
        llm: None: LlamaIndex's `Settings.llm`.
        keywords: our setting -> the LLM's keyword; settings left out stay as the LLM has them.
            Anthropic wants `{"max_tokens": "max_tokens", "stop": "stop_sequences"}`.
        logprobs: asks for token probabilities: "auto" where the LLM has fields for them (OpenAI,
            OpenAILike); True, or the number of likely tokens at each position, sends
            `logprobs=` to other LLMs too; None does not ask.
        name: give one where class and model name do not tell two of your LLMs apart; equal names
            must mean equal answers.
        concurrency: most calls at once, over all threads and over those of an event loop. None is
            8, or 1 for an LLM without async calls of its own, which is asked in threads (most of
            those compute on this machine).
    """

    def __init__(
        self,
        llm: BaseLLM | None = None,
        *,
        keywords: Mapping[str, str] = _KEYWORDS,
        logprobs: bool | int | Literal["auto"] | None = "auto",
        name: str | None = None,
        concurrency: int | None = None,
    ) -> None:
        try:
            llm = Settings.llm if llm is None else llm
        except (ImportError, ValueError) as error:
            raise InvalidInput(f"this needs llm=..., or Settings.llm: {error}") from error
        self._llm = checked(llm, BaseLLM, "llm", "a LlamaIndex LLM (llama_index.core.llms.LLM)")
        if unknown := sorted(set(keywords) - set(_KEYWORDS)):
            raise InvalidInput(f"keywords has {unknown}; the settings are {[*_KEYWORDS]}.")
        self._keywords, self._logprobs, self._name = dict(keywords), logprobs, name
        try:
            self._chat = llm.metadata.is_chat_model
        except ValueError as error:  # OpenAI's clients know OpenAI's models alone
            raise InvalidInput(
                f"{type(llm).__name__}: {str(error).partition('. ')[0]}; for another model, on a "
                "server that speaks OpenAI's protocol, take llama_index.llms.openai_like."
                "OpenAILike(model=..., api_base=..., is_chat_model=True)"
            ) from error
        # CustomLLM's own async calls run sync code on the event loop
        asked = "achat" if self._chat else "acomplete"
        self._blocking = isinstance(llm, CustomLLM) and inherits(llm, CustomLLM, asked)
        super().__init__((1 if self._blocking else 8) if concurrency is None else concurrency)
        self._seconds = seconds_of(llm)

    @property
    def name(self) -> str:
        """As given; else class, model name, what is sent otherwise than by default, and a digest of
        what else can change the answers (address, system prompt, additional arguments)."""
        if self._name:
            return self._name
        parts = [f"{type(self._llm).__name__}:{self._llm.metadata.model_name}"]
        if self._logprobs != "auto":
            parts.append(f"logprobs={self._logprobs}")
        if self._keywords != dict(_KEYWORDS):
            sent = (f"{ours}={theirs}" for ours, theirs in sorted(self._keywords.items()))
            parts.append(f"keywords={','.join(sent)}")
        sent = {"model", "model_name", *self._keywords.values()}
        sent |= set() if self._logprobs is None else {"logprobs", "top_logprobs"}
        fixed = fixed_arguments(self._llm, without=sent)
        if self._llm.class_name() == "Ollama_llm":  # which cuts prompts there
            fixed["context_window"] = self._llm.metadata.context_window
        if fixed:
            parts.append(f"fixed={fixed_digest(fixed)}")
        return ":".join(parts)

    def _ask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        replies = [self._call("", prompt, *self._set(settings, refused)) for prompt in prompts]
        return [_generation_of(reply, self.name, settings) for reply in replies]

    async def _aask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        replies = [await self._call("a", p, *self._set(settings, refused)) for p in prompts]
        return [_generation_of(reply, self.name, settings) for reply in replies]

    def _call(self, way: str, prompt: str, llm: BaseLLM, keywords: dict[str, Any]) -> Any:
        """As `LLM.predict` asks, for which an LLM may have prompts to put around each."""
        theirs = llm if isinstance(llm, FullLLM) else None
        if self._chat:
            messages = [ChatMessage(role="user", content=prompt)]
            messages = theirs._extend_messages(messages) if theirs else messages
            return getattr(llm, f"{way}chat")(messages, **keywords)
        if theirs:
            wrapped = (theirs.completion_to_prompt or str)(prompt)
            prompt, keywords = theirs._extend_prompt(wrapped), {**keywords, "formatted": True}
        return getattr(llm, f"{way}complete")(prompt, **keywords)

    def _set(
        self, settings: GenerationSettings, refused: Set[str]
    ) -> tuple[BaseLLM, dict[str, Any]]:
        """A copy of the LLM with the settings in its fields, and the keywords for the others."""
        llm, declared = self._llm, type(self._llm).model_fields
        words = {key: word for key, word in self._keywords.items() if key not in refused}
        gone = {word for key, word in self._keywords.items() if key in refused}
        if words.get("max_tokens") == "max_tokens":
            fields = (name for name in MAX_TOKENS_FIELDS if name in declared)
            words["max_tokens"] = next(fields, "max_tokens")
        values = {key: getattr(settings, key) for key in words} | {"stop": [*settings.stop] or None}
        wanted: dict[str, Any] = {word: values[key] for key, word in words.items()}
        asked = None if "logprobs" in refused else self._logprobs
        if asked and "logprobs" in declared:
            # llama.cpp gives none where top_logprobs is 0, which is what OpenAILike sends
            own = getattr(llm, "top_logprobs", 0) or _LIKELY
            likely = own if asked == "auto" or asked is True else asked
            both = {"logprobs": True, "top_logprobs": 0 if "top_logprobs" in refused else likely}
            wanted |= both if "top_logprobs" in declared else {"logprobs": likely}
        elif asked != "auto":
            wanted["logprobs"] = asked
        wanted = {word: value for word, value in wanted.items() if value is not None}
        update: dict[str, Any] = {word: None for word in gone if word in declared}
        update |= {word: value for word, value in wanted.items() if word in declared}
        extra = getattr(llm, "additional_kwargs", None)
        # what stands there wins over fields and keywords alike
        ours = {*wanted, *gone}
        if isinstance(extra, dict) and not ours.isdisjoint(extra):
            update["additional_kwargs"] = {k: v for k, v in extra.items() if k not in ours}
        if update:
            copy = llm.model_copy(update=update)
            # the clients that an LLM opens when it is first asked stand there: one set for all
            object.__setattr__(copy, "__pydantic_private__", llm.__pydantic_private__)
            llm = copy
        return llm, {word: value for word, value in wanted.items() if word not in declared}


def model_of(llm: LLM | BaseLLM | None) -> LLM:
    """A LlamaIndex LLM (None: that of LlamaIndex's `Settings`) wrapped, one of ours as it is."""
    if llm is None or isinstance(llm, BaseLLM):
        return LlamaIndexLLM(llm)
    wanted = "a LlamaIndex LLM or an ltrag_plugins LLM (TransformersLLM, ...)"
    return checked(llm, LLM, "llm", wanted)


class LtragLLM(CustomLLM):
    """Our `LLM` (`TransformersLLM`, `CachedLLM`, ...) as a LlamaIndex completion LLM, which wraps
    prompts in its chat template itself. Streams come in one piece. A call takes `max_tokens`,
    `temperature`, `stop` and `seed`; token probabilities are in `raw`, in OpenAI's shape. Give a
    gate our model itself: it answers many prompts in one call."""

    llm: Any = Field(exclude=True, description="The model.")
    context_window: int = Field(description="Most tokens of prompt and answer together.", gt=0)
    num_output: int = Field(description="Most tokens to write, unless a call says.", gt=0)

    def __init__(
        self, llm: LLM, *, context_window: int = 2048, num_output: int = 64, **data: Any
    ) -> None:
        checked(llm, LLM, "llm", "an ltrag_plugins LLM (TransformersLLM, embedded(), ...)")
        super().__init__(llm=llm, context_window=context_window, num_output=num_output, **data)

    @classmethod
    def class_name(cls) -> str:
        """The class's name in LlamaIndex's traces."""
        return "ltrag_llm"

    @computed_field
    @property
    def model_name(self) -> str:
        """The model's name, by which traces and LlamaIndex's caches tell it from others."""
        return self.llm.name

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self, "llm")

    @property
    def metadata(self) -> types.LLMMetadata:
        """Context window, most tokens to write, and the model's name."""
        return types.LLMMetadata(
            context_window=self.context_window, num_output=self.num_output, model_name=self.llm.name
        )

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Continue the prompt."""
        return self._written(prompt, formatted, kwargs)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """As `complete`; a model without an async call of its own answers in a thread."""
        return await self._awritten(prompt, formatted, kwargs)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> types.CompletionResponseGen:
        """The whole answer as one piece."""
        yield self._written(prompt, formatted, kwargs)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> types.CompletionResponseAsyncGen:
        """As `stream_complete`."""

        async def pieces() -> types.CompletionResponseAsyncGen:
            yield await self._awritten(prompt, formatted, kwargs)

        return pieces()

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`, awaited: CustomLLM's would run `chat` on the event loop."""
        answer = await self.acomplete(self._joined(messages), formatted=True, **kwargs)
        return generic_utils.completion_response_to_chat_response(answer)

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> types.ChatResponseAsyncGen:
        """As `stream_chat`, awaited."""
        pieces = await self.astream_complete(self._joined(messages), formatted=True, **kwargs)
        return generic_utils.astream_completion_response_to_chat_response(pieces)

    def _joined(self, messages: Sequence[ChatMessage]) -> str:
        assert self.messages_to_prompt is not None
        return self.messages_to_prompt(messages)

    def _written(self, prompt: str, formatted: bool, kwargs: dict[str, Any]) -> CompletionResponse:
        [written] = run(self._asking(prompt, formatted, kwargs), World(self.llm))
        return _response_of(written)

    async def _awritten(
        self, prompt: str, formatted: bool, kwargs: dict[str, Any]
    ) -> CompletionResponse:
        [written] = await arun(self._asking(prompt, formatted, kwargs), World(self.llm))
        return _response_of(written)

    def _asking(
        self, prompt: str, formatted: bool, kwargs: dict[str, Any]
    ) -> Flow[list[Generation]]:
        if unknown := sorted(set(kwargs) - set(_KEYWORDS)):
            takes = "it takes max_tokens, temperature, stop, seed."
            raise InvalidInput(f"LtragLLM was called with {unknown}; {takes}")
        assert self.completion_to_prompt is not None
        asked = prompt if formatted else self.completion_to_prompt(prompt)
        given = {name: value for name, value in kwargs.items() if value is not None}
        return ask(asked, **{"max_tokens": self.num_output, **given})
