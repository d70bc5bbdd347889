"""A small honest gate for the adapters' tests: one real draft, one Python rule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ltrag_plugins.errors import EmptyQuestion
from ltrag_plugins.flow import Flow, Observer, World, ask, run
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.types import Generation

Rule = Callable[[str, Generation], bool]
"""(question, draft) -> whether to retrieve."""


@dataclass(frozen=True)
class RuleGate:
    """Asks the world's model for a draft and lets a rule decide."""

    world: World
    rule: Rule = field(default=lambda question, draft: "?" in draft.text)

    def deciding(self, question: str) -> Flow[Decision]:
        if not question.strip():
            raise EmptyQuestion("the question has no words")
        [draft] = yield from ask(question, max_tokens=16)
        retrieve = self.rule(question, draft)
        return Decision(
            question=question,
            retrieve=retrieve,
            score=float(retrieve),
            probability=float(retrieve),
            tier="text",
            reason="the rule says so",
            draft=draft,
            ingredients={"words": float(len(question.split()))},
        )

    def decide(self, question: str, *, observers: Iterable[Observer] = ()) -> Decision:
        return run(self.deciding(question), self.world, observers=observers)


def always(question: str, draft: Generation) -> bool:
    return True


def never(question: str, draft: Generation) -> bool:
    return False
