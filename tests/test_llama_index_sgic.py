"""SGICCalibrator as a LlamaIndex response synthesizer, and the evaluator that reads its answers."""

import asyncio
import dataclasses
import json
import threading

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
from llama_index.core.query_engine import RetrieverQueryEngine, RetryQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ltrag_plugins.errors import (
    ArtifactMismatch,
    EmptyQuestion,
    InvalidInput,
    ModelFailed,
    NoTokenProbabilities,
    UnreadableArtifact,
)
from ltrag_plugins.llama_index import (
    LlamaIndexLLM,
    PassageRetriever,
    SGICCalibrator,
    SGICEvaluator,
    node_of,
)
from ltrag_plugins.llama_index.model import _response_of
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import (
    Calibration,
    ScoreScale,
    SGICSettings,
    WrongnessCalibration,
)
from ltrag_plugins.types import Passage
from tests.llama_index_parts import AsyncFunctionLLM, AwaitedRetriever, FunctionLLM, traced
from tests.sgic_parts import QUESTION, THREE, answered, documents_in, model, rounds_in, said

MENDED = [said("in Fife", 0.3), said("in East Lothian", 0.9)]


@pytest.fixture
def trace():
    with traced() as trace:
        yield trace


def alone(prompt: str):
    """The answer from one document: certain from the castle's."""
    return said("East Lothian", 0.8) if "fortress" in prompt else said("no idea", 0.2)


def mending() -> ScriptedLLM:
    """Unsure at first, certain after one round."""
    return model(MENDED, alone)


def written_by(ours: ScriptedLLM):
    """The same model as the function of a LlamaIndex LLM whose replies carry probabilities."""
    return lambda prompt: _response_of(ours.generate([prompt])[0])


def nodes() -> list[NodeWithScore]:
    scores = (0.9, 0.5, None)
    found = [node_of(passage) for passage in THREE]
    return [f.model_copy(update={"score": s}) for f, s in zip(found, scores, strict=True)]


def dumped(found) -> list[dict]:
    return [node.model_dump() for node in found]


def test_an_answer_in_a_query_engine_is_the_one_the_flow_gives():
    llm, theirs = mending(), mending()
    retriever = PassageRetriever(BM25Retriever(THREE), k=3)
    response = RetrieverQueryEngine(retriever, SGICCalibrator(llm)).query(QUESTION)
    found = retriever.retrieve(QUESTION)
    passages = [next(p for p in THREE if p.id == node.node_id) for node in found]
    wanted = answered(theirs, passages)
    assert llm.calls == theirs.calls  # the same prompts in the same requests
    told = response.metadata["sgic"]
    assert str(response) == wanted.text == told["text"] == "in East Lothian"
    plain = ("uncertainty", "score", "p_wrong", "round", "stop", "estimator", "calls", "tokens")
    assert {name: told[name] for name in plain} == {n: getattr(wanted, n) for n in plain}
    assert (told["error"], told["notes"], told["refused"]) == (None, [], False)
    assert [(d["node_id"], d["score"], d["uncertainty"], d["answer"], d["shown"])
            for d in told["documents"]] == [
        (d.passage.id, d.score, d.uncertainty, d.answer, d.shown) for d in wanted.documents
    ]  # fmt: skip
    assert [d["score"] for d in told["documents"] if d["node_id"] == "a"] == [0]  # the castle's
    assert [(r["round"], r["text"], r["uncertainty"], r["score"]) for r in told["trace"]] == [
        (r.number, r.text, r.uncertainty, r.score) for r in wanted.trace
    ]
    assert response.metadata["a"] == {"title": "Castle"}  # the nodes' own, as elsewhere


@pytest.mark.parametrize("settings", [
    SGICSettings(),
    SGICSettings(rounds=0),
    SGICSettings(keep_prompts=True, document_words=2, cut_to=1),
    SGICSettings(estimator="agreement", samples=2),
])  # fmt: skip
def test_the_metadata_is_json(settings):
    metadata = SGICCalibrator(mending(), settings=settings).synthesize(QUESTION, nodes()).metadata
    assert json.loads(json.dumps(metadata, allow_nan=False)) == metadata


