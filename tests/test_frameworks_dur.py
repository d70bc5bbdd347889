"""DURReranker in both frameworks, beside the ranker itself."""

import asyncio
import copy
from typing import Any

import pytest

from ltrag_plugins.dur import DURRanker
from ltrag_plugins.errors import (
    ArtifactMismatch,
    EmptyQuestion,
    InvalidInput,
    ModelFailed,
    UnreadableArtifact,
)
from ltrag_plugins.langchain import DURExampleSelector
from ltrag_plugins.langchain import DURReranker as InLangChain
from ltrag_plugins.llama_index import DURReranker as InLlamaIndex
from ltrag_plugins.types import Passage
from tests.framework_parts import EACH, Letters, dumped, trained

QUESTION = "which tea is grown in Assam?"
TEXTS = ["black tea grows in Assam", "green tea grows in Uji", "zinc", "Assam", "a b c", "tea tea"]
PASSAGES = [Passage(text, f"d{i}", title="Assam" * (i % 3)) for i, text in enumerate(TEXTS)]
COMMAND = "ltrag rerank train candidates.jsonl validation.jsonl --model ... --out head/"
KINDS = pytest.mark.parametrize("kind", [InLangChain, DURExampleSelector, InLlamaIndex])


def places(ranker: DURRanker, question=QUESTION, **bounds) -> list[tuple[str, float]]:
    """The second route: the ranker itself over the passages."""
    ranked = ranker.rank(question, PASSAGES, **bounds)
    return [(PASSAGES[place.index].id, place.score) for place in ranked]


def rerank(framework, reranker, found, question=QUESTION, way="") -> Any:
    """What `way` of calling gives; "a" is to be awaited."""
    return getattr(reranker, way + framework.rerank)(found, **{framework.query: question})


def arerank(framework, reranker, found, question=QUESTION) -> Any:
    return rerank(framework, reranker, found, question, "a")


@EACH
@pytest.mark.parametrize(
    ("bounds", "count"),
    [({}, 6), ({"top_n": 2}, 2), ({"top_n": 50}, 6), ({"sigma": 0.1}, 5), ({"sigma": 1.0}, 0)],
    ids=str,
)
async def test_what_was_found_is_read_and_ranked_as_the_ranker_does(framework, bounds, count):
    encoder, plain = Letters(), Letters()
    reranker = framework.room.DURReranker(trained(encoder), **bounds)
    assert isinstance(reranker, framework.reranker_base)
    found = framework.found(PASSAGES)
    ranked = rerank(framework, reranker, found, QUESTION)
    assert framework.ranked(ranked) == places(trained(plain), **bounds)
    assert {type(score) for _, score in framework.ranked(ranked)} <= {float}
    assert len(ranked) == count
    assert encoder.encoded == plain.encoded
    assert await arerank(framework, reranker, found, QUESTION) == ranked
    rerank(framework, reranker, [*found, *framework.found([Passage("new", "new")])], "another")
    # sync and async calls together encode a text once
    assert encoder.encoded == [*plain.encoded, [QUESTION], ["another", "new"]]


@EACH
async def test_what_the_caller_handed_in_is_left_as_it_was(framework):
    found = framework.found(PASSAGES)
    before = copy.deepcopy(dumped(found))
    reranker = framework.room.DURReranker(trained())
    for ranked in (
        rerank(framework, reranker, found, QUESTION),
        await arerank(framework, reranker, found, QUESTION),
    ):
        for attribute in ("metadata", "node"):
            theirs = {id(getattr(one, attribute, one)) for one in found}
            assert not theirs & {id(getattr(one, attribute, one)) for one in ranked}
        for one in ranked:
            one.metadata["page"] = "changed later"
        assert dumped(found) == before


@EACH
async def test_a_slow_encoder_never_stops_the_loop_and_the_list_may_change_meanwhile(framework):
    encoder, turns = Letters(seconds=0.3), 0
    found, reranker = framework.found(PASSAGES), framework.room.DURReranker(trained(encoder))
    reranking = asyncio.ensure_future(arerank(framework, reranker, found, QUESTION))
    while not reranking.done():
        await asyncio.sleep(0.005)
        found.clear()
        turns += 1
    assert turns > 1
    assert encoder.blocked == 0
    assert len(await reranking) == len(TEXTS)


@EACH
async def test_two_hundred_calls_at_once_do_not_mix_up_their_questions(framework):
    reranker = framework.room.DURReranker(trained(Letters(seconds=0.001)), top_n=3)
    questions = [f"{'tea ' * (i % 7)}{'zinc ' * (i % 5)}question {i}" for i in range(200)]
    found = await asyncio.gather(
        *(arerank(framework, reranker, framework.found(PASSAGES), q) for q in questions)
    )
    for question, ranked in zip(questions, found, strict=True):
        assert framework.ranked(ranked) == places(trained(), question, top_n=3)


