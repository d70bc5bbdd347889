"""LongTailRAG in both frameworks, beside the core itself."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.schema import QueryBundle

from ltrag_plugins import evaluate, langchain, llama_index
from ltrag_plugins.errors import InvalidInput
from tests.framework_parts import FRAMEWORKS
from tests.langchain_parts import every_way
from tests.pipeline_parts import House, fitted, houses, settings

ASKED = [f"What is the colour of house {house}?" for house in (7, 200, 201, 206)]


@pytest.fixture(scope="module")
def rag():
    return fitted(House(reads=lambda house: house % 8 < 7), target_accuracy=0.7)


def told_of(answer: evaluate.LongTailAnswer):
    return answer.text, answer.p_wrong, answer.refused, [p.id for p in answer.passages]


def told_by_langchain(out):
    ids = [document.id for document in out["documents"]]
    return out["answer"], out["p_wrong"], out["refused"], ids


def told_by_llama_index(response):
    told, ids = response.metadata["longtail"], [n.node.node_id for n in response.source_nodes]
    return str(response), told["p_wrong"], told["refused"], ids


@pytest.mark.parametrize("limit", [None, 0.4])
async def test_every_way_of_calling_says_what_the_core_says(rag, limit):
    rag = rag.refusing(limit)
    expected = [told_of(rag.answer(question)) for question in ASKED]
    chain, engine = langchain.LongTailRAG(rag), llama_index.LongTailRAG(rag)
    assert isinstance(chain, Runnable)
    assert isinstance(engine, BaseQueryEngine)
    for found in (
        [told_by_langchain(chain.invoke(question)) for question in ASKED],
        [told_by_langchain(await chain.ainvoke({"question": question})) for question in ASKED],
        [*map(told_by_langchain, chain.batch(ASKED))],
        [told_by_llama_index(engine.query(question)) for question in ASKED],
        [told_by_llama_index(await engine.aquery(QueryBundle(question))) for question in ASKED],
    ):
        assert found == expected
    assert {decided for _, decided, *_ in expected} != {None}
    assert chain.as_text().invoke(ASKED[0]) == expected[0][0]


def test_messages_come_back_as_a_message_and_a_follow_up_stands_alone(rag):
    before = [HumanMessage("Tell me about house 7."), AIMessage("It is old.")]
    asked = {"messages": [*before, HumanMessage("What is its colour?")]}
    out = langchain.LongTailRAG(rag).invoke(asked)
    assert out["question"] == "What is the colour of house 7?"
    [message] = out["messages"]
    assert message.text == out["answer"] == rag.answer(out["question"]).text
    assert message.response_metadata["longtail"]["p_wrong"] == out["p_wrong"]


class Talked(House):
    """Makes a follow-up stand alone by the house that the talk is about."""

    def write(self, prompt):
        if "Rewrite the last" not in prompt:
            return super().write(prompt)
        house = prompt.split("about house ")[1].split(".")[0]
        return self._said(f"What is the colour of house {house}?", 0.9, prompt)


async def test_of_a_question_about_a_picture_it_reads_passages_in_both_frameworks():
    rag = replace(fitted(Talked()), retrieves="gated")
    known, engine = "What is the colour of house 4?", llama_index.LongTailRAG(rag)
    seen = QueryBundle(known, image_path="house.png")
    for response in (engine.query(seen), await engine.aquery(seen)):
        assert response.metadata["gece"]["retrieve"]
    assert not engine.query(known).metadata["gece"]["retrieve"]
    text, image = {"type": "text", "text": "Tell me about house 4."}, {"type": "image", "url": "a"}
    talk = [HumanMessage([text, image]), AIMessage("It is old."), HumanMessage("Its colour?")]
    chain = langchain.LongTailRAG(rag)
    assert all(found["decision"].retrieve for found in await every_way(chain, talk))
    assert not chain.invoke([HumanMessage([text]), *talk[1:]])["decision"].retrieve


def test_langchains_fit_reads_accepted_answers_and_follow_ups_as_a_router_does():
    house = Talked()

    def fit(questions):
        how = {"llm": house.llm(), "retriever": house, "settings": settings()}
        return langchain.LongTailRAG.fit(questions, **how)

    fit([
        [HumanMessage(f"Tell me about house {i}."), AIMessage("Old."), HumanMessage("Its colour?")]
        for i in range(60)
    ])  # fmt: skip
    assert "What is the colour of house 59?" in house.searched
    asked = [question.text for question in houses(60)]
    for wrong in ({"answers": {"text": ["red"], "answer_start": [3]}}, {"answer": "red"}):
        with pytest.raises(InvalidInput, match="answers"):
            fit([{"question": text, **wrong} for text in asked])
        assert house.model.prompts == []
    fit([{"question": text, "answers": 1815 if "5?" in text else "red"} for text in asked])


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.room.__name__)
def test_the_frameworks_own_models_and_retrievers_are_fitted_as_ours(framework, tmp_path):
    room, house = framework.room, House()
    ours = fitted(house)
    models = framework.models(house.write)
    model, retriever = next(iter(models.values())), room.PassageRetriever
    searching = retriever(house) if room is llama_index else retriever(retriever=house)
    asked = [{"question": one.text, "answers": [*one.answers]} for one in houses()]
    made = room.LongTailRAG.fit(asked, llm=model, retriever=searching, settings=settings())
    assert made.report.kept == ours.report.kept == "always+gate"
    right, theirs = (report["always"].right for report in (ours.report, made.report))
    assert theirs == right
    made.save(tmp_path)
    parts = {"llm": model, "retriever": searching}
    again = room.LongTailRAG.load(tmp_path, **parts)
    assert again.report == made.report
    assert again.rag.answer(ASKED[0]).text == ours.answer(ASKED[0]).text
    with pytest.raises(InvalidInput, match="does not know P"):  # all its answers were right
        room.LongTailRAG.load(tmp_path, **parts, refuse_p_wrong_above=0.9)


@pytest.mark.parametrize("retrieves", ["always", "gated", "never"])
def test_an_evaluator_passes_what_the_pipeline_is_sure_of_and_did_not_refuse(rag, retrieves):
    evaluator = llama_index.SGICEvaluator(pass_below=100)
    for limit in (None, 0.0):
        one = replace(rag, retrieves=retrieves).refusing(limit, "I do not know.")
        for question in ASKED:
            answer, response = one.answer(question), llama_index.LongTailRAG(one).query(question)
            judged = evaluator.evaluate_response(question, response)
            assert judged.passing is not answer.refused
            assert ("refused" in judged.feedback) is answer.refused
            if answer.calibrated is None:
                assert judged.score == pytest.approx(1 - answer.p_wrong)


def test_an_evaluator_takes_no_gates_word_for_an_answer_from_passages(rag):
    bare = replace(rag, retrieves="gated", calibration=None)
    told = [llama_index.LongTailRAG(bare).query(question) for question in ASKED]
    [read, *_] = [one for one in told if one.metadata["gece"]["retrieve"]]
    with pytest.raises(InvalidInput, match="carries no uncertainty"):
        llama_index.SGICEvaluator().evaluate_response(ASKED[0], read)


@pytest.mark.parametrize("room", [langchain, llama_index])
def test_what_is_no_pipeline_is_refused(room):
    with pytest.raises(InvalidInput, match="fit or load"):
        room.LongTailRAG(SimpleNamespace())
    house = House()
    with pytest.raises(InvalidInput, match="came as one string, 'which house"):
        room.LongTailRAG.fit("which house?" * 9, llm=house.llm(), retriever=house)
