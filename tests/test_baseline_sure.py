import itertools

import pytest
from method_parts import answer as ask
from method_parts import says, spelled

from ltrag_plugins.methods.sure import _listed_candidates, _plausibilities
from ltrag_plugins.prompts.templates import reading_prompt
from ltrag_plugins.types import Generation, Passage

QUESTION = "Who wrote Emma?"
EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")
ELIOT = Passage("George Eliot wrote Middlemarch.", title="George Eliot")
SHELF = {QUESTION: [EMMA, ELIOT]}
READ = "Emma: Emma is a novel by Jane Austen.\nGeorge Eliot: George Eliot wrote Middlemarch.\n\n"


def texts(*replies: str) -> list[Generation]:
    return [Generation(reply) for reply in replies]


def test_the_candidate_with_the_most_plausible_summary_is_the_answer():
    llm = says(
        ("Write the 2 most plausible answers", "1. George Eliot\n2. Jane Austen\n3. no one"),
        ("Suppose the answer is: George Eliot", " Eliot wrote novels.\n\nAnd more"),
        ("Suppose the answer is: Jane Austen", " Emma is by Austen."),
        ("Summary: Eliot wrote novels.", "No."),
        ("Summary: Emma is by Austen.", "Yes."),
        ("Summary 1: Eliot wrote novels.", "Summary 2"),
        ("Summary 1: Emma is by Austen.", "1"),
    )
    answer = ask("sure", QUESTION, llm, SHELF)
    assert answer.text == "Jane Austen"
    assert answer.passages == (EMMA, ELIOT)
    about = "\n\nQuestion: Who wrote Emma?\n"
    validity = "Does the summary bear out that this answer is right? Reply yes or no.\nReply:"
    ranking = "Which summary tells more that helps to answer the question? Reply 1 or 2.\nReply:"
    support = (
        "In two or three sentences, sum up what the text above says in support of this answer.\n"
        "Summary:"
    )
    assert llm.calls == [
        (
            f"{READ}Write the 2 most plausible answers to the question from the text above, the "
            "best first: one on each line, a few words each, nothing else.\n"
            "Question: Who wrote Emma?\nAnswers:\n",
        ),
        (
            f"{READ}Question: Who wrote Emma?\nSuppose the answer is: George Eliot\n{support}",
            f"{READ}Question: Who wrote Emma?\nSuppose the answer is: Jane Austen\n{support}",
        ),
        (
            f"Summary: Eliot wrote novels.{about}Answer: George Eliot\n{validity}",
            f"Summary: Emma is by Austen.{about}Answer: Jane Austen\n{validity}",
            f"Summary 1: Eliot wrote novels.\n\nSummary 2: Emma is by Austen.{about}{ranking}",
            f"Summary 1: Emma is by Austen.\n\nSummary 2: Eliot wrote novels.{about}{ranking}",
        ),
    ]
    assert len(answer.trace) == 7


@pytest.mark.parametrize(
    ("judged", "plausibilities"),
    [
        # candidate 0 is valid; 0 beats 1 in both orders, loses to 2 in both; 1 and 2 draw: the
        # model names the first summary each time. Pairs: 01, 02, 10, 12, 20, 21
        (texts("yes", "no", "no", "1", "2", "2", "1", "1", "1"), [1 + 1 + 0, 0.5, 0 + 1 + 0.5]),
        (texts("yes", "yes", "Both.", ""), [1.5, 1.5]),  # neither: they share the point
        (texts("no", "no", "1", "1"), [0.5, 0.5]),
        (texts("I don't know", "no", "1", "1"), [0.5, 0.5]),
        # validity is read from token probabilities where there are some
        ([spelled(("No", {"No": 0.4, "Yes": 0.35, "yes": 0.1})), *texts("no", "", "")], [1.5, 0.5]),
    ],
)
def test_plausibility_is_validity_plus_the_share_of_comparisons_won(judged, plausibilities):
    assert _plausibilities(judged, len(plausibilities)) == plausibilities


