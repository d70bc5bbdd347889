"""SGICCalibrator as a LlamaIndex response synthesizer, and the evaluator that reads its answers."""

import asyncio
import json
import threading
from functools import partial

import pytest
from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
from llama_index.core.evaluation import BaseEvaluator
from llama_index.core.instrumentation.events.llm import LLMCompletionStartEvent
from llama_index.core.instrumentation.events.synthesis import (
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetryQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.llama_index import GECERouter, SGICCalibrator, SGICEvaluator, node_of
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings
from tests.framework_parts import LlamaIndex, dumped
from tests.gates import RuleGate, always, never
from tests.llama_index_parts import AwaitedRetriever, FunctionLLM, traced
from tests.sgic_parts import LOOKING, QUESTION, THREE, answered, model, said

looking = partial(SGICCalibrator, settings=LOOKING)

ONCE = SGICSettings(rounds=0)


def mending() -> ScriptedLLM:
    """Unsure at first, certain after one round."""
    return model([said("in Fife", 0.3), said("in East Lothian", 0.9)])


def theirs() -> FunctionLLM:
    return LlamaIndex.models(lambda prompt: mending().generate([prompt])[0])["completion"]


def sure(probability: float) -> ScriptedLLM:
    return ScriptedLLM(lambda prompt: said("East Lothian", probability))


def nodes() -> list[NodeWithScore]:
    scores = (0.9, 0.5, None)
    found = [node_of(passage) for passage in THREE]
    return [f.model_copy(update={"score": s}) for f, s in zip(found, scores, strict=True)]


@pytest.mark.parametrize("settings", [
    LOOKING,
    SGICSettings(rounds=5, keep_prompts=True, document_words=2, cut_to=1),
    SGICSettings(rounds=5, keep_prompts=True, estimator="agreement", samples=2),
])  # fmt: skip
def test_the_metadata_is_json_and_has_all_that_is_known_of_documents_and_rounds(settings):
    llm = mending()
    metadata = SGICCalibrator(llm, settings=settings).synthesize(QUESTION, nodes()).metadata
    assert json.loads(json.dumps(metadata, allow_nan=False)) == metadata
    assert metadata["a"] == {"title": "Castle"}  # the nodes' own, as elsewhere
    told, wanted = metadata["sgic"], answered(mending(), settings=settings)
    assert told["notes"] == list(wanted.notes)
    assert [(d["answer"], d["shown"], d["dropped"]) for d in told["documents"]] == [
        (d.answer, d.shown, d.dropped) for d in wanted.documents
    ]
    assert [(r["prompt"], r["samples"]) for r in told["trace"]] == [
        (r.prompt, [sample.text for sample in r.samples]) for r in wanted.trace
    ]


async def test_the_text_alone_is_that_of_the_response_or_the_refusal():
    chunks = [node.node.get_content() for node in nodes()]
    for options, text in (({}, "in East Lothian"), ({"refuse_above": 9, "refusal": "?"}, "?")):
        calibrator = looking(mending(), **options)
        assert calibrator.get_response(QUESTION, chunks) == text
        assert await calibrator.aget_response(QUESTION, chunks) == text
    llm = mending()
    with pytest.raises(EmptyQuestion):
        looking(llm).get_response(" ", chunks)
    for wrong in (None, "in Fife", [None], nodes()):
        with pytest.raises(InvalidInput, match="text_chunks must be texts, a list of"):
            looking(llm).get_response(QUESTION, wrong)
        with pytest.raises(InvalidInput, match="text_chunks must be texts, a list of"):
            await looking(llm).aget_response(QUESTION, wrong)
    assert llm.calls == []
    known = looking(mending())
    assert known.get_response(QUESTION, []) == str(known.synthesize(QUESTION, [])) != ""


def test_nothing_handed_in_is_changed():
    given, more = nodes(), [NodeWithScore(node=TextNode(id_="more", text="unread"), score=0.1)]
    llm = theirs()
    manager, query = llm.callback_manager, QueryBundle(QUESTION)
    before = (dumped(given), dumped(more), llm.model_dump(), query.to_dict())
    calibrator = looking(llm)
    calibrator.callback_manager = CallbackManager([])
    response = calibrator.synthesize(query, given, more)
    assert (dumped(given), dumped(more), llm.model_dump(), query.to_dict()) == before
    assert llm.callback_manager is manager
    assert len(given) == 3
    assert all(a is b for a, b in zip(response.source_nodes, given + more, strict=True))
    assert len(response.metadata["sgic"]["documents"]) == 3  # what was added was not read
    assert response.metadata.keys() == {"a", "b", "c", "more", "sgic"}


def test_a_node_is_read_as_it_shows_itself_to_language_models():
    node = TextNode(
        id_="n",
        text="A fortress.",
        metadata={"title": "Castle", "county": "Lothian", "secret": "xyzzy"},
        excluded_llm_metadata_keys=["secret"],
    )
    llm = mending()
    looking(llm).synthesize(QUESTION, [NodeWithScore(node=node)])
    [line] = [x for x in llm.prompts[0].splitlines() if x.startswith("Document [")]
    assert line == "Document [1]: Castle: county: Lothian A fortress."
    node.excluded_llm_metadata_keys = ["secret", "title"]
    looking(llm).synthesize(QUESTION, [NodeWithScore(node=node)])
    assert "Castle:" not in llm.calls[-1][0]


async def test_a_cancellation_with_a_synchronous_model_begins_no_further_call():
    begun, cancelled = [], threading.Event()

    def slow(prompt):
        begun.append(prompt)
        if len(begun) == 2:
            cancelled.wait(60)
        return said(f"answer {len(begun)}", 0.3)

    calibrator = looking(LlamaIndex.models(slow)["completion"])
    task = asyncio.create_task(calibrator.asynthesize(QUESTION, nodes()))
    while len(begun) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.3)
    assert len(begun) == 2  # the first answer; then one document of three