def test_prompts_and_samples_are_in_the_trace_where_there_are_some():
    settings = SGICSettings(keep_prompts=True, estimator="agreement", samples=2)
    llm = mending()
    told = SGICCalibrator(llm, settings=settings).synthesize(QUESTION, nodes()).metadata["sgic"]
    assert [one["prompt"] in llm.prompts for one in told["trace"]] == [True] * len(told["trace"])
    assert [one["samples"] for one in told["trace"]] == [[r["text"]] * 2 for r in told["trace"]]


async def awaited_model(prompt):
    await asyncio.sleep(0)
    return written_by(mending())(prompt)


@pytest.mark.parametrize("make", [
    mending,
    lambda: FunctionLLM(written_by(mending())),
    lambda: FunctionLLM(written_by(mending()), is_chat_model=True),
    lambda: LlamaIndexLLM(FunctionLLM(written_by(mending())), logprobs=True),
], ids=["ours", "completion", "chat", "wrapped"])  # fmt: skip
async def test_sync_equals_async_and_no_loop_stands_still(make):
    llm = make()
    calibrator = SGICCalibrator(llm)
    response = await asyncio.to_thread(calibrator.synthesize, QUESTION, nodes())
    assert response.response == "in East Lothian"
    assert await calibrator.asynthesize(QUESTION, nodes()) == response
    assert getattr(llm, "blocked_the_loop", []) == []
    chunks = [node.node.get_content() for node in nodes()]
    text = await asyncio.to_thread(calibrator.get_response, QUESTION, chunks)
    assert text == await calibrator.aget_response(QUESTION, chunks) == "in East Lothian"


async def test_a_model_with_async_calls_is_awaited():
    calibrator = SGICCalibrator(AsyncFunctionLLM(awaited_model))
    response = await calibrator.asynthesize(QUESTION, nodes())
    assert response == SGICCalibrator(mending()).synthesize(QUESTION, nodes())
    engine = calibrator.query_engine(AwaitedRetriever())
    assert (await engine.aquery("Who has played Raoul?")).source_nodes[0].node_id == "raoul"


async def test_questions_side_by_side_do_not_mix():
    def write(prompt):
        return said("odd", 0.9) if "number 1" in prompt else said("even", 0.2)

    calibrator = SGICCalibrator(ScriptedLLM(write), settings=SGICSettings(rounds=1))
    asked = [f"Which is number {i % 2}?" for i in range(20)]
    together = await asyncio.gather(*(calibrator.asynthesize(q, nodes()) for q in asked))
    assert together == [calibrator.synthesize(q, nodes()) for q in asked]
    assert [r.response for r in together] == ["even", "odd"] * 10


def test_nothing_handed_in_is_changed():
    given, more = nodes(), [NodeWithScore(node=TextNode(id_="more", text="unread"), score=0.1)]
    llm = FunctionLLM(written_by(mending()))
    manager, query = llm.callback_manager, QueryBundle(QUESTION)
    before = (dumped(given), dumped(more), llm.model_dump(), query.to_dict())
    calibrator = SGICCalibrator(llm)
    calibrator.callback_manager = CallbackManager([])
    response = calibrator.synthesize(query, given, more)
    assert (dumped(given), dumped(more), llm.model_dump(), query.to_dict()) == before
    assert llm.callback_manager is manager
    assert len(given) == 3
    assert all(a is b for a, b in zip(response.source_nodes, given + more, strict=True))
    assert [n.score for n in response.source_nodes] == [0.9, 0.5, None, 0.1]
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
    SGICCalibrator(llm).synthesize(QUESTION, [NodeWithScore(node=node)])
    [line] = [x for x in llm.prompts[0].splitlines() if x.startswith("Document [")]
    assert line == "Document [1]: Castle: county: Lothian A fortress."
    node.excluded_llm_metadata_keys = ["secret", "title"]
    SGICCalibrator(llm).synthesize(QUESTION, [NodeWithScore(node=node)])
    assert "Castle:" not in llm.calls[-1][0]


