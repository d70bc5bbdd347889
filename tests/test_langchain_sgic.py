"""SGICCalibrator in LangChain."""

import asyncio
import copy
from typing import TypedDict

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langgraph.graph import END, START, StateGraph
from pydantic import Field

from ltrag_plugins.calibration import Platt
from ltrag_plugins.errors import (
    ArtifactMismatch,
    EmptyQuestion,
    InvalidInput,
    ModelFailed,
    NoTokenProbabilities,
)
from ltrag_plugins.flow import World, arun, arun_steps, run, run_many, run_steps
from ltrag_plugins.langchain import LangChainLLM, SGICCalibrator, document_of, passage_of
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import (
    Calibration,
    ScoreScale,
    SGICSettings,
    WrongnessCalibration,
    calibrate,
)
from tests.langchain_parts import FunctionChat, FunctionCompletion, Runs, soon, with_logprobs
from tests.sgic_parts import CASTLE, QUESTION, THREE, documents_in, model, rounds_in, said

DOCUMENTS = [document_of(passage) for passage in THREE]
GIVEN = {"question": QUESTION, "documents": DOCUMENTS}
LADDER = [said("Fife", 0.2), said("Lothian", 0.6), said("East Lothian", 0.95)]
"""Three rounds, the last certain: uncertainties 0.8, 0.4, 0.05."""


def chat(llm: ScriptedLLM) -> FunctionChat:
    """The same model as LangChain's, its replies as ChatOpenAI gives them."""

    def reply(prompt: str) -> AIMessage:
        [one] = llm.generate([prompt])
        message = with_logprobs(one.text, *((t.text, t.logprob) for t in one.tokens or ()))
        message.usage_metadata = {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}
        return message

    return FunctionChat(reply)


def ladder() -> ScriptedLLM:
    return model(LADDER)


def core(llm=None, question=QUESTION, documents=DOCUMENTS, **told):
    """The second route: the flow itself, without LangChain."""
    passages = [passage_of(document) for document in documents]
    return run(calibrate(question, passages, **told), World(llm=llm or ladder()))


def plain(answer):
    """Without what LangChain's replies cannot carry and ours do."""
    rounds = [(r.number, r.text, round(r.uncertainty, 9), round(r.score, 9)) for r in answer.trace]
    return answer.text, round(answer.score, 9), answer.round, answer.stop, answer.calls, rounds


class Search(BaseRetriever):
    """Finds the three documents, and notes what it was asked for."""

    asked: list[tuple[str, int]] = Field(default_factory=list)
    native: list[str] = Field(default_factory=list)

    def _get_relevant_documents(self, query, *, run_manager, k: int = 3):
        self.asked.append((query, k))
        return list(DOCUMENTS[:k])

    async def _aget_relevant_documents(self, query, *, run_manager, k: int = 3):
        self.native.append(query)
        return self._get_relevant_documents(query, run_manager=run_manager, k=k)


async def test_every_way_of_calling_gives_what_the_flow_itself_gives():
    expected = core()
    for llm in (ladder(), chat(ladder())):
        calibrator = SGICCalibrator(llm)
        for out in (
            calibrator.invoke(GIVEN),
            await calibrator.ainvoke(GIVEN),
            calibrator.batch([GIVEN])[0],
            (await calibrator.abatch([GIVEN]))[0],
        ):
            assert plain(out["calibrated"]) == plain(expected)
            assert out == calibrator.invoke(GIVEN)
            assert out["answer"] == "East Lothian"
            assert out["question"] == QUESTION
            assert out["uncertainty"] == pytest.approx(0.05)
            assert out["score"] == pytest.approx(5)
            assert [r.text for r in out["trace"]] == ["Fife", "Lothian", "East Lothian"]
            assert (out["refused"], out["p_wrong"]) == (False, None)


