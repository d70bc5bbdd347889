"""Heads that a run trains: what they show, by hand and beside a trainer and ranker of one's own."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.methods import Letters

from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.shots import DURShotsSettings, PromptPGSettings, _trained_shots
from ltrag_plugins.types import Question

TRAINING = DURSettings(shots=2, epochs=4, batch_size=4, reward="match")
NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven"),
    *("eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"),
]
SUMS = [Question(f"What is {n} plus one?", (str(i + 1),), n) for i, n in enumerate(NUMBERS)]
KNOWN, ASKED = SUMS[:12], SUMS[12:]


def reply(prompt: str) -> str:
    """Counts right where the first example it is shown is about an even number."""
    asked = [NUMBERS.index(part.split()[2]) for part in prompt.split("Question:")[1:]]
    return f"The answer is {asked[-1] + (1 if asked[0] % 2 == 0 else 2)}"


def world() -> World:
    return World(llm=ScriptedLLM(reply), encoder=Letters())


def test_the_prompt_shows_what_a_ranker_trained_by_hand_ranks_first():
    settings = DURShotsSettings(TRAINING, examples=0.5, seed=3)
    learned = _trained_shots(KNOWN, settings, world())
    examples = list(learned.ranker.preselector.candidates)
    others = [question for question in KNOWN if question not in examples]
    assert (len(examples), len(others)) == (6, 6)
    by_hand = DURTrainer(Letters(), ScriptedLLM(reply), settings=replace(TRAINING, seed=3))
    ranker = by_hand.fit(examples, others).ranker
    for question in ASKED:
        asking = world()
        answer = run(METHODS["dur-shots"].flow(question, settings, learned), asking)
        ranked = ranker.rank(question.text, examples, top_n=ranker.shots)
        shown = [examples[place.index].text for place in ranked]
        [prompt] = asking.llm.prompts
        assert prompt.split("\n")[::3][:-1] == [f"Question: {text}" for text in shown]
        assert answer.text == reply(prompt).removeprefix("The answer is ")


def test_promptpg_asks_with_all_its_shots_and_once_a_question():
    asked = world()
    settings = PromptPGSettings(replace(DURSettings.promptpg(), shots=3, epochs=2, batch_size=6))
    _trained_shots(KNOWN, settings, asked)
    assert len(asked.llm.prompts) == 2 * 6
    assert {prompt.count("Answer: The answer is") for prompt in asked.llm.prompts} == {3}


def test_a_question_is_never_its_own_example():
    settings = DURShotsSettings(replace(TRAINING, shots=5), seed=1)
    learned = _trained_shots(KNOWN, settings, world())
    examples = learned.ranker.preselector.candidates
    for question, shown in zip(examples, learned.ranker(examples), strict=True):
        assert question not in shown


def test_options_are_answered_with_one_of_them():
    offered = [replace(q, options=("yes", "no"), answers=("yes",)) for q in KNOWN]
    settings = DURShotsSettings(replace(TRAINING, format="QO-A"))
    says = World(llm=ScriptedLLM(lambda _: "(A) yes, surely"), encoder=Letters())
    learned = _trained_shots(offered, settings, says)
    assert run(METHODS["dur-shots"].flow(offered[0], settings, learned), says).text == "yes"


@pytest.mark.parametrize(
    ("given", "labelled", "context", "first", "last"),
    [
        ("Q-A", {}, "", "Question", "Question: What is 5 plus 5?\nOptions: (A) 9 (B) 10\nAnswer:"),
        ("Q-A", {}, "Sums.", "Statement", "Options: (A) 9 (B) 10\nAnswer:"),
        ("Q-A", {"context": "Sums."}, "", "Statement", "Options: (A) 9 (B) 10\nAnswer:"),
        ("QO-A", {}, "Sums.", "Question", "Options: (A) 9 (B) 10\nAnswer:"),
    ],
)
def test_the_format_shows_all_that_labelled_questions_or_the_one_asked_have(
    given, labelled, context, first, last
):
    known = [replace(question, **labelled) for question in KNOWN]
    settings = DURShotsSettings(replace(TRAINING, epochs=1, format=given))
    learned = _trained_shots(known, settings, world())
    asking = World(llm=ScriptedLLM(lambda _: "B"), encoder=Letters())
    asked = Question("What is 5 plus 5?", ("10",), options=("9", "10"), context=context)
    assert run(METHODS["dur-shots"].flow(asked, settings, learned), asking).text == "10"
    [prompt] = asking.llm.prompts
    assert prompt.endswith(last)
    assert prompt.startswith(first)


def test_seeds_draw_other_examples_in_a_run(tmp_path):
    settings = DURShotsSettings(replace(TRAINING, epochs=1))
    cells = [Cell(METHODS["dur-shots"], settings, seed=seed) for seed in (0, 1)]
    found = evaluate(ASKED, cells, world(), out=tmp_path, labelled=KNOWN, trace=True)
    prompts = [[r.trace[-1]["asked"][0]["prompt"] for r in rows] for rows in found.values()]
    assert list(found) == ["dur-shots@0", "dur-shots@1"]
    assert prompts[0] != prompts[1]


def test_training_stops_at_its_bound():
    asked = world()
    settings = DURShotsSettings(replace(TRAINING, held_out=0.0, batch_size=1), max_calls=4)
    _trained_shots(KNOWN, settings, asked)
    assert len(asked.llm.prompts) <= 4 + TRAINING.shots + 1


@pytest.mark.parametrize(
    ("refused", "error", "why"),
    [
        (lambda: _trained_shots(KNOWN[:1], DURShotsSettings(), world()), CalibrationError, "two"),
        (
            lambda: _trained_shots(KNOWN, DURShotsSettings(), World(llm=ScriptedLLM(reply))),
            InvalidInput,
            "lacks one",
        ),
        (lambda: DURShotsSettings(examples=1.0), InvalidInput, "examples"),
        (lambda: DURShotsSettings(max_calls=0), InvalidInput, "max_calls"),
        (lambda: DURShotsSettings(training="paper"), InvalidInput, "training must be"),
        (lambda: METHODS["promptpg"].flow(ASKED[0]), InvalidInput, r"method\.taught"),
    ],
)
def test_what_cannot_be_trained_is_refused(refused, error, why):
    with pytest.raises(error, match=why):
        refused()


def test_vectors_come_in_any_float():
    class Short(Letters):
        def encode(self, texts):
            return super().encode(texts).astype(np.float16)

    settings = DURShotsSettings(replace(TRAINING, epochs=1))
    small = World(llm=ScriptedLLM(reply), encoder=Short())
    learned = _trained_shots(KNOWN, settings, small)
    assert run(METHODS["dur-shots"].flow(ASKED[0], settings, learned), small).text
