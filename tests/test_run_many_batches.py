"""`run_many(batch=...)`: the same answers in calls of bounded size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.flow import Ask, World, ask, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import GenerationSettings


def asking(*prompts: str):
    replies = yield from ask(*prompts)
    second = yield from ask(f"again {replies[0].text}")
    return [reply.text for reply in replies] + [second[0].text]


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=9), batch=st.integers(1, 6))
def test_batches_change_no_answer_and_are_no_larger_than_asked(sizes, batch):
    prompts = [[f"{i}.{j}" for j in range(size)] for i, size in enumerate(sizes)]
    whole, cut = ScriptedLLM(str.upper), ScriptedLLM(str.upper)
    together = run_many([asking(*p) for p in prompts], World(llm=whole))
    apart = run_many([asking(*p) for p in prompts], World(llm=cut), batch=batch)
    assert apart == together
    assert cut.prompts == whole.prompts
    assert len(whole.calls) == 2
    # one flow's own request is never cut, so only a lone one may be larger
    assert all(len(call) <= max(batch, *sizes) for call in cut.calls)
    assert all(
        len(a) + len(b) > batch
        for a, b in zip(cut.calls, cut.calls[1:], strict=False)
        if b[0].startswith("again") == a[0].startswith("again")
    )


def test_observers_see_each_batch():
    seen = []
    run_many(
        [asking(str(i)) for i in range(7)],
        World(llm=ScriptedLLM(str.upper)),
        observers=[lambda step: seen.append((step.kind, len(step.flows)))],
        batch=3,
    )
    sizes = [3, 3, 1, 3, 3, 1]
    assert seen == [(kind, n) for n in sizes for kind in ("request", "reply")]


class Strict:
    """Answers a call as a whole or not at all; counts the calls."""

    name = "strict"

    def __init__(self, *refused: str) -> None:
        self.refused, self.calls = refused, []

    def generate(self, prompts, settings=GenerationSettings()):
        self.calls.append(list(prompts))
        if set(prompts) & set(self.refused):
            raise RuntimeError("no")
        return ScriptedLLM(str.upper).generate(prompts)


def test_a_prompt_that_fails_takes_no_other_of_its_call_with_it():
    llm, seen = Strict("2"), []
    flows = [asking(str(i)) for i in range(5)]
    found = run_many(
        flows, World(llm=llm), return_exceptions=True, observers=[lambda step: seen.append(step)]
    )
    assert [isinstance(f, ModelFailed) for f in found] == [False, False, True, False, False]
    again = [run(asking(str(i)), World(llm=llm)) for i in (0, 1, 3, 4)]
    assert [found[i] for i in (0, 1, 3, 4)] == again
    first = next(step for step in seen if step.kind == "request")
    assert first.flows == (0, 1, 2, 3, 4)
    asked = sum(len(step.flows) for step in seen if step.kind == "request")
    assert asked == 9  # five at first, then four that went on


def test_a_model_that_is_down_is_not_tried_for_each():
    llm = Strict(*map(str, range(50)))
    found = run_many([asking(str(i)) for i in range(50)], World(llm=llm), return_exceptions=True)
    assert all(isinstance(one, ModelFailed) for one in found)
    assert [len(call) for call in llm.calls] == [50, 1, 1, 1]


def test_a_batch_that_fails_ends_the_others_where_exceptions_are_raised():
    llm = Strict("2")
    with pytest.raises(ModelFailed):
        run_many([asking(str(i)) for i in range(5)], World(llm=llm), batch=2)
    assert llm.calls[-2:] == [["2", "3"], ["2"]]


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="batch must be at least 1, got 0"):
        run_many([asking("a")], World(llm=ScriptedLLM(str.upper)), batch=0)


def test_requests_with_other_settings_stay_apart():
    seen: list[Ask] = []
    flows = [ask("a", max_tokens=1), ask("b", max_tokens=2), ask("c", max_tokens=1)]
    run_many(
        flows,
        World(llm=ScriptedLLM(str.upper)),
        observers=[lambda step: seen.append(step.request)],
        batch=8,
    )
    assert [r.prompts for r in seen[::2]] == [("a", "c"), ("b",)]
