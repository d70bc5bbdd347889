"""Answers that are kept, and told apart; what holds of every cache is in test_caches."""

import asyncio
import json
import math
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput, InvalidLogProbability
from ltrag_plugins.flow import World, ask, run_many
from ltrag_plugins.llm.base import AsyncLLM, GradientLLM, ScoringLLM
from ltrag_plugins.llm.cached import CachedLLM, _key
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Token
from tests.contracts.llm import LLMContract, ScoringContract

SAMPLED = GenerationSettings(temperature=1.0)
SEEDED = GenerationSettings(temperature=1.0, seed=7)


class Letters:
    """Spells the prompt backwards; a token is a character."""

    name = "letters"

    def __init__(self):
        self.calls = []

    def generate(self, prompts, settings=GenerationSettings()):
        self.calls.append(list(prompts))
        texts = [prompt[::-1][: settings.max_tokens] for prompt in prompts]
        cuts = [min([t.find(s) for s in settings.stop if s in t], default=len(t)) for t in texts]
        return [self._read(text[:cut]) for text, cut in zip(texts, cuts, strict=True)]

    def score(self, prompts, continuations):
        self.calls.append(list(zip(prompts, continuations, strict=True)))
        return [self._read(text) for text in continuations]

    def _read(self, text):
        return Generation(text, tuple(Token(c, -(ord(c) % 97) / 97) for c in text))


class LettersWithGradients(Letters):
    def mean_gradient(self, prompts, continuations, *, layers=4):
        return {"w": np.full(layers, len(prompts), dtype=np.float32)}

    def gradient_agreement(self, prompts, continuations, *, along, cosine=False, layers=4):
        return [GradientAgreement(1.0 + layers, 0.5 if cosine else None) for _ in prompts]


class Sampler:
    """Each call draws new answers; with a seed the n-th answer to a prompt is always the same."""

    name = "sampler"

    def __init__(self):
        self.draws = count()

    def generate(self, prompts, settings=GenerationSettings()):
        if settings.seed is None:
            return [Generation(f"draw {next(self.draws)}") for _ in prompts]
        earlier = [prompts[:i].count(prompt) for i, prompt in enumerate(prompts)]
        return [
            Generation(f"{p}/{settings.seed}/{n}") for p, n in zip(prompts, earlier, strict=True)
        ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.sqlite"


class TestACachedScript(LLMContract):
    @pytest.fixture
    def llm(self, path):
        return CachedLLM(ScriptedLLM(lambda prompt: " ".join(prompt)), path)


class TestACachedScorer(ScoringContract):
    @pytest.fixture
    def llm(self, path):
        return CachedLLM(Letters(), path)


class TestAWarmCache(TestACachedScorer):
    """Everything the contract asks has been asked before."""

    @pytest.fixture
    def llm(self, path):
        llm = CachedLLM(Letters(), path)
        for max_tokens in (2, 6, 8, 12, 64):
            llm.generate(self.prompts, GenerationSettings(max_tokens=max_tokens))
        return CachedLLM(Letters(), path)


def test_hits_and_misses_are_counted(path):
    llm = CachedLLM(Letters(), path)
    llm.generate(["Emma", "Anna", "Emma"])
    llm.generate(["Anna"])
    assert (llm.hits, llm.misses) == (2, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"max_tokens": 5},
        {"stop": ["m"]},
        {"stop": ["m", "a"]},
        {"temperature": 0.5, "seed": 1},
        {"temperature": 0.5, "seed": 2},
        {"temperature": 0.7, "seed": 3},
        {"seed": 1},
    ],
)
def test_every_setting_belongs_to_the_key(path, other):
    llm, settings = CachedLLM(Letters(), path), GenerationSettings(**other)
    for known in ({}, {"max_tokens": 6}, {"stop": ["a"]}, {"temperature": 0.5, "seed": 3}):
        llm.generate(["Emma"], GenerationSettings(**known))
    before = llm.misses
    for _ in range(2):
        assert llm.generate(["Emma"], settings) == Letters().generate(["Emma"], settings)
        assert llm.misses == before + 1


