import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_parts import Library, says
from method_parts import answer as ask

from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.listwise import _places, windows
from ltrag_plugins.prompts.templates import reading_prompt
from ltrag_plugins.types import Passage

QUESTION = "Who wrote Emma?"
BREAD = Passage("Bread is baked.", id="b", title="Bread", score=9.0)
EMMA = Passage("Emma is by Jane Austen.", id="e", title="Emma", score=8.0)
BATH = Passage("Bath is a city.", id="c", title="Bath", score=7.0)


def test_the_model_puts_the_passages_in_order_and_answers_from_the_best():
    library = Library({QUESTION: [BREAD, EMMA, BATH]})
    llm = says(("Order:", " [2] > [3] > [1]"), ("Answer the question", " Jane Austen\n"))
    answer = ask("listwise", QUESTION, llm, library, candidates=3, k=2)
    assert library.asked_for == [3]
    assert llm.prompts == [
        "[1] Bread: Bread is baked.\n[2] Emma: Emma is by Jane Austen.\n[3] Bath: Bath is a city."
        "\n\nPut the numbered passages in order: first the one that helps most to answer the "
        "question, last the one that helps least. Write nothing but their numbers, each once, in "
        "this form: [2] > [3] > [1]\nQuestion: Who wrote Emma?\nOrder:",
        reading_prompt(QUESTION, [EMMA, BATH]),
    ]
    assert answer.text == "Jane Austen"
    assert [passage.id for passage in answer.passages] == ["e", "c"]
    assert [said.text for said in answer.trace] == [" [2] > [3] > [1]", " Jane Austen"]


def reranked(passages, llm, **settings):
    """All of them in the model's order, which then reads them."""
    count = max(2, len(passages))
    return ask(
        "listwise", QUESTION, llm, {QUESTION: passages}, k=count, candidates=count, **settings
    )


def test_new_passages_come_back_with_new_scores_and_the_old_ones_stay_as_they_were():
    handed_in = [BREAD, EMMA, BATH]
    ranked = reranked(handed_in, says(("", "[3] > [2] > [1]")))
    scores = [(passage.id, passage.score) for passage in ranked.passages]
    assert scores == [("c", 1.0), ("e", 1 / 2), ("b", 1 / 3)]
    assert handed_in == [BREAD, EMMA, BATH]
    assert BREAD.score == 9.0


def test_a_single_passage_is_read_without_another_call():
    llm = says(("Answer the question", "Jane Austen"))
    assert [passage.id for passage in reranked([EMMA], llm).passages] == ["e"]
    assert len(llm.calls) == 1


@given(st.integers(0, 60), st.integers(2, 12), st.data())
def testwindows_overlap_and_cover_all(count, window, data):
    step = data.draw(st.integers(1, window - 1))
    cut = windows(count, window, step)
    assert not cut or (cut[0][1], cut[-1][0]) == (count, 0)  # from the back to the very front
    assert {end - start for start, end in cut} <= {min(count, window)}
    assert {i for start, end in cut for i in range(start, end)} == set(
        range(count) if count > 1 else []
    )
    assert all(later[1] > earlier[0] for earlier, later in itertools.pairwise(cut))