async def test_a_stream_has_one_chunk_a_round_and_the_answer_and_adds_up_to_the_whole():
    calibrator = SGICCalibrator(chat(ladder()))
    sync = list(calibrator.stream(GIVEN))
    for chunks in (sync, [chunk async for chunk in calibrator.astream(GIVEN)]):
        *rounds, last = chunks
        assert [[r.number for r in chunk["trace"]] for chunk in rounds] == [[0], [1], [2]]
        assert [set(chunk) for chunk in rounds] == [{"trace"}] * 3
        assert last["answer"] == "East Lothian"
        total = chunks[0]
        for chunk in chunks[1:]:
            total = total + chunk
        assert total == calibrator.invoke(GIVEN)


async def test_a_round_is_streamed_before_the_next_one_is_asked_for():
    llm = ladder()
    stream = SGICCalibrator(llm).stream(GIVEN)
    assert next(stream)["trace"][0].text == "Fife"
    assert len(llm.prompts) == 1
    assert next(stream)["trace"][0].text == "Lothian"
    assert len(llm.prompts) == 1 + 3 + 1
    stream.close()  # type: ignore[attr-defined]
    assert len(llm.prompts) == 5  # leaving early asks for nothing more
    llm = ladder()
    native = SGICCalibrator(llm).astream(GIVEN)
    assert (await anext(native))["trace"][0].text == "Fife"
    await native.aclose()  # type: ignore[attr-defined]
    assert len(llm.prompts) == 1


async def test_run_steps_gives_what_run_gives_and_closes_the_flow_when_left():
    closed = []

    def flow():
        try:
            return (yield from calibrate(QUESTION, THREE))
        finally:
            closed.append(True)

    for steps in (
        list(run_steps(flow(), World(llm=ladder()))),
        [step async for step in arun_steps(flow(), World(llm=ladder()))],
    ):
        *waiting, last = steps
        assert waiting == [None] * 4  # three rounds, and the documents alone
        assert last is not None
        assert last.value == run(flow(), World(llm=ladder()))
        assert last.value == await arun(flow(), World(llm=ladder()))
    closed.clear()
    steps = run_steps(flow(), World(llm=ladder()))
    next(steps)
    steps.close()
    assert closed == [True]


def test_on_round_hears_the_trace():
    heard = []
    answer = run(calibrate(QUESTION, THREE, on_round=heard.append), World(llm=ladder()))
    assert tuple(heard) == answer.trace
    assert [one.text for one in heard] == ["Fife", "Lothian", "East Lothian"]


def test_a_plain_string_comes_out_for_chains_that_want_one():
    text = SGICCalibrator(chat(ladder())).as_text()
    assert text.invoke(GIVEN) == "East Lothian"
    assert list(text.stream(GIVEN)) == ["East Lothian"]
    assert (text | StrOutputParser() | str.upper).invoke(GIVEN) == "EAST LOTHIAN"
    assert (text | StrOutputParser()).batch([GIVEN, GIVEN]) == ["East Lothian"] * 2


async def test_it_stands_in_chains():
    calibrator = SGICCalibrator(chat(ladder()), Search())
    prompt = PromptTemplate.from_template("Where is {place}?")
    chain = prompt | calibrator.as_text() | StrOutputParser()
    assert chain.invoke({"place": "Dirleton Castle"}) == "East Lothian"
    assert await chain.ainvoke({"place": "Dirleton Castle"}) == "East Lothian"
    reading = {"documents": Search(), "question": RunnablePassthrough()} | SGICCalibrator(ladder())
    assert reading.invoke(QUESTION)["answer"] == "East Lothian"
    assigned = RunnablePassthrough.assign(out=SGICCalibrator(ladder()).as_text())
    assert assigned.invoke(GIVEN) == {**GIVEN, "out": "East Lothian"}


