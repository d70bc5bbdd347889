"""What a run cost: model calls, tokens, retrievals, seconds."""

from collections.abc import Iterable, Sequence
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
        answers = self.model_seconds + self.retrieval_seconds
        return answers + self.embedding_seconds + self.gradient_seconds

    @property
    def tokens(self) -> int | None:
        """Read and written; None: not known."""
        return _sum((self.prompt_tokens, self.completion_tokens))

    def __add__(self, other: "Cost") -> "Cost":
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Cost(*map(_sum, pairs))


@final
class CostCounter:
    """An observer that adds up what passes: `run(flow, world, observers=[counter])`.

    A call that raises is a call without tokens. One counter may watch many threads.
    """

    def __init__(self) -> None:
        self.cost = Cost()
        """So far."""
        self._lock = Lock()

    def __call__(self, step: Step) -> None:
        """Count one step."""
        sent = step.kind == "request"
        seconds = 0.0 if sent else step.seconds
        match step.request:
            case Ask() | Score() as request if sent:
                more = Cost(calls=len(request.prompts), batches=1)
            case Ask() | Score():
                replies: Sequence[Generation] = step.reply or ()
                # what a cached answer cost when it was computed, it costs again
                kept = _sum(reply.seconds for reply in replies) if replies else None
                more = Cost(
                    prompt_tokens=_sum(reply.prompt_tokens for reply in replies),
                    completion_tokens=_sum(
                        len(reply.tokens)
                        if reply.completion_tokens is None and reply.tokens is not None
                        else reply.completion_tokens
                        for reply in replies
                    ),
                    model_seconds=seconds if kept is None else kept,
                )
            case Fetch(queries=queries):
                more = Cost(retrievals=len(queries) if sent else 0, retrieval_seconds=seconds)
            case Embed(texts=texts):
                more = Cost(embeddings=len(texts) if sent else 0, embedding_seconds=seconds)
            case Agree(prompts=prompts):
                more = Cost(gradients=len(prompts) if sent else 0, gradient_seconds=seconds)
            case Compute():
                return
        with self._lock:
            self.cost += more


def _sum(counts: Iterable[Any]) -> Any:
    """None where one of them is not known."""
    found = list(counts)
    return None if None in found else sum(found)