@pytest.mark.parametrize("each_first", [False, True])
def test_settings_for_each_prompt_are_kept_as_those_of_a_call(path, each_first):
    class Each(Letters):
        def generate_each(self, prompts, settings):
            return [self.generate([p], how)[0] for p, how in zip(prompts, settings, strict=True)]

    llm = CachedLLM(Each(), path)
    greedy, hot = GenerationSettings(4), GenerationSettings(4, temperature=0.5, seed=2)
    calls = [lambda: llm.generate_each(["Emma", "Emma", "Anna"], [greedy, hot, greedy])]
    calls += [lambda: llm.generate(["Emma", "Anna"], greedy) + llm.generate(["Emma"], hot)]
    for call in calls if each_first else calls[::-1]:
        assert sorted(reply.text for reply in call()) == ["ammE", "ammE", "annA"]
    assert (llm.hits, llm.misses) == (3, 3)
    for misses in (5, 7):  # without a seed nothing is kept
        llm.generate_each(["Emma", "Anna"], [replace(hot, seed=None), greedy])
        assert llm.misses == misses
    assert not hasattr(CachedLLM(Letters(), path), "generate_each")


def test_numbers_of_other_libraries_have_the_key_of_pythons(path):
    llm = CachedLLM(Letters(), path)
    for most, temperature, seed in ((8, 0.5, 3), (np.int64(8), np.float32(0.5), np.int64(3))):
        one = GenerationSettings(most, temperature=temperature, seed=seed)
        llm.generate(["Emma"], one)
    assert (llm.hits, llm.misses) == (1, 1)


def test_a_prompt_and_continuation_are_not_their_concatenation(path):
    llm = CachedLLM(Letters(), path)
    llm.score(["ab"], ["c"])
    llm.score(["a"], ["bc"])
    llm.score(["ab"], ["c"])
    assert llm.llm.calls == [[("ab", "c")], [("a", "bc")]]
    with pytest.raises(InvalidInput, match="2 prompts came with 1 continuations"):
        llm.score(["a", "b"], ["c"])


async def test_sampling_without_a_seed_stays_sampling(path):
    llm = CachedLLM(Sampler(), path)
    texts = [g.text for _ in range(2) for g in llm.generate(["?", "?"], SAMPLED)]
    texts += [(await llm.agenerate(["?"], SAMPLED))[0].text for _ in range(2)]
    assert texts == [f"draw {i}" for i in range(6)]
    assert (llm.hits, llm.misses) == (0, 6)


def test_seeded_samples_of_one_prompt_are_kept_apart(path):
    for asked in (["p"], ["p", "q", "p"], ["p", "p", "p", "q"], ["q", "p"]):
        for _ in range(2):
            llm = CachedLLM(Sampler(), path)
            assert llm.generate(asked, SEEDED) == Sampler().generate(asked, SEEDED)
    assert llm.misses == 0


async def test_async_answers_are_the_sync_ones_and_share_their_file(path):
    async def reply(prompt: str) -> str:
        await asyncio.sleep(0)
        return prompt.upper()

    model, prompts = ScriptedLLM(reply), ["a", "b", "a"]
    fresh = await CachedLLM(model, path).agenerate(prompts)
    kept = await CachedLLM(model, path).agenerate(prompts)
    synced = await asyncio.to_thread(CachedLLM(model, path).generate, prompts)
    assert [g.text for g in fresh] == ["A", "B", "A"]
    assert fresh == kept == synced
    assert model.calls == [("a", "b")]


