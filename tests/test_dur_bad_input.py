"""Every bad input is a named error that says what to do, seen where users meet it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.errors import (
    InvalidInput,
    InvalidLogProbability,
    MissingReferences,
    ModelError,
    ModelFailed,
    NoTokenProbabilities,
)
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question
from tests.dur_parts import Nonsense, Scorer, asked, by_word, houses, moody, moody_llm

SETTINGS = DURSettings(reward="match", epochs=2, batch_size=4)
CANDIDATES, VALIDATION = houses(100, 12), houses(1, 10)


def trained(settings=SETTINGS, llm=None, candidates=CANDIDATES, validation=VALIDATION, **told):
    trainer = DURTrainer(Nonsense(), llm or moody_llm(), settings=settings)
    return trainer.fit(candidates, validation, **told)


def refused(error, match, **told):
    """`fit` raises, and the model was not asked for nothing."""
    llm = told.pop("llm", None) or moody_llm()
    with pytest.raises(error, match=match):
        trained(llm=llm, **told)
    assert getattr(llm, "prompts", []) == []


def test_no_candidates():
    refused(InvalidInput, "no candidates; give at least one", candidates=[])


def test_no_validation_questions():
    refused(InvalidInput, "no validation questions; give at least one", validation=[])


def test_questions_and_candidates_that_are_plain_strings():
    refused(InvalidInput, r"candidate must be a Question\(text, answers\).*'Who\?'",
            candidates=[CANDIDATES[0], "Who?"])  # fmt: skip
    refused(InvalidInput, r"Question\(text, answers\).*'Who\?'", validation=["Who?"])


def test_a_validation_question_without_answers():
    for answers in ((), (" ",)):
        bare = [*VALIDATION, Question("Who wrote Emma?", answers)]
        refused(MissingReferences, "'Who wrote Emma.*leave it out", validation=bare)


def test_a_solved_example_without_an_answer():
    bare = [*CANDIDATES, Question("Who wrote Emma?")]
    refused(MissingReferences, "'Who wrote Emma.*leave it out", candidates=bare)


def test_ids_that_come_twice():
    twice = [*CANDIDATES, replace(CANDIDATES[3], text="else")]
    refused(InvalidInput, "several candidates have the same id '103'", candidates=twice)


def test_candidates_without_ids_are_nobodys_twins():
    trained(candidates=[replace(c, id="") for c in CANDIDATES])


def test_an_answer_that_is_none_of_the_options():
    odd = replace(VALIDATION[0], options=("RED", "GREEN"))
    refused(InvalidInput, "none of the accepted answers.*among its options", validation=[odd])


def test_candidates_that_are_nothing_but_the_question():
    refused(InvalidInput, "a question is never its own example", candidates=VALIDATION[:1],
            validation=VALIDATION[:1])  # fmt: skip


def test_a_question_among_the_candidates_is_never_its_own_shot():
    for how in ("bm25", "encoder", "none"):
        llm = moody_llm()
        settings = replace(SETTINGS, preselect=how, least_shots=None, budget=None, sigma="off")
        trained(settings, llm, candidates=[*CANDIDATES, *VALIDATION])
        assert all(prompt.count(asked(prompt)) == 1 for prompt in llm.prompts)
        assert any(prompt.count("Question:") > 3 for prompt in llm.prompts)


def test_fewer_candidates_than_shots_are_all_shown():
    settings = replace(SETTINGS, least_shots=None, budget=None, sigma="off")
    llm = moody_llm()
    result = trained(settings, llm, candidates=CANDIDATES[:2])
    assert max(prompt.count("Question:") for prompt in llm.prompts) == 3
    assert [b.deepest for b in result.history] == [8, 8, 4] * 2
    alone = trained(settings, candidates=CANDIDATES[:1], validation=VALIDATION[:1])
    assert np.isfinite(alone.ranker.head.weight).all()


@pytest.mark.parametrize("settings", [SETTINGS, DURSettings.paper(), DURSettings.promptpg()])
def test_one_candidate_and_one_question_are_enough(settings):
    result = trained(replace(settings, epochs=2), None, CANDIDATES[:1], VALIDATION[:1])
    assert np.isfinite(result.ranker.head.weight).all()
    assert len(result.history) == 2


def test_passages_in_a_format_for_examples():
    refused(InvalidInput, "format='passages'", candidates=[Passage("x"), Passage("y")])


def test_own_passages_that_are_missing():
    refused(InvalidInput, "no passages of its own; add some, or give candidates", candidates=None)


@pytest.mark.parametrize("kind", ["p_gold", "log_p_gold"])
def test_a_model_without_token_probabilities_under_a_reward_that_needs_them(kind):
    settings = replace(SETTINGS, reward=kind)
    refused(NoTokenProbabilities, "moody does not tell.*TransformersLLM.*reward='match'",
            settings=settings)  # fmt: skip


@pytest.mark.parametrize("kind", ["auto", "match"])
@pytest.mark.parametrize("calibration", ["batch", "content-free"])
def test_a_model_without_token_probabilities_under_a_calibration_that_needs_them(kind, calibration):
    settings = replace(SETTINGS, reward=kind, option_calibration=calibration)
    refused(NoTokenProbabilities, "option_calibration='none'", settings=settings)


def test_a_scorer_that_gives_no_token_probabilities_after_all():
    silent = Scorer(lambda *_: None)
    with pytest.raises(NoTokenProbabilities, match="reward='match'"):
        trained(replace(SETTINGS, reward="log_p_gold"), silent)


def test_a_scorer_that_gives_nan():
    broken = Scorer(by_word(lambda *_: math.nan))
    with pytest.raises(InvalidLogProbability, match="natural logarithms"):
        trained(replace(SETTINGS, reward="log_p_gold"), broken)


def test_an_encoder_that_gives_nan():
    class Broken(Nonsense):
        def encode(self, texts):
            return super().encode(texts) * np.nan

    for initial in ("encoder", "random"):
        with pytest.raises(ModelError, match="encoder gave NaN or infinity"):
            DURTrainer(Broken(), moody_llm(), settings=replace(SETTINGS, initial=initial)).fit(
                CANDIDATES, VALIDATION
            )


def rewarded(kind, value):
    """Three batches are worth something; then the function fails."""
    told = []

    def own(said, question):
        told.append(said)
        if len(told) > 30:
            return value()
        return float(said == question.answers[0])

    return replace(SETTINGS, reward=own)


def raising():
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (raising, "the reward raised ZeroDivisionError: oops"),
        (lambda: math.nan, "the reward function returned nan"),
        (lambda: -math.inf, "the reward function returned -inf"),
        (lambda: "good", "the reward raised ValueError"),
    ],
    ids=["raises", "nan", "infinite", "a word"],
)
def test_a_reward_that_fails_midway_loses_nothing_of_what_was_learned(tmp_path, value, match):
    paid = []

    def counted(prompt):
        paid.append(prompt)
        return moody(prompt)

    def fit(settings):
        with CachedLLM(ScriptedLLM(counted, name="moody"), tmp_path / "answers") as llm:
            return trained(settings, llm, checkpoint=tmp_path / "run")

    settings = rewarded("own", value)
    with pytest.raises(InvalidInput, match=match) as caught:
        fit(settings)
    assert "to 'What colour is house" in str(caught.value)
    kept = trained(settings, checkpoint=tmp_path / "run", max_calls=0).history
    assert 0 < len(kept) < 6

    def own(said, question):
        return float(said == question.answers[0])

    own.__qualname__ = settings.reward.__qualname__  # the function, mended
    mended = replace(SETTINGS, reward=own)
    again = fit(mended)
    whole = trained(mended)
    assert again.history == whole.history
    assert again.ranker.head.weight.tobytes() == whole.ranker.head.weight.tobytes()
    assert len(paid) == len(set(paid))


def test_a_model_that_raises_is_named_with_its_cause():
    def refuse(prompt):
        raise PermissionError("no key")

    with pytest.raises(ModelFailed, match="no key") as caught:
        trained(llm=ScriptedLLM(refuse))
    assert isinstance(caught.value.__cause__, PermissionError)


@pytest.mark.parametrize("bound", ["max_calls", "max_tokens"])
def test_a_run_stops_cleanly_at_its_bound_and_goes_on_beyond_it(bound, tmp_path):
    whole = trained()
    spent = {"max_calls": [b.calls for b in whole.history],
             "max_tokens": [b.tokens for b in whole.history]}[bound]  # fmt: skip
    part = trained(checkpoint=tmp_path, **{bound: sum(spent[:2])})
    assert part.history == whole.history[:2]
    assert part.stopped
    assert str(sum(spent[:2])) in part.stopped
    assert (
        part.ranker.head.weight.tobytes()
        == trained(**{bound: sum(spent[:2])}).ranker.head.weight.tobytes()
    )
    more = trained(checkpoint=tmp_path, **{bound: sum(spent[:2]) + 1})
    assert more.history == whole.history[:3]
    rest = trained(checkpoint=tmp_path)
    assert rest.stopped is None
    assert rest.history == whole.history
    assert rest.ranker.head.weight.tobytes() == whole.ranker.head.weight.tobytes()


def test_a_bound_of_nothing_asks_nothing():
    llm = moody_llm()
    for bound in ({"max_calls": 0}, {"max_tokens": 0}):
        result = trained(llm=llm, **bound)
        assert (result.history, llm.calls) == ((), [])
        assert result.stopped


def test_a_bound_that_is_reached_with_the_last_batch_is_no_stop():
    calls = trained().calls
    assert trained(max_calls=calls).stopped is None


class Uncounted:
    """A provider that does not count tokens."""

    name = "moody"

    def generate(self, prompts, settings=GenerationSettings()):
        return [Generation(moody(prompt)) for prompt in prompts]


def test_a_model_that_does_not_count_its_tokens_cannot_be_bounded_by_them(tmp_path):
    assert trained(llm=Uncounted()).history[0].tokens is None
    with pytest.raises(InvalidInput, match="does not count its tokens; bound the run by max_calls"):
        trained(llm=Uncounted(), checkpoint=tmp_path, max_tokens=10_000)
    kept = trained(llm=Uncounted(), checkpoint=tmp_path, max_calls=0)
    assert len(kept.history) == 1  # what was paid for until then is not lost
    assert len(trained(llm=Uncounted(), checkpoint=tmp_path).history) == 6


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"shots": 0}, "shots must be a whole number, at least 1, got 0"),
        ({"shots": 2.5}, "shots must be a whole number.*, got 2.5"),
        ({"shots": None}, "shots must be a whole number.*, got None"),
        ({"preselected": 0}, "preselected must be .*at least 1"),
        ({"dim": 0}, "dim must be .*at least 1"),
        ({"batch_size": 0}, "batch_size must be .*at least 1"),
        ({"epochs": -1}, "epochs must be .*at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be .*above 0, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be .*above 0, got nan"),
        ({"sharpness": -1.0}, "sharpness must be .*above 0"),
        ({"pull": -0.1}, "pull must be .*at least 0"),
        ({"budget": math.nan}, "budget must be .*at least 0"),
        ({"least_shots": -1}, "least_shots must be .*at least 0"),
        ({"held_out": 1.0}, "held_out must be .*below 1, got 1.0"),
        ({"threshold": 1.1}, "threshold must be .*from 0 to 1"),
        ({"reward": "accuracy"}, "reward must be one of .*match.*, got 'accuracy'"),
        ({"preselect": "tfidf"}, "preselect must be one of"),
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
