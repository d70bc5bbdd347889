import math

import pytest
from method_parts import Shelf, answer

from ltrag_plugins.errors import InvalidLogProbability
from ltrag_plugins.flow import World, run, run_many
from ltrag_plugins.methods import METHODS
from ltrag_plugins.prompts.templates import reading_prompt
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token

EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")
BREAD = Passage("Bread is baked from flour.")


def sure(text: str, *probabilities: float) -> Generation:
    return Generation(text, tuple(Token("t", math.log(p)) for p in probabilities))


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
    more = {"samples": 3, "k": 1, "temperature": 0.9, "seed": 3}
    found = answer("k-samples", "Who wrote Emma?", llm, shelf, **more)
    prompt = reading_prompt("Who wrote Emma?", [EMMA])
    assert shelf.asked == [(("Who wrote Emma?",), 1)]
    assert llm.calls == [((prompt,), 0.9, 9), ((prompt,), 0.9, 10), ((prompt,), 0.9, 11)]
    assert (found.text, found.passages, found.trace) == ("Jane Austen", (EMMA,), replies)
    assert found.uncertainty == pytest.approx(1 - 0.8 * 0.9)


def test_eq_1_reads_the_drawn_token_and_the_likeliest_at_each_step_on_request():
    def draw(text: str, *pairs: tuple[float, float]) -> Generation:
        shown = ((p, (("x", math.log(best)), (text, math.log(p)))) for p, best in pairs)
        return Generation(text, tuple(Token(text, math.log(p), None, tops) for p, tops in shown))

    # the largest: 0.9 * 0.8 and 0.7; the drawn ones: 0.1 * 0.8 and 0.3
    llm = Sampler(draw("Austen", (0.1, 0.9), (0.8, 0.8)), draw("Eliot", (0.3, 0.7)))
    found = {
        reading: answer("k-samples", "Who?", llm, samples=2, **chosen)
        for reading, chosen in (("maximal", {"reading": "maximal"}), ("drawn", {}))
    }
    assert {r: one.text for r, one in found.items()} == {"maximal": "Austen", "drawn": "Eliot"}
    wanted = {"maximal": 1 - 0.9 * 0.8, "drawn": 1 - 0.3}
    assert {r: one.uncertainty for r, one in found.items()} == pytest.approx(wanted)


def test_as_a_method_it_searches_as_the_others_do_also_where_the_question_has_passages():
    llm, shelf = Sampler(sure("flour", 0.9)), Shelf(EMMA)
    question = Question("What is bread from?", passages=(BREAD,))
    found = run(METHODS["k-samples"].flow(question), World(llm=llm, retriever=shelf))
    assert len(shelf.asked) == 1
    assert found.passages == (EMMA,)


def test_the_samples_of_many_questions_merge():
    llm = Sampler(sure("x", 0.5))
    world = World(llm=llm, retriever=Shelf(EMMA))
    flows = [METHODS["k-samples"].flow(Question(text)) for text in ("Who?", "What?")]
    run_many(flows, world)
    assert [len(prompts) for prompts, *_ in llm.calls] == [2] * 5


def said(*texts: str) -> list[Generation]:
    return [Generation(text) for text in texts]


@pytest.mark.parametrize(
    ("replies", "text", "uncertainty"),
    [
        # without token probabilities the most frequent answer wins
        (said("Bronte", "the Austen!", "", "Austen", "Eliot"), "the Austen!", 1 - 2 / 5),
        # one sample without them, and all fall back to the vote
        ([sure("Bronte", 0.99), *said("Austen", "Austen")], "Austen", 1 / 3),
        (said("a1", "b1", "b1", "a1"), "a1", 1 / 2),  # of equals the first
        ([sure("one", 0.5), sure("two", 0.5)], "one", 0.5),
        (said("Austen"), "Austen", None),  # a single one is not measured
        # blank answers are the least certain
        ([sure(" ", 0.99), sure("Austen", 0.1)], "Austen", 0.9),
        (said("", " "), "", 1.0),
    ],
)
def test_the_least_uncertain_sample_is_the_answer(replies, text, uncertainty):
    found = answer("k-samples", "Who?", Sampler(*replies), samples=len(replies))
    assert (found.text, found.uncertainty) == (text, pytest.approx(uncertainty))


def test_a_log_probability_above_zero_is_named():
    with pytest.raises(InvalidLogProbability, match="at most 0"):
        answer("k-samples", "Who?", Sampler(Generation("x", (Token("x", 0.5),))))
