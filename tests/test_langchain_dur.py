"""DUR in LangChain: scores in metadata, runs, and DURExampleSelector in few-shot prompts."""

import asyncio
import copy
import json

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManager
from langchain_core.documents import Document
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.messages import HumanMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnableLambda

from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.errors import ArtifactMismatch, EmptyQuestion, InvalidInput
from ltrag_plugins.langchain import DURExampleSelector, DURReranker
from ltrag_plugins.types import Question
from tests.framework_parts import LangChainLetters, Letters, letters, trained
from tests.langchain_parts import Runs

QUESTION = "which tea is grown in Assam?"
ASKED = {"question": QUESTION}
TEXTS = ["black tea grows in Assam", "green tea grows in Uji", "zinc", "Assam", "a b c", "tea tea"]


def documents(**metadata) -> list[Document]:
    return [Document(t, id=f"d{i}", metadata=dict(metadata)) for i, t in enumerate(TEXTS)]


def scores(found, name="relevance_score") -> list:
    return [document.metadata[name] for document in found]


@pytest.mark.parametrize("stale", [0.999, "high", None, np.float32(0.5)])
def test_a_score_that_a_document_came_with_never_stands_in_the_new_ones_place(stale):
    reranker = DURReranker(trained())
    fresh = reranker.compress_documents(documents(), QUESTION)
    assert "previous_relevance_score" not in fresh[0].metadata
    old = documents(relevance_score=stale, score=0.1)
    found = reranker.compress_documents(old, QUESTION)
    assert json.loads(json.dumps(scores(found))) == scores(found) == scores(fresh)
    assert set(scores(found, "previous_relevance_score")) == {stale}
    assert set(scores(found, "score")) == {0.1}  # the retriever's own stays
    again = reranker.compress_documents(found, QUESTION)
    assert scores(again, "previous_relevance_score") == scores(found)


@pytest.mark.parametrize("copied", [
    lambda r, **new: r.model_copy(update=new),
    lambda r, **new: [one := copy.copy(r), [setattr(one, k, v) for k, v in new.items()]][0],
])  # fmt: skip
async def test_a_copy_ranks_by_its_own_bounds(copied):
    reranker = DURReranker(trained(), top_n=3)
    few, none = copied(reranker, top_n=1), copied(reranker, sigma=0.99)
    for one, left in ((reranker, 3), (few, 1), (none, 0)):
        found = one.compress_documents(documents(), QUESTION)
        assert len(found) == left
        assert await one.acompress_documents(documents(), QUESTION) == found


class Page(Document):
    """A document of an app's own."""

    number: int = 0


@pytest.mark.parametrize("given", [None, "tea", {"a": 1}, ["tea"]], ids=str)
async def test_what_is_no_list_of_documents_is_a_named_error(given):
    reranker, why = DURReranker(trained()), "a list of langchain_core Documents, got"
    with pytest.raises(InvalidInput, match=why):
        reranker.compress_documents(given, QUESTION)
    with pytest.raises(InvalidInput, match=why):
        await reranker.acompress_documents(given, QUESTION)


def test_documents_of_an_apps_own_kind_stay_what_they_are():
    given = [Page(d.page_content, id=d.id, number=7) for d in documents()]
    found = DURReranker(trained()).compress_documents(given, QUESTION)
    assert {(d.id, d.number, type(d)) for d in found} == {(d.id, 7, Page) for d in given}


async def test_the_run_is_a_child_of_the_chain_or_of_the_retriever_around_it():
    reranker, runs = DURReranker(trained(), top_n=2), Runs()
    step = RunnableLambda(
        lambda _: reranker.compress_documents(documents(), QUESTION),
        afunc=lambda _: reranker.acompress_documents(documents(), QUESTION),
        name="app",
    )
    found = step.invoke({}, {"callbacks": [runs]})
    assert await step.ainvoke({}, {"callbacks": [runs]}) == found
    # as ContextualCompressionRetriever hands its callbacks on
    around = CallbackManager.configure([runs]).on_retriever_start({"name": "retriever"}, QUESTION)
    reranker.compress_documents(documents(), QUESTION, callbacks=around.get_child())
    await reranker.acompress_documents(documents(), QUESTION, callbacks=[runs])
    lineages = [runs.ancestry(run)[1:] for run in runs.named("DURReranker")]
    assert lineages == [["app"], ["app"], ["retriever"], []]
    for run in runs.named("DURReranker"):
        assert run["inputs"] == {"documents": documents(), "query": QUESTION}
        assert run["output"] == found