@pytest.mark.parametrize(
    "question",
    [QUESTION, HumanMessage(QUESTION), [AIMessage("hello"), HumanMessage(QUESTION)],
     {"question": QUESTION}, {"messages": [HumanMessage(QUESTION)]}],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
async def test_a_retriever_inside_finds_the_documents(question):
    search = Search()
    calibrator = SGICCalibrator(ladder(), search)
    out = calibrator.invoke(question)
    assert out == await calibrator.ainvoke(question) == calibrator.batch([question])[0]
    out.pop("messages", None)
    assert out == SGICCalibrator(ladder()).invoke(GIVEN)
    assert search.asked == [(QUESTION, 3)] * 3
    assert search.native == [QUESTION]


def test_documents_that_are_given_are_not_searched_for():
    search = Search()
    out = SGICCalibrator(ladder(), search).invoke({**GIVEN, "documents": DOCUMENTS[:2]})
    assert [d.id for d in out["documents"]] == ["a", "b"]
    assert search.asked == []


async def test_k_and_the_arguments_of_a_call_reach_the_retriever():
    search = Search()
    calibrator = SGICCalibrator(ladder(), search, k=2)
    assert len(calibrator.invoke(QUESTION)["documents"]) == 2
    free = SGICCalibrator(ladder(), search)
    assert len(free.invoke(QUESTION, k=1)["documents"]) == 1
    assert len((await free.ainvoke(QUESTION, k=1))["documents"]) == 1
    assert len(free.batch([QUESTION], k=1)[0]["documents"]) == 1
    assert [k for _, k in search.asked] == [2, 1, 1, 1]
    with pytest.raises(InvalidInput, match=r"\['k'\] are for the retriever"):
        free.invoke(GIVEN, k=1)
    deaf = SGICCalibrator(ladder(), RunnableLambda(lambda _: DOCUMENTS), k=1)
    assert [d.id for d in deaf.invoke(QUESTION)["documents"]] == ["a"]


def test_keys_can_be_named():
    calibrator = SGICCalibrator(ladder(), question_key="input", documents_key="context")
    out = calibrator.invoke({"input": QUESTION, "context": DOCUMENTS})
    assert out["answer"] == "East Lothian"


@pytest.mark.parametrize("question", ["", " ?", {"question": "", "documents": DOCUMENTS}])
async def test_an_empty_question_is_refused_before_anything_is_searched(question):
    search, llm = Search(), ladder()
    calibrator = SGICCalibrator(llm, search)
    for call in (calibrator.invoke, lambda q: list(calibrator.stream(q))):
        with pytest.raises(EmptyQuestion):
            call(question)
    with pytest.raises(EmptyQuestion):
        await calibrator.ainvoke(question)
    assert (search.asked, llm.prompts) == ([], [])


@pytest.mark.parametrize(
    "given", [QUESTION, {"question": QUESTION}, {**GIVEN, "documents": None}], ids=str
)
def test_without_documents_and_retriever_the_error_says_what_to_give(given):
    with pytest.raises(InvalidInput, match=r"'documents'.*no retriever"):
        SGICCalibrator(ladder()).invoke(given)


@pytest.mark.parametrize("wrong", ["text", [THREE[0]], ["text"], 7, DOCUMENTS[0], {"a": 1}])
def test_documents_of_another_type_are_refused_wherever_they_come_from(wrong):
    with pytest.raises(InvalidInput, match="under 'documents'"):
        SGICCalibrator(ladder()).invoke({**GIVEN, "documents": wrong})
    with pytest.raises(InvalidInput, match="from the retriever"):
        SGICCalibrator(ladder(), RunnableLambda(lambda _: wrong)).batch([QUESTION])


def test_an_empty_list_asks_the_model_alone_once():
    llm = ladder()
    out = SGICCalibrator(llm).invoke({**GIVEN, "documents": []})
    assert out["calibrated"].stop == "no documents"
    assert (out["documents"], len(llm.prompts)) == ([], 1)


def test_each_document_keeps_its_id_and_place_and_gets_its_own_score():
    def alone(prompt: str):
        return said("it", {"fortress": 0.9, "coastal": 0.5, "seaside": 0.1}[
            next(w for w in ("fortress", "coastal", "seaside") if w in prompt)
        ])  # fmt: skip

    out = SGICCalibrator(model(LADDER, alone)).invoke(GIVEN)
    # u = 0.1, 0.5, 0.9; min-max to 0-100
    assert [d.metadata["sgic"]["score"] for d in out["documents"]] == pytest.approx([0, 50, 100])
    assert [d.metadata["sgic"]["uncertainty"] for d in out["documents"]] == pytest.approx(
        [0.1, 0.5, 0.9]
    )
    assert [d.id for d in out["documents"]] == [d.id for d in DOCUMENTS]
    assert [d.page_content for d in out["documents"]] == [d.page_content for d in DOCUMENTS]


def test_an_older_score_in_the_metadata_does_not_win():
    old = [Document("x y", id="1", metadata={"sgic": {"score": 99.0}, "source": "s"})]
    [one] = SGICCalibrator(ladder()).invoke({**GIVEN, "documents": old})["documents"]
    assert one.metadata["sgic"]["score"] == 50
    assert one.metadata["source"] == "s"
    assert old[0].metadata == {"sgic": {"score": 99.0}, "source": "s"}


async def test_nothing_that_is_handed_in_is_changed():
    language = chat(ladder())
    search = Search()
    given = {"question": QUESTION, "documents": list(DOCUMENTS)}
    before = (language.model_dump(), copy.deepcopy(given))
    calibrator = SGICCalibrator(language, search, k=2)
    calibrator.invoke(given)
    await calibrator.ainvoke(given)
    calibrator.batch([given, QUESTION])
    assert (language.model_dump(), given) == before
    assert language.logprobs is None
    assert all(a is b for a, b in zip(given["documents"], DOCUMENTS, strict=True))
    assert calibrator.retriever is search


def test_a_batch_asks_once_a_round_for_all_questions():
    llm = ladder()
    inputs = [{**GIVEN, "question": f"{QUESTION} {i}"} for i in range(4)]
    together = SGICCalibrator(llm).batch(inputs)
    assert together == [SGICCalibrator(ladder()).invoke(one) for one in inputs]
    assert [len(call) for call in llm.calls] == [4, 12, 4, 4]
    assert SGICCalibrator(llm).batch([]) == []


def test_a_failing_question_keeps_its_place_in_the_batch():
    def search(query: str):
        if "lost" in query:
            raise LookupError("index")
        return DOCUMENTS

    calibrator = SGICCalibrator(ladder(), RunnableLambda(search))
    inputs = [QUESTION, "", "lost", {"q": 1}, GIVEN]
    first, *wrong, last = calibrator.batch(inputs, return_exceptions=True)
    assert first["answer"] == last["answer"] == "East Lothian"
    assert [type(error) for error in wrong] == [EmptyQuestion, LookupError, InvalidInput]
    for bad, error in {"": EmptyQuestion, "lost": LookupError}.items():
        with pytest.raises(error):
            calibrator.batch([QUESTION, bad])
    with pytest.raises(LookupError, match="index"):
        calibrator.invoke("lost")


def test_openai_shaped_replies_are_read_token_by_token():
    reply = with_logprobs("East Lothian", ("East", -0.25), (" Lothian", -0.5))
    language = FunctionChat(lambda _: reply)
    out = SGICCalibrator(language, settings=SGICSettings(rounds=0)).invoke(GIVEN)
    assert out["uncertainty"] == pytest.approx(1 - 2.718281828459045**-0.75)
    [sent] = language.sent
    assert (sent["logprobs"], sent["max_tokens"], sent["temperature"]) == (True, 32, 0.0)


async def test_a_model_without_log_probabilities_is_a_named_error():
    for language in (FunctionChat(lambda _: "Lothian"), FunctionCompletion(lambda _: "Lothian")):
        calibrator = SGICCalibrator(language)
        with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
            calibrator.invoke(GIVEN)
        with pytest.raises(NoTokenProbabilities):
            await calibrator.ainvoke(GIVEN)
        [error] = calibrator.batch([GIVEN], return_exceptions=True)
        assert isinstance(error, NoTokenProbabilities)


def test_agreement_reads_a_model_without_log_probabilities_and_asks_for_none():
    settings = SGICSettings(estimator="agreement", samples=4, rounds=0)
    told = iter(["Lothian", "Lothian", "Fife", "Lothian", "Fife"])
    language = FunctionChat(lambda _: next(told))
    out = SGICCalibrator(language, settings=settings).invoke(GIVEN)
    assert out["uncertainty"] == pytest.approx(0.5)  # 2 of 4 samples agree
    assert all("logprobs" not in sent for sent in language.sent)
    assert [sent["temperature"] for sent in language.sent] == [0.0, 0.7, 0.7, 0.7, 0.7]


async def test_a_cancelled_call_stops_within_one_model_call():
    asked = []
    waiting = asyncio.Event()

    async def slow(prompt: str):
        asked.append(prompt)
        if rounds_in(prompt):
            waiting.set()
            await asyncio.sleep(30)
        return with_logprobs("x", ("x", -2.0))

    language = FunctionChat(slow)
    for start in (
        lambda c: c.ainvoke(GIVEN),
        lambda c: drained(c.astream(GIVEN)),
        lambda c: c.abatch([GIVEN]),
    ):
        asked.clear()
        waiting.clear()
        task = asyncio.create_task(start(SGICCalibrator(language)))
        await asyncio.wait_for(waiting.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert len(asked) == 1 + 3 + 1
        assert language.flying[0] == 0


async def drained(chunks):
    return [chunk async for chunk in chunks]


def failing_in_round(number: int) -> FunctionChat:
    inner = chat(ladder())

    def reply(prompt: str) -> AIMessage:
        if documents_in(prompt) == 3 and len(rounds_in(prompt)) == number:
            raise ConnectionError("no route")
        return inner.function(prompt)

    return FunctionChat(reply)


async def test_a_model_error_is_raised_or_gives_the_best_answer_so_far():
    best = SGICCalibrator(failing_in_round(2), settings=SGICSettings(on_error="best"))
    for out in (best.invoke(GIVEN), await best.ainvoke(GIVEN), best.batch([GIVEN])[0]):
        assert out["answer"] == "Lothian"
        assert out["calibrated"].stop == "error"
        assert "no route" in out["calibrated"].error
    assert [set(chunk) for chunk in best.stream(GIVEN)][:2] == [{"trace"}] * 2
    for calibrator in (
        SGICCalibrator(failing_in_round(2)),
        SGICCalibrator(failing_in_round(0), settings=SGICSettings(on_error="best")),
    ):
        with pytest.raises(ModelFailed, match="no route") as caught:
            calibrator.invoke(GIVEN)
        assert isinstance(caught.value.__cause__, ConnectionError)
        with pytest.raises(ModelFailed):
            await calibrator.ainvoke(GIVEN)
        with pytest.raises(ModelFailed):
            list(calibrator.stream(GIVEN))


async def test_an_answer_above_the_limit_is_refused_and_stays_in_the_trace():
    flat = [said("Fife", 0.4)]  # a score of 60 on the default scale
    refusing = SGICCalibrator(model(flat), refuse_above=59.9, refusal="Ask a person.")
    for out in (refusing.invoke(GIVEN), await refusing.ainvoke(GIVEN), refusing.batch([GIVEN])[0]):
        assert (out["answer"], out["refused"]) == ("Ask a person.", True)
        assert out["score"] == pytest.approx(60)
        assert out["calibrated"].text == "Fife"
        assert out["trace"][0].text == "Fife"
    *_, last = refusing.stream(GIVEN)
    assert last["refused"]
    assert refusing.as_text().invoke(GIVEN) == "Ask a person."
    allowing = SGICCalibrator(model(flat), refuse_above=60.1)
    assert allowing.invoke(GIVEN)["answer"] == "Fife"


def calibration(**settings) -> Calibration:
    """P(wrong) is the logistic function of score / 100 - 0.5, which is 0.5 at a score of 50."""
    scale = ScoreScale("product", (0.5,))
    wrongness = WrongnessCalibration(Platt(1.0, -0.5), scale, 20, 0.5, 0.8, 0.1)
    return Calibration(SGICSettings(**settings), scale, wrongness)


def test_with_a_calibration_the_limit_may_be_on_the_probability_of_being_wrong():
    flat = [said("Fife", 0.4)]
    free = SGICCalibrator(model(flat), calibration=calibration())
    p = free.invoke(GIVEN)["p_wrong"]
    assert p == pytest.approx(1 / (1 + 2.718281828459045**-0.1))
    for limit, refused in {p - 0.01: True, p + 0.01: False, p: False}.items():
        told = SGICCalibrator(
            model(flat), calibration=calibration(), refuse_p_wrong_above=limit
        ).invoke(GIVEN)
        assert told["refused"] is refused


def test_limits_that_cannot_hold_are_refused_at_once():
    for wrong in (-1, 101, float("nan")):
        with pytest.raises(InvalidInput, match=r"refuse_above .*from 0 to 100"):
            SGICCalibrator(ladder(), refuse_above=wrong)
        with pytest.raises(InvalidInput, match=r"refuse_p_wrong_above .*from 0 to 1 "):
            SGICCalibrator(ladder(), refuse_p_wrong_above=wrong)
    with pytest.raises(InvalidInput, match="refuse_above"):
        SGICCalibrator(ladder(), refuse_p_wrong_above=0.5)


def test_what_is_no_model_or_retriever_or_calibration_is_refused_at_once():
    with pytest.raises(InvalidInput, match="LangChain chat model"):
        SGICCalibrator("gpt")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="PassageRetriever"):
        SGICCalibrator(ladder(), "bm25")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="from_pretrained"):
        SGICCalibrator(ladder(), calibration="folder")  # type: ignore[arg-type]
    settings = SGICSettings(estimator="agreement")
    with pytest.raises(ArtifactMismatch, match="agreement"):
        SGICCalibrator(ladder(), settings=settings, calibration=calibration())


