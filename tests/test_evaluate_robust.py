"""Runs that meet an outage, odd values and parts that cannot be copied."""

import dataclasses
import json
import threading

import numpy as np
import pytest
from contracts.methods import LABELLED, QUESTIONS, Letters, Scoring, taught
from contracts.methods import world as scoring_world
from evaluate_parts import DIRECT, SINGLE, many, without_ms, world

from ltrag_plugins.cli.options import pool_of
from ltrag_plugins.dur.head import Head
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import (
    ArtifactMismatch,
    CacheUnreadable,
    InvalidInput,
    ModelFailed,
    UnreadableArtifact,
)
from ltrag_plugins.evaluate import Cell, Record, Recording, evaluate
from ltrag_plugins.evaluate.folder import RunFolder, read_run_folder
from ltrag_plugins.flow import World, ask
from ltrag_plugins.gece.decision import Decision, guarded
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.direct import DirectSettings
from ltrag_plugins.methods.dur import DURMethodSettings
from ltrag_plugins.methods.method import Method
from ltrag_plugins.report import write_report
from ltrag_plugins.report.listing import listing
from ltrag_plugins.types import Answer, Generation, GenerationSettings, Passage, Question, Token


class Outage:
    """A model whose server is down until it is mended."""

    name = "outage"

    def __init__(self, down=lambda prompt: True):
        self.down, self.asked = down, []

    def generate(self, prompts, settings=GenerationSettings()):
        self.asked.extend(prompts)
        if any(map(self.down, prompts)):
            raise ConnectionError("server down")
        return ScriptedLLM(lambda prompt: "Jane Austen").generate(prompts)