def test_without_nodes_the_model_answers_from_what_it_knows_once():
    llm = ScriptedLLM(lambda prompt: said("from memory", 0.4))
    for nothing in ([], [].copy()):
        response = SGICCalibrator(llm).synthesize(QUESTION, nothing)
        assert (response.response, response.source_nodes) == ("from memory", [])
        told = response.metadata["sgic"]
        assert (told["stop"], told["calls"], told["documents"]) == ("no documents", 1, [])
        assert told["score"] == pytest.approx(60)
    engine = SGICCalibrator(llm).query_engine(AwaitedRetriever())
    assert str(engine.query("zzz")) == "from memory"
    assert asyncio.run(engine.aquery("zzz")).metadata["sgic"]["stop"] == "no documents"


@pytest.mark.parametrize("question", ["", "  ", "?!"])
def test_an_empty_question_is_refused_before_anything_is_asked(question):
    llm = mending()
    calibrator = SGICCalibrator(llm)
    with pytest.raises(EmptyQuestion):
        calibrator.synthesize(question, nodes())
    with pytest.raises(EmptyQuestion):
        asyncio.run(calibrator.asynthesize(QueryBundle(question), nodes()))
    with pytest.raises(EmptyQuestion):
        calibrator.get_response(question, ["text"])
    assert llm.calls == []


def test_without_token_probabilities_there_is_an_error_unless_agreement_was_chosen():
    llm = FunctionLLM(lambda prompt: "East Lothian", is_chat_model=True)
    with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
        SGICCalibrator(llm).synthesize(QUESTION, nodes())
    asked = len(llm.seen)
    settings = SGICSettings(estimator="agreement", samples=3)
    told = SGICCalibrator(llm, settings=settings).synthesize(QUESTION, nodes()).metadata["sgic"]
    assert (told["text"], told["uncertainty"], told["estimator"]) == (
        "East Lothian", 0.0, "agreement",
    )  # fmt: skip
    assert told["calls"] == 4 == len(llm.seen) - asked  # the answer and its samples


class Halting:
    """An async model that stands still in its n-th call, counting prompts."""

    def __init__(self, at: int) -> None:
        self.at, self.begun, self.reached = at, 0, asyncio.Event()

    async def __call__(self, prompt: str):
        self.begun += 1
        if self.begun == self.at:
            self.reached.set()
            await asyncio.sleep(60)
        return _response_of(said(f"answer {self.begun}", 0.3))


@pytest.mark.parametrize("at", [1, 5, 6])  # the first answer; the first round; the second
async def test_a_cancellation_stops_within_the_call_that_is_under_way(at):
    halting = Halting(at)
    calibrator = SGICCalibrator(AsyncFunctionLLM(halting))
    task = asyncio.create_task(calibrator.asynthesize(QUESTION, nodes()))
    await asyncio.wait_for(halting.reached.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    await asyncio.sleep(0.05)
    assert halting.begun == at


async def test_a_cancellation_with_a_synchronous_model_begins_no_further_call():
    begun, cancelled = [], threading.Event()

    def slow(prompt):
        begun.append(prompt)
        if len(begun) == 2:
            cancelled.wait(60)
        return _response_of(said(f"answer {len(begun)}", 0.3))

    calibrator = SGICCalibrator(FunctionLLM(slow))
    task = asyncio.create_task(calibrator.asynthesize(QUESTION, nodes()))
    while len(begun) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.3)
    assert len(begun) == 2  # the first answer; then one document of three


def failing_in_rounds(prompt):
    if rounds_in(prompt):
        raise RuntimeError("overloaded")
    return _response_of(alone(prompt) if documents_in(prompt) == 1 else said("in Fife", 0.3))


