"""SGICCalibrator as a Runnable: streams, chains, retrievers, batches, runs, graphs."""

import copy
from functools import partial, reduce
from operator import add
from typing import TypedDict

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import Field

from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.flow import World, run_steps
from ltrag_plugins.langchain import SGICCalibrator, document_of
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings, calibrate
from tests.framework_parts import LangChain, ladder
from tests.langchain_parts import FunctionChat, Runs
from tests.sgic_parts import CASTLE, LOOKING, QUESTION, THREE, said

looking = partial(SGICCalibrator, settings=LOOKING)

DOCUMENTS = [document_of(passage) for passage in THREE]
GIVEN = {"question": QUESTION, "documents": DOCUMENTS}


def chat() -> FunctionChat:
    return LangChain.models(lambda prompt: ladder().generate([prompt])[0])["chat"]


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


async def test_a_stream_has_one_chunk_a_round_and_then_the_answer():
    calibrator = looking(chat())
    sync = list(calibrator.stream(GIVEN))
    for *rounds, last in (sync, [chunk async for chunk in calibrator.astream(GIVEN)]):
        assert [[r.number for r in chunk["trace"]] for chunk in rounds] == [[0], [1], [2]]
        assert [set(chunk) for chunk in rounds] == [{"trace"}] * 3
        assert (last["answer"], last["question"]) == ("East Lothian", QUESTION)
    assert reduce(add, sync) == calibrator.invoke(GIVEN)


async def test_a_round_is_streamed_before_the_next_one_is_asked_for():
    llm, awaited = ladder(), ladder()
    stream, native = looking(llm).stream(GIVEN), looking(awaited).astream(GIVEN)
    assert [next(stream)["trace"][0].text for _ in "ab"] == ["Fife", "Lothian"]
    stream.close()  # type: ignore[attr-defined]
    assert len(llm.prompts) == 1 + 3 + 1  # leaving early asks for nothing more
    assert (await anext(native))["trace"][0].text == "Fife"
    await native.aclose()  # type: ignore[attr-defined]
    assert len(awaited.prompts) == 1


def test_steps_that_are_left_early_close_the_flow():
    closed = []

    def flow():
        try:
            return (yield from calibrate(QUESTION, THREE, LOOKING))
        finally:
            closed.append(True)

    *waiting, last = run_steps(flow(), World(llm=ladder()))
    assert waiting == [None] * 4  # three rounds, and the documents alone
    assert last is not None
    closed.clear()
    steps = run_steps(flow(), World(llm=ladder()))
    next(steps)
    steps.close()
    assert closed == [True]


async def test_it_stands_in_chains_and_a_plain_string_comes_out_for_those_that_want_one():
    text = looking(chat()).as_text()
    assert list(text.stream(GIVEN)) == ["East Lothian"]
    assert (text | StrOutputParser()).batch([GIVEN, GIVEN]) == ["East Lothian"] * 2
    prompt = PromptTemplate.from_template("Where is {place}?")
    chain = prompt | looking(chat(), Search()).as_text() | StrOutputParser()
    assert chain.invoke({"place": "Dirleton Castle"}) == "East Lothian"
    assert await chain.ainvoke({"place": "Dirleton Castle"}) == "East Lothian"
    reading = {"documents": Search(), "question": RunnablePassthrough()} | looking(ladder())
    assert reading.invoke(QUESTION)["answer"] == "East Lothian"
    keys = {"question_key": "input", "documents_key": "context"}
    given = {"input": QUESTION, "context": DOCUMENTS}
    assert looking(ladder(), **keys).invoke(given)["answer"] == "East Lothian"
    refusing = looking(ladder(), refuse_above=4.9, refusal="Pass.").as_text()
    assigned = RunnablePassthrough.assign(out=refusing)
    assert assigned.invoke(GIVEN) == {**GIVEN, "out": "Pass."}


