"""DUR in LangChain: DURReranker on documents, DURExampleSelector in few-shot prompts."""

import asyncio
import copy
import json
import time

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManager
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from ltrag_plugins.dur import DURRanker, DURSettings
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.errors import ArtifactMismatch, EmptyQuestion, InvalidInput, UnreadableArtifact
from ltrag_plugins.langchain import DURExampleSelector, DURReranker, PassageRetriever, document_of
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage, Question
from tests.langchain_parts import Runs

QUESTION = "which tea is grown in Assam?"
TEXTS = ["black tea grows in Assam", "green tea grows in Uji", "zinc", "Assam", "a b c", "tea tea"]
COMMAND = "ltrag dur train candidates.jsonl validation.jsonl --model ... --out head/"


class Letters:
    """How often each letter comes; notes what it is given, and whether a loop stood still."""

    name = "letters"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.encoded, self.blocked = seconds, [], 0

    def encode(self, texts):
        try:
            asyncio.get_running_loop()
            self.blocked += 1
        except RuntimeError:
            pass
        time.sleep(self.seconds)
        self.encoded.append(list(texts))
        return letters(texts)


def letters(texts) -> np.ndarray:
    rows = [[t.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for t in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), 26)


class LetterEmbeddings(Embeddings):
    """The same as LangChain embeddings."""

    model = "letters"

    def embed_documents(self, texts):
        return letters(texts).tolist()

    def embed_query(self, text):
        raise AssertionError("a question is embedded as the documents are")


WEIGHT = np.random.default_rng(0).normal(size=(5, 26)) / 8
BIAS = np.random.default_rng(1).normal(size=5) / 8


def trained(encoder=None, **settings) -> DURRanker:
    return DURRanker(Head(WEIGHT, BIAS), encoder or Letters(), DURSettings(**settings))


def formula(question: str, texts: list[str]) -> np.ndarray:
    """Eq. 4 written out: h(x) = W x + b, the softmax of h(p) . h(e)."""
    asked = WEIGHT @ letters([question])[0] + BIAS
    exps = np.exp([asked @ (WEIGHT @ row + BIAS) for row in letters(texts)])
    return exps / exps.sum()


def documents() -> list[Document]:
    return [
        Document(id=f"d{i}", page_content=text, metadata={"tags": ["tea"], "page": i})
        for i, text in enumerate(TEXTS)
    ]


def dumped(found) -> list[dict]:
    return [document.model_dump() for document in found]


def scores(found) -> list[float]:
    return [document.metadata["relevance_score"] for document in found]


def test_documents_come_in_the_order_of_eq_4_with_their_scores():
    wanted = formula(QUESTION, TEXTS)
    found = DURReranker(trained()).compress_documents(documents(), QUESTION)
    assert [d.id for d in found] == [f"d{i}" for i in np.argsort(-wanted)]
    assert scores(found) == pytest.approx(sorted(wanted, reverse=True), abs=1e-9)
    assert sum(scores(found)) == pytest.approx(1)


def test_a_document_is_read_as_the_core_reads_the_passage_it_was_made_from():
    passages = [
        Passage(text, id=str(i), title="Assam" * (i % 3), metadata={"year": i})
        for i, text in enumerate(TEXTS)
    ]
    encoder, plain = Letters(), Letters()
    found = DURReranker(trained(encoder)).compress_documents(
        [document_of(p) for p in passages], QUESTION
    )
    ranked = trained(plain).rank(QUESTION, passages)
    assert encoder.encoded == plain.encoded
    assert [(int(d.id), d.metadata["relevance_score"]) for d in found] == [
        (r.index, r.score) for r in ranked
    ]


@pytest.mark.parametrize("stale", [0.999, 7, "high", None, np.float32(0.5)])
def test_a_stale_relevance_score_never_stands_in_the_new_ones_place(stale):
    old = [
        d.model_copy(update={"metadata": {"relevance_score": stale, "score": 0.1}})
        for d in documents()
    ]
    found = DURReranker(trained()).compress_documents(old, QUESTION)
    assert scores(found) == pytest.approx(sorted(formula(QUESTION, TEXTS), reverse=True), abs=1e-9)
    assert {type(score) for score in scores(found)} == {float}
    assert json.loads(json.dumps(scores(found))) == scores(found)
    assert {d.metadata["score"] for d in found} == {0.1}  # the retriever's own stays
    assert {d.metadata["previous_relevance_score"] for d in found} == {stale}


