"""What surrounds a synthesis by SGIC: events, the query's text, streams of one piece."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.synthesis import (
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.schema import QueryBundle, QueryType
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.errors import InvalidInput

dispatcher = get_dispatcher(__name__)


@contextmanager
def synthesis(
    query: QueryType, manager: CallbackManager
) -> Iterator[Callable[[RESPONSE_TYPE], RESPONSE_TYPE]]:
    """The events that the base class emits around a synthesis; yields how to end it."""
    query = query if isinstance(query, QueryBundle) else QueryBundle(query)
    dispatcher.event(SynthesizeStartEvent(query=query))
    payload: dict[str, Any] = {EventPayload.QUERY_STR: query.query_str}
    with manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:

        def ended(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
            event.on_end(payload={EventPayload.RESPONSE: response})
            dispatcher.event(SynthesizeEndEvent(query=query, response=response))
            return response

        yield ended


def refuse_keywords(keywords: dict[str, Any]) -> None:
    """Raise InvalidInput where keywords came along that nothing would read."""
    if keywords:
        raise InvalidInput(
            f"SGICCalibrator was called with {sorted(keywords)}; it takes no keywords with a "
            "question. Settings go into SGICCalibrator(llm, settings=SGICSettings(...))."
        )


def text_of(query: QueryType) -> str:
    """The question itself."""
    return query.query_str if isinstance(query, QueryBundle) else query


def piece(text: str) -> Generator[str, None, None]:
    """A stream of one piece."""
    yield text


async def apiece(text: str) -> AsyncGenerator[str, None]:
    """As `piece`."""
    yield text
