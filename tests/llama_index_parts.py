"""Small honest LlamaIndex parts: a function as an LLM, a keyword rule as a retriever."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.generic_utils import completion_response_to_chat_response
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_instrumentation import get_dispatcher
from pydantic import Field

Written = str | CompletionResponse


def on_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class FunctionLLM(CustomLLM):
    """A Python function as a LlamaIndex LLM, with CustomLLM's own async: sync only."""

    function: Callable[[str], Any] = Field(exclude=True)
    is_chat_model: bool = False
    model_name: str = "function"
    seen: list[dict[str, Any]] = Field(default_factory=list, exclude=True)
    blocked_the_loop: list[str] = Field(default_factory=list, exclude=True)

    def __init__(self, function: Callable[[str], Any], **fields: Any) -> None:
        super().__init__(function=function, **fields)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=self.is_chat_model, model_name=self.model_name)

    def responded(self, written: Written) -> CompletionResponse:
        return CompletionResponse(text=written) if isinstance(written, str) else written

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        if on_an_event_loop():
            self.blocked_the_loop.append(prompt)
        self.seen.append(kwargs)
        return self.responded(self.function(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any):
        text = ""
        for word in self.function(prompt).split():
            text += word + " "
            yield CompletionResponse(text=text, delta=word + " ")

    @llm_chat_callback()
    def chat(self, messages, **kwargs: Any):
        return completion_response_to_chat_response(self.complete(messages[-1].content, **kwargs))


class AsyncFunctionLLM(FunctionLLM):
    """The same with async calls of its own; they await what an async function gives."""

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        self.seen.append(kwargs)
        said = self.function(prompt)
        return self.responded(await said if inspect.isawaitable(said) else said)

    @llm_chat_callback()
    async def achat(self, messages, **kwargs: Any):
        written = await self.acomplete(messages[-1].content, **kwargs)
        return completion_response_to_chat_response(written)


FACTS = {
    "emma": "Emma is a novel by Jane Austen, published in 1815.",
    "raoul": "Hadley Fraser has played Raoul in The Phantom of the Opera.",
    "paris": "Paris is the capital of France.",
}


class KeywordRetriever(BaseRetriever):
    """The facts whose keyword is in the question; sync only, as many retrievers are."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [
            NodeWithScore(node=TextNode(id_=key, text=text, metadata={"title": key}), score=0.5)
            for key, text in FACTS.items()
        ]
        self.queries: list[str] = []
        self.blocked_the_loop: list[str] = []

    def found(self, query: str) -> list[NodeWithScore]:
        self.queries.append(query)
        return [n for n in self.nodes if n.node.node_id in query.lower()]

    def _retrieve(self, query_bundle):
        if on_an_event_loop():
            self.blocked_the_loop.append(query_bundle.query_str)
        return self.found(query_bundle.query_str)


class AwaitedRetriever(KeywordRetriever):
    """The same with an async search of its own."""

    async def _aretrieve(self, query_bundle):
        await asyncio.sleep(0)
        return self.found(query_bundle.query_str)


def reader(prompt: str) -> str:
    """Answers from a context that is in the prompt, else says that it has none."""
    found = [fact for fact in FACTS.values() if fact in prompt]
    return f"read: {found[0]}" if found else "no context"


def engine(llm=None, retriever=None, **settings) -> RetrieverQueryEngine:
    return RetrieverQueryEngine.from_args(
        retriever or AwaitedRetriever(), llm=llm or FunctionLLM(reader), **settings
    )


class Events(BaseEventHandler):
    heard: list = Field(default_factory=list)

    def handle(self, event, **kwargs):
        self.heard.append(event)


class Parents(BaseSpanHandler):
    of: dict = Field(default_factory=dict)

    def new_span(self, id_, bound_args, instance=None, parent_span_id=None, tags=None, **kwargs):
        self.of[id_] = parent_span_id

    def prepare_to_exit_span(self, *told: Any, **more: Any) -> None:
        """Say nothing."""

    prepare_to_drop_span = prepare_to_exit_span


class Trace:
    """What the root dispatcher was told."""

    def __init__(self) -> None:
        self.events, self.parents = Events(), Parents()

    def heard(self, kind):
        return [event for event in self.events.heard if isinstance(event, kind)]

    def path(self, event) -> list[str]:
        """The names of the spans around an event, innermost first."""
        names, span = [], event.span_id
        while span is not None:
            names.append(span.split("-")[0])
            span = self.parents.of[span]
        return names


@contextmanager
def traced() -> Iterator[Trace]:
    """What LlamaIndex's instrumentation is told meanwhile."""
    trace, root = Trace(), get_dispatcher()
    root.add_event_handler(trace.events)
    root.add_span_handler(trace.parents)
    yield trace
    root.event_handlers.remove(trace.events)
    root.span_handlers.remove(trace.parents)