async def test_nodes_without_a_score_and_retrievers_of_ours_are_taken():
    calibrator = SGICCalibrator(sure(0.9), settings=ONCE)
    bare = TextNode(id_="a", text="Raoul lives in Fife.")
    for response in (
        calibrator.synthesize(QUESTION, [bare], [bare]),
        await calibrator.asynthesize(QUESTION, [bare], [bare]),
    ):
        assert [(one.node, one.score) for one in response.source_nodes] == [(bare, None)] * 2
    for wrong in (["a text"], None):
        with pytest.raises(InvalidInput, match="nodes must be LlamaIndex nodes, got"):
            calibrator.synthesize(QUESTION, wrong)
    engine = calibrator.query_engine(BM25Retriever(THREE))
    assert [one.text for one in engine.query(THREE[0].text).source_nodes][:1] == [THREE[0].text]
    with pytest.raises(InvalidInput, match="retriever must be"):
        calibrator.query_engine(len)


async def test_a_stream_is_the_finished_answer_in_one_piece():
    calibrator = looking(mending(), streaming=True)
    stream = calibrator.synthesize(QUESTION, nodes())
    assert stream.metadata["sgic"]["score"] < 50  # known before anything is read
    assert list(stream.response_gen) == ["in East Lothian"]
    astream = await calibrator.asynthesize(QUESTION, [])
    assert [piece async for piece in astream.async_response_gen()] == ["in Fife"]
    plain = looking(mending()).synthesize(QUESTION, nodes())
    assert (stream.metadata, stream.source_nodes) == (plain.metadata, plain.source_nodes)


def test_keywords_and_prompts_that_would_be_ignored_are_refused():
    calibrator = looking(mending())
    with pytest.raises(InvalidInput, match="text_qa_template"):
        calibrator.synthesize(QUESTION, nodes(), text_qa_template="x")
    engine = calibrator.query_engine(AwaitedRetriever())
    with pytest.raises(InvalidInput, match="PromptTemplates"):
        engine.update_prompts({"response_synthesizer:text_qa_template": PromptTemplate("x")})
    assert engine.get_prompts() == {}


@pytest.mark.parametrize("way", ["synthesize", "asynthesize"])
async def test_events_and_spans_are_those_of_a_synthesizer(way):
    calibrator = looking(theirs())
    assert isinstance(calibrator, BaseSynthesizer)
    with traced() as trace:
        response = getattr(calibrator, way)(QUESTION, nodes())
        response = await response if way[0] == "a" else response
    [begun], [ended] = trace.heard(SynthesizeStartEvent), trace.heard(SynthesizeEndEvent)
    assert begun.query.query_str == ended.query.query_str == QUESTION
    assert ended.response == response
    assert trace.path(begun) == trace.path(ended) == [f"SGICCalibrator.{way}"]
    asked = trace.heard(LLMCompletionStartEvent)
    assert len(asked) == response.metadata["sgic"]["calls"]
    assert all(f"SGICCalibrator.{way}" in trace.path(event) for event in asked)