def test_of_equally_plausible_candidates_the_first_named_wins():
    llm = says(("Answers:", "Austen\nEliot"), ("Summary:", "a"), ("Reply", "I don't know"))
    assert ask("sure", QUESTION, llm, SHELF).text == "Austen"


AUTHORS = ["Jane Austen", "George Eliot"]
BOLD = ("**{}**\n**{}**", "**1. {}**\n**2. {}**", "1. **{}** 2. **{}**", "- **{}**\n* **{}**.")


@pytest.mark.parametrize(
    ("reply", "most", "candidates"),
    [
        ("1. Jane Austen\n2. George Eliot\n3. Bath", 2, AUTHORS),
        ("Jane Austen\njane austen.\n\nGeorge Eliot", 2, AUTHORS),
        ("(a) Jane Austen, (b) George Eliot", 2, AUTHORS),
        ("a) Jane Austen\nb) George Eliot", 2, AUTHORS),
        ("Here are two answers:\n- Jane Austen\n* George Eliot", 2, AUTHORS),
        ("J. K. Rowling\nA. A. Milne", 2, ["J. K. Rowling", "A. A. Milne"]),
        ("12.5 km\n1815", 2, ["12.5 km", "1815"]),
        ("1.\n2.\n", 2, ["1", "2"]),
        ("-2\n- 2\n- -5", 3, ["-2", "2", "-5"]),  # a sign is no bullet
        ("Emma\nBath\nemma", 2, ["Emma", "Bath"]),
        ("\n\n", 2, []),
        # bold, and no stars of a name's own
        *((mark.format(*AUTHORS), 2, AUTHORS) for mark in BOLD),
        ("1. **Emma**\n2. Emma\n3. *Bath*.", 9, ["Emma", "Bath"]),
        ("M*A*S*H\nA*", 9, ["M*A*S*H", "A*"]),
        # only the next number of a list begins another candidate
        ("1. Jane Austen 2. George Eliot 3. Bath", 9, [*AUTHORS, "Bath"]),
        ("2. Emma 3. Bath", 9, ["Emma", "Bath"]),
        ("1. No. 2. Yes.", 9, ["No", "Yes"]),
        ("1. World War 2.", 9, ["World War 2"]),
        ("World War 2. World War 1.", 9, ["World War 2. World War 1"]),
        ("1. World War 2. It was long.\n2. Emma", 9, ["World War 2. It was long", "Emma"]),
        ("1. Toy Story 2: a film", 9, ["Toy Story 2: a film"]),
        ("1. Jane Austen 3. Bath", 9, ["Jane Austen 3. Bath"]),
    ],
)
def test_candidates_are_read_from_lists_of_many_forms(reply, most, candidates):
    assert _listed_candidates(reply, most) == candidates


NUMBERS_IN_THEM = ("Apollo 11", "1984", "World War 2", "No. 5", "Henry IV, Part 1", "2", "2.5 km")


@pytest.mark.parametrize(
    "written",
    [
        "1. {} 2. {}",
        "1. {}. 2. {}.",
        "1. {}, 2. {}",
        "1) {} 2) {}",
        "Here are two answers: 1. {}; 2. {}",
        "1. {}. \n2. {}. ",
        "1. {}\n2. {}, 3. none",
    ],
)
def test_a_numbered_list_is_read_back_whatever_numbers_its_candidates_hold(written):
    for pair in itertools.permutations(NUMBERS_IN_THEM, 2):
        assert _listed_candidates(written.format(*pair), 2) == list(pair)


def test_a_single_candidate_is_the_answer_without_further_calls():
    llm = says(("Answers:", "1. Jane Austen\n2. jane austen"))
    answer = ask("sure", QUESTION, llm, SHELF)
    assert (answer.text, len(llm.prompts)) == ("Jane Austen", 1)
    assert answer.passages == (EMMA, ELIOT)


def test_without_candidates_the_passages_are_read_once_more():
    llm = says(("Answers:", "\n\n"), ("Answer the question", "Jane Austen"))
    answer = ask("sure", QUESTION, llm, SHELF)
    assert answer.text == "Jane Austen"
    assert llm.prompts[1:] == [reading_prompt(QUESTION, [EMMA, ELIOT])]