@EACH
async def test_nothing_in_gives_nothing_out_and_an_empty_query_is_refused(framework):
    reranker = framework.room.DURReranker(trained())
    assert rerank(framework, reranker, [], QUESTION) == []
    assert await arerank(framework, reranker, [], QUESTION) == []
    for found in (framework.found(PASSAGES), []):
        with pytest.raises(EmptyQuestion):
            rerank(framework, reranker, found, "  \n")
        with pytest.raises(EmptyQuestion):
            await arerank(framework, reranker, found, "")


@EACH
async def test_the_frameworks_embeddings_rank_as_the_encoder_does_and_are_not_changed(framework):
    embeddings, found = framework.embeddings(), framework.found(PASSAGES)
    before = embeddings.model_dump()
    for encoder in (embeddings, Letters()):
        plain = framework.room.DURReranker(encoder=encoder, untrained="encoder", top_n=3)
        for ranked in (
            rerank(framework, plain, found, QUESTION),
            await arerank(framework, plain, found, QUESTION),
        ):
            assert framework.ranked(ranked) == places(DURRanker.untrained(Letters()), top_n=3)
    assert embeddings.model_dump() == before


@EACH
async def test_async_reranking_awaits_the_embeddings_own_async_call(framework):
    embeddings = framework.embeddings()
    encoder = framework.room.DURReranker._encoder_of(embeddings)
    reranker = framework.room.DURReranker(trained(encoder))
    ranked = await arerank(framework, reranker, framework.found(PASSAGES))
    assert len(embeddings.asked) == len(TEXTS) + 1
    assert framework.ranked(ranked) == places(trained())


@EACH
async def test_embeddings_that_fail_are_one_named_error_and_the_clients_own_is_its_cause(
    framework, monkeypatch
):
    def gone(_):
        raise ConnectionError("no route")

    encoder, found = framework.embeddings(), framework.found(PASSAGES)
    reranker = framework.room.DURReranker(encoder=encoder, untrained="encoder")
    monkeypatch.setattr("tests.framework_parts.letters", gone)
    with pytest.raises(ModelFailed, match="the encoder raised ConnectionError: no route") as failed:
        rerank(framework, reranker, found)
    assert isinstance(failed.value.__cause__, ConnectionError)
    with pytest.raises(ModelFailed, match="mend the encoder's set-up") as failed:
        await arerank(framework, reranker, found)
    assert isinstance(failed.value.__cause__, ConnectionError)


@EACH
def test_a_saved_head_ranks_as_before_and_knows_one_encoder(framework, tmp_path):
    reranker, found = framework.room.DURReranker, framework.found(PASSAGES)
    before = reranker(trained(), top_n=3)
    before.save(tmp_path)
    after = reranker.from_pretrained(tmp_path, encoder=Letters(), top_n=3)
    assert rerank(framework, after, found, QUESTION) == rerank(framework, before, found, QUESTION)
    with pytest.raises(ArtifactMismatch, match="'letters'"):
        reranker.from_pretrained(tmp_path, encoder=framework.embeddings())


@KINDS
def test_without_a_trained_head_the_refusal_has_the_command_that_trains_one(kind, tmp_path):
    for given in ({}, {"encoder": Letters()}):
        with pytest.raises(InvalidInput) as refused:
            kind(**given)
        assert COMMAND in str(refused.value)
        assert "untrained='encoder'" in str(refused.value)
    with pytest.raises(UnreadableArtifact, match="ltrag rerank train"):
        kind.from_pretrained(tmp_path / "none", encoder=Letters())


@KINDS
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranker": "head/"}, "ranker must be a DURRanker, got str 'head/'"),
        ({"ranker": trained(), "encoder": Letters()}, "brings its own encoder"),
        ({"ranker": trained(), "untrained": "encoder"}, "brings its own encoder"),
        ({"untrained": "encoder"}, "needs encoder="),
        ({"untrained": "yes", "encoder": Letters()}, "untrained='encoder', got 'yes'"),
        ({"untrained": "encoder", "encoder": "MiniLM"}, "Embeddings?, got str 'MiniLM'"),
        ({"ranker": trained(), "sigma": 1.5}, "sigma must be a number, from 0 to 1"),
        ({"ranker": trained(), "most": 0}, "at least 1 or None, got 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_construction(kind, given, said):
    name = "k" if kind is DURExampleSelector else "top_n"
    with pytest.raises(InvalidInput, match=said):
        kind(**{name if key == "most" else key: value for key, value in given.items()})
