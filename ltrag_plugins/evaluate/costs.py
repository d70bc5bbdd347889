"""What each of the flows that run side by side cost."""

from collections.abc import Iterator
from dataclasses import replace

from ltrag_plugins.flow import Step
from ltrag_plugins.flow.requests import Request, items
from ltrag_plugins.metrics.cost import Cost, CostCounter


class CostByFlow:
    """An observer of `run_many`: calls, tokens and retrievals of each flow.

    Seconds of a merged request are shared out by the number of items, so those of all flows add
    up to the time that was waited.
    """

    def __init__(self) -> None:
        self._counters: dict[int, CostCounter] = {}

    def __call__(self, step: Step) -> None:
        """Count one step."""
        for flow, part in parts(step):
            self._counters.setdefault(flow, CostCounter())(part)

    def of(self, flow: int) -> Cost:
        """What that flow cost so far."""
        counter = self._counters.get(flow)
        return Cost() if counter is None else counter.cost


def parts(step: Step) -> Iterator[tuple[int, Step]]:
    """The step as each of its flows would have seen it alone."""
    whole = items(step.request)
    shares = step.shares or (len(whole),)
    start = 0
    for flow, share in zip(step.flows, shares, strict=True):
        end = start + share
        reply = None if step.reply is None else step.reply[start:end]
        request = _cut(step.request, start, end)
        seconds = step.seconds * share / max(1, len(whole))
        yield flow, Step(step.kind, request, reply, seconds)
        start = end


def _cut(request: Request, start: int, end: int) -> Request:
    names = [n for n in ("prompts", "continuations", "queries", "texts") if hasattr(request, n)]
    return replace(request, **{name: getattr(request, name)[start:end] for name in names})