def test_a_failing_encoder_ends_the_run_with_its_error():
    class Down(Letters):
        def encode(self, texts):
            raise ConnectionError("down")

    runs = Runs()
    with pytest.raises(ConnectionError):
        DURReranker(trained(Down())).compress_documents(documents(), QUESTION, [runs])
    assert "down" in str(runs.named("DURReranker")[0]["error"])


# DURExampleSelector


def example(question: str) -> dict[str, str]:
    return {"question": question, "answer": f"answer to {question}"}


def examples(count: int = 30) -> list[dict[str, str]]:
    words = ["tea", "zinc", "Assam", "Uji", "leaf", "grown", "which"]
    return [example(f"{words[i % 7]} {words[i // 7]} number {i}?") for i in range(count)]


LATE = example("what is zinc?")


def shots_of(pool, *, shots, **settings) -> list[dict[str, str]]:
    """The second route: the core's own `ShotRanker.learned` over the same questions."""
    questions = [Question(e["question"], (e["answer"],)) for e in pool]
    rank = ShotRanker.learned(trained(**settings), questions, shots=shots)
    return [{"question": q.text, "answer": q.answers[0]} for q in rank([Question(QUESTION)])[0]]


@pytest.mark.parametrize("preselect", ["bm25", "encoder", "none"])
def test_a_copy_of_a_selector_chooses_as_before(preselect):
    selector = DURExampleSelector(trained(preselect=preselect), examples(20), k=4)
    chosen = selector.select_examples(ASKED)
    twin = copy.deepcopy(selector)
    assert twin.select_examples(ASKED) == chosen
    twin.add_example(LATE)
    assert selector.select_examples(ASKED) == chosen


@pytest.mark.parametrize("preselect", ["bm25", "encoder", "none"])
def test_the_selector_chooses_what_the_core_chooses_before_and_after_it_grew(preselect):
    selector = DURExampleSelector(trained(preselect=preselect), examples(20), k=4)
    assert isinstance(selector, BaseExampleSelector)
    assert selector.select_examples(ASKED) == shots_of(examples(20), shots=4, preselect=preselect)
    for late in examples(30)[20:]:
        selector.add_example(late)
    assert selector.select_examples(ASKED) == shots_of(examples(30), shots=4, preselect=preselect)


def test_without_k_there_are_as_many_as_in_training_and_sigma_leaves_some_out():
    for shots in (2, 7):
        selector = DURExampleSelector(trained(shots=shots), examples())
        assert len(selector.select_examples(ASKED)) == shots
    ranker = trained(preselect="none")
    questions = [Question(e["question"]) for e in examples(10)]
    wanted = len(ranker.rank(QUESTION, questions, sigma=0.1))
    selector = DURExampleSelector(ranker, examples(10), k=10, sigma=0.1)
    assert 0 < wanted < 10
    assert len(selector.select_examples(ASKED)) == wanted


async def test_a_newcomer_alone_is_encoded_and_the_event_loop_never_stands_still():
    encoder = Letters()
    selector = DURExampleSelector(trained(encoder), examples(12))
    assert encoder.blocked == 1  # the constructor, which is not async
    await selector.aadd_example(LATE)
    await selector.aselect_examples(ASKED)
    assert encoder.blocked == 1
    assert encoder.encoded == [[e["question"] for e in examples(12)], ["what is zinc?"], [QUESTION]]


def test_a_saved_selector_chooses_as_before_and_knows_one_encoder(tmp_path):
    before = DURExampleSelector(trained(), examples(), k=3, sigma=0.01)
    before.save(tmp_path)
    kept = {"question_key": "question", "k": 3, "sigma": 0.01}
    after = DURExampleSelector.from_pretrained(tmp_path, examples(), encoder=Letters(), **kept)
    assert after.select_examples(ASKED) == before.select_examples(ASKED) != []
    with pytest.raises(ArtifactMismatch, match="'letters'"):
        DURExampleSelector.from_pretrained(tmp_path, encoder=LangChainLetters())


def test_a_question_is_never_its_own_shot():
    selector = DURExampleSelector(trained(preselect="none"), examples(5), k=50)
    for asked in examples(5):
        for question in (asked["question"], asked["question"].upper().replace("?", " !")):
            chosen = selector.select_examples({"question": question})
            assert asked not in chosen
            assert len(chosen) == 4
    assert DURExampleSelector(trained(), examples(1)).select_examples(examples(1)[0]) == []


