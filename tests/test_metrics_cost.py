from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ltrag_plugins.errors import ModelFailed
from ltrag_plugins.flow import Agree, Ask, Embed, Fetch, Step, World, ask, fetch, run, run_many
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Passage, Token

RETRIEVER = BM25Retriever([Passage("Emma is a novel by Jane Austen"), Passage("Paris")])


class CountingModel:
    name = "counting"

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(p, None, len(p.split()), 2) for p in prompts]


def looking_up(question):
    [found] = yield from fetch(question, k=1)
    [reply] = yield from ask(f"{found[0].text} {question}")
    replies = yield from ask(reply.text, "one more")
    return replies[0].text


def test_one_flow_costs_what_it_asked_for():
    counter = CostCounter()
    run(looking_up("who wrote Emma"), World(CountingModel(), RETRIEVER), observers=[counter])
    cost = counter.cost
    assert (cost.calls, cost.retrievals) == (3, 1)
    # "Emma is a novel by Jane Austen who wrote Emma" twice, and "one more"
    assert (cost.prompt_tokens, cost.completion_tokens) == (10 + 10 + 2, 3 * 2)


def test_flows_side_by_side_make_as_many_calls():
    counter = CostCounter()
    flows = [looking_up(q) for q in ("who wrote Emma", "is Emma a novel", "Paris")]
    run_many(flows, World(CountingModel(), RETRIEVER), observers=[counter])
    assert (counter.cost.calls, counter.cost.retrievals) == (9, 3)


def received(request, reply, seconds=0.0):
    counter = CostCounter()
    counter(Step("request", request))
    counter(Step("reply", request, reply, seconds))
    return counter.cost


def test_tokens_that_one_reply_did_not_report_are_unknown_and_not_zero():
    cost = received(Ask(("a", "b")), [Generation("x", None, 5, 1), Generation("y")])
    assert (cost.prompt_tokens, cost.completion_tokens) == (None, None)
    assert (cost + Cost(prompt_tokens=7)).prompt_tokens is None
    assert (Cost(prompt_tokens=7) + cost).prompt_tokens is None


def test_token_probabilities_count_as_tokens_where_no_count_was_reported():
    tokens = (Token("Par", -0.1), Token("is", -0.2))
    cost = received(Ask(("a",)), [Generation("Paris", tokens, 5)])
    assert (cost.prompt_tokens, cost.completion_tokens) == (5, 2)


def test_seconds_of_all_kinds_add_up():
    agree = Agree(("p",), ("c",), {"w": np.zeros(1, np.float32)})
    cost = (
        received(Ask(("a",)), [Generation("x", None, 1, 1)], 1.0)
        + received(Fetch(("q", "r"), 3), [[], []], 0.5)
        + received(Embed(("t", "u", "v")), list(np.zeros((3, 2))), 0.25)
        + received(agree, [GradientAgreement(0.1)], 2.0)
    )
    counts = {"calls": 1, "prompt_tokens": 1, "completion_tokens": 1, "retrievals": 2}
    assert cost == Cost(**counts, seconds=1.0 + 0.5 + 0.25 + 2.0)


def test_a_call_that_raises_is_a_call():
    class Broken(CountingModel):
        def generate(self, prompts, settings=GenerationSettings()):
            raise OSError("no route to host")

    counter = CostCounter()
    with pytest.raises(ModelFailed):
        run(ask("hello"), World(Broken()), observers=[counter])
    assert counter.cost == Cost(calls=1)


def test_one_counter_watches_many_threads_and_misses_nothing():
    counter = CostCounter()
    step = Step("request", Ask(("a", "b")))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(counter, [step] * 4000))
    assert counter.cost.calls == 8000


def test_answers_that_a_cache_kept_cost_what_they_took_when_they_were_computed():
    request = Ask(("a", "b"))
    replies = [Generation("x", seconds=2.0), Generation("y", seconds=3.0)]
    counter = CostCounter()
    counter(Step("reply", request, replies, seconds=0.001))
    assert counter.cost.seconds == 5.0
    counter(Step("reply", request, [replies[0], Generation("y")], seconds=0.25))
    assert counter.cost.seconds == 5.25  # one is not known: the time that was waited