def test_a_saved_calibration_is_used_and_another_model_is_refused(tmp_path):
    language = chat(ladder())
    calibration(rounds=1).save(tmp_path, llm=SGICCalibrator(language).llm)
    loaded = SGICCalibrator.from_pretrained(tmp_path, llm=language, refuse_above=90)
    out = loaded.invoke(GIVEN)
    assert len(out["trace"]) == 2
    assert out["p_wrong"] is not None
    with pytest.raises(ArtifactMismatch, match="fitted on the model"):
        SGICCalibrator.from_pretrained(tmp_path, llm=chat(ladder()).bind(user="other"))


def test_settings_beside_a_calibration_keep_its_scale():
    both = SGICCalibrator(
        ladder(), settings=SGICSettings(rounds=0), calibration=calibration(rounds=5)
    ).invoke(GIVEN)
    assert len(both["trace"]) == 1
    assert both["p_wrong"] is not None


def test_documents_may_be_scored_by_a_relevance_function_or_embeddings():
    class Vectors:
        name = "vectors"

        def encode(self, texts):
            import numpy as np

            return np.array([[1.0, float("fortress" in t)] for t in texts], dtype=np.float32)

    asked = ladder()
    relevant = SGICCalibrator(
        asked,
        settings=SGICSettings(source="relevance"),
        relevance=lambda question, passages: [float("Berwick" in p.text) for p in passages],
    ).invoke(GIVEN)
    assert [d.metadata["sgic"]["score"] for d in relevant["documents"]] == [100, 100, 0]
    near = SGICCalibrator(
        ladder(), settings=SGICSettings(source="encoder"), encoder=Vectors()
    ).invoke(GIVEN)
    assert [d.metadata["sgic"]["score"] for d in near["documents"]] == [100, 0, 0]


