"""Prompts as the model sees them, written out in full."""

from dataclasses import replace
from itertools import pairwise

import pytest

from ltrag_plugins.dur import FORMATS, PromptFormat
from ltrag_plugins.dur.prompts import format_for
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Passage, Question

SOUTH = Question(
    "Do swallows fly south?",
    ("yes",),
    options=("yes", "no", "maybe"),
    context="Swallows were ringed in May and found in Africa.",
)
COCONUT = Question(
    "Do swallows carry coconuts?",
    ("no",),
    options=("yes", "no", "maybe"),
    context="A coconut weighs a pound.",
)
ASKED = Question(
    "Do swallows sleep?",
    ("maybe",),
    options=("yes", "no", "maybe"),
    context="Birds were watched at night.",
)


def test_the_prompt_of_table_5_for_plain_questions():
    assert FORMATS["Q-A"].prompt([SOUTH, COCONUT], ASKED) == (
        "Question: Do swallows fly south?\n"
        "Answer: The answer is yes\n"
        "\n"
        "Question: Do swallows carry coconuts?\n"
        "Answer: The answer is no\n"
        "\n"
        "Question: Do swallows sleep?\n"
        "Answer:"
    )


def test_the_prompt_of_table_5_for_questions_with_options():
    assert FORMATS["QO-A"].prompt([SOUTH, COCONUT], ASKED) == (
        "Question: Do swallows fly south?\n"
        "Options: (A) yes (B) no (C) maybe\n"
        "Answer: The answer is yes\n"
        "\n"
        "Question: Do swallows carry coconuts?\n"
        "Options: (A) yes (B) no (C) maybe\n"
        "Answer: The answer is no\n"
        "\n"
        "Question: Do swallows sleep?\n"
        "Options: (A) yes (B) no (C) maybe\n"
        "Answer:"
    )


def test_the_prompt_of_table_5_for_questions_about_a_statement():
    assert FORMATS["SQO-A"].prompt([SOUTH], ASKED) == (
        "Statement: Swallows were ringed in May and found in Africa.\n"
        "Question: Do swallows fly south?\n"
        "Options: (A) yes (B) no (C) maybe\n"
        "Answer: The answer is yes\n"
        "\n"
        "Statement: Birds were watched at night.\n"
        "Question: Do swallows sleep?\n"
        "Options: (A) yes (B) no (C) maybe\n"
        "Answer:"
    )


def test_passages_stand_before_the_question():
    passages = [Passage("They fly south.", title="Swallow"), Passage("They nest.", title="Nest")]
    assert FORMATS["passages"].prompt(passages, ASKED) == (
        "Swallow\nThey fly south.\n\nNest\nThey nest.\n\nQuestion: Do swallows sleep?\nAnswer:"
    )


@pytest.mark.parametrize("name", ["Q-A", "QO-A", "SQO-A"])
def test_each_rung_of_a_ladder_begins_with_the_shots_of_the_one_before(name):
    form = FORMATS[name]
    query = form.prompt([], ASKED)
    rungs = [form.prompt([SOUTH, COCONUT][:j], ASKED) for j in range(3)]
    assert rungs[0] == query
    for shorter, longer in pairwise(rungs):
        assert longer.startswith(shorter.removesuffix(query))
        assert longer.endswith(query)


def test_the_right_answer_of_the_question_itself_is_nowhere_in_its_prompt():
    secret = replace(ASKED, answers=("xyzzy",), options=())
    for name in ("Q-A", "QO-A", "SQO-A"):
        assert "xyzzy" not in FORMATS[name].prompt([SOUTH], secret)


BRACES = "{answer} {question} {} {0} {{x}} {context!r:>9}"