async def test_a_model_error_in_a_round_is_raised_or_the_best_answer_returned():
    calibrator = SGICCalibrator(FunctionLLM(failing_in_rounds))
    with pytest.raises(ModelFailed, match="overloaded"):
        await calibrator.asynthesize(QUESTION, nodes())
    with pytest.raises(ModelFailed, match="overloaded"):
        await asyncio.to_thread(calibrator.synthesize, QUESTION, nodes())
    kept = SGICCalibrator(FunctionLLM(failing_in_rounds), settings=SGICSettings(on_error="best"))
    response = await kept.asynthesize(QUESTION, nodes())
    told = response.metadata["sgic"]
    assert (response.response, told["stop"], told["round"]) == ("in Fife", "error", 0)
    assert told["error"].startswith("ModelFailed: the model raised RuntimeError: overloaded")
    assert await asyncio.to_thread(kept.synthesize, QUESTION, nodes()) == response


def calibration(settings=None) -> Calibration:
    """P(wrong) from answers that are right up to a score of 40 and wrong above."""
    scores, scale = range(0, 101, 5), ScoreScale("product")
    wrong = WrongnessCalibration.fit(scores, [score > 40 for score in scores], scale=scale)
    return Calibration(settings or SGICSettings(rounds=0), scale, wrong)