@pytest.mark.parametrize(
    ("probability", "threshold", "limit", "passing"),
    [
        (0.9, 0, None, False),
        (0.9, 30, None, True),
        (0.5, 50, None, False),
        (0.1, 95, None, True),
        (0.6, 50, 41, True),
        (0.6, 50, 30, False),
    ],
)
async def test_a_response_passes_below_the_threshold_unless_it_was_refused(
    probability, threshold, limit, passing
):
    calibrator = SGICCalibrator(sure(probability), settings=ONCE, refuse_above=limit)
    response = calibrator.synthesize(QUESTION, nodes())
    evaluator = SGICEvaluator(pass_below=threshold)
    assert isinstance(evaluator, BaseEvaluator)
    result = evaluator.evaluate_response(QUESTION, response)
    assert (result.passing, result.invalid_result) == (passing, False)
    assert result.score == pytest.approx(probability)  # the certainty: larger is better
    assert (result.query, result.response) == (QUESTION, response.response)
    assert result.contexts == [passage.text for passage in THREE]
    assert f"{100 * (1 - probability):.0f} of 100" in result.feedback
    assert ("refused" in result.feedback) is (limit == 30)
    assert await evaluator.aevaluate_response(QUESTION, response) == result
    streamed = SGICCalibrator(sure(probability), settings=ONCE, refuse_above=limit, streaming=True)
    read = streamed.synthesize(QUESTION, nodes()).get_response()
    stream = streamed.synthesize(QUESTION, nodes())
    assert str(stream) == read.response  # which is then in it
    assert evaluator.evaluate_response(QUESTION, stream) == result


async def test_a_response_without_an_uncertainty_is_an_error_that_says_what_to_do():
    evaluator = SGICEvaluator()
    for response in (Response("x"), Response("x", metadata={"sgic": 3})):
        with pytest.raises(InvalidInput, match="SGICCalibrator"):
            evaluator.evaluate_response(QUESTION, response)
    for nothing in (None, "a text"):
        with pytest.raises(InvalidInput, match="no response"):
            await evaluator.aevaluate_response(QUESTION, nothing)
    with pytest.raises(InvalidInput, match="evaluate_response"):
        evaluator.evaluate(QUESTION, "a text")
    for wrong in (-1, 101, float("nan"), "50", True):
        with pytest.raises(InvalidInput, match="pass_below"):
            SGICEvaluator(wrong)


async def test_a_gates_draft_passes_by_the_probability_that_it_is_wrong(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    gate = RuleGate(World(llm=ScriptedLLM(lambda prompt: "Austen")), never)
    inner = SGICCalibrator(sure(0.2), settings=ONCE).query_engine(AwaitedRetriever())
    router, evaluator = GECERouter(gate, inner), SGICEvaluator(pass_below=40)
    response = router.query("Who wrote Emma?")
    for wrong, passing in ((0.0, True), (0.39, True), (0.4, False), (1.0, False)):
        response.metadata["gece"]["probability"] = wrong
        result = await evaluator.aevaluate_response(QUESTION, response)
        assert (result.passing, result.score) == (passing, pytest.approx(1 - wrong))
    assert str(RetryQueryEngine(router, evaluator).query("Who wrote Emma?")) == "Austen"
    looked = GECERouter(RuleGate(gate.world, always), inner).query("Who wrote Emma?")
    assert evaluator.evaluate_response(QUESTION, looked).score == pytest.approx(0.2)
    with pytest.raises(InvalidInput, match="carries no uncertainty"):
        evaluator.evaluate_response(QUESTION, Response("x", metadata={"gece": {"retrieve": True}}))


def test_a_retrying_engine_asks_again_until_the_answer_passes(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", MockLLM())  # its feedback transform wants one
    llm = ScriptedLLM(lambda p: said("sure", 0.9) if "previous bad answer" in p else said("?", 0.1))
    engine = SGICCalibrator(llm, settings=ONCE).query_engine(AwaitedRetriever())
    response = RetryQueryEngine(engine, SGICEvaluator(), max_retries=2).query("Who wrote Emma?")
    assert (str(response), len(llm.prompts)) == ("sure", 2)
    assert "uncertainty score is 90 of 100" in llm.prompts[1]
