"""What a run cost: model calls, tokens, retrievals, seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, final

from ltrag_plugins.flow import Agree, Ask, Compute, Embed, Fetch, Score, Step
from ltrag_plugins.types import Generation


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts that add up; `+` joins the costs of two runs."""

    calls: int = 0
    """Prompts sent to the model, answered or not."""
    batches: int = 0
    """Requests they were sent in."""
    prompt_tokens: int | None = 0
    """None: some reply did not report them, so the sum is unknown, and stays so."""
    completion_tokens: int | None = 0
    """As `prompt_tokens`; a reply with token probabilities counts by these."""
    retrievals: int = 0
    """Queries sent to the retriever, answered or not."""
    embeddings: int = 0
    """Texts sent to the encoder."""
    gradients: int = 0
    """Prompts whose gradients were held against a direction; not among `calls`."""
    model_seconds: float = 0.0
    """Waiting for generations; for those that an answer cache kept, when they were computed."""
    retrieval_seconds: float = 0.0
    embedding_seconds: float = 0.0
    gradient_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All waiting together; more than the wall clock where requests ran side by side."""
        parts = (self.model_seconds, self.retrieval_seconds)
        return sum(parts) + self.embedding_seconds + self.gradient_seconds

    @property
    def tokens(self) -> int | None:
        """Read and written; None: not known."""
        return _sum(self.prompt_tokens, self.completion_tokens)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(_sum(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))


@final
class CostCounter:
    """An observer that adds up what passes: `run(flow, world, observers=[counter])`.

    Calls are counted when sent, tokens and seconds when the reply comes, so a call that raises
    is a call without tokens. One counter may watch many threads.
    """

    def __init__(self) -> None:
        self._cost = Cost()
        self._lock = Lock()

    @property
    def cost(self) -> Cost:
        """The cost so far."""
        return self._cost

    def __call__(self, step: Step) -> None:
        """Count one step."""
        more = _sent(step) if step.kind == "request" else _received(step)
        with self._lock:
            self._cost = self._cost + more


def _sent(step: Step) -> Cost:
    match step.request:
        case Ask(prompts=prompts) | Score(prompts=prompts):
            return Cost(calls=len(prompts), batches=1)
        case Fetch(queries=queries):
            return Cost(retrievals=len(queries))
        case Embed(texts=texts):
            return Cost(embeddings=len(texts))
        case Agree(prompts=prompts):
            return Cost(gradients=len(prompts))
        case Compute():
            return Cost()


def _received(step: Step) -> Cost:
    match step.request:
        case Ask() | Score():
            replies: Sequence[Generation] = step.reply or ()
            # what a cached answer cost when it was computed, it costs again
            known = [reply.seconds for reply in replies if reply.seconds is not None]
            return Cost(
                prompt_tokens=_total([r.prompt_tokens for r in replies]),
                completion_tokens=_total([_completion_tokens(r) for r in replies]),
                model_seconds=sum(known)
                if replies and len(known) == len(replies)
                else step.seconds,
            )
        case Fetch():
            return Cost(retrieval_seconds=step.seconds)
        case Embed():
            return Cost(embedding_seconds=step.seconds)
        case Agree():
            return Cost(gradient_seconds=step.seconds)
        case Compute():
            return Cost()


def _completion_tokens(reply: Generation) -> int | None:
    if reply.completion_tokens is not None or reply.tokens is None:
        return reply.completion_tokens
    return len(reply.tokens)


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _sum(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a + b