async def test_who_asks_at_the_same_time_as_another_gets_the_answer_that_is_kept(path):
    together, number = threading.Barrier(2, timeout=20), count()

    def unsteady(prompt: str) -> str:
        together.wait()
        return f"answer {next(number)}"

    twins = [CachedLLM(ScriptedLLM(unsteady), path) for _ in range(2)]
    asked = [asyncio.to_thread(llm.generate, ["sync"]) for llm in twins]
    awaited = [llm.agenerate(["async"]) for llm in twins]
    for told in (await asyncio.gather(*asked), await asyncio.gather(*awaited)):
        assert told[0] == told[1]
    later = [CachedLLM(ScriptedLLM(str), path).generate([prompt]) for prompt in ("sync", "async")]
    assert later == [(await asyncio.to_thread(twins[0].generate, [p])) for p in ("sync", "async")]


async def test_an_async_model_is_awaited_on_its_event_loop_and_another_asked_in_a_thread(path):
    async def here(prompt: str) -> str:
        return str(threading.get_ident())

    there = Letters()
    there._read = lambda text: Generation(str(threading.get_ident()))
    for llm, settings, on_the_loop in (
        (ScriptedLLM(here), GenerationSettings(), True),
        (ScriptedLLM(here), SAMPLED, True),
        (there, GenerationSettings(), False),
    ):
        [told] = await CachedLLM(llm, path).agenerate(["?"], settings)
        assert (told.text == str(threading.get_ident())) == on_the_loop


@pytest.mark.parametrize(
    ("model", "scores", "differentiates"),
    [
        (ScriptedLLM(str), False, False),
        (Letters(), True, False),
        (LettersWithGradients(), True, True),
    ],
)
def test_it_claims_what_its_model_can_do_and_no_more(path, model, scores, differentiates):
    llm = CachedLLM(model, path)
    assert isinstance(llm, AsyncLLM)
    assert isinstance(llm, ScoringLLM) is scores
    assert isinstance(llm, GradientLLM) is differentiates


def test_gradients_are_the_models_own(path):
    llm = CachedLLM(LettersWithGradients(), path)
    direction = llm.mean_gradient(["a", "b"], ["c", "d"], layers=3)
    np.testing.assert_array_equal(direction["w"], [2, 2, 2])
    told = llm.gradient_agreement(["a"], ["b"], along=direction, cosine=True, layers=2)
    assert told == [GradientAgreement(3.0, 0.5)]


numbers = st.floats(allow_nan=False)
chances = st.floats(max_value=0, allow_nan=False)
alternatives = st.lists(st.tuples(st.text(), chances), max_size=3).map(tuple)
token_values = st.builds(Token, st.text(), chances, st.none() | numbers, alternatives)
generations = st.builds(
    Generation,
    st.text(),
    st.none() | st.lists(token_values, max_size=4).map(tuple),
    st.none() | st.integers(0),
    st.none() | st.integers(0),
)


class Saying(Letters):
    """Says always the same, whatever `max_tokens` is."""

    def __init__(self, said):
        super().__init__()
        self.said = said

    def generate(self, prompts, settings=GenerationSettings()):
        return [self.said] * len(prompts)


@given(generations)
def test_a_generation_comes_back_exactly(tmp_path_factory, generation):
    path = tmp_path_factory.mktemp("answers") / "answers.sqlite"
    [fresh] = CachedLLM(Saying(generation), path).generate(["?"])
    [kept] = CachedLLM(Saying(None), path).generate(["?"])
    assert kept == fresh == generation
    assert kept.seconds == fresh.seconds > 0


def test_numpy_log_probabilities_are_kept_as_the_same_numbers(path):
    said = Generation("x", (Token("x", np.float32(-0.1), np.float64(0.3)),))  # type: ignore[arg-type]
    llm = CachedLLM(Saying(said), path)
    assert llm.generate(["?"]) == llm.generate(["?"]) == [said]


@pytest.mark.parametrize(
    ("columns", "seconds", "reason"),
    [
        (["old", None, 7, 3], None, None),
        (["old", None, 7, 3, 0.5], 0.5, None),
        (["old", None, 7, 3, 0.5, "length"], 0.5, "length"),
    ],
)
def test_rows_of_earlier_versions_are_served(path, columns, seconds, reason):
    CachedLLM(Letters(), path).generate(["?"])
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE answers SET answer = ?", (json.dumps(columns),))
    [served] = CachedLLM(Letters(), path).generate(["?"])
    assert served == Generation("old", None, 7, 3)
    assert (served.seconds, served.finish_reason) == (seconds, reason)


