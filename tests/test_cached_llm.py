"""Answers that are kept: once paid for, there for every thread, process and day after."""

import asyncio
import json
import math
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import CacheUnreadable, InvalidInput, InvalidLogProbability, ModelError
from ltrag_plugins.llm.base import AsyncLLM, GradientLLM, ScoringLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Token
from tests.contracts.llm import LLMContract, ScoringContract


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


class Saying:
    """Says always the same."""

    name = "saying"

    def __init__(self, said):
        self.said = said

    def generate(self, prompts, settings=GenerationSettings()):
        return [self.said] * len(prompts)


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


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM answers").fetchone()[0]


class TestACachedScript(LLMContract):
    @pytest.fixture
    def llm(self, path):
        return CachedLLM(ScriptedLLM(lambda prompt: " ".join(prompt)), path)


class TestACachedScorer(ScoringContract):
    @pytest.fixture
    def llm(self, path):
        return CachedLLM(Letters(), path)


class TestAWarmCache(ScoringContract):
    """Everything the contract asks has been asked before."""

    @pytest.fixture
    def llm(self, path):
        llm = CachedLLM(Letters(), path)
        for max_tokens in (2, 6, 8, 12, 64):
            llm.generate(self.prompts, GenerationSettings(max_tokens=max_tokens))
        return CachedLLM(Letters(), path)


def test_an_answer_is_asked_for_once_in_a_lifetime(path):
    first = CachedLLM(Letters(), path)
    fresh = first.generate(["Emma", "Anna", "Emma"])
    model = Letters()
    later = CachedLLM(model, path)
    assert (
        later.generate(["Anna", "Emma"])
        == [fresh[1], fresh[0]]
        == Letters().generate(["Anna", "Emma"])
    )
    assert first.llm.calls == [["Emma", "Anna"]]
    assert (first.hits, first.misses) == (1, 2)
    assert model.calls == []
    assert (later.hits, later.misses) == (2, 0)


def test_only_what_is_missing_is_asked_for_and_the_order_is_kept(path):
    model = Letters()
    llm = CachedLLM(model, path)
    llm.generate(["b", "d"])
    prompts = ["a", "b", "c", "d", "e"]
    assert [g.text for g in llm.generate(prompts)] == prompts
    assert model.calls == [["b", "d"], ["a", "c", "e"]]


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
    llm = CachedLLM(Letters(), path)
    for known in ({}, {"max_tokens": 6}, {"stop": ["a"]}, {"temperature": 0.5, "seed": 3}):
        llm.generate(["Emma"], GenerationSettings(**known))
    before = llm.misses
    assert llm.generate(["Emma"], GenerationSettings(**other)) == Letters().generate(
        ["Emma"], GenerationSettings(**other)
    )
    assert llm.misses == before + 1
    llm.generate(["Emma"], GenerationSettings(**other))
    assert llm.misses == before + 1


def test_models_with_different_names_do_not_share_answers(path):
    one = CachedLLM(ScriptedLLM(lambda _: "one", name="one"), path)
    two = CachedLLM(ScriptedLLM(lambda _: "two", name="two"), path)
    assert one.generate(["?"])[0].text == "one"
    assert two.generate(["?"])[0].text == "two"
    assert one.generate(["?"])[0].text == "one"


def test_a_prompt_and_continuation_are_not_their_concatenation(path):
    model = Letters()
    llm = CachedLLM(model, path)
    llm.score(["ab"], ["c"])
    llm.score(["a"], ["bc"])
    llm.score(["ab"], ["c"])
    assert model.calls == [[("ab", "c")], [("a", "bc")]]


def test_sampling_without_a_seed_stays_sampling(path):
    llm = CachedLLM(Sampler(), path)
    texts = [
        g.text
        for _ in range(2)
        for g in llm.generate(["?", "?"], GenerationSettings(temperature=1.0))
    ]
    assert len(set(texts)) == 4
    assert (llm.hits, llm.misses, rows(path)) == (0, 4, 0)


def test_seeded_samples_of_one_prompt_are_kept_apart(path):
    for asked in (["p"], ["p", "q", "p"], ["p", "p", "p", "q"], ["q", "p"]):
        for _ in range(2):
            llm = CachedLLM(Sampler(), path)
            told = llm.generate(asked, GenerationSettings(temperature=1.0, seed=7))
            assert told == Sampler().generate(asked, GenerationSettings(temperature=1.0, seed=7))
    assert llm.misses == 0


def test_scores_of_a_list_of_another_length_are_refused(path):
    with pytest.raises(InvalidInput, match="2 prompts came with 1 continuations"):
        CachedLLM(Letters(), path).score(["a", "b"], ["c"])


