"""What a prompt shows, letter by letter; where a text is cut; what of a reply is the prompt's."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import PromptTemplates, SGICSettings
from ltrag_plugins.sgic.prompts import cut_to_words
from ltrag_plugins.types import Generation, Passage, Token
from ltrag_plugins.uncertainty import estimate
from tests.sgic_parts import BAY, QUESTION, THREE, answered, by_document, model, said

TEMPLATES = PromptTemplates()
ASKED = "Use the documents to answer the question in a few words, no explanation."
TRUST = " The number behind a text, 0 to 100, is how uncertain it is: trust low ones most."
KEEP = "Keep an earlier answer if the documents bear it out; otherwise give a better one."


def by_hand(instruction: str, documents: tuple[str, ...], line: str, *said: str) -> str:
    return f"""\
{instruction}

Document [1]: Castle: Dirleton Castle is a fortress in East Lothian.{documents[0]}
Document [2]: Bay: Yellowcraig is a coastal area.{documents[1]}
Document [3]: North Berwick is a seaside town.{documents[2]}

Question: {QUESTION}
{line}Previous Generated Answer:
Round 1: Fife{said[0]}
Round 2: Lothian{said[1]}
Answer:"""


def scored(*scores: int) -> tuple[str, ...]:
    return tuple(f" (Uncertainty Score: {score})" for score in scores)


BARE = ("", "", "")


OURS = {"templates": TEMPLATES}


@pytest.mark.parametrize(("row", "more", "shown"), [
    ("documents", {}, by_hand(ASKED + TRUST, scored(0, 50, 100), "", *scored(70, 40))),
    ("scores", {}, by_hand(ASKED, BARE, f"{TRUST.strip()}\n", *scored(70, 40))),
    ("answers", {}, by_hand(ASKED, BARE, "", "", "")),
    ("documents", OURS, by_hand(ASKED + TRUST, scored(0, 50, 100), f"{KEEP}\n", *scored(70, 40))),
    ("scores", OURS, by_hand(ASKED, BARE, f"{KEEP}{TRUST}\n", *scored(70, 40))),
    ("answers", OURS, by_hand(ASKED, BARE, f"{KEEP}\n", "", "")),
])  # fmt: skip
def test_a_round_of_each_row_of_table_5_shows_what_it_scores_and_says_what_scores_are(
    row, more, shown
):
    llm = model([said("Fife", 0.3), said("Lothian", 0.6), said("there", 0.5)], by_document)
    answered(llm, settings=replace(SGICSettings.paper(row), rounds=2, **more))
    assert llm.prompts[-1] == shown


def test_braces_are_text():
    llm = model([said("{round}", 0.3)])
    answered(llm, (Passage("{question} {0} }{"), BAY), question=f"{QUESTION} {{x}}")
    assert "Document [1]: {question} {0} }{" in llm.prompts[0]
    assert f"Question: {QUESTION} {{x}}" in llm.prompts[0]
    assert "Round 1: {round} (" in llm.prompts[-1]


@pytest.mark.parametrize(("values", "match"), [
    ({"layout": "{documents} {question}"}, "layout must hold '{instruction}'"),
    ({"document": "{text}"}, "document must hold '{key}'"),
    ({"document": "{key}{text}{score}{title}"}, "a field that it has not .*title"),
    ({"score": "certain"}, "score must hold '{score}'"),
    ({"answer": "{text}{score}{"}, "a template is malformed"),
    ({"about_keys": "{key}"}, "a field that it has not .*key"),
    ({"bare": "Answer:"}, "bare must hold '{question}'"),
])  # fmt: skip
def test_templates_that_lack_a_field(values, match):
    with pytest.raises(InvalidInput, match=match):
        PromptTemplates(**values)


# --- where a text is cut


@pytest.mark.parametrize(("text", "words", "kept"), [
    ("One two. Three four. Five", None, "One two. Three four. Five"),
    ("One two. Three four. Five", 5, "One two. Three four. Five"),
    ("One two. Three four. Five", 4, "One two. Three four."),
    ("One two. Three four. Five", 3, "One two."),
    ("One two. Three four. Five", 1, "One"),
    ('He said "no." Then left', 3, 'He said "no."'),
    ("About 3.14 and more", 3, "About 3.14 and"),
    ("x" * 50, 3, "x" * 30),
    ("ab " + "x" * 50, 3, "ab"),
    ("一二三四五六。七八九十一二三四五六", 1, "一二三四五六。"),
    ("यह किताब है। यह पुरानी है।", 4, "यह किताब है।"),
    ("", 3, ""),
    ("Dr. Who is on air again tonight", 5, "Dr. Who is on air"),
    ("One. Two three four five six. Seven", 5, "One. Two three four five"),
    ("Ab. cd efg", 2, "Ab."),
])  # fmt: skip
def test_a_cut_ends_with_a_sentence_where_one_ends_late_enough(text, words, kept):
    assert cut_to_words(text, words) == kept


@given(st.text(alphabet="ab. !\"。", max_size=80).map(lambda t: " ".join(t.split())),
       st.integers(1, 8))  # fmt: skip
def test_a_cut_is_a_beginning_within_its_budget(text, words):
    cut = cut_to_words(text, words)
    assert text.startswith(cut)
    assert len(cut.split()) <= words
    assert len(cut) <= 10 * words
    if cut != text:
        fits = [i for i in range(1, 10 * words + 1) if len(text[:i].split()) <= words]
        whole = [i for i in fits if text[i : i + 1] in ("", " ") and text[i - 1] != " "]
        assert 2 * len(cut) >= max(whole, default=0)
    assert bool(cut) == bool(text)
    if len(text.split()) <= words and len(text) <= 10 * words:
        assert cut == text


def test_what_was_cut_is_said():
    long = Passage("A sentence of words. " * 100, title="Long")
    llm = model([said("a", 0.9)])
    answer = answered(llm, (long, *THREE), settings=SGICSettings(rounds=5, document_words=50))
    assert answer.notes == ("1 of 4 documents were cut to 50 words",)
    whole = "Long: " + " ".join(("A sentence of words. " * 100).split())
    line = llm.prompts[0].splitlines()[2]
    assert line.startswith("Document [1]: Long: A sentence of words. A")
    assert line.endswith(" of words.")
    assert len(line.split()) <= 52
    dropped = len(whole) - len(line.removeprefix("Document [1]: "))
    assert [d.dropped for d in answer.documents] == [dropped, 0, 0, 0]


# --- what a model repeats of the form of earlier answers


@pytest.mark.parametrize(("echo", "text"), [
    ("Round 2: East Lothian", "East Lothian"),
    ("East Lothian (Uncertainty Score: 9)", "East Lothian"),
    (" Round 12: East Lothian (Uncertainty Score: 100) ", "East Lothian"),
    ("East Lothian (Uncertainty Score:", "East Lothian"),
    ("East Lothian (Uncertainty Score: 9", "East Lothian"),
    ("East Lothian (Uncertainty Score: 9).", "East Lothian"),
    ("East Lothian. (Uncertainty Score: 9).", "East Lothian."),
    ("East Lothian.", "East Lothian."),
    ("East Lothian (in Scotland)", "East Lothian (in Scotland)"),
    ("Round 2", "Round 2"),
    ("Round 2:", ""),
])  # fmt: skip
def test_a_model_that_copies_the_form_of_earlier_answers_is_heard_without_it(echo, text):
    assert TEMPLATES.without_echo(Generation(echo)).text.strip() == text


def spelled(*pieces: tuple[str, float]) -> Generation:
    tokens = tuple(Token(text, math.log(p)) for text, p in pieces)
    return Generation("".join(text for text, _ in pieces), tokens, 7, len(tokens))


def echo(said: tuple[str, float], number: str) -> Generation:
    return spelled(("Round", 0.5), (f" {number}", 0.5), (":", 0.9), said, (" (Uncertainty", 0.5),
                   (" Score:", 0.9), (f" {number}", 0.05), (")", 0.9))  # fmt: skip


def test_an_echo_counts_neither_for_nor_against_the_answer_in_it():
    copied = echo((" Paris", 0.99), "37")
    told = {"settings": SGICSettings(rounds=1)}
    answer = answered(model([said("London", 0.4), copied]), **told)
    assert (answer.text, answer.uncertainty) == ("Paris", pytest.approx(0.01))
    assert answer.trace[1].generation == copied  # what was said stays to be seen
    blank = answered(model([said("a", 0.3), said("Round 2:", 0.99)]), **told)
    assert (blank.text, blank.trace[1].text, blank.trace[1].uncertainty) == ("a", "", 1.0)
    # the first answer has seen no form to repeat
    text = "Paris (Uncertainty Score: 9)"
    assert answered(model([said(text, 0.9)])).trace[0].text == text


def test_an_echo_is_told_from_an_answer_that_stands_in_it_too():
    own = TEMPLATES.without_echo(copied := echo((" 2", 0.99), "2"))
    assert (own.text, own.tokens) == ("2", (copied.tokens or ())[3:4])
    assert estimate(own) == pytest.approx(0.01)
    plain = spelled((" Paris", 0.9), ("\n", 0.5))
    assert TEMPLATES.without_echo(plain) is plain
    # brackets alone are the answer's own
    bare = PromptTemplates(score=" ({score})")
    assert bare.without_echo(said("The Matrix (1999)")).text == "The Matrix (1999)"


def test_an_echo_makes_no_agreement():
    """Six cities in one frame share the frame alone."""
    cities = ["Paris", "Rome", "Oslo", "Bern", "Riga", "Kiev"]
    framed = [f"Round 1: {city} (Uncertainty Score: 37)" for city in cities]
    replies = iter([said("London"), *map(said, "ABCDE"), *map(said, framed)])
    settings = SGICSettings(rounds=1, estimator="agreement", documents="none")
    answer = answered(ScriptedLLM(lambda _: next(replies)), settings=settings)
    assert answer.trace[1].uncertainty == 1.0
