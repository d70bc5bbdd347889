"""Prompts as the model sees them, written out in full."""

from dataclasses import replace
from itertools import pairwise

import pytest

from ltrag_plugins.dur import FORMATS, PromptFormat
from ltrag_plugins.dur.prompts import format_for
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Passage, Question

YES_NO = {"options": ("yes", "no", "maybe")}
NAMES = ["Q-A", "QO-A", "SQO-A"]
SOUTH = Question("Do swallows fly south?", ("yes",), context="They were ringed in May.", **YES_NO)
COCONUT = Question("Do swallows carry coconuts?", ("no",), context="It weighs a pound.", **YES_NO)
ASKED = Question("Do swallows sleep?", ("maybe",), context="Birds were watched at night.", **YES_NO)


SQO_A = """Statement: They were ringed in May.
Question: Do swallows fly south?
Options: (A) yes (B) no (C) maybe
Answer: The answer is yes

Statement: It weighs a pound.
Question: Do swallows carry coconuts?
Options: (A) yes (B) no (C) maybe
Answer: The answer is no

Statement: Birds were watched at night.
Question: Do swallows sleep?
Options: (A) yes (B) no (C) maybe
Answer:"""


@pytest.mark.parametrize(
    ("name", "left_out"), [("SQO-A", " "), ("QO-A", "Statement"), ("Q-A", ("Statement", "Options"))]
)
def test_the_prompts_of_table_5(name, left_out):
    wanted = "\n".join(line for line in SQO_A.split("\n") if not line.startswith(left_out))
    assert FORMATS[name].prompt([SOUTH, COCONUT], ASKED) == wanted


def test_passages_stand_before_the_question():
    passages = [Passage("They fly south.", title="Swallow"), Passage("They nest.", title="Nest")]
    assert FORMATS["passages"].prompt(passages, ASKED) == (
        "Swallow\nThey fly south.\n\nNest\nThey nest.\n\nQuestion: Do swallows sleep?\nAnswer:"
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_rung_of_a_ladder_begins_with_the_shots_of_the_one_before(name):
    form = FORMATS[name]
    query = form.prompt([], ASKED)
    rungs = [form.prompt([SOUTH, COCONUT][:j], ASKED) for j in range(3)]
    assert rungs[0] == query
    for shorter, longer in pairwise(rungs):
        assert longer.startswith(shorter.removesuffix(query))
        assert longer.endswith(query)


BRACES = "{answer} {question} {} {0} {{x}} {context!r:>9}"


@pytest.mark.parametrize("name", NAMES)
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
    assert form.prompt([SOUTH], ASKED).startswith("Statement: They were ringed\nQuestion: Do")
    assert "\n\nStatement: Birds were watched\nQuestion:" in form.prompt([SOUTH], ASKED)
    short = replace(FORMATS["passages"], context_words=2)
    assert short.prompt([Passage("one two three")], ASKED).startswith("\none two\n\n")
    spaced = Passage("  one\n two  ")
    assert replace(short, context_words=9).prompt([spaced], ASKED).startswith("\none two\n\n")
    assert FORMATS["passages"].prompt([spaced], ASKED).startswith("\n  one\n two  \n\n")


MANY = replace(ASKED, options=tuple(f"option {i}" for i in range(27)))


@pytest.mark.parametrize(
    ("name", "shots", "asked", "match"),
    [
        *((name, [Passage("x")], ASKED, r"no place for.*format='passages'") for name in NAMES),
        ("passages", [Passage("x"), SOUTH], ASKED, r"no place for.*\{answer\}.*'Q-A'"),
        ("QO-A", [], MANY, r"27 options.*26"),
        ("QA", [], ASKED, "no prompt format 'QA'; there are Q-A, QO-A, SQO-A"),
    ],
)
def test_what_a_format_has_no_place_for_is_refused(name, shots, asked, match):
    with pytest.raises(InvalidInput, match=match):
        format_for(name).prompt(shots, asked)


def test_a_letter_for_each_of_26_options():
    most = replace(MANY, options=MANY.options[:26])
    assert "(Z) option 25" in FORMATS["QO-A"].prompt([], most)


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