def test_of_a_picture_the_selector_reads_the_words():
    encoder = Letters()
    selector = DURExampleSelector(trained(encoder), examples(5))
    picture = {"type": "image", "url": "http://localhost/a.png"}
    asked = [HumanMessage([{"type": "text", "text": QUESTION}, picture])]
    assert selector.select_examples({"question": asked}) == selector.select_examples(ASKED)
    assert encoder.encoded[1:] == [[QUESTION]] * len(encoder.encoded[1:])


def test_an_empty_pool_gives_no_shots_and_an_empty_question_is_refused():
    selector = DURExampleSelector(trained())
    assert selector.select_examples(ASKED) == []
    with pytest.raises(EmptyQuestion):
        selector.select_examples({"question": " "})
    selector.add_example(LATE)
    assert selector.select_examples(ASKED) == [LATE]


async def test_examples_are_copied_on_their_way_in_and_out():
    given, late = examples(3), dict(LATE)
    selector = DURExampleSelector(trained(), given)
    given[0]["answer"] = "changed later"
    await selector.aadd_example(late)
    late.clear()
    selector.select_examples(ASKED)[0].clear()
    left = sorted(e["answer"] for e in selector.select_examples(ASKED))
    assert left == sorted(e["answer"] for e in [*examples(3), LATE])


async def test_asking_and_adding_two_hundred_times_at_once_loses_and_mixes_up_nothing():
    selector = DURExampleSelector(trained(Letters(0.001), preselect="none"), examples(5), k=500)
    late = [example(f"late {'tea ' * (i % 9)}{i}") for i in range(200)]

    async def add_and_ask(one):
        await selector.aadd_example(one)
        found = await selector.aselect_examples(ASKED)
        assert one in found
        assert all(e == example(e["question"]) for e in found)

    await asyncio.gather(*map(add_and_ask, late))
    found = selector.select_examples(ASKED)
    assert sorted(e["question"] for e in found) == sorted(
        e["question"] for e in [*examples(5), *late]
    )


async def test_few_shot_prompts_show_the_chosen_examples_best_first():
    selector = DURExampleSelector(trained(), examples(), k=3)
    shots = shots_of(examples(), shots=3)
    prompt = FewShotPromptTemplate(
        example_selector=selector,
        example_prompt=PromptTemplate.from_template("Q: {question}\nA: {answer}"),
        suffix="Q: {question}\nA:",
        input_variables=["question"],
    )
    shown = [f"Q: {e['question']}\nA: {e['answer']}" for e in shots]
    wanted = "\n\n".join([*shown, f"Q: {QUESTION}\nA:"])
    assert prompt.format(question=QUESTION) == await prompt.aformat(question=QUESTION) == wanted
    turn = ChatPromptTemplate.from_messages([("human", "{asked}"), ("ai", "{answer}")])
    pool = [{"asked": e["question"], "answer": e["answer"]} for e in examples()]
    chat = FewShotChatMessagePromptTemplate(
        example_selector=DURExampleSelector(trained(), pool, question_key="asked", k=3),
        example_prompt=turn,
        input_variables=["asked"],
    )
    turns = [text for e in shots for text in (e["question"], e["answer"])]
    for messages in (
        chat.format_messages(asked=QUESTION),
        await chat.aformat_messages(asked=QUESTION),
    ):
        assert [m.text for m in messages] == turns


@pytest.mark.parametrize("wrong", [{"input": "what?"}, {"question": 3}, {"question": " "}, {}])
async def test_an_example_without_a_question_is_refused_and_nothing_is_added(wrong):
    selector = DURExampleSelector(trained(), examples(2))
    with pytest.raises(InvalidInput, match=r"no question under 'question'.*question_key"):
        selector.add_example(wrong)
    with pytest.raises(InvalidInput, match="question_key"):
        await selector.aadd_example(wrong)
    with pytest.raises(InvalidInput, match="question_key"):
        DURExampleSelector(trained(), [*examples(2), wrong])
    assert len(selector.select_examples(ASKED)) == 2
    with pytest.raises(InvalidInput, match="'question'"):
        selector.select_examples({"input": QUESTION})


def test_an_untrained_selector_chooses_the_nearest_of_the_whole_pool():
    pool = examples(40)
    vectors = letters([e["question"] for e in pool])
    near = vectors @ letters([QUESTION])[0] / np.linalg.norm(vectors, axis=1)
    selector = DURExampleSelector(examples=pool, encoder=Letters(), untrained="encoder", k=20)
    chosen = selector.select_examples(ASKED)
    assert chosen
    assert min(near[pool.index(e)] for e in chosen) >= sorted(near, reverse=True)[19] - 1e-6