def test_what_failed_is_tried_again_and_its_last_record_stands_at_its_own_place(tmp_path):
    llm, asked = Outage(down=lambda prompt: "part 1?" in prompt), many()[:3]
    for _ in range(2):
        first = evaluate(asked, [DIRECT], World(llm=llm), out=tmp_path)["direct"]
    folder = RunFolder(tmp_path)
    assert folder.records("direct") == first
    assert [(r.id, r.error is None) for r in first] == [("q0", True), ("q1", False), ("q2", True)]
    llm.down, before = (lambda prompt: False), len(llm.asked)
    mended = evaluate(asked, [DIRECT], World(llm=llm), out=tmp_path)
    assert [prompt for prompt in llm.asked[before:] if "part 1?" not in prompt] == []
    clean = evaluate(asked, [DIRECT], World(llm=llm), out=tmp_path / "clean")
    assert without_ms(mended) == without_ms(clean)
    lines = [json.loads(line) for line in folder.file("direct").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["q0", "q1", "q2", "q1", "q1"]
    assert [line["error"] is None for line in lines] == [True, False, True, False, True]
    assert folder.records("direct") == mended["direct"]


def test_what_could_not_be_learned_in_an_outage_is_learned_later(tmp_path):
    llm = Outage()
    there = dataclasses.replace(world(), llm=llm)
    cell = Cell(METHODS["skr"])
    broken = evaluate(QUESTIONS, [cell], there, out=tmp_path, labelled=LABELLED)
    assert all(record.error for record in broken["skr"])
    llm.down = lambda prompt: False
    found = evaluate(QUESTIONS, [cell], there, out=tmp_path, labelled=LABELLED)
    assert "server down" not in str([record.error for record in found["skr"]])


def test_learning_asks_in_batches_that_a_failure_cannot_undo(tmp_path):
    """Each call is kept as soon as it came; the next run pays for the rest alone."""
    llm = Outage(down=lambda prompt: "book 99?" in prompt)
    there = dataclasses.replace(world(), llm=llm)
    labelled = [Question(f"Who wrote book {i}?", ("Jane Austen",), str(i)) for i in range(120)]
    cells = [Cell(METHODS["skr"])]
    evaluate(QUESTIONS, cells, there, out=tmp_path, labelled=labelled)
    assert any("book 7?" in prompt for prompt in llm.asked)
    llm.down = lambda prompt: False
    llm.asked.clear()
    evaluate(QUESTIONS, cells, there, out=tmp_path, labelled=labelled)
    assert not any("book 7?" in prompt for prompt in llm.asked)
    assert any("book 119?" in prompt for prompt in llm.asked)


@pytest.mark.parametrize("fails", ["Emma", "Who"])  # at one question, and at each of them
def test_a_gate_whose_model_fails_decides_without_a_score_and_the_run_is_read_again(
    fails, tmp_path
):
    class Failing:
        def deciding(self, question):
            [draft] = yield from ask(f"Answer {question}")
            if fails in question:
                raise ModelFailed("no token probabilities")
            return Decision(question, False, 0.3, 0.3, "text", "a short question", draft)

    class Safe:
        name = "safe"

        def deciding(self, question):
            return (yield from guarded(question, Failing()))

    cells = [DIRECT, SINGLE, dataclasses.replace(SINGLE, gate=Safe(), gate_name="safe")]
    asked = [one for one in QUESTIONS if one.text.startswith("Who")]
    assert len(asked) > 1
    first, again = (evaluate(asked, cells, world(), out=tmp_path) for _ in range(2))
    assert first == again
    scores = [record.decision["score"] for record in first["single+safe"]]
    assert scores == [None if fails in one.text else 0.3 for one in asked]
    write_report(tmp_path)
    [*shown] = (one["r"][2]["d"]["s"] for one in listing(read_run_folder(tmp_path)).questions)
    assert shown == scores


@pytest.mark.parametrize("score", [np.float32(0.5), float("nan"), float("inf"), None])
@pytest.mark.parametrize("name", ["single", "sgic"])
def test_passages_with_any_score_are_recorded(tmp_path, name, score):
    class Shelf:
        def search(self, queries, k):
            return [[Passage("Emma is by Jane Austen.", id="p", score=score)] for _ in queries]

    there = World(llm=Scoring(lambda prompt: "Jane Austen"), retriever=Shelf())
    [found] = evaluate(QUESTIONS[:1], [Cell(METHODS[name])], there, out=tmp_path)[name]
    assert found.error is None
    wanted = 0.5 if isinstance(score, np.float32) else None
    assert found.passages == ({"id": "p", "title": "", "score": wanted},)
    assert json.loads(found.as_line())["passages"][0]["score"] == wanted


@pytest.mark.parametrize("value", [2.3, -0.1, np.float32(1.5)])
def test_an_uncertainty_that_no_record_may_hold_ends_the_run_before_a_line_is_written(
    tmp_path, value
):
    def answer(question, settings, learned):
        yield from ask(f"Answer {question.text}")
        return Answer("Jane Austen", uncertainty=value)

    cell, there = Cell(Method("mine", "of one's own", "-", DirectSettings, answer)), world()
    wanted = "uncertainty must be a number, from 0 to 1 or None, got"
    with pytest.raises(InvalidInput, match=wanted):
        evaluate(many(3), [cell], there, out=tmp_path, batch=1)
    assert len(there.llm.prompts) == 1, "the first such answer is the last"
    assert not (tmp_path / "records" / "mine.jsonl").exists()


def test_half_an_emoji_is_a_reply_like_another(tmp_path):
    said = "Jane \ud83d"
    there = world(lambda prompt: said)
    found = evaluate(QUESTIONS, [DIRECT, SINGLE], there, out=tmp_path, trace=True)
    assert {record.prediction for record in found["direct"]} == {said}
    assert RunFolder(tmp_path).records("single") == found["single"]


class Locked(Letters):
    """An encoder that cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()


def ranker(*diagonal: float) -> DURRanker:
    return DURRanker(Head(np.diag(diagonal), np.zeros(len(diagonal))), Locked(), DURSettings())


def test_a_head_whose_encoder_cannot_be_copied_ranks_in_a_run_and_names_it(tmp_path):
    def cells(*diagonal):
        return [Cell(METHODS["dur"], DURMethodSettings(ranker=ranker(*diagonal)))]

    there = scoring_world(taught)
    ones = [1.0] * 8
    found = evaluate(QUESTIONS, cells(*ones), there, out=tmp_path)
    assert not [record.error for record in found["dur"] if record.error]
    assert without_ms(evaluate(QUESTIONS, cells(*ones), there, out=tmp_path)) == without_ms(found)
    with pytest.raises(ArtifactMismatch, match="another run: settings"):
        evaluate(QUESTIONS, cells(*ones[:-1], 2.0), there, out=tmp_path)


def test_a_head_of_another_encoder_is_refused_before_anything_is_asked(tmp_path):
    class Others(Letters):
        name = "others"

    there = dataclasses.replace(scoring_world(taught), encoder=Others())
    settings = DURMethodSettings(ranker=ranker(*[1.0] * 8))
    wanted = "the ranker was fitted with the encoder 'letters', not 'others'"
    with pytest.raises(ArtifactMismatch, match=wanted):
        evaluate(QUESTIONS, [SINGLE, Cell(METHODS["dur"], settings)], there, out=tmp_path / "run")
    with pytest.raises(ArtifactMismatch, match=wanted):
        METHODS["dur"].ready(there, settings=settings)
    assert (there.llm.prompts, [*tmp_path.iterdir()]) == ([], [])
    METHODS["dur"].ready(there)  # without a head any encoder will do


def test_a_ranker_without_its_encoder_ranks_vectors_alone():
    whole = ranker(1.0, 2.0, 1.0)
    bare, vectors = whole.without_encoder(), np.eye(3)
    assert bare.name == whole.name
    assert bare.rank_vectors(vectors[1], vectors) == whole.rank_vectors(vectors[1], vectors)
    with pytest.raises(InvalidInput, match="use rank_vectors"):
        bare.rank("who?", [Passage("a")])


def test_an_error_inside_is_not_taken_for_one_of_the_folder(tmp_path):
    def broken_pipe(cell, record):
        raise BrokenPipeError("the reader is gone")

    with pytest.raises(BrokenPipeError):
        evaluate(QUESTIONS, [DIRECT], world(), out=tmp_path, on_record=broken_pipe)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 200_000])
def test_a_torn_line_of_any_length_is_written_over(tmp_path, size):
    folder = RunFolder(tmp_path)
    first, second = (Record(name, "who?", ("a",), "a", {"em": 1.0}) for name in ("q0", "q1"))
    folder.add("direct", [first])
    with folder.file("direct").open("ab") as file:
        file.write(b"x" * size)
    folder.add("direct", [second])
    assert folder.records("direct") == [first, second]


def test_looking_for_a_run_makes_nothing_and_names_damage(tmp_path):
    assert RunFolder(tmp_path / "none").read() is None
    assert not (tmp_path / "none").exists()
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(UnreadableArtifact, match=r"run\.json"):
        RunFolder(tmp_path).read()


def test_passages_that_questions_number_themselves_are_all_searched():
    def one(i, *texts):
        passages = tuple(Passage(text, id=str(n)) for n, text in enumerate(texts))
        return Question(f"who wrote {i}?", ("a",), str(i), passages)

    pool = pool_of(None, [one(0, "Emma", "Bread"), one(1, "Walden", "Bread"), one(2, "Emma")])
    assert [(p.id, p.text) for p in pool] == [("0", "Emma"), ("1", "Bread"), ("0#2", "Walden")]


def test_a_full_disk_ends_the_run_before_more_is_asked_than_can_be_kept(tmp_path):
    asked: list[str] = []

    def until_full(prompt: str) -> str:
        asked.append(prompt)
        if "part 20?" in prompt:
            raise CacheUnreadable("the disk is full")
        return "Jane Austen"

    with pytest.raises(CacheUnreadable):
        evaluate(many(60), [DIRECT, SINGLE], world(until_full), out=tmp_path, batch=4)
    assert not any("part 24?" in prompt for prompt in asked)
    assert len(RunFolder(tmp_path).records("direct")) == 20
    full, out = world(until_full), tmp_path / "learning"
    labelled = [Question(f"{q.text} part 20?", q.answers, q.id) for q in LABELLED]
    with pytest.raises(CacheUnreadable):
        evaluate(QUESTIONS, [Cell(METHODS["skr"])], full, out=out, labelled=labelled)


def test_scores_are_kept_a_part_at_a_time(tmp_path):
    class Scoring(ScriptedLLM):
        down, calls = True, []

        def score(self, prompts, continuations):
            self.calls.append(list(prompts))
            if self.down and "100" in prompts:
                raise ConnectionError("down")
            return [Generation(text, (Token(text, -0.5),)) for text in continuations]

    llm, prompts = Scoring(lambda prompt: ""), [str(i) for i in range(150)]
    kept = CachedLLM(llm, tmp_path / "answers.sqlite")
    with pytest.raises(ConnectionError):
        kept.score(prompts, prompts)
    llm.down = False
    assert [one.text for one in kept.score(prompts, prompts)] == prompts
    assert [len(call) for call in llm.calls] == [64, 64, 64, 22]
    assert llm.calls[1] == llm.calls[2] == prompts[64:128]


def test_gates_of_two_answers_run_on_recorded_ones_and_choose_between_them(tmp_path):
    assert {"gate-frequency", "skr"} <= Recording.METHODS
    told = {q.text: (f"alone {q.id}", f"read {q.id}") for q in many(30)}
    told |= {q.text: (q.answers[0], "x") for q in LABELLED[::2]}
    told |= {q.text: ("x", q.answers[0]) for q in LABELLED[1::2]}
    cells = [Cell(METHODS[name]) for name in sorted(Recording.METHODS - {"direct", "single"})]
    there = Recording(told).world(Letters())
    found = evaluate(many(30), cells, there, out=tmp_path, labelled=LABELLED)
    for records in found.values():
        wanted = [told[record.question][record.retrievals] for record in records]
        assert [record.prediction for record in records] == wanted
        assert not any(record.error for record in records)
