"""Reasoning as passages: what a step is, and what gives the answer away."""

import pytest

from ltrag_plugins.sgic import steps_of

FIRST, SECOND = "Tom buys 2 x 3 = 6 apples.", "He has 3 + 6 = 9 apples."


@pytest.mark.parametrize("reasoning", [
    f"{FIRST}\n{SECOND}",
    f"1. {FIRST}\n2. {SECOND}\n#### 9",
    f"Step 1: {FIRST}\n\n  Step 2: {SECOND}\nThe answer is 9.",
    f"- {FIRST}\r\n* {SECOND}\nFinal answer: 9",
    f"{FIRST} {SECOND}",
    f" 1. {FIRST} 2. {SECOND} The final answer is 9.",
])  # fmt: skip
def test_each_line_or_sentence_is_one_without_its_number_and_none_states_the_answer(reasoning):
    assert [(p.id, p.text) for p in steps_of(reasoning)] == [("1", FIRST), ("2", SECOND)]


@pytest.mark.parametrize("reasoning", ["", " \n ", "#### 9", "The answer is 9."])
def test_without_steps_there_are_none(reasoning):
    assert steps_of(reasoning) == []


def test_numbers_that_belong_to_a_step_stay():
    lines = ["12 apples cost 3 dollars", "3.5 dollars are left", "$4 is the answer to that part"]
    assert [step.text for step in steps_of("\n".join(lines))] == lines