@pytest.mark.parametrize("probability", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("limit", [0, 20, 60, 100])
async def test_an_answer_above_the_limit_is_refused_and_kept_in_the_metadata(probability, limit):
    llm = ScriptedLLM(lambda prompt: said("East Lothian", probability))
    settings = SGICSettings(rounds=0)
    calibrator = SGICCalibrator(
        llm, settings=settings, refuse_above=limit, refusal="I cannot tell."
    )
    response = calibrator.synthesize(QUESTION, nodes())
    over = 100 * (1 - probability) > limit
    assert response.response == ("I cannot tell." if over else "East Lothian")
    assert response.metadata["sgic"]["refused"] is over
    assert response.metadata["sgic"]["text"] == "East Lothian"
    assert len(response.source_nodes) == 3
    assert await calibrator.asynthesize(QUESTION, nodes()) == response
    assert calibrator.get_response(QUESTION, ["text"]) == response.response


def test_a_limit_on_p_wrong_is_another_one_and_needs_a_calibration():
    unsure = ScriptedLLM(lambda prompt: said("East Lothian", 0.3))
    fitted = calibration()
    p_wrong = fitted.wrongness.probability(70)
    for limit in (p_wrong - 1e-4, p_wrong + 1e-5):
        calibrator = SGICCalibrator(unsure, calibration=fitted, refuse_p_wrong_above=limit)
        told = calibrator.synthesize(QUESTION, nodes()).metadata["sgic"]
        assert told["p_wrong"] == pytest.approx(p_wrong)
        assert told["refused"] is (limit < p_wrong)
    with pytest.raises(InvalidInput, match="refuse_above"):
        SGICCalibrator(unsure, refuse_p_wrong_above=0.5)
    for wrong in ({"refuse_above": 101}, {"refuse_above": float("nan")}, {"refuse_above": "high"}):
        with pytest.raises(InvalidInput, match="refuse_above"):
            SGICCalibrator(unsure, **wrong)


async def test_a_stream_is_the_finished_answer_in_one_piece():
    calibrator = SGICCalibrator(mending(), streaming=True)
    stream = calibrator.synthesize(QUESTION, nodes())
    assert stream.metadata["sgic"]["score"] < 50  # known before anything is read
    assert list(stream.response_gen) == ["in East Lothian"]
    astream = await calibrator.asynthesize(QUESTION, [])
    assert [piece async for piece in astream.async_response_gen()] == ["in Fife"]
    plain = SGICCalibrator(mending()).synthesize(QUESTION, nodes())
    assert (stream.metadata, stream.source_nodes) == (plain.metadata, plain.source_nodes)


async def test_a_saved_calibration_is_read_and_held_against_the_model(tmp_path):
    settings = SGICSettings(rounds=0, keep_prompts=True)
    fitted = calibration(settings)
    fitted.save(tmp_path, llm=mending())
    loaded = SGICCalibrator.from_pretrained(tmp_path, llm=mending(), refuse_above=50)
    built = SGICCalibrator(mending(), calibration=fitted, refuse_above=50)
    response = loaded.synthesize(QUESTION, nodes())
    assert response == built.synthesize(QUESTION, nodes())
    told = response.metadata["sgic"]
    assert (told["p_wrong"], told["refused"]) == (fitted.wrongness.probability(70), True)
    bounded = dataclasses.replace(settings, keep_prompts=False)
    other = SGICCalibrator.from_pretrained(tmp_path, llm=mending(), settings=bounded)
    assert other.synthesize(QUESTION, nodes()).metadata["sgic"]["trace"][0]["prompt"] is None
    with pytest.raises(ArtifactMismatch, match="FunctionLLM:function"):
        SGICCalibrator.from_pretrained(tmp_path, llm=FunctionLLM(written_by(mending())))
    with pytest.raises(UnreadableArtifact):
        SGICCalibrator.from_pretrained(tmp_path / "none", llm=mending())


def test_what_cannot_work_is_refused_where_it_is_handed_in():
    other = ScoreScale("margin")
    with pytest.raises(InvalidInput, match="llm must be"):
        SGICCalibrator("gpt-4o")
    with pytest.raises(ArtifactMismatch):
        SGICCalibrator(mending(), scale=other)
    asking_again = SGICSettings(estimator="agreement")
    with pytest.raises(ArtifactMismatch):
        SGICCalibrator(mending(), calibration=calibration(), settings=asking_again)
    with pytest.raises(InvalidInput, match="a scale of its own"):
        SGICCalibrator(mending(), calibration=calibration(), scale=other)
    with pytest.raises(InvalidInput, match="settings must be"):
        SGICCalibrator(mending(), settings={"rounds": 3})
    for source in ("relevance", "encoder", "oracle"):
        with pytest.raises(
            InvalidInput,
            match=f"(source='{source}'|this) needs {source.replace('oracle', 'truth')}=",
        ):
            SGICCalibrator(mending(), settings=SGICSettings(source=source))
    calibrator = SGICCalibrator(mending())
    with pytest.raises(InvalidInput, match="text_qa_template"):
        calibrator.synthesize(QUESTION, nodes(), text_qa_template="x")
    with pytest.raises(InvalidInput, match="PromptTemplates"):
        calibrator.query_engine(AwaitedRetriever()).update_prompts(
            {"response_synthesizer:text_qa_template": PromptTemplate("x")}
        )
    assert calibrator.query_engine(AwaitedRetriever()).get_prompts() == {}


def test_a_relevance_function_sees_the_nodes_ids_scores_and_metadata():
    seen: list[Passage] = []

    def nearest(question, passages):
        seen.extend(passages)
        return [passage.score or 0.0 for passage in passages]

    settings = SGICSettings(source="relevance", cut_to=1)
    calibrator = SGICCalibrator(mending(), settings=settings, relevance=nearest)
    told = calibrator.synthesize(QUESTION, nodes()).metadata["sgic"]
    assert [(p.id, p.score) for p in seen] == [("a", 0.9), ("b", 0.5), ("c", None)]
    assert [(d["node_id"], d["shown"]) for d in told["documents"]] == [
        ("a", True), ("b", False), ("c", False),
    ]  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
def test_events_and_spans_are_those_of_a_synthesizer(trace, asynchronous):
    calibrator = SGICCalibrator(FunctionLLM(written_by(mending())))
    if asynchronous:
        response = asyncio.run(calibrator.asynthesize(QUESTION, nodes()))
    else:
        response = calibrator.synthesize(QUESTION, nodes())
    [begun], [ended] = trace.heard(SynthesizeStartEvent), trace.heard(SynthesizeEndEvent)
    assert begun.query.query_str == ended.query.query_str == QUESTION
    assert ended.response == response
    name = "SGICCalibrator.asynthesize" if asynchronous else "SGICCalibrator.synthesize"
    assert trace.path(begun) == trace.path(ended) == [name]
    asked = trace.heard(LLMCompletionStartEvent)
    assert len(asked) == response.metadata["sgic"]["calls"]
    assert all(name in trace.path(event) for event in asked)


def test_it_is_a_synthesizer_and_the_evaluator_an_evaluator():
    assert isinstance(SGICCalibrator(mending()), BaseSynthesizer)
    assert isinstance(SGICEvaluator(), BaseEvaluator)


@pytest.mark.parametrize("probability", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("threshold", [0, 30, 50, 95])
async def test_a_response_passes_below_the_threshold(probability, threshold):
    llm = ScriptedLLM(lambda prompt: said("East Lothian", probability))
    response = SGICCalibrator(llm, settings=SGICSettings(rounds=0)).synthesize(QUESTION, nodes())
    evaluator = SGICEvaluator(pass_below=threshold)
    result = evaluator.evaluate_response(QUESTION, response)
    score = response.metadata["sgic"]["score"]
    assert score == pytest.approx(100 * (1 - probability))
    assert result.passing is (score < threshold)
    assert result.score == pytest.approx(probability)  # the certainty: larger is better
    assert (result.query, result.response, result.invalid_result) == (
        QUESTION, "East Lothian", False,
    )  # fmt: skip
    assert result.contexts == [passage.text for passage in THREE]
    assert f"{score:.0f} of 100" in result.feedback
    assert await evaluator.aevaluate_response(QUESTION, response) == result


def test_a_refused_answer_does_not_pass():
    llm = ScriptedLLM(lambda prompt: said("East Lothian", 0.6))
    response = SGICCalibrator(llm, refuse_above=30).synthesize(QUESTION, nodes())
    result = SGICEvaluator(pass_below=50).evaluate_response(QUESTION, response)
    assert (result.passing, "refused" in result.feedback) == (False, True)
    kept = SGICCalibrator(llm).synthesize(QUESTION, nodes())
    assert SGICEvaluator(pass_below=50).evaluate_response(QUESTION, kept).passing is True


async def test_a_response_without_an_uncertainty_is_an_error_that_says_what_to_do():
    evaluator = SGICEvaluator()
    for response in (Response("x"), Response("x", metadata={"sgic": 3})):
        with pytest.raises(InvalidInput, match="SGICCalibrator"):
            evaluator.evaluate_response(QUESTION, response)
    with pytest.raises(InvalidInput, match="no response"):
        await evaluator.aevaluate_response(QUESTION)
    with pytest.raises(InvalidInput, match="evaluate_response"):
        evaluator.evaluate(QUESTION, "a text")
    with pytest.raises(InvalidInput, match="evaluate_response"):
        await evaluator.aevaluate(QUESTION, "a text")
    for wrong in (-1, 101, float("nan"), "50", True):
        with pytest.raises(InvalidInput, match="pass_below"):
            SGICEvaluator(wrong)


def test_a_retrying_engine_asks_again_until_the_answer_passes(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", MockLLM())  # its feedback transform wants one
    llm = ScriptedLLM(lambda p: said("sure", 0.9) if "previous bad answer" in p else said("?", 0.1))
    engine = SGICCalibrator(llm, settings=SGICSettings(rounds=0)).query_engine(AwaitedRetriever())
    response = RetryQueryEngine(engine, SGICEvaluator(), max_retries=2).query("Who wrote Emma?")
    assert (str(response), len(llm.prompts)) == ("sure", 2)
    assert "uncertainty score is 90 of 100" in llm.prompts[1]


def test_scores_are_on_the_scale_that_was_handed_in():
    settings, scale = SGICSettings(rounds=0), ScoreScale("product", (0.8,))
    bare = SGICCalibrator(mending(), settings=settings, scale=scale)
    fitted = SGICCalibrator(mending(), calibration=Calibration(settings, scale))
    for calibrator in (bare, fitted):
        told = calibrator.synthesize(QUESTION, nodes()).metadata["sgic"]
        assert told["score"] == pytest.approx(50 * 0.7 / 0.8)  # eq. 2, below the mean