async def test_every_model_and_retriever_run_is_a_child_of_the_calibrators():
    for call in (
        lambda c, config: c.invoke(QUESTION, config),
        lambda c, config: c.ainvoke(QUESTION, config),
        lambda c, config: list(c.stream(QUESTION, config)),
        lambda c, config: drained(c.astream(QUESTION, config)),
        lambda c, config: c.batch([QUESTION], config),
        lambda c, config: c.abatch([QUESTION], config),
    ):
        runs = Runs()
        calibrator = SGICCalibrator(chat(ladder()), Search(), name="sure")
        result = call(calibrator, {"callbacks": [runs], "metadata": {"user": 7}})
        if asyncio.iscoroutine(result):
            await result
        [top] = runs.named("sure")
        asked = runs.named("ltrag_call")
        assert len(asked) == 1 + 3 + 1 + 1
        assert {tuple(runs.ancestry(run)) for run in asked} == {("ltrag_call", "sure")}
        assert [runs.ancestry(run) for run in runs.named("Search")] == [["Search", "sure"]]
        assert all(run["metadata"]["user"] == 7 for run in asked)
        assert top["parent"] is None
        assert top["output"]["answer"] == "East Lothian"


def test_in_a_batch_every_prompt_belongs_to_its_own_question():
    runs = Runs()
    inputs = [{**GIVEN, "question": f"Where is {place}?"} for place in ("Ayr", "Bute", "Crail")]
    SGICCalibrator(chat(ladder())).batch(inputs, {"callbacks": [runs]})
    asked = runs.named("ltrag_call")
    assert len(asked) == 3 * 6
    for run_ in asked:
        question = runs.by_id[run_["parent"]]["inputs"]["question"]
        assert f"Question: {question}" in run_["inputs"][0][0].text