async def test_async_answers_are_the_sync_ones_and_share_their_file(path):
    async def reply(prompt: str) -> str:
        await asyncio.sleep(0)
        return prompt.upper()

    model = ScriptedLLM(reply)
    prompts = ["a", "b", "a"]
    fresh = await CachedLLM(model, path).agenerate(prompts)
    kept = await CachedLLM(model, path).agenerate(prompts)
    synced = await asyncio.to_thread(CachedLLM(model, path).generate, prompts)
    assert [g.text for g in fresh] == ["A", "B", "A"]
    assert fresh == kept == synced
    assert model.calls == [("a", "b")]


async def test_a_model_without_async_is_asked_in_a_thread(path):
    class WhereAmI(Letters):
        def generate(self, prompts, settings=GenerationSettings()):
            return [Generation(str(threading.get_ident())) for _ in prompts]

    [told] = await CachedLLM(WhereAmI(), path).agenerate(["?"])
    assert told.text != str(threading.get_ident())


async def test_an_async_model_is_awaited_on_its_event_loop(path):
    async def where(prompt: str) -> str:
        return str(threading.get_ident())

    for temperature in (0.0, 1.0):
        [told] = await CachedLLM(ScriptedLLM(where), path).agenerate(
            ["?"], GenerationSettings(temperature=temperature)
        )
        assert told.text == str(threading.get_ident())


async def test_async_sampling_without_a_seed_stays_sampling(path):
    llm = CachedLLM(Sampler(), path)
    texts = [
        (await llm.agenerate(["?"], GenerationSettings(temperature=1.0)))[0].text for _ in range(2)
    ]
    assert texts == ["draw 0", "draw 1"]


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
    assert isinstance(llm, CachedLLM)
    assert isinstance(llm, AsyncLLM)
    assert isinstance(llm, ScoringLLM) is scores
    assert isinstance(llm, GradientLLM) is differentiates
    assert llm.name == model.name


def test_gradients_are_the_models_own(path):
    llm = CachedLLM(LettersWithGradients(), path)
    direction = llm.mean_gradient(["a", "b"], ["c", "d"], layers=3)
    np.testing.assert_array_equal(direction["w"], [2, 2, 2])
    told = llm.gradient_agreement(["a"], ["b"], along=direction, cosine=True, layers=2)
    assert told == [GradientAgreement(3.0, 0.5)]


def test_it_travels_to_another_process_with_its_model(path):
    llm = CachedLLM(Sampler(), path)
    llm.llm.draws = None
    llm.generate(["p"], GenerationSettings(seed=1))
    twin = pickle.loads(pickle.dumps(llm))
    twin.generate(["p"], GenerationSettings(seed=1))
    assert (twin.hits, twin.misses) == (1, 0)


numbers = st.floats(allow_nan=False)
token_values = st.builds(
    Token,
    st.text(),
    st.floats(max_value=0, allow_nan=False),
    st.none() | numbers,
    st.lists(st.tuples(st.text(), st.floats(max_value=0, allow_nan=False)), max_size=3).map(tuple),
)
generations = st.builds(
    Generation,
    st.text(),
    st.none() | st.lists(token_values, max_size=4).map(tuple),
    st.none() | st.integers(0),
    st.none() | st.integers(0),
)


def test_rows_of_before_finish_reasons_are_served(path):
    old = CachedLLM(Saying(Generation("new")), path)
    [fresh] = old.generate(["?"])
    for columns, reason in (
        (["old", None, 7, 3], None),
        (["old", None, 7, 3, 0.5, "length"], "length"),
    ):
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE answers SET answer = ?", (json.dumps(columns),))
        [served] = CachedLLM(Saying(fresh), path).generate(["?"])
        assert served == Generation("old", None, 7, 3)
        assert served.finish_reason == reason


@given(generations)
def test_a_generation_comes_back_exactly(tmp_path_factory, generation):
    path = tmp_path_factory.mktemp("answers") / "answers.sqlite"
    [fresh] = CachedLLM(Saying(generation), path).generate(["?"])
    [kept] = CachedLLM(Saying(None), path).generate(["?"])
    assert kept == fresh == generation
    assert kept.seconds == fresh.seconds > 0


def test_numpy_log_probabilities_are_kept_as_the_same_numbers(path):
    said = Generation("x", (Token("x", np.float32(-0.1), np.float64(0.3)),))  # type: ignore[arg-type]
    llm = CachedLLM(ScriptedLLM(lambda _: said), path)
    assert llm.generate(["?"]) == llm.generate(["?"]) == [said]


