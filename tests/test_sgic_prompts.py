"""What a round shows, letter by letter: the rows of table 5, and the scores of an oracle."""

from dataclasses import replace

import pytest

from ltrag_plugins.sgic import CalibratedAnswer, SGICSettings, Truth
from tests.sgic_parts import QUESTION, answered, model, said

ASKED = "Use the documents to answer the question in a few words, no explanation."
TRUST = " The number behind a text, 0 to 100, is how uncertain it is: trust low ones most."
KEEP = "Keep an earlier answer if the documents bear it out; otherwise give a better one."
SURE = {"fortress": 0.9, "coastal": 0.5, "seaside": 0.1}


def alone(prompt: str):
    return said("x", next(p for word, p in SURE.items() if word in prompt))


def second_round(settings: SGICSettings) -> str:
    """Its prompt, after answers with uncertainties of 0.7 and 0.4."""
    llm = model([said("Fife", 0.3), said("Lothian", 0.6), said("there", 0.5)], alone)
    answered(llm, settings=replace(settings, rounds=2))
    return llm.prompts[-1]


def by_hand(instruction: str, documents: tuple[str, ...], line: str, *said: str) -> str:
    return f"""\
{instruction}

Document [1]: Castle: Dirleton Castle is a fortress in East Lothian.{documents[0]}
Document [2]: Bay: Yellowcraig is a coastal area.{documents[1]}
Document [3]: North Berwick is a seaside town.{documents[2]}

Question: {QUESTION}
{line}
Previous Generated Answer:
Round 1: Fife{said[0]}
Round 2: Lothian{said[1]}
Answer:"""


def scored(*scores: int) -> tuple[str, ...]:
    return tuple(f" (Uncertainty Score: {score})" for score in scores)


BARE = ("", "", "")
ROWS = {
    "documents": by_hand(ASKED + TRUST, scored(0, 50, 100), KEEP, *scored(70, 40)),
    "scores": by_hand(ASKED, BARE, KEEP + TRUST, *scored(70, 40)),
    "answers": by_hand(ASKED, BARE, KEEP, "", ""),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_round_of_each_row_of_table_5_shows_what_it_scores_and_says_what_scores_are(row):
    assert second_round(SGICSettings.paper(row)) == ROWS[row]


def oracle(seed: int) -> CalibratedAnswer:
    llm = model([said("Fife"), said("East Lothian"), said("Fife")])
    settings = SGICSettings(source="oracle", rounds=2, certain_below=0, least_gain=None, seed=seed)
    truth = Truth((True, False, False), ("East Lothian",))
    return answered(llm, settings=settings, truth=truth)


def test_another_seed_draws_other_scores_for_each_answer_and_document_of_an_oracle():
    drawn = [oracle(seed) for seed in range(20)]
    columns = [[one.trace[n].score for one in drawn] for n in range(3)]
    columns += [[one.documents[i].score or 0.0 for one in drawn] for i in range(3)]
    assert [len(set(column)) for column in columns] == [20] * 6
    assert [len(set(column)) for column in zip(*columns, strict=True)] == [6] * 20
    assert oracle(7) == drawn[7]
    # a right answer and a relevant document from 0 to 20, the others from 80 to 100
    spans = [(min(column), max(column)) for column in columns]
    for n, (least, most) in enumerate(spans):
        low = 0 if n in (1, 3) else 80
        assert low <= least < low + 5 < low + 15 < most <= low + 20