async def test_fifty_questions_are_in_flight_at_once():
    language = FunctionChat(lambda _: soon(with_logprobs("x", ("x", -0.01))))
    calibrator = SGICCalibrator(LangChainLLM(language, max_concurrency=50))
    await asyncio.gather(*(calibrator.ainvoke(GIVEN) for _ in range(50)))
    assert language.flying == [0, 50]
    await calibrator.abatch([GIVEN] * 20, {"max_concurrency": 3})
    assert len(language.sent) == 70


def test_a_batch_equals_run_many():
    inputs = [{**GIVEN, "question": f"{QUESTION} {i}"} for i in range(3)]
    flows = [calibrate(one["question"], THREE) for one in inputs]
    expected = run_many(flows, World(llm=ladder()))
    got = SGICCalibrator(ladder()).batch(inputs)
    assert [plain(out["calibrated"]) for out in got] == [plain(answer) for answer in expected]


class State(TypedDict, total=False):
    question: str
    documents: list[Document]
    answer: str
    score: float


async def test_a_graph_looks_for_more_while_the_answer_is_uncertain_and_then_gives_up():
    def alone(prompt: str):
        return said("East Lothian", 0.95) if CASTLE.text in prompt else said("no idea", 0.3)

    def graph(most: int):
        calibrator = SGICCalibrator(
            ScriptedLLM(alone), settings=SGICSettings(rounds=0), refuse_above=50, refusal="Pass."
        )

        def search(state: State) -> State:
            found = [DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[0]]
            return {"documents": found[: len(state.get("documents", ())) + 1]}

        builder = StateGraph(State)
        builder.add_node("search", search)
        builder.add_node("answer", calibrator | RunnableLambda(kept))
        builder.add_edge(START, "search")
        builder.add_edge("search", "answer")
        builder.add_conditional_edges(
            "answer",
            lambda s: "search" if s["score"] > 50 and len(s["documents"]) < most else END,
            ["search", END],
        )
        return builder.compile()

    def kept(out):
        return {name: out[name] for name in ("answer", "score", "documents")}

    for most, answer in {3: "East Lothian", 2: "Pass."}.items():
        for state in (
            graph(most).invoke({"question": QUESTION}),
            await graph(most).ainvoke({"question": QUESTION}),
        ):
            assert (state["answer"], len(state["documents"])) == (answer, most)