@pytest.mark.parametrize("logprob", [math.nan, 0.5])
def test_an_impossible_log_probability_is_refused_and_not_kept(path, logprob):
    class Wrong(Letters):
        def _read(self, text):
            return Generation(text, (Token(text, logprob),))

    llm = CachedLLM(Wrong(), path)
    with pytest.raises(InvalidLogProbability, match="letters"):
        llm.generate(["?"])
    assert rows(path) == 0


def test_a_model_that_gives_too_few_answers_is_named_and_nothing_is_kept(path):
    class Forgetful(Letters):
        def generate(self, prompts, settings=GenerationSettings()):
            return super().generate(prompts[1:], settings)

    llm = CachedLLM(Forgetful(), path)
    with pytest.raises(ModelError, match="letters gave 2 generations for 3 prompts"):
        llm.generate(["a", "b", "c"])
    assert rows(path) == 0


def test_what_the_model_raises_passes_and_nothing_is_kept(path):
    def moody(prompt: str) -> str:
        raise ConnectionResetError(prompt)

    llm = CachedLLM(ScriptedLLM(moody), path)
    with pytest.raises(ConnectionResetError):
        llm.generate(["?"])
    assert rows(path) == 0


def test_many_threads_share_one_cache(path):
    llm = CachedLLM(Letters(), path)
    prompts = [f"{i % 40:02d}" for i in range(400)]
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda prompt: llm.generate([prompt])[0].text, prompts))
    assert told == [prompt[::-1] for prompt in prompts]
    assert llm.hits + llm.misses == 400
    assert rows(path) == 40


WRITER = """
import sys
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM

path, who, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
llm = CachedLLM(ScriptedLLM(lambda prompt: prompt.replace(' ', '-') * 200), path)
for i in range(rounds):
    llm.generate([f"{who} {i} {j}" for j in range(5)] + [f"shared {i}"])
    print(i, flush=True)
"""


