"""Costs and traces of flows that run side by side, beside those of each alone."""

import dataclasses

from contracts.methods import PASSAGES, QUESTIONS, Letters, Scoring, plausible

from ltrag_plugins.baselines import BASELINES
from ltrag_plugins.evaluate.costs import CostByFlow
from ltrag_plugins.evaluate.tracing import Tracing
from ltrag_plugins.flow import Ask, Step, World, run, run_many
from ltrag_plugins.metrics.cost import Cost, CostCounter
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation

WORLD = World(llm=Scoring(plausible), retriever=BM25Retriever(PASSAGES), encoder=Letters())


def flows():
    return [BASELINES["iter-retgen"].flow(question) for question in QUESTIONS]


def counts(cost: Cost) -> Cost:
    return dataclasses.replace(cost, batches=0, model_seconds=0.0, retrieval_seconds=0.0)


def test_each_flow_has_the_costs_that_it_has_alone():
    side_by_side = CostByFlow()
    run_many(flows(), WORLD, observers=[side_by_side])
    for i, flow in enumerate(flows()):
        alone = CostCounter()
        run(flow, WORLD, observers=[alone])
        assert counts(side_by_side.of(i)) == counts(alone.cost)
        assert alone.cost.calls > 0


def test_each_flow_has_the_steps_that_it_has_alone():
    side_by_side = Tracing()
    run_many(flows(), WORLD, observers=[side_by_side])
    for i, flow in enumerate(flows()):
        alone = Tracing()
        run(flow, WORLD, observers=[alone])
        assert side_by_side.of(i) == alone.of(0)
        assert alone.of(0)


def test_the_seconds_of_a_merged_call_are_shared_out():
    costs = CostByFlow()
    replies = [Generation("x")] * 4
    costs(Step("reply", Ask(("a", "b", "c", "d")), replies, 8.0, flows=(5, 9), shares=(1, 3)))
    assert (costs.of(5).model_seconds, costs.of(9).model_seconds) == (2.0, 6.0)
    assert costs.of(1) == Cost()


def test_a_tracing_that_is_off_has_nothing_of_any():
    tracing = Tracing(on=False)
    run_many(flows(), WORLD, observers=[tracing])
    assert tracing.of(0) is None
