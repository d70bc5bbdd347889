import math

import pytest
from method_parts import Shelf, flow_of

from ltrag_plugins.errors import InvalidLogProbability
from ltrag_plugins.flow import World, run, run_many
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.k_samples import KSamplesSettings
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token

EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")
BREAD = Passage("Bread is baked from flour.")


def sure(text: str, *probabilities: float) -> Generation:
    return Generation(text, tuple(Token("t", math.log(p)) for p in probabilities))


def surest(replies: list[Generation]) -> tuple[Generation, float | None]:
    """Of as many samples as there are replies, the one that is the answer."""
    settings = KSamplesSettings(samples=len(replies))
    flow = flow_of("k-samples", "Who?", settings)
    answer = run(flow, World(llm=Sampler(*replies), retriever=Shelf()))
    return next(one for one in replies if one.text.strip() == answer.text), answer.uncertainty


def said(*texts: str) -> list[Generation]:
    return [Generation(text) for text in texts]


class Sampler:
    """Answers by seed."""

    name = "sampler"

    def __init__(self, *replies: Generation) -> None:
        self.replies, self.calls = replies, []

    def generate(self, prompts, settings=GenerationSettings()):
        self.calls.append((tuple(prompts), settings.temperature, settings.seed))
        return [self.replies[settings.seed % len(self.replies)] for _ in prompts]


def test_three_samples_and_the_least_uncertain_worked_by_hand():
    replies = sure(" Eliot ", 0.9, 0.5), sure(" Jane Austen", 0.8, 0.9), sure("Bronte", 0.6)
    llm, shelf = Sampler(*replies), Shelf(EMMA, BREAD)
    settings = KSamplesSettings(samples=3, k=1, temperature=0.9, seed=3)
    answer = run(flow_of("k-samples", "Who wrote Emma?", settings), World(llm=llm, retriever=shelf))
    prompt = reading_prompt("Who wrote Emma?", [EMMA])
    assert shelf.asked == [(("Who wrote Emma?",), 1)]
    assert llm.calls == [((prompt,), 0.9, 9), ((prompt,), 0.9, 10), ((prompt,), 0.9, 11)]
    assert answer.text == "Jane Austen"
    assert answer.uncertainty == pytest.approx(1 - 0.8 * 0.9)
    assert answer.passages == (EMMA,)
    assert answer.trace == replies


def test_as_a_method_it_searches_as_the_others_do_also_where_the_question_has_passages():
    llm, shelf = Sampler(sure("flour", 0.9)), Shelf(EMMA)
    question = Question("What is bread from?", passages=(BREAD,))
    answer = run(METHODS["k-samples"].flow(question), World(llm=llm, retriever=shelf))
    assert len(shelf.asked) == 1
    assert answer.passages == (EMMA,)


def test_without_passages_it_asks_as_direct_does():
    llm = Sampler(sure("x", 0.5))
    answer = run(flow_of("k-samples", "Who?"), World(llm=llm, retriever=Shelf()))
    assert {call[0] for call in llm.calls} == {(direct_prompt("Who?"),)}
    assert answer.passages == ()


def test_the_samples_of_many_questions_merge():
    llm = Sampler(sure("x", 0.5))
    world = World(llm=llm, retriever=Shelf(EMMA))
    run_many([flow_of("k-samples", text) for text in ("Who?", "What?")], world)
    assert [len(prompts) for prompts, *_ in llm.calls] == [2] * 5


def test_without_token_probabilities_the_most_frequent_answer_wins():
    best, uncertainty = surest(said("Bronte", "the Austen!", "", "Austen", "Eliot"))
    assert (best.text, uncertainty) == ("the Austen!", 1 - 2 / 5)


def test_one_sample_without_probabilities_and_all_fall_back_to_the_vote():
    mixed = [sure("Bronte", 0.99), *said("Austen", "Austen")]
    best, uncertainty = surest(mixed)
    assert best.text == "Austen"
    assert uncertainty == pytest.approx(1 / 3)


def test_of_equals_the_first_wins():
    assert surest(said("a1", "b1", "b1", "a1"))[0].text == "a1"
    first, second = sure("one", 0.5), sure("two", 0.5)
    assert surest([first, second])[0] is first


def test_a_single_sample_without_probabilities_is_not_measured():
    assert surest(said("Austen"))[1] is None


def test_blank_answers_are_the_least_certain():
    assert surest([sure(" ", 0.99), sure("Austen", 0.1)])[0].text == "Austen"
    assert surest(said("", " ")) == (Generation(""), 1.0)


def test_a_log_probability_above_zero_is_named():
    with pytest.raises(InvalidLogProbability, match="at most 0"):
        surest([Generation("x", (Token("x", 0.5),))])