class Page(Document):
    """A document of an app's own."""

    number: int = 0


async def test_the_callers_documents_are_left_as_they_were_and_new_ones_keep_ids_and_fields():
    given = [Page(id=d.id, page_content=d.page_content, metadata=d.metadata, number=7)
             for d in documents()]  # fmt: skip
    before = copy.deepcopy(dumped(given))
    reranker = DURReranker(trained())
    for found in (
        reranker.compress_documents(given, QUESTION),
        await reranker.acompress_documents(given, QUESTION),
    ):
        assert {(d.id, d.number, type(d)) for d in found} == {(d.id, 7, Page) for d in given}
        assert not {id(d) for d in found} & {id(d) for d in given}
        assert not {id(d.metadata) for d in found} & {id(d.metadata) for d in given}
        found[0].metadata["page"] = "changed later"
        assert dumped(given) == before


async def test_async_gives_what_sync_gives():
    reranker = DURReranker(trained(), top_n=4, sigma=0.01)
    again = await reranker.acompress_documents(documents(), QUESTION)
    assert again == reranker.compress_documents(documents(), QUESTION)


async def turns_during(awaited) -> int:
    """How often the event loop came round meanwhile."""
    waiting, turns = asyncio.ensure_future(awaited), 0
    while not waiting.done():
        await asyncio.sleep(0.005)
        turns += 1
    await waiting
    return turns


async def test_a_slow_encoder_never_stops_the_event_loop():
    encoder = Letters(seconds=0.3)
    selector = DURExampleSelector(trained(encoder), examples())
    assert encoder.blocked == 1  # the constructor, which is not async
    reranker = DURReranker(trained(encoder))
    for awaited in (
        reranker.acompress_documents(documents(), QUESTION),
        selector.aselect_examples({"question": QUESTION}),
        selector.aadd_example(example("what is zinc?")),
    ):
        assert await turns_during(awaited) > 1
    assert encoder.blocked == 1


async def test_a_list_that_changes_meanwhile_is_ranked_as_it_was():
    given = documents()
    reranker = DURReranker(trained(Letters(seconds=0.2)))
    reranking = asyncio.ensure_future(reranker.acompress_documents(given, QUESTION))
    await asyncio.sleep(0.05)
    given.clear()
    assert len(await reranking) == len(TEXTS)


async def test_two_hundred_calls_at_once_do_not_mix_up_their_questions():
    reranker = DURReranker(trained(Letters(seconds=0.001)), top_n=3)
    questions = [f"{'tea ' * (i % 7)}{'zinc ' * (i % 5)}question {i}" for i in range(200)]
    shuffled = [documents()[i % 6 :] + documents()[: i % 6] for i in range(200)]
    found = await asyncio.gather(
        *(reranker.acompress_documents(d, q) for d, q in zip(shuffled, questions, strict=True))
    )
    for question, given, got in zip(questions, shuffled, found, strict=True):
        assert got == DURReranker(trained(), top_n=3).compress_documents(given, question)


def test_top_n_and_sigma_say_how_many_are_put_out():
    wanted = sorted(formula(QUESTION, TEXTS), reverse=True)
    for n in (1, 2, 6, 50):
        found = DURReranker(trained(), top_n=n).compress_documents(documents(), QUESTION)
        assert len(found) == min(n, 6)
    for sigma in (0.0, 0.05, 0.2, 1.0):
        found = DURReranker(trained(), sigma=sigma).compress_documents(documents(), QUESTION)
        assert len(found) == sum(score > sigma for score in wanted)


