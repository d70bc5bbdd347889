"""What a run keeps of SGIC's rounds and of heads it trained, and what its report shows of that."""

import json
import math
from dataclasses import asdict, replace

import pytest
from contracts.methods import Letters
from report_parts import Parsed

from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.errors import BadRecord, UnreadableArtifact
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.flow import Flow, World, run
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.sgic import SGICMethodSettings
from ltrag_plugins.methods.shots import DURShotsSettings, _trained_shots
from ltrag_plugins.report import write_report
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings, calibrate, read_run
from ltrag_plugins.types import Generation, Passage, Question, Token

PASSAGES = [
    Passage("Emma is a novel by Jane Austen.", "p0"),
    Passage("Middlemarch is a novel by George Eliot.", "p1"),
    Passage("Walden is a book by Henry Thoreau.", "p2"),
]
QUESTIONS = [
    Question("who wrote Emma, the novel?", ("Jane Austen",), "q0"),
    Question("who wrote Middlemarch, the novel?", ("George Eliot",), "q1"),
    Question("who wrote Walden, the book?", ("Henry Thoreau", "Thoreau"), "q2"),
]
SETTINGS = SGICMethodSettings(k=2, loop=SGICSettings(rounds=2, certain_below=0, least_gain=None))


def wavering(prompt: str) -> Generation:
    """Right at once for Emma, in the second round for Middlemarch, never for Walden."""
    late = "George Eliot" if "Round 2" in prompt else "Mary Shelley"
    said = {"Emma, the": "Jane Austen", "Middlemarch, the": late, "Walden, the": "Ralph Emerson"}
    [text] = [text for words, text in said.items() if words in prompt]
    chance = 0.9 if "Round" in prompt else 0.4
    return Generation(text, (Token(text, math.log(chance)),), 10, 1)


def world() -> World:
    return World(ScriptedLLM(wavering), BM25Retriever(PASSAGES), Letters())


@pytest.mark.parametrize("metric", ["em", "ter", "f1", "contains"])
def test_records_keep_all_rounds_as_the_loop_alone_gives_them(metric, tmp_path):
    """The first metric says what is right."""
    metrics = dict.fromkeys([metric, "em"])
    evaluate(
        QUESTIONS, [Cell(METHODS["sgic"], SETTINGS)], world(), out=tmp_path, metrics=[*metrics]
    )
    kept = read_run(tmp_path / "records" / "sgic.jsonl")
    assert [one.right for one in kept] == [(True,) * 3, (False, False, True), (False,) * 3]
    assert [one.question for one in kept] == [question.text for question in QUESTIONS]
    for one, question in zip(kept, QUESTIONS, strict=True):
        found = BM25Retriever(PASSAGES).search([question.text], k=2)[0]
        alone = run(calibrate(question.text, found, SETTINGS.loop), world())
        bare = [replace(r, generation=Generation(r.text), samples=()) for r in alone.trace]
        assert one.answer == replace(alone, trace=tuple(bare))


def test_of_a_question_that_was_tried_again_its_last_record_is_read_at_its_own_place(tmp_path):
    down = True

    def failing(prompt: str) -> Generation:
        if down and "Middlemarch, the" in prompt:
            raise ConnectionError("server down")
        return wavering(prompt)

    cells, there = [Cell(METHODS["sgic"], SETTINGS)], replace(world(), llm=ScriptedLLM(failing))
    file, alone = tmp_path / "records" / "sgic.jsonl", {"metrics": ["em"], "batch": 1}
    evaluate(QUESTIONS, cells, there, out=tmp_path, **alone)
    assert [one.question for one in read_run(file)] == [QUESTIONS[0].text, QUESTIONS[2].text]
    down = False
    evaluate(QUESTIONS, cells, there, out=tmp_path, **alone)
    assert len(file.read_text().splitlines()) == 4
    once = evaluate(QUESTIONS, cells, world(), out=tmp_path / "once", **alone)
    whole = read_run(tmp_path / "once" / "records" / "sgic.jsonl")
    assert [one.question for one in whole] == [question.text for question in QUESTIONS]
    assert read_run(file) == whole
    last = replace(once["sgic"][2], id="q0")  # a second record of q0, though the first has rounds
    RunFolder(tmp_path).add("sgic", [last])
    assert read_run(file) == (whole[2], *whole[1:])


class ByName:
    """A gate that retrieves for all but Emma."""

    name = "by name"

    def deciding(self, question: str) -> Flow[Decision]:
        draft = Generation("Jane Austen")
        wanted = "Emma" not in question
        return Decision(question, wanted, float(wanted), 0.5, "text", "its name", draft)
        yield


def test_questions_that_a_gate_answered_have_no_rounds(tmp_path):
    cell = Cell(METHODS["sgic"], SETTINGS, ByName(), "name")
    found = evaluate(QUESTIONS, [cell], world(), out=tmp_path, metrics=["em"])[cell.name]
    assert [record.rounds is None for record in found] == [True, False, False]
    kept = read_run(tmp_path / "records" / "sgic+name.jsonl")
    assert [one.question for one in kept] == [question.text for question in QUESTIONS[1:]]
    assert "sgic+name: turns" in Parsed(write_report(tmp_path).page).words()


def test_the_report_draws_them_and_names_a_damaged_one(tmp_path):
    cells = [Cell(METHODS["sgic"], SETTINGS), Cell(METHODS["sgic"], SETTINGS, label="again")]
    evaluate(QUESTIONS, cells, world(), out=tmp_path, metrics=["em"])
    words = Parsed(write_report(tmp_path).page).words()
    for name in ("sgic", "sgic:again"):
        assert all(f"{name}: {kind}" in words for kind in ("uncertainty", "paths", "turns"))
    file = tmp_path / "records" / "sgic.jsonl"
    first, *others = file.read_text().splitlines()
    wrong = json.loads(first)
    wrong["rounds"]["right"] = ["yes"]
    file.write_text("\n".join([json.dumps(wrong), *others, ""]))
    with pytest.raises(BadRecord, match=r"sgic.jsonl, line 1: .*field 'right'"):
        write_report(tmp_path)


def test_a_head_trained_in_the_run_leaves_its_history(tmp_path):
    training = DURSettings(shots=2, epochs=2, batch_size=2, reward="match", held_out=0.0)
    settings = DURShotsSettings(training, examples=0.5, seed=3)
    names = ["Abba", "Bebe", "Cocoa", "Dada", "Edge", "Faff", "Gag", "Hedge"]
    labelled = [Question(f"who wrote {n}?", (f"Author {n}",), n) for n in names]
    llm = ScriptedLLM(lambda p: "Author 1")
    answering = World(llm, encoder=Letters())
    cells = [Cell(METHODS["dur-shots"], settings), Cell(METHODS["direct"])]
    evaluate(QUESTIONS, cells, answering, out=tmp_path, metrics=["em"], labelled=labelled)
    path = tmp_path / "learned" / "dur-shots.json"
    learned = _trained_shots(labelled, settings, answering)
    shots = learned.ranker.preselector.candidates
    others = [question for question in labelled if question not in shots]
    by_hand = DURTrainer(Letters(), llm, settings=replace(training, seed=3))
    history = [asdict(batch) for batch in by_hand.fit(shots, others).history]
    assert json.loads(path.read_text()) == {"history": history, "settings": {"shots": 2}}
    words = Parsed(write_report(tmp_path).page).words()
    assert all(f"dur-shots: {n}" in words for n in ("shots of the training", "loss and reward"))
    path.write_text('{"history": []}')
    with pytest.raises(UnreadableArtifact, match=r"dur-shots.json: .*no batch"):
        write_report(tmp_path)
