"""Rows of ranked shots, beside the prompts and probabilities that they stand for."""

import math
from dataclasses import replace

import pytest

from ltrag_plugins.dur import FORMATS, DURRanker, DURSettings
from ltrag_plugins.evaluate import evaluate
from ltrag_plugins.evaluate.shots import shot_cells
from ltrag_plugins.flow import World
from tests.dur_parts import Nonsense, Scorer, by_word, houses, moody, moody_llm

EXAMPLES, ASKED = houses(100, 15), houses(1, 12)
OPTIONS = ("red", "green", "blue", "yellow")
CHOICE = [replace(q, options=OPTIONS) for q in houses(0, 40) if q.answers[0] in OPTIONS]


def run(llm, questions, out, **settings):
    untrained = DURRanker.untrained(Nonsense())
    ranker = DURRanker(untrained.head, untrained.encoder, DURSettings(**settings), sigma=0.0)
    scores = isinstance(llm, Scorer)
    cells, chances, _ = shot_cells(ranker, EXAMPLES, questions, scores=scores, shots=3)
    return evaluate(questions, cells, World(llm), out=out, metrics=["em"]), chances


def test_each_answer_is_that_of_its_prompt(tmp_path):
    llm = moody_llm()
    found, chances = run(llm, ASKED, tmp_path, preselect="none")
    direct = [moody(FORMATS["Q-A"].prompt([], question)) for question in ASKED]
    said = [text.removeprefix(" The answer is ").rstrip(".") for text in direct]
    assert [record.prediction for record in found["direct"]] == said
    assert [*found] == ["direct", "random", "BM25", "nearest", "head"]
    assert {len(records) for records in found.values()} == {len(ASKED)}
    assert chances == {name: {} for name in found}


def biased(prompt: str, word: str) -> float:
    """Sure of red whatever is asked."""
    return -0.5 if word == "red" else -2.0


def test_options_are_told_by_their_probabilities(tmp_path):
    found, chances = run(Scorer(by_word(biased)), CHOICE, tmp_path, format="QO-A")
    assert {record.prediction for record in found["direct"]} == {"red"}
    red = math.exp(-0.5) / (math.exp(-0.5) + 3 * math.exp(-2.0))
    [first] = [q for q in CHOICE if q.answers == ("red",)][:1]
    assert chances["direct"][first.id] == pytest.approx(red)
    level = {"format": "QO-A", "option_calibration": "batch"}
    _, chances = run(Scorer(by_word(biased)), CHOICE, tmp_path / "level", **level)
    # what is the same for every question is taken out: all options are as likely
    assert list(chances["direct"].values()) == pytest.approx([1 / 4] * len(CHOICE))


def test_of_an_open_question_the_reference_is_scored_and_an_answer_written(tmp_path):
    found, chances = run(Scorer(by_word(lambda *_: -1.25)), ASKED[:1], tmp_path)
    [record] = found["head"]
    assert (record.calls, chances["head"]) == (2, {record.id: pytest.approx(math.exp(-1.25))})
