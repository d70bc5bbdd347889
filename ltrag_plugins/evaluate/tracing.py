"""Every request and reply of each of the flows that run side by side, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from ltrag_plugins.evaluate.costs import parts
from ltrag_plugins.flow import Ask, Compute, Embed, Fetch, Request, Score, Step


class Tracing:
    """An observer of `run` and `run_many`.

    Args:
        on: False: it keeps nothing, and has None of every flow.
    """

    def __init__(self, on: bool = True) -> None:
        self._on = on
        self._steps: dict[int, list[Mapping[str, Any]]] = {}

    def __call__(self, step: Step) -> None:
        """Keep a reply with what it answers."""
        if self._on and step.kind == "reply":
            for flow, part in parts(step):
                reply = () if part.reply is None else part.reply
                told = _told(part.request, reply)
                self._steps.setdefault(flow, []).append(told)

    def of(self, flow: int) -> tuple[Mapping[str, Any], ...] | None:
        """The steps of that flow, first to last."""
        return tuple(self._steps.get(flow, ())) if self._on else None


def _told(request: Request, reply: Sequence[Any]) -> dict[str, Any]:
    match request:
        case Ask(prompts=prompts):
            pairs = zip(prompts, reply, strict=True)
            return {"asked": [{"prompt": prompt, "reply": said.text} for prompt, said in pairs]}
        case Fetch(queries=queries):
            return {
                "fetched": [
                    {
                        "query": query,
                        "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in found],
                    }
                    for query, found in zip(queries, reply, strict=True)
                ]
            }
        case Score(prompts=prompts, continuations=texts):
            return {
                "scored": [
                    {
                        "prompt": prompt,
                        "text": text,
                        "logprob": sum(token.logprob for token in said.tokens or ()),
                    }
                    for prompt, text, said in zip(prompts, texts, reply, strict=True)
                ]
            }
        case Embed(texts=texts):
            return {"embedded": list(texts)}
        case Compute():
            return {"computed": getattr(request.function, "__qualname__", "something")}
        case _:
            return {"held against the data set's gradient": list(request.prompts)}