@pytest.mark.parametrize("name", ["Q-A", "QO-A", "SQO-A"])
def test_braces_in_the_data_are_nothing_but_braces(name):
    odd = Question(BRACES, (BRACES,), options=(BRACES, "no"), context=BRACES)
    prompt = FORMATS[name].prompt([odd], odd)
    pieces = {"Q-A": 3, "QO-A": 5, "SQO-A": 7}[name]
    assert prompt.count(BRACES) == pieces
    assert FORMATS[name].said(BRACES) == f" The answer is {BRACES}"
    passage = Passage(BRACES, title=BRACES)
    assert FORMATS["passages"].prompt([passage], odd).count(BRACES) == 3


def test_a_template_of_ones_own_may_hold_braces_of_its_own():
    form = PromptFormat('{{"q": "{question}", "a": "{answer}"}}', '{{"q": "{question}", "a": "',
                        reply="{{{answer}", separator="\n")  # fmt: skip
    assert form.prompt([SOUTH], ASKED) == (
        '{"q": "Do swallows fly south?", "a": "yes"}\n{"q": "Do swallows sleep?", "a": "'
    )
    assert (form.lead, form.said("no")) == ("{", "{no")


def test_context_and_passages_are_cut_to_so_many_words():
    form = replace(FORMATS["SQO-A"], context_words=3)
    assert form.prompt([SOUTH], ASKED).startswith("Statement: Swallows were ringed\nQuestion: Do")
    assert "\n\nStatement: Birds were watched\nQuestion:" in form.prompt([SOUTH], ASKED)
    short = replace(FORMATS["passages"], context_words=2)
    assert short.prompt([Passage("one two three")], ASKED).startswith("\none two\n\n")
    spaced = Passage("  one\n two  ")
    assert replace(short, context_words=9).prompt([spaced], ASKED).startswith("\none two\n\n")
    assert FORMATS["passages"].prompt([spaced], ASKED).startswith("\n  one\n two  \n\n")


def test_passages_in_a_format_that_has_no_place_for_them_are_refused():
    for name in ("Q-A", "QO-A", "SQO-A"):
        with pytest.raises(InvalidInput, match=r"no place for.*format='passages'"):
            FORMATS[name].prompt([Passage("They fly south.")], ASKED)


def test_a_solved_example_in_a_format_that_hides_its_answer_is_refused():
    with pytest.raises(InvalidInput, match=r"no place for.*\{answer\}.*'Q-A'"):
        FORMATS["passages"].prompt([Passage("They fly south."), SOUTH], ASKED)


def test_a_question_with_more_options_than_letters_is_refused():
    many = replace(ASKED, options=tuple(f"option {i}" for i in range(27)))
    with pytest.raises(InvalidInput, match=r"27 options.*26"):
        FORMATS["QO-A"].prompt([], many)
    assert "(Z) option 25" in FORMATS["QO-A"].prompt([], replace(many, options=many.options[:26]))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"shot": "{queston}"}, r"the shot template names \['queston'\]; it may name"),
        ({"shot": "{}"}, "the shot template names"),
        ({"shot": "{question.__class__}"}, "the shot template names"),
        ({"shot": "{question"}, "the shot template cannot be read"),
        ({"query": "{question} {answer}"}, r"the query template names \['answer'\]"),
        ({"query": "}"}, "the query template cannot be read"),
        ({"reply": "{answer}."}, r"must end in \{answer\}"),
        ({"reply": "{question} is {answer}"}, r"the reply template names \['question'\]"),
        ({"context_words": 0}, "context_words must be .*at least 1.*, got 0"),
        ({"max_tokens": 0}, "max_tokens must be .*at least 1, got 0"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_template_that_cannot_be_filled_is_refused_when_it_is_made(fields, match):
    with pytest.raises(InvalidInput, match=match):
        PromptFormat(**{"shot": "{question}", "query": "{question}"} | fields)


def test_a_format_is_found_by_name_or_given():
    form = PromptFormat("{question}", "{question}")
    assert format_for(form) is form
    assert format_for("QO-A") is FORMATS["QO-A"]
    with pytest.raises(InvalidInput, match="no prompt format 'QA'; there are Q-A, QO-A, SQO-A"):
        format_for("QA")