async def test_nothing_in_gives_nothing_out_and_an_empty_query_is_refused():
    reranker = DURReranker(trained())
    assert reranker.compress_documents([], QUESTION) == []
    assert await reranker.acompress_documents([], QUESTION) == []
    for given in (documents(), []):
        with pytest.raises(EmptyQuestion):
            reranker.compress_documents(given, "  \n")
        with pytest.raises(EmptyQuestion):
            await reranker.acompress_documents(given, "")


@pytest.mark.parametrize("kind", [DURReranker, DURExampleSelector])
def test_without_a_trained_head_the_refusal_has_the_command_that_trains_one(kind, tmp_path):
    for given in ({}, {"encoder": Letters()}, {"encoder": LetterEmbeddings()}):
        with pytest.raises(InvalidInput) as refused:
            kind(**given)
        assert COMMAND in str(refused.value)
        assert "untrained='encoder'" in str(refused.value)
    with pytest.raises(UnreadableArtifact, match="ltrag dur train"):
        kind.from_pretrained(tmp_path / "none", encoder=Letters())


@pytest.mark.parametrize("kind", [DURReranker, DURExampleSelector])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranker": "head/"}, "ranker must be a DURRanker, got str 'head/'"),
        ({"ranker": trained(), "encoder": Letters()}, "brings its own encoder"),
        ({"ranker": trained(), "untrained": "encoder"}, "brings its own encoder"),
        ({"untrained": "encoder"}, "needs encoder="),
        ({"untrained": "yes", "encoder": Letters()}, "untrained='encoder', got 'yes'"),
        ({"untrained": "encoder", "encoder": "MiniLM"}, "Embeddings, got str 'MiniLM'"),
        ({"ranker": trained(), "sigma": 1.5}, "sigma must be a number, from 0 to 1"),
        ({"ranker": trained(), "sigma": float("nan")}, "sigma must be a number, from 0 to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_construction(kind, given, said):
    with pytest.raises(InvalidInput, match=said):
        kind(**given)


def test_a_most_of_less_than_one_is_refused_at_construction():
    with pytest.raises(InvalidInput, match="at least 1 or None, got 0"):
        DURReranker(trained(), top_n=0)
    with pytest.raises(InvalidInput, match="at least 1 or None, got 0"):
        DURExampleSelector(trained(), k=0)


def test_they_are_genuine_subclasses():
    assert isinstance(DURReranker(trained()), BaseDocumentCompressor)
    assert isinstance(DURExampleSelector(trained()), BaseExampleSelector)


def test_a_saved_head_ranks_as_before_and_knows_one_encoder(tmp_path):
    before = DURReranker(trained(), top_n=3)
    before.save(tmp_path)
    after = DURReranker.from_pretrained(tmp_path, encoder=Letters(), top_n=3)
    assert after.compress_documents(documents(), QUESTION) == before.compress_documents(
        documents(), QUESTION
    )
    selector = DURExampleSelector.from_pretrained(tmp_path, examples(), encoder=Letters())
    selector.save(tmp_path / "again")
    again = DURExampleSelector.from_pretrained(tmp_path / "again", examples(), encoder=Letters())
    asked = {"question": QUESTION}
    assert again.select_examples(asked) == selector.select_examples(asked) != []
    for kind in (DURReranker, DURExampleSelector):
        with pytest.raises(ArtifactMismatch, match="'letters'"):
            kind.from_pretrained(tmp_path, encoder=LetterEmbeddings())


def test_langchain_embeddings_rank_as_the_encoder_does_and_are_not_changed():
    ours = DURReranker(encoder=Letters(), untrained="encoder")
    theirs = DURReranker(encoder=LetterEmbeddings(), untrained="encoder")
    assert theirs.compress_documents(documents(), QUESTION) == ours.compress_documents(
        documents(), QUESTION
    )
    fake = DeterministicFakeEmbedding(size=8)
    before = fake.model_dump()
    DURReranker(encoder=fake, untrained="encoder").compress_documents(documents(), QUESTION)
    assert fake.model_dump() == before


def test_untrained_is_plain_similarity():
    products = letters(TEXTS) @ letters([QUESTION])[0]
    found = DURReranker(encoder=Letters(), untrained="encoder").compress_documents(
        documents(), QUESTION
    )
    kept = [int(d.id[1:]) for d in found]
    assert kept == list(np.argsort(-products, kind="stable"))[: len(kept)]
    assert len(kept) > 2


async def test_a_chain_of_retriever_and_reranker_reranks_what_was_found():
    pool = [Passage(text, id=str(i)) for i, text in enumerate(TEXTS)]
    retriever = PassageRetriever(retriever=BM25Retriever(pool), k=3)
    reranker = DURReranker(trained(), top_n=2)
    chain = {"documents": retriever, "query": RunnablePassthrough()} | RunnableLambda(
        lambda given: reranker.compress_documents(**given),
        afunc=lambda given: reranker.acompress_documents(**given),
    )
    found = chain.invoke(QUESTION)
    assert found == reranker.compress_documents(retriever.invoke(QUESTION), QUESTION)
    assert len(found) == 2
    assert await chain.ainvoke(QUESTION) == found


# DURExampleSelector


def example(question: str) -> dict[str, str]:
    return {"question": question, "answer": f"answer to {question}"}


def examples(count: int = 30) -> list[dict[str, str]]:
    words = ["tea", "zinc", "Assam", "Uji", "leaf", "grown", "which"]
    return [example(f"{words[i % 7]} {words[i // 7]} number {i}?") for i in range(count)]


def shots_of(pool, *, shots, **settings) -> list[dict[str, str]]:
    """The second route: the core's own `ShotRanker.learned` over the same questions."""
    questions = [Question(e["question"], (e["answer"],)) for e in pool]
    rank = ShotRanker.learned(trained(**settings), questions, shots=shots)
    return [{"question": q.text, "answer": q.answers[0]} for q in rank([Question(QUESTION)])[0]]


@pytest.mark.parametrize("preselect", ["bm25", "encoder", "none"])
def test_the_selector_chooses_what_the_core_chooses_before_and_after_it_grew(preselect):
    selector = DURExampleSelector(trained(preselect=preselect), examples(20), k=4)
    wanted = shots_of(examples(20), shots=4, preselect=preselect)
    assert selector.select_examples({"question": QUESTION}) == wanted
    for late in examples(30)[20:]:
        selector.add_example(late)
    wanted = shots_of(examples(30), shots=4, preselect=preselect)
    assert selector.select_examples({"question": QUESTION}) == wanted


def test_without_k_there_are_as_many_as_in_training():
    for shots in (2, 7):
        selector = DURExampleSelector(trained(shots=shots), examples())
        assert len(selector.select_examples({"question": QUESTION})) == shots


def test_sigma_leaves_out_what_scores_no_more():
    texts = [e["question"] for e in examples(10)]
    wanted = sum(score > 0.1 for score in formula(QUESTION, texts))
    selector = DURExampleSelector(trained(preselect="none"), examples(10), k=10, sigma=0.1)
    assert 0 < wanted < 10
    assert len(selector.select_examples({"question": QUESTION})) == wanted


def test_a_newcomer_alone_is_encoded():
    encoder = Letters()
    selector = DURExampleSelector(trained(encoder), examples(12))
    assert encoder.encoded == [[e["question"] for e in examples(12)]]
    encoder.encoded.clear()
    selector.add_example(example("what is zinc?"))
    assert encoder.encoded == [["what is zinc?"]]
    encoder.encoded.clear()
    selector.select_examples({"question": QUESTION})
    assert encoder.encoded == [[QUESTION]]


def test_a_question_is_never_its_own_shot():
    selector = DURExampleSelector(trained(preselect="none"), examples(5), k=50)
    for asked in examples(5):
        loud = asked["question"].upper().replace("?", " !")
        for question in (asked["question"], loud):
            chosen = selector.select_examples({"question": question})
            assert len(chosen) == 4
            assert asked not in chosen
    alone = DURExampleSelector(trained(), examples(1))
    assert alone.select_examples(examples(1)[0]) == []


def test_an_empty_pool_gives_no_shots_and_an_empty_question_is_refused():
    selector = DURExampleSelector(trained())
    assert selector.select_examples({"question": QUESTION}) == []
    with pytest.raises(EmptyQuestion):
        selector.select_examples({"question": " "})
    selector.add_example(example("what is zinc?"))
    assert selector.select_examples({"question": QUESTION}) == [example("what is zinc?")]


async def test_examples_are_copied_on_their_way_in_and_out():
    given = examples(3)
    selector = DURExampleSelector(trained(), given)
    given[0]["answer"] = "changed later"
    late = example("what is zinc?")
    await selector.aadd_example(late)
    late.clear()
    chosen = selector.select_examples({"question": QUESTION})
    chosen[0].clear()
    left = selector.select_examples({"question": QUESTION})
    assert sorted(e["answer"] for e in left) == sorted(
        e["answer"] for e in [*examples(3), example("what is zinc?")]
    )


async def test_asking_and_adding_two_hundred_times_at_once_loses_and_mixes_up_nothing():
    selector = DURExampleSelector(trained(Letters(0.001), preselect="none"), examples(5), k=500)
    late = [example(f"late {'tea ' * (i % 9)}{i}") for i in range(200)]

    async def add_and_ask(one):
        await selector.aadd_example(one)
        found = await selector.aselect_examples({"question": QUESTION})
        assert one in found
        assert all(e == example(e["question"]) for e in found)

    await asyncio.gather(*map(add_and_ask, late))
    found = await selector.aselect_examples({"question": QUESTION})
    assert sorted(e["question"] for e in found) == sorted(
        e["question"] for e in [*examples(5), *late]
    )
    assert found == selector.select_examples({"question": QUESTION})


async def test_a_few_shot_prompt_shows_the_chosen_examples_best_first():
    selector = DURExampleSelector(trained(), examples(), k=3)
    prompt = FewShotPromptTemplate(
        example_selector=selector,
        example_prompt=PromptTemplate.from_template("Q: {question}\nA: {answer}"),
        suffix="Q: {question}\nA:",
        input_variables=["question"],
    )
    shown = [f"Q: {e['question']}\nA: {e['answer']}" for e in shots_of(examples(), shots=3)]
    wanted = "\n\n".join([*shown, f"Q: {QUESTION}\nA:"])
    assert prompt.format(question=QUESTION) == wanted
    assert await prompt.aformat(question=QUESTION) == wanted


async def test_a_few_shot_chat_prompt_shows_them_as_turns():
    turn = ChatPromptTemplate.from_messages([("human", "{asked}"), ("ai", "{answer}")])
    pool = [{"asked": e["question"], "answer": e["answer"]} for e in examples()]
    few_shot = FewShotChatMessagePromptTemplate(
        example_selector=DURExampleSelector(trained(), pool, question_key="asked", k=2),
        example_prompt=turn,
        input_variables=["asked"],
    )
    prompt = ChatPromptTemplate.from_messages([few_shot, ("human", "{asked}")])
    messages = prompt.invoke({"asked": QUESTION}).to_messages()
    shots = shots_of(examples(), shots=2)
    assert [m.text for m in messages] == [
        *(text for e in shots for text in (e["question"], e["answer"])),
        QUESTION,
    ]
    assert (await prompt.ainvoke({"asked": QUESTION})).to_messages() == messages


@pytest.mark.parametrize("wrong", [{"input": "what?"}, {"question": 3}, {"question": " "}, {}])
async def test_an_example_without_a_question_is_refused_and_nothing_is_added(wrong):
    selector = DURExampleSelector(trained(), examples(2))
    with pytest.raises(InvalidInput, match=r"no question under 'question'.*question_key"):
        selector.add_example(wrong)
    with pytest.raises(InvalidInput, match="question_key"):
        await selector.aadd_example(wrong)
    with pytest.raises(InvalidInput, match="question_key"):
        DURExampleSelector(trained(), [*examples(2), wrong])
    assert len(selector.select_examples({"question": QUESTION})) == 2


def test_an_input_without_the_question_names_the_key():
    selector = DURExampleSelector(trained(), examples(), question_key="question")
    with pytest.raises(InvalidInput, match="'question'"):
        selector.select_examples({"input": QUESTION})


def test_an_untrained_selector_chooses_the_nearest_of_the_whole_pool():
    pool = examples(40)
    vectors = letters([e["question"] for e in pool])
    near = vectors @ letters([QUESTION])[0] / np.linalg.norm(vectors, axis=1)
    selector = DURExampleSelector(examples=pool, encoder=Letters(), untrained="encoder", k=20)
    chosen = selector.select_examples({"question": QUESTION})
    least = min(near[pool.index(e)] for e in chosen)
    assert chosen
    assert least >= sorted(near, reverse=True)[19] - 1e-6


# runs, native async, vectors that are kept


class AsyncEmbeddings(LetterEmbeddings):
    """Counts what its own async call is asked for; the sync one is not to be used."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def aembed_documents(self, texts):
        await asyncio.sleep(0)
        self.asked.append(list(texts))
        return letters(texts).tolist()

    def embed_documents(self, texts):
        raise AssertionError("the embeddings have an async call of their own")


async def test_reranking_is_a_run_of_its_own_under_the_callbacks_it_is_given():
    reranker = DURReranker(trained(), top_n=2)
    for awaited in (False, True):
        runs = Runs()
        if awaited:
            found = await reranker.acompress_documents(documents(), QUESTION, callbacks=[runs])
        else:
            found = reranker.compress_documents(documents(), QUESTION, [runs])
        [run] = runs.named("DURReranker")
        assert run["inputs"] == {"documents": documents(), "query": QUESTION}
        assert run["output"] == found


async def test_the_run_is_a_child_of_the_chain_or_of_the_retriever_around_it():
    reranker = DURReranker(trained(), top_n=2)
    step = RunnableLambda(
        lambda _: reranker.compress_documents(documents(), QUESTION),
        afunc=lambda _: reranker.acompress_documents(documents(), QUESTION),
        name="app",
    )
    runs = Runs()
    step.invoke({}, {"callbacks": [runs]})
    await step.ainvoke({}, {"callbacks": [runs]})
    assert [runs.ancestry(run) for run in runs.named("DURReranker")] == [["DURReranker", "app"]] * 2
    # as ContextualCompressionRetriever hands its callbacks on
    retriever = CallbackManager.configure([runs]).on_retriever_start(
        {"name": "compressing"}, QUESTION
    )
    reranker.compress_documents(documents(), QUESTION, callbacks=retriever.get_child())
    last = runs.named("DURReranker")[-1]
    assert runs.ancestry(last) == ["DURReranker", "compressing"]


async def test_a_failing_encoder_ends_the_run_with_its_error():
    class Down(Letters):
        def encode(self, texts):
            raise ConnectionError("down")

    runs = Runs()
    with pytest.raises(ConnectionError):
        DURReranker(trained(Down())).compress_documents(documents(), QUESTION, [runs])
    assert "down" in str(runs.named("DURReranker")[0]["error"])


async def test_async_reranking_awaits_the_embeddings_own_async_call():
    embeddings = AsyncEmbeddings()
    reranker = DURReranker(trained(encoder_of(embeddings)))
    found = await reranker.acompress_documents(documents(), QUESTION)
    assert embeddings.asked == [[QUESTION, *TEXTS]]
    assert found == DURReranker(trained()).compress_documents(documents(), QUESTION)


async def test_documents_are_embedded_once_by_sync_and_async_calls_together():
    encoder = Letters()
    reranker = DURReranker(trained(encoder))
    first = reranker.compress_documents(documents(), QUESTION)
    assert await reranker.acompress_documents(documents(), QUESTION) == first
    reranker.compress_documents([*documents(), Document("new")], "another")
    assert encoder.encoded == [[QUESTION, *TEXTS], [QUESTION], ["another", "new"]]


def test_a_score_that_a_document_came_with_survives_each_reranking_once():
    reranker = DURReranker(trained())
    once = reranker.compress_documents(documents(), QUESTION)
    twice = reranker.compress_documents(once, QUESTION)
    assert [d.metadata["previous_relevance_score"] for d in twice] == scores(once)
    assert "previous_relevance_score" not in once[0].metadata