@pytest.mark.parametrize(
    "question",
    [QUESTION, HumanMessage(QUESTION), [AIMessage("hello"), HumanMessage(QUESTION)],
     {"question": QUESTION}, {"messages": [HumanMessage(QUESTION)]}],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
async def test_a_retriever_inside_finds_the_documents(question):
    search = Search()
    calibrator = looking(ladder(), search)
    out = calibrator.invoke(question)
    assert out == await calibrator.ainvoke(question) == calibrator.batch([question])[0]
    out.pop("messages", None)
    assert out == looking(ladder()).invoke(GIVEN)
    assert search.asked == [(QUESTION, 3)] * 3
    assert search.native == [QUESTION]


async def test_k_and_the_arguments_of_a_call_reach_the_retriever():
    search = Search()
    calibrator = looking(ladder(), search, k=2)
    assert len(calibrator.invoke(QUESTION)["documents"]) == 2
    free = looking(ladder(), search)
    for out in (free.invoke(QUESTION, k=1), await free.ainvoke(QUESTION, k=1)):
        assert len(out["documents"]) == 1
    assert len(free.batch([QUESTION], k=1)[0]["documents"]) == 1
    assert [k for _, k in search.asked] == [2, 1, 1, 1]
    with pytest.raises(InvalidInput, match=r"\['k'\] are for the retriever"):
        free.invoke(GIVEN, k=1)
    assert len(search.asked) == 4  # documents that are given are not searched for
    deaf = looking(ladder(), RunnableLambda(lambda _: DOCUMENTS), k=1)
    assert [d.id for d in deaf.invoke(QUESTION)["documents"]] == ["a"]


def test_for_an_empty_question_nothing_is_searched():
    search = Search()
    with pytest.raises(EmptyQuestion):
        looking(ladder(), search).invoke(" ")
    assert search.asked == []


@pytest.mark.parametrize(
    "given", [QUESTION, {"question": QUESTION}, {**GIVEN, "documents": None}], ids=str
)
def test_without_documents_and_retriever_the_error_says_what_to_give(given):
    with pytest.raises(InvalidInput, match=r"'documents'.*no retriever"):
        looking(ladder()).invoke(given)


@pytest.mark.parametrize("wrong", ["text", [THREE[0]], ["text"], 7, DOCUMENTS[0], {"a": 1}])
def test_documents_of_another_type_are_refused_wherever_they_come_from(wrong):
    with pytest.raises(InvalidInput, match="under 'documents'"):
        looking(ladder()).invoke({**GIVEN, "documents": wrong})
    with pytest.raises(InvalidInput, match="from the retriever"):
        looking(ladder(), RunnableLambda(lambda _: wrong)).batch([QUESTION])
    with pytest.raises(InvalidInput, match="PassageRetriever"):
        looking(ladder(), wrong)


async def test_documents_come_out_as_copies_with_fresh_scores_and_nothing_else_is_changed():
    language, search = chat(), Search()
    old = [Document("x", id=i, metadata={"sgic": {"score": 99.0}, "source": "s"}) for i in "12"]
    given = {"question": QUESTION, "documents": list(old)}
    before = (language.model_dump(), copy.deepcopy(given))
    calibrator = looking(language, search, k=2)
    out = calibrator.invoke(given)
    assert out == await calibrator.ainvoke(given) == calibrator.batch([given, QUESTION])[0]
    for found, document in zip(out["documents"], old, strict=True):
        assert (found.id, found.page_content) == (document.id, document.page_content)
        assert (found.metadata["sgic"]["score"], found.metadata["source"]) == (50, "s")
    assert (language.model_dump(), given) == before
    assert all(a is b for a, b in zip(given["documents"], old, strict=True))
    assert calibrator.retriever is search


def test_a_batch_asks_once_a_round_for_all_questions():
    llm = ladder()
    inputs = [{**GIVEN, "question": f"{QUESTION} {i}"} for i in range(4)]
    together = looking(llm).batch(inputs)
    assert together == [looking(ladder()).invoke(one) for one in inputs]
    assert [len(call) for call in llm.calls] == [4, 12, 4, 4]
    assert looking(llm).batch([]) == []


def test_a_failing_question_keeps_its_place_in_the_batch():
    def search(query: str):
        if "lost" in query:
            raise LookupError("index")
        return DOCUMENTS

    calibrator = looking(ladder(), RunnableLambda(search))
    inputs = [QUESTION, "", "lost", {"q": 1}, GIVEN]
    first, *wrong, last = calibrator.batch(inputs, return_exceptions=True)
    assert first["answer"] == last["answer"] == "East Lothian"
    assert [type(error) for error in wrong] == [EmptyQuestion, LookupError, InvalidInput]
    for bad, error in {"": EmptyQuestion, "lost": LookupError}.items():
        with pytest.raises(error):
            calibrator.batch([QUESTION, bad])
    with pytest.raises(LookupError, match="index"):
        calibrator.invoke("lost")


def test_agreement_asks_for_no_log_probabilities():
    settings = SGICSettings(estimator="agreement", samples=4, rounds=0)
    told = iter(["Lothian", "Lothian", "Fife", "Lothian", "Fife"])
    language = FunctionChat(lambda _: next(told))
    out = SGICCalibrator(language, settings=settings).invoke(GIVEN)
    assert out["uncertainty"] == pytest.approx(0.5)  # 2 of 4 samples agree
    assert all("logprobs" not in sent for sent in language.sent)
    assert [sent["temperature"] for sent in language.sent] == [0.0, 0.7, 0.7, 0.7, 0.7]


@pytest.mark.parametrize("way", LangChain.ways)
async def test_every_model_and_retriever_run_is_a_child_of_the_calibrators(way):
    runs = Runs()
    calibrator = looking(chat(), Search(), name="sure")
    config = {"callbacks": [runs], "metadata": {"user": 7}}
    await LangChain.called(calibrator, way, passages=None, config=config)
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
    looking(chat()).batch(inputs, {"callbacks": [runs]})
    asked = runs.named("ltrag_call")
    assert len(asked) == 3 * 6
    for run_ in asked:
        question = runs.by_id[run_["parent"]]["inputs"]["question"]
        assert f"Question: {question}" in run_["inputs"][0][0].text


@pytest.mark.parametrize("k", [None, 2])
async def test_in_a_batch_every_search_belongs_to_its_own_question(k):
    store = InMemoryVectorStore.from_documents(DOCUMENTS, DeterministicFakeEmbedding(size=8))
    search = store.as_retriever().configurable_fields(
        search_kwargs=ConfigurableField("search_kwargs")
    )
    runs = [Runs(), Runs(), Runs()]
    configs = [{"callbacks": [one]} for one in runs]
    for config, search_kwargs in zip(configs, ({"k": 1}, {}, {}), strict=True):
        array = np.ones(3)  # which has no one truth
        config["configurable"] = {"vector": array, "search_kwargs": search_kwargs}
    texts = [f"Where is {place}?" for place in ("Ayr", "Bute", "Crail")]
    calibrator = looking(chat(), search, k=k, settings=SGICSettings(rounds=0))
    for given in (calibrator.batch(texts, configs), await calibrator.abatch(texts, configs)):
        assert [len(out["documents"]) for out in given] == [1, k or 3, k or 3]
    for text, one in zip(texts, runs, strict=True):
        for found in one.named("VectorStoreRetriever"):
            assert one.by_id[found["parent"]]["inputs"] == found["inputs"] == text
        assert len(one.named("VectorStoreRetriever")) == 2


class State(TypedDict, total=False):
    question: str
    documents: list[Document]
    answer: str
    score: float


def test_a_threads_next_question_is_searched_for():
    search = Search()
    calibrator = looking(chat(), search, settings=SGICSettings(rounds=0), condense=None)
    builder = StateGraph(State).add_node("answer", calibrator).add_edge(START, "answer")
    graph = builder.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    for text in ("Where is Ayr?", "Where is Bute?"):
        state = graph.invoke({"question": text}, thread)
        assert search.asked[-1][0] == text
        assert [d.id for d in state["documents"]] == [d.id for d in DOCUMENTS]
    state = graph.invoke({"question": "Where is Crail?", "documents": DOCUMENTS[:1]}, thread)
    assert len(search.asked) == 2
    assert len(state["documents"]) == 1


def test_after_a_search_that_found_nothing_a_threads_next_question_is_searched_for():
    asked = []

    def find(question):
        asked.append(question)
        return DOCUMENTS if "Ayr" in question else []

    calibrator = looking(chat(), RunnableLambda(find), settings=SGICSettings(rounds=0))
    builder = StateGraph(State).add_node("answer", calibrator).add_edge(START, "answer")
    graph = builder.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    for count, text in ((0, "Good morning?"), (3, "Where is Ayr?"), (0, "Thanks?")):
        assert len(graph.invoke({"question": text}, thread)["documents"]) == count
    assert asked == ["Good morning?", "Where is Ayr?", "Thanks?"]
    assert calibrator.invoke({"question": QUESTION, "documents": []})["documents"] == []
    assert len(asked) == 3  # outside of a graph an empty list asks the model alone


def test_of_a_question_with_a_picture_the_words_are_read():
    search, model = Search(), ladder()
    picture = {"type": "image", "url": "http://localhost/a.png"}
    asked = HumanMessage([{"type": "text", "text": QUESTION}, picture])
    out = looking(model, search).invoke({"messages": [asked]})
    assert out["question"] == search.asked[0][0] == QUESTION
    assert out["answer"] == looking(ladder()).invoke(GIVEN)["answer"]
    assert "\N{OBJECT REPLACEMENT CHARACTER}" not in "".join(model.prompts)


BEFORE = [HumanMessage("Tell me about the castle."), AIMessage("It is old.")]


def test_a_turn_without_text_is_not_made_a_question():
    search, model = Search(), ScriptedLLM(lambda _: said(QUESTION))
    picture = {"type": "image", "url": "http://localhost/a.png"}
    with pytest.raises(EmptyQuestion):
        looking(model, search).invoke([*BEFORE, HumanMessage([picture])])
    assert (model.prompts, search.asked) == ([], [])


def test_a_turn_without_a_word_is_answered_as_it_is():
    search = Search()
    out = looking(ladder(), search).invoke([*BEFORE, HumanMessage("🙂")])
    assert out["question"] == search.asked[0][0] == "🙂"


@pytest.mark.parametrize(("most", "answer"), [(3, "East Lothian"), (2, "Pass.")])
async def test_a_graph_looks_for_more_while_the_answer_is_uncertain_and_then_gives_up(most, answer):
    def alone(prompt: str):
        return said("East Lothian", 0.95) if CASTLE.text in prompt else said("no idea", 0.3)

    def search(state: State) -> State:
        found = [DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[0]]
        return {"documents": found[: len(state.get("documents", ())) + 1]}

    options = {"settings": SGICSettings(rounds=0), "refuse_above": 50, "refusal": "Pass."}
    calibrator = looking(ScriptedLLM(alone), **options)
    builder = StateGraph(State)
    builder.add_node("search", search)
    builder.add_node("answer", calibrator.pick(["answer", "score", "documents"]))
    builder.add_edge(START, "search")
    builder.add_edge("search", "answer")
    builder.add_conditional_edges(
        "answer",
        lambda s: "search" if s["score"] > 50 and len(s["documents"]) < most else END,
        ["search", END],
    )
    graph = builder.compile()
    for state in (
        graph.invoke({"question": QUESTION}),
        await graph.ainvoke({"question": QUESTION}),
    ):
        assert (state["answer"], len(state["documents"])) == (answer, most)
