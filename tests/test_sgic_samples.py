"""The rival of the rounds: K samples of the first prompt, the least uncertain wins."""

import pytest

from ltrag_plugins.errors import InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import Ask, World, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings, calibrate, sampled
from ltrag_plugins.types import Generation, GenerationSettings
from tests.sgic_parts import QUESTION, THREE, said


class Sampler:
    """Says by seed; keeps what it was asked."""

    name = "sampler"

    def __init__(self, by_seed):
        self.by_seed, self.asked = by_seed, []

    def generate(self, prompts, settings=GenerationSettings()):
        self.asked += [(prompt, settings.temperature, settings.seed) for prompt in prompts]
        return [self.by_seed[settings.seed] for _ in prompts]


FOUR = {7: said("a", 0.3), 8: said("b", 0.8), 9: said("", 0.99), 10: said("d", 0.5)}
SEVEN = SGICSettings(seed=7, max_tokens=None)


def test_the_least_uncertain_sample_wins_and_a_blank_one_does_not():
    llm = Sampler(FOUR)
    answer = run(sampled(QUESTION, THREE, 4, SEVEN), World(llm=llm))
    assert (answer.text, answer.round, answer.calls, answer.stop) == ("b", 1, 4, "rounds")
    assert answer.uncertainty == pytest.approx(0.2)
    assert [r.uncertainty for r in answer.trace] == pytest.approx([0.7, 0.2, 1.0, 0.5])
    assert answer.tokens == 4 * 8


def test_every_sample_asks_what_the_first_answer_is_asked_with_a_seed_of_its_own():
    llm, first = Sampler(FOUR), ScriptedLLM(lambda p: said("a", 0.99))
    run(sampled(QUESTION, THREE, 4, SEVEN), World(llm=llm))
    run(calibrate(QUESTION, THREE, SGICSettings()), World(llm=first))
    assert llm.asked == [(first.prompts[0], 0.7, seed) for seed in (7, 8, 9, 10)]


def test_samples_stop_before_a_limit():
    llm = Sampler(FOUR)
    few = SGICSettings(seed=7, max_calls=2)
    answer = run(sampled(QUESTION, THREE, 4, few), World(llm=llm))
    assert (len(llm.asked), answer.calls, answer.stop) == (2, 2, "max_calls")
    with pytest.raises(InvalidInput, match="max_tokens"):
        run(sampled(QUESTION, THREE, 4, SGICSettings(max_tokens=5)), World(llm=llm))


def test_agreement_holds_each_sample_against_the_others_without_another_call():
    texts = {0: "East Lothian", 1: "Fife", 2: "in East Lothian"}
    llm = Sampler({seed: Generation(text) for seed, text in texts.items()})
    settings = SGICSettings(estimator="agreement")
    answer = run(sampled(QUESTION, THREE, 3, settings), World(llm=llm))
    shared = 2 * 2 / (2 + 3)
    assert [r.uncertainty for r in answer.trace] == pytest.approx(
        [1 - shared / 2, 1.0, 1 - shared / 2]
    )
    assert (answer.text, len(llm.asked)) == ("East Lothian", 3)


@pytest.mark.parametrize(
    ("samples", "estimator"),
    [(0, "product"), (True, "product"), (2.0, "product"), (0, "agreement")],
)
def test_a_number_of_samples_that_makes_no_sense_is_refused(samples, estimator):
    llm = Sampler(FOUR)
    with pytest.raises(InvalidInput, match="samples must be a whole number"):
        run(sampled(QUESTION, THREE, samples, SGICSettings(estimator=estimator)), World(llm=llm))
    assert llm.asked == []


def test_samples_without_probabilities_are_refused_with_the_remedy():
    llm = Sampler({0: Generation("a")})
    with pytest.raises(NoTokenProbabilities, match="agreement"):
        run(sampled(QUESTION, THREE, 1), World(llm=llm))


def test_samples_of_many_questions_go_to_the_model_together():
    sent = []
    flows = [sampled(f"{QUESTION} {i}", THREE, 3) for i in range(5)]
    world = World(llm=ScriptedLLM(lambda p: said("a", 0.5)))
    steps = [lambda step: sent.append(step) if step.kind == "request" else None]
    answers = run_many(flows, world, observers=steps)
    assert [len(s.request.prompts) for s in sent if isinstance(s.request, Ask)] == [5, 5, 5]
    assert [a.uncertainty for a in answers] == pytest.approx([0.5] * 5)
