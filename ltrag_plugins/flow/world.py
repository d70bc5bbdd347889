"""What flows may reach, and how a request is answered there."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ltrag_plugins.errors import (
    LtragError,
    ModelError,
    ModelFailed,
    NeedsGradients,
    NoRetriever,
    NoTokenProbabilities,
    RetrievalError,
    RetrieverFailed,
    UnknownRequest,
)
from ltrag_plugins.flow.requests import Agree, Ask, Compute, Embed, Fetch, Request, Score, items
from ltrag_plugins.llm.base import LLM, AsyncLLM, Encoder, GradientLLM, ScoringLLM
from ltrag_plugins.retrieval.base import AsyncRetriever, Retriever


@dataclass(frozen=True, slots=True)
class World:
    """What flows may reach."""

    llm: LLM | None = None
    retriever: Retriever | None = None
    encoder: Encoder | None = None

    def reply(self, request: Request) -> Sequence[Any]:
        """Answer one request.

        Raises:
            ModelFailed, RetrieverFailed: the call raised; the original is the cause.
            ModelError, NoRetriever: there is nothing here that could answer.
            ModelError, RetrievalError: more or fewer replies came than were asked for.
            UnknownRequest: this is no request.
        """
        with explained(_part(request)):
            match request:
                case Ask():
                    reply = self._model().generate(request.prompts, request.settings)
                case Fetch():
                    reply = self._searcher().search(request.queries, request.k)
                case Embed():
                    reply = self._encode(request)
                case Score():
                    reply = self._score(request)
                case Agree():
                    reply = self._agree(request)
                case Compute():
                    reply = [request.function()]
                case _:
                    raise _unknown(request)
            return _aligned(request, reply)

    async def areply(self, request: Request) -> Sequence[Any]:
        """As `reply`: awaits what has an async call of its own, moves the rest to a thread."""
        with explained(_part(request)):
            match request:
                case Ask() if isinstance(self.llm, AsyncLLM):
                    reply = await self.llm.agenerate(request.prompts, request.settings)
                case Fetch() if isinstance(self.retriever, AsyncRetriever):
                    reply = await self.retriever.asearch(request.queries, request.k)
                case _:
                    return await asyncio.to_thread(self.reply, request)
            return _aligned(request, reply)

    def _model(self) -> LLM:
        if self.llm is None:
            raise ModelError("this flow asks a model; run it in World(llm=...)")
        return self.llm

    def _searcher(self) -> Retriever:
        if self.retriever is None:
            raise NoRetriever("this flow retrieves; run it in World(..., retriever=...)")
        return self.retriever

    def _encode(self, request: Embed) -> Sequence[Any]:
        if self.encoder is None:
            raise ModelError("this flow embeds texts; run it in World(..., encoder=...)")
        return self.encoder.encode(request.texts)  # type: ignore[return-value]

    def _score(self, request: Score) -> Sequence[Any]:
        if not isinstance(self.llm, ScoringLLM):
            raise NoTokenProbabilities(
                f"{self._model().name} cannot tell how likely a given text is. Load local weights "
                "with TransformersLLM, or use what only reads its answers (reward='match')."
            )
        return self.llm.score(request.prompts, request.continuations)

    def _agree(self, request: Agree) -> Sequence[Any]:
        if not isinstance(self.llm, GradientLLM):
            raise NeedsGradients(
                f"{self._model().name} has no gradients. Load local weights with TransformersLLM, "
                "or fit the gate with gradients='never'."
            )
        return self.llm.gradient_agreement(
            request.prompts,
            request.continuations,
            along=request.along,
            cosine=request.cosine,
            layers=request.layers,
        )


def _unknown(request: object) -> UnknownRequest:
    return UnknownRequest(
        f"a flow yielded {request!r}; it may yield Ask, Fetch, Embed, Score, Agree or Compute. "
        "Use 'yield from ask(...)', not 'yield ask(...)'."
    )


def _aligned(request: Request, reply: Sequence[Any]) -> Sequence[Any]:
    wanted = len(items(request))
    if len(reply) == wanted:
        return reply
    counts = f"{len(reply)} replies came for {wanted} {_ITEMS[type(request)]}"
    if isinstance(request, Fetch):
        raise RetrievalError(f"{counts}; a retriever's search() returns one list for each query.")
    raise ModelError(f"{counts}; a model or encoder returns one reply for each, in their order.")


_ITEMS = {
    Ask: "prompts",
    Fetch: "queries",
    Embed: "texts",
    Score: "pairs",
    Agree: "instances",
    Compute: "function",
}


@contextmanager
def explained(part: Literal["model", "retriever"]) -> Iterator[None]:
    """What a model or a retriever raises, as an error of this package with a remedy.

    Raises:
        ModelFailed, RetrieverFailed: something was raised that is no `LtragError`; it is the cause.
    """
    try:
        yield
    except LtragError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if part == "retriever":
            raise RetrieverFailed(
                f"the retriever raised {what}. Its own error is the __cause__: see whether the "
                "store it searches is there and answers, or try again"
            ) from error
        raise ModelFailed(
            f"the model raised {what}. Its own error is the __cause__: a time-out or a rate limit "
            "passes, so try again or raise the client's retries; else mend the model's set-up"
        ) from error


def _part(request: Request) -> Literal["model", "retriever"]:
    return "retriever" if isinstance(request, Fetch) else "model"
