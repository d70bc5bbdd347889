"""Every bad input is a named error that says what to do, seen where users meet it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel

from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer
from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.errors import (
    InvalidInput,
    InvalidLogProbability,
    MissingReferences,
    ModelError,
    NoTokenProbabilities,
)
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question
from tests.dur_parts import (
    CANDIDATES,
    VALIDATION,
    Nonsense,
    Scorer,
    by_word,
    moody,
    moody_llm,
    numbers,
    trained,
)

SETTINGS = DURSettings(reward="match", epochs=2, batch_size=4)
UNBOUND = replace(SETTINGS, least_shots=None, budget=None, sigma="off")
EMMA = Question("Who wrote Emma?")
NO_SHARE = (NoTokenProbabilities, "moody does not tell.*TransformersLLM.*='")


@pytest.mark.parametrize(
    ("settings", "given", "error", "match"),
    [
        ({}, {"candidates": []}, InvalidInput, "no candidates; give at least one"),
        ({}, {"validation": []}, InvalidInput, "no validation questions; give at least one"),
        ({}, {"candidates": [CANDIDATES[0], "Who?"]}, InvalidInput,
         r"candidate must be a Question\(text, answers\).*'Who\?'"),
        ({}, {"validation": ["Who?"]}, InvalidInput, r"Question\(text, answers\).*'Who\?'"),
        ({}, {"validation": [*VALIDATION, EMMA]}, MissingReferences, "'Who wrote.*leave it out"),
        ({}, {"validation": [replace(EMMA, answers=(" ",))]}, MissingReferences, "leave it out"),
        ({}, {"candidates": [*CANDIDATES, EMMA]}, MissingReferences, "'Who wrote.*leave it out"),
        ({}, {"candidates": [*CANDIDATES, replace(CANDIDATES[3], text="else")]}, InvalidInput,
         "several candidates have the same id '103'"),
        ({}, {"validation": [replace(VALIDATION[0], options=("RED", "GREEN"))]}, InvalidInput,
         "none of the accepted answers.*among its options"),
        ({}, {"candidates": VALIDATION[:1]}, InvalidInput, "a question is never its own example"),
        ({}, {"candidates": [Passage("x"), Passage("y")]}, InvalidInput, "format='passages'"),
        ({}, {"candidates": None}, InvalidInput, "no passages of its own; add some, or give cand"),
        ({"reward": "p_gold"}, {}, *NO_SHARE),
        ({"reward": "log_p_gold"}, {}, *NO_SHARE),
        ({"option_calibration": "batch"}, {}, *NO_SHARE),
        ({"reward": "auto", "option_calibration": "content-free"}, {}, *NO_SHARE),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_the_model_is_asked(settings, given, error, match):
    llm = moody_llm()
    with pytest.raises(error, match=match):
        trained(replace(SETTINGS, **settings), llm, **given)
    assert llm.prompts == []


def test_embeddings_or_a_model_of_a_framework_that_are_not_wrapped(tmp_path):
    vectors: Any = DeterministicFakeEmbedding(size=4)
    model: Any = FakeListChatModel(responses=["red"])
    ours = trained(SETTINGS).ranker
    ours.save(tmp_path)
    wrap = r"encoder=DeterministicFakeEmbedding cannot be used as it is: .* LangChainEncoder"
    for made in (
        lambda: DURTrainer(vectors, moody_llm()),
        lambda: DURRanker.untrained(vectors),
        lambda: DURRanker.load(tmp_path, encoder=vectors),
        lambda: ShotRanker.nearest(CANDIDATES, shots=1, encoder=vectors),
    ):
        with pytest.raises(InvalidInput, match=wrap):
            made()
    with pytest.raises(InvalidInput, match=r"llm=FakeListChatModel .* LangChainLLM"):
        DURTrainer(ours.encoder, model)


def test_settings_that_are_none():
    with pytest.raises(InvalidInput, match=r"settings must be DURSettings.*got dict"):
        trained({"epochs": 1})


def test_questions_may_come_one_by_one():
    one_by_one = trained(SETTINGS, candidates=iter(CANDIDATES), validation=iter(VALIDATION))
    assert numbers(one_by_one) == numbers(trained(SETTINGS))


def test_candidates_without_ids_are_nobodys_twins():
    assert trained(SETTINGS, candidates=[replace(c, id="") for c in CANDIDATES]).stopped is None


def test_fewer_candidates_than_shots_are_all_shown():
    llm = moody_llm()
    result = trained(UNBOUND, llm, candidates=CANDIDATES[:2])
    assert max(prompt.count("Question:") for prompt in llm.prompts) == 3
    assert [b.deepest for b in result.history] == [8, 8, 8] * 2


@pytest.mark.parametrize("settings", [UNBOUND, DURSettings.paper(), DURSettings.promptpg()])
def test_one_candidate_and_one_question_are_enough(settings):
    result = trained(replace(settings, epochs=2), None, CANDIDATES[:1], VALIDATION[:1])
    assert np.isfinite(result.ranker.head.weight).all()
    assert len(result.history) == 2


@pytest.mark.parametrize(
    ("logprobs", "error", "match"),
    [
        (lambda *_: None, NoTokenProbabilities, "reward='match'"),
        (by_word(lambda *_: math.nan), InvalidLogProbability, "natural logarithms"),
    ],
)
def test_a_scorer_that_gives_no_log_probabilities_after_all_is_named(logprobs, error, match):
    with pytest.raises(error, match=match):
        trained(replace(SETTINGS, reward="log_p_gold"), Scorer(logprobs))


@pytest.mark.parametrize("initial", ["encoder", "random"])
def test_an_encoder_that_gives_nan_is_named(initial):
    class Broken(Nonsense):
        def encode(self, texts):
            return super().encode(texts) * np.nan

    with pytest.raises(ModelError, match="encoder gave NaN or infinity"):
        trained(replace(SETTINGS, initial=initial), encoder=Broken())


@pytest.mark.parametrize("candidates", [CANDIDATES, None])
def test_an_encoder_that_gives_too_few_rows_is_named(candidates):
    class Short(Nonsense):
        def encode(self, texts):
            return super().encode(texts)[1:]

    validation = [replace(one, passages=(Passage("x"), Passage("y"))) for one in VALIDATION]
    own = replace(SETTINGS, format="passages") if candidates is None else SETTINGS
    with pytest.raises(ModelError, match=f"{len(VALIDATION) - 1} replies came.*one for each"):
        trained(own, encoder=Short(), candidates=candidates, validation=validation)


@pytest.mark.parametrize("bound", ["max_calls", "max_tokens"])
def test_a_bound_that_is_no_number_is_refused_before_anything_is_encoded(bound):
    class Untouched(Nonsense):
        def encode(self, texts):
            raise AssertionError

    with pytest.raises(InvalidInput, match=f"{bound} must be a whole number, or None, got str '3'"):
        trained(SETTINGS, encoder=Untouched(), **{bound: "3"})


@pytest.mark.parametrize("bound", ["max_calls", "max_tokens"])
def test_a_run_stops_cleanly_at_its_bound_and_goes_on_beyond_it(bound, tmp_path):
    whole, llm = trained(SETTINGS), moody_llm()
    spent = sum(getattr(b, bound.removeprefix("max_")) for b in whole.history[:2])
    part = trained(SETTINGS, checkpoint=tmp_path, **{bound: spent})
    assert part.history == whole.history[:2]
    assert str(spent) in (part.stopped or "")
    assert numbers(part) == numbers(trained(SETTINGS, **{bound: spent}))
    more = trained(SETTINGS, checkpoint=tmp_path, **{bound: spent + 1})
    assert more.history == whole.history[:3]
    nothing = trained(SETTINGS, llm, **{bound: 0})
    assert (nothing.history, llm.calls) == ((), [])
    assert nothing.stopped


def test_a_bound_that_is_reached_with_the_last_batch_is_no_stop():
    assert trained(SETTINGS, max_calls=trained(SETTINGS).calls).stopped is None


class Uncounted:
    """A provider that does not count tokens."""

    name = "moody"

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(moody(prompt)) for prompt in prompts]


def test_a_model_that_does_not_count_its_tokens_cannot_be_bounded_by_them(tmp_path):
    assert trained(SETTINGS, Uncounted()).history[0].tokens is None
    with pytest.raises(InvalidInput, match="does not count its tokens; bound the run by max_calls"):
        trained(SETTINGS, Uncounted(), checkpoint=tmp_path, max_tokens=10_000)
    kept = trained(SETTINGS, Uncounted(), checkpoint=tmp_path, max_calls=0)
    assert len(kept.history) == 1  # what was paid for until then is not lost


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"shots": 0}, "shots must be a whole number, at least 1, got 0"),
        ({"shots": 2.5}, "shots must be a whole number.*, got 2.5"),
        ({"preselected": 0}, "preselected must be .*at least 1"),
        ({"dim": 0}, "dim must be .*at least 1"),
        ({"batch_size": 0}, "batch_size must be .*at least 1"),
        ({"epochs": -1}, "epochs must be .*at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be .*above 0, got 0.0"),
        ({"sharpness": -1.0}, "sharpness must be .*above 0"),
        ({"pull": -0.1}, "pull must be .*at least 0"),
        ({"budget": math.nan}, "budget must be .*at least 0"),
        ({"least_shots": -1}, "least_shots must be .*at least 0"),
        ({"held_out": 1.0}, "held_out must be .*below 1, got 1.0"),
        ({"threshold": 1.1}, "threshold must be .*from 0 to 1"),
        ({"reward": "accuracy"}, "reward must be one of .*match.*, got 'accuracy'"),
        ({"preselect": len}, "preselect must be one of"),
        ({"sigma": "never"}, "sigma must be one of"),
        ({"initial": "bert"}, "initial must be one of"),
        ({"format": "A-Q"}, "no prompt format 'A-Q'; there are Q-A"),
        ({"rungs": "last", "credit": "change"}, "set credit='outcome'"),
    ],
    ids=str,
)
def test_settings_out_of_range(values, match):
    with pytest.raises(InvalidInput, match=match):
        DURSettings(**values)