@pytest.mark.parametrize("logprob", [math.nan, 0.5])
def test_an_impossible_log_probability_is_refused_and_not_kept(path, logprob):
    with pytest.raises(InvalidLogProbability, match="letters"):
        CachedLLM(Saying(Generation("x", (Token("x", logprob),))), path).generate(["?"])
    assert CachedLLM(Letters(), path).generate(["ab"]) == Letters().generate(["ab"])


def test_what_an_answer_took_comes_with_it_out_of_the_file(path, tmp_path):
    fresh = CachedLLM(ScriptedLLM(str.upper), path).generate(["a", "b"])
    again = CachedLLM(ScriptedLLM(str.upper), path)
    [kept] = again.generate(["b"])
    assert kept.seconds == fresh[0].seconds == fresh[1].seconds > 0  # each its share of the call
    assert kept == ScriptedLLM(str.upper).generate(["b"])[0]  # and does not tell it apart
    [outer] = CachedLLM(again, tmp_path / "outer.sqlite").generate(["b"])
    assert outer.seconds == kept.seconds  # not what the cache inside took


def test_what_was_answered_before_a_failure_is_kept(path):
    """The model is asked for a part at a time; a failure loses that part alone."""

    class Failing(Letters):
        def generate(self, prompts, settings=GenerationSettings()):
            if down and "100" in prompts:
                raise ConnectionError("down")
            return super().generate(prompts, settings)

    llm, down, prompts = Failing(), True, [str(i) for i in range(150)]
    kept = CachedLLM(llm, path)
    for ask_all in (kept.generate, lambda prompts: asyncio.run(kept.agenerate(prompts))):
        with pytest.raises(ConnectionError):
            ask_all(prompts)
    assert llm.calls == [prompts[:64]]
    down = False
    assert [g.text for g in kept.generate(prompts)] == [prompt[::-1] for prompt in prompts]
    assert llm.calls[1:] == [prompts[64:128], prompts[128:]]
    assert (kept.hits, kept.misses) == (64 + 64, sum(map(len, llm.calls)))


@pytest.mark.parametrize(("temperature", "hits"), [(0.0, 64), (1.0, 0)])
def test_all_that_was_paid_for_counts_as_missing_whatever_failed(path, temperature, hits):
    class Stumbling(Letters):
        def generate(self, prompts, settings=GenerationSettings()):
            if failing & {*prompts}:
                failing.clear()
                raise ConnectionError("down")
            return super().generate(prompts, settings)

    failing, kept = {"80"}, CachedLLM(Stumbling(), path)
    # the merged call fails in its second part; each prompt is then asked for by itself
    run_many([ask(str(i), temperature=temperature) for i in range(100)], World(kept))
    assert kept.misses == sum(map(len, kept.llm.calls)) == 100
    assert kept.hits == hits


def test_samples_of_a_prompt_come_in_one_call(path):
    llm = CachedLLM(Letters(), path)
    llm.generate([*["a", "b"] * 20, *["c"] * 40, *["d"] * 100, "e"], SEEDED)
    assert llm.llm.calls == [["a", "b"] * 20, ["c"] * 40, ["d"] * 100, ["e"]]


def test_what_a_server_refuses_later_is_remembered_beside_what_it_refused_before(path):
    model = Letters()
    for model.refused in ({"temperature"}, {"temperature", "logprobs"}):
        assert CachedLLM(model, path).refused == model.refused
    assert CachedLLM(Letters(), path).refused == {"temperature", "logprobs"}


def test_what_an_earlier_version_remembered_in_one_row_is_read(path):
    kept = CachedLLM(Letters(), path)
    kept._put({_key("refused", "letters"): Generation("logprobs temperature")})
    assert kept.refused == {"temperature", "logprobs"}