def start_writer(path: Path, who: str, rounds: int) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(path), who, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check_integrity(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_many_processes_make_and_fill_one_cache(path):
    writers = [start_writer(path, f"writer {i}", 25) for i in range(4)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert rows(path) == 4 * 25 * 5 + 25
    check_integrity(path)


def test_a_killed_process_loses_at_most_the_call_it_was_in(path):
    finished = 0
    for round_ in range(3):
        writer = start_writer(path, f"life {round_}", 10**6)
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = writer.communicate()
        finished = 20 + rest.count("\n")
        assert writer.returncode == -signal.SIGKILL

        def unpaid(prompt: str) -> str:
            raise AssertionError(f"{prompt} was paid for before")

        llm = CachedLLM(ScriptedLLM(unpaid), path)
        for i in range(finished):
            prompts = [f"life {round_} {i} {j}" for j in range(5)] + [f"shared {i}"]
            assert [g.text for g in llm.generate(prompts)] == [
                p.replace(" ", "-") * 200 for p in prompts
            ]
        llm.close()
    check_integrity(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_the_file_anew(path):
    llm = CachedLLM(Letters(), path)
    llm.generate(["parent"])
    parents = list(llm._idle[os.getpid()])
    assert parents
    child = os.fork()
    if child == 0:
        told = llm.generate(["parent", "child"])
        shared = [c for c in llm._idle[os.getpid()] if any(c is parent for parent in parents)]
        os._exit(0 if told[1].text == "dlihc" and llm.hits == 1 and not shared else 1)
    assert os.waitpid(child, 0)[1] == 0
    llm.generate(["child", "parent"])
    assert llm.misses == 1
    check_integrity(path)


def test_a_missing_folder_is_made_and_nothing_else_is_left_in_it(tmp_path):
    path = tmp_path / "a" / "b" / "answers.sqlite"
    llm = CachedLLM(Letters(), path)
    llm.generate(["?"])
    llm.close()
    assert os.listdir(path.parent) == ["answers.sqlite"]


def foreign_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE precious (x)")
        connection.execute("INSERT INTO precious VALUES (1)")
    connection.close()


def of_another_version(path: Path) -> None:
    CachedLLM(Letters(), path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert os.listdir(path.parent) == [path.name]


def filled(path: Path) -> bytearray:
    llm = CachedLLM(ScriptedLLM(lambda prompt: prompt * 200), path)
    llm.generate([f"prompt {i}" for i in range(200)])
    llm.close()
    return bytearray(path.read_bytes())


def with_a_torn_page(path: Path) -> None:
    data = filled(path)
    data[3 * 4096 : 4 * 4096] = os.urandom(4096)
    path.write_bytes(data)


def with_its_second_half_lost(path: Path) -> None:
    data = filled(path)
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda path: path.write_bytes(b""), "not a SQLite file"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "not a SQLite file"),
        (lambda path: path.write_text("my thesis\n" * 100), "not a SQLite file"),
        (foreign_sqlite, "no answer cache of layout 1: it is another SQLite file"),
        (of_another_version, "of layout 99"),
        (with_a_torn_page, "corrupt"),
        (with_its_second_half_lost, "corrupt"),
        (lambda path: path.mkdir(), "directory"),
    ],
)
def test_what_is_no_sound_cache_is_refused_and_left_as_it_was(path, made, why):
    made(path)
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(CacheUnreadable, match=why) as caught:
        CachedLLM(Letters(), path)
    assert str(path) in str(caught.value)
    assert os.listdir(path.parent) == [path.name]
    assert path.is_dir() or path.read_bytes() == before


def test_an_answer_that_was_damaged_in_place_is_an_error_and_not_asked_for_again(path):
    llm = CachedLLM(Letters(), path)
    llm.generate(["?"])
    llm.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE answers SET answer = substr(answer, 1, 9)")
    connection.close()
    before = path.read_bytes()
    model = Letters()
    again = CachedLLM(model, path)
    with pytest.raises(CacheUnreadable, match="corrupt"):
        again.generate(["?"])
    again.close()
    assert model.calls == []
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_an_error_with_the_path(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheUnreadable, match=r"file/answers\.sqlite"):
        CachedLLM(Letters(), tmp_path / "file" / "answers.sqlite")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, to give up root's rights")
def test_a_file_that_may_only_be_read_says_so():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answers.sqlite")
        CachedLLM(Letters(), path).close()
        path.chmod(0o444)
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                CachedLLM(Letters(), path).generate(["?"])
            except CacheUnreadable as error:
                os._exit(0 if "readonly" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        os.chmod(folder, 0o755)


def test_what_an_answer_took_comes_with_it_out_of_the_file(path):
    fresh = CachedLLM(ScriptedLLM(str.upper), path).generate(["a", "b"])
    kept = CachedLLM(ScriptedLLM(str.upper), path).generate(["b"])
    assert all(generation.seconds > 0 for generation in fresh)
    assert fresh[0].seconds == fresh[1].seconds  # each its share of the call
    assert kept[0].seconds == fresh[1].seconds
    assert kept[0] == ScriptedLLM(str.upper).generate(["b"])[0]  # and does not tell it apart


def test_an_answer_of_a_cache_inside_keeps_what_it_took_once(tmp_path):
    inner = CachedLLM(ScriptedLLM(lambda prompt: "yes"), tmp_path / "inner.sqlite")
    [first] = inner.generate(["asked?"])
    [again] = CachedLLM(inner, tmp_path / "outer.sqlite").generate(["asked?"])
    assert again.seconds == first.seconds is not None


def test_an_answer_that_was_kept_without_its_seconds_is_read_as_it_is(path):
    with CachedLLM(Letters(), path) as llm:
        llm.generate(["?"])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE answers SET answer = ?", ('["a", null, 1, 2]',))
    [kept] = CachedLLM(Letters(), path).generate(["?"])
    assert kept == Generation("a", None, 1, 2)
    assert kept.seconds is None


def test_what_was_answered_before_a_failure_is_kept(tmp_path):
    """The model is asked for a part at a time; a failure loses that part alone."""

    class Failing(Letters):
        def generate(self, prompts, settings=GenerationSettings()):
            if down and "100" in prompts:
                raise ConnectionError("down")
            return super().generate(prompts, settings)

    llm, down, prompts = Failing(), True, [str(i) for i in range(150)]
    kept = CachedLLM(llm, tmp_path / "answers.sqlite")
    with pytest.raises(ConnectionError):
        kept.generate(prompts)
    with pytest.raises(ConnectionError):
        asyncio.run(kept.agenerate(prompts))
    assert llm.calls == [prompts[:64]]
    down = False
    assert [g.text for g in kept.generate(prompts)] == [prompt[::-1] for prompt in prompts]
    assert llm.calls[1:] == [prompts[64:128], prompts[128:]]


def test_samples_of_a_prompt_come_in_one_call(tmp_path):
    llm = Letters()
    asked = [*["a", "b"] * 20, *["c"] * 40, *["d"] * 100, "e"]
    CachedLLM(llm, tmp_path / "a.sqlite").generate(
        asked, GenerationSettings(temperature=1.0, seed=1)
    )
    assert llm.calls == [["a", "b"] * 20, ["c"] * 40, ["d"] * 100, ["e"]]