def test_what_is_best_wanders_from_the_end_to_the_front():
    def by_number(prompt):
        values = [int(n) for n in re.findall(r"value (\d+)", prompt)]
        best_first = sorted(range(len(values)), key=lambda i: -values[i])
        return " > ".join(f"[{i + 1}]" for i in best_first)

    values = list(range(50))
    random.Random(0).shuffle(values)
    passages = [Passage(f"value {value}") for value in values]
    ranked = reranked(passages, ScriptedLLM(by_number), window=8, step=4).passages
    # a window of 8 that moves by 4 carries the best 4 to the front
    assert [passage.text for passage in ranked[:4]] == [f"value {n}" for n in (49, 48, 47, 46)]
    assert sorted(p.text for p in ranked) == sorted(p.text for p in passages)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("[2] > [1] > [3]", [1, 0, 2]),
        ("2 > 1 > 3", [1, 0, 2]),
        ("3, 1", [2, 0, 1]),
        ("[3] > [3] > [3]", [2, 0, 1]),
        ("Doc: 0", [0, 1, 2]),
        ("[0] > [4] > [-1] > [2]", [1, 0, 2]),
        ("In 1815, of 2 books, I choose [3].", [2, 0, 1]),
        ("The best is number 2.", [1, 0, 2]),
        ("[ 3 ]>[1]", [2, 0, 1]),
        ("I cannot tell.", [0, 1, 2]),
        ("-2 and 0.3", [0, 1, 2]),
        ("", [0, 1, 2]),
        ("[" + "9" * 5000 + "] > [2]", [1, 0, 2]),
        ("9" * 5000, [0, 1, 2]),
        ("[²] > [٣]", [0, 1, 2]),
        # numbers are places unless a list or a count needs them
        ("1. Passage 3\n2. Passage 2", [2, 1, 0]),
        ("1. Emma is by Austen\n2. Bath\n3. Bread", [0, 1, 2]),
        ("2. It tops passage 1\n1. It tops passage 3", [1, 0, 2]),
        ("1: it names 3 novels\n2: of no use", [0, 2, 1]),
        ("Best is 1. Passage 3 is next", [0, 2, 1]),
        ("Passage 3 tops passages 1 and 2", [2, 0, 1]),
        ("the 2nd, then the 1st", [1, 0, 2]),
        ("Covid-3 and 1-2", [0, 1, 2]),
        ("passage -2", [0, 1, 2]),
    ],
)
def test_any_reply_names_each_passage_once(reply, expected):
    assert _places(reply, 3) == expected


def chain(order, label="", between=" > "):
    return between.join(f"{label}{i + 1}" for i in order)


def enumerated(order, label="", between="\n", mark="."):
    return between.join(f"{at}{mark} {label}{i + 1}" for at, i in enumerate(order, 1))


@pytest.mark.parametrize(
    "written",
    [
        lambda order: f"Here are the 4 passages in order: {chain(order, between=', ')}",
        lambda order: f"I put 4 numbered passages in order:\n{chain(order)}",
        lambda order: f"Top 4: {chain(order)}",
        lambda order: f"The 4 passages, best first:\n{enumerated(order, 'Passage ')}",
        enumerated,
        lambda order: enumerated(order, mark=")"),
        lambda order: enumerated(order, "Passage "),
        lambda order: enumerated(order, "Passage ", mark=":", between=" (Emma)\n"),
        lambda order: enumerated(order, "Passage ", between=" "),
        lambda order: enumerated(order, "Doc-", between=", "),
        lambda order: (
            f"I put 4 numbered solved examples in order: {chain(order, 'Example-', ', ')}"
        ),
        lambda order: enumerated(order, "Example ", between=" "),
        lambda order: chain(order, "Passage-"),
        lambda order: chain(order, "Passage "),
        lambda order: chain(order, "Passage ", between=". "),
        lambda order: chain(order, "document-", between=", "),
        lambda order: chain(order, between="\n"),
    ],
)
def test_an_order_is_read_back_however_it_was_written(written):
    for order in itertools.permutations(range(4)):
        assert _places(written(order), 4) == list(order)


@given(st.text(alphabet="[]0123456789 >,.-Doc:\n"), st.integers(0, 12))
def test_an_order_is_a_permutation_whatever_was_written(reply, count):
    assert sorted(_places(reply, count)) == list(range(count))


def test_references_in_a_passage_do_not_pass_for_its_number_and_long_ones_are_cut():
    cited = Passage("A fact [2] is a fact [12] and more words.")
    llm = says(("", "[1]"))
    reranked([cited, BREAD], llm, max_words=7)
    assert llm.prompts[0].startswith(
        "[1] A fact (2) is a fact (12)\n[2] Bread: Bread is baked.\n\n"
    )
