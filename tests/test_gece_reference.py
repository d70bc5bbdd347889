import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.errors import (
    ArtifactMismatch,
    MissingExtra,
    MissingReferences,
    NeedsGradients,
    NoTokenProbabilities,
)
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.gating import ReferenceGate, RunGate, gated_cells
from ltrag_plugins.flow import World, run
from ltrag_plugins.gece import GECESettings, WordFrequencies, gece_score, score_questions
from ltrag_plugins.gece.score import references_like
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.metrics.text import chrf, meteor, ter
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Generation, Passage, Question
from tests.gece_letters import Local, agreement, gradient
from tests.gece_parts import COLOURS, answer, asked, honest_llm, questions, said

PLAIN = GECESettings(semantics=False)


@pytest.mark.parametrize("kind", ["dot", "cosine"])
def test_each_ingredient_is_what_it_is_alone(kind):
    settings = GECESettings(agreement=kind, layers=2)
    some, llm = questions(12), Local()
    scores = score_questions(some, llm=llm, settings=settings)
    along = np.mean([gradient(q.answers[0]) for q in some], axis=0)
    for question, score in zip(some, scores, strict=True):
        draft = answer(f"Question: {question.text}\nAnswer:")
        by_hand = {
            "meteor": meteor(draft.text, question.answers),
            "mean_probability": np.mean([math.exp(t.logprob) for t in draft.tokens]),
            "word_frequency": WordFrequencies().mean(question.text),
            "gradient_agreement": getattr(
                agreement(gradient(question.answers[0]), along, kind == "cosine"), kind
            ),
        }
        assert {name: getattr(score, name) for name in by_hand} == pytest.approx(by_hand)
        assert score == gece_score(
            **{name: getattr(score, name) for name in by_hand}, settings=settings
        )
    assert {layers for _, _, layers in llm.seen} == {2}


def test_chrf_and_a_corpus_of_ones_own_stand_in_where_asked():
    corpus = WordFrequencies.of_corpus(["the colour of house"])
    settings = GECESettings(quality="chrf", semantics=False)
    [score] = score_questions(questions(1), llm=honest_llm(), settings=settings, frequencies=corpus)
    assert score.meteor == chrf("red", ["red"]) == 1.0
    assert score.word_frequency == corpus.mean(questions(1)[0].text)


def test_the_score_asks_nothing_where_word_frequencies_are_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    llm, settings = honest_llm(), GECESettings(semantics=False)
    with pytest.raises(MissingExtra, match=r"ltrag-plugins\[frequency\]"):
        score_questions(questions(1), llm=llm, settings=settings)
    assert llm.calls == []


def test_without_semantics_a_text_model_with_probabilities_is_enough():
    scores = score_questions(questions(8), llm=honest_llm(), settings=PLAIN)
    assert [score.gradient_agreement for score in scores] == [None] * 8
    known, unknown = scores[0], scores[1]
    assert known.value == pytest.approx(abs(meteor("red", ["red"]) - 0.99) / known.word_frequency)
    assert unknown.meteor == 0.0


def test_all_drafts_are_asked_for_in_one_call():
    llm = honest_llm()
    score_questions(questions(8), llm=llm, settings=PLAIN)
    assert [len(prompts) for prompts in llm.calls] == [8]


def test_references_are_set_off_as_the_model_sets_off_its_drafts():
    drafts = [Generation(" Paris"), Generation("Paris"), Generation("\n\t?"), Generation("")]
    some = [Question(f" q{i} ", ("Rome", "Roma")) for i in range(4)]
    prompts, references = references_like(some, drafts, GECESettings(prompt="{question}="))
    assert prompts == ["q0=", "q1=", "q2=", "q3="]
    assert references == [" Rome", "Rome", "\n\tRome", "Rome"]


def test_a_model_without_gradients_is_refused_with_the_way_out():
    with pytest.raises(NeedsGradients, match="semantics=False"):
        score_questions(questions(4), llm=honest_llm())


def test_a_model_without_token_probabilities_is_refused():
    silent = ScriptedLLM(lambda prompt: COLOURS[0])
    with pytest.raises(NoTokenProbabilities, match="logprobs=True"):
        score_questions(questions(4), llm=silent, settings=PLAIN)


def test_a_question_without_references_is_refused_before_the_model_is_asked():
    llm = honest_llm()
    with pytest.raises(MissingReferences):
        score_questions([*questions(3), Question("Who?")], llm=llm, settings=PLAIN)
    assert llm.calls == []


def test_no_questions_have_no_scores():
    assert score_questions([], llm=honest_llm(), settings=PLAIN) == []


# --- the condition of tables 1 to 4: the top 20 % of the run's own questions by eq. 2


def run_behind(spec: str, some: list[Question], folder, llm=None, rate: float = 0.2):
    """Records of the row alone and of the one behind that gate."""
    gate, run = RunGate(spec, rate), RunFolder(folder)
    world = World(llm=llm or Local(), retriever=BM25Retriever([Passage("House 1 is green.")]))
    made = gate.made(world, some, [], run)
    alone, behind = gated_cells([Cell(METHODS["single"])], [gate])
    cells = [alone, Cell(behind.method, gate=made, gate_name=gate.name)]
    return evaluate(some, cells, world, out=run, metrics=["em"])


WITHOUT = {
    "paper": lambda m, p, alpha, dot: abs(m["meteor"] - p) / (alpha * dot),
    "paper:floor=1e-9": lambda m, p, alpha, dot: abs(m["meteor"] - p) / max(alpha * dot, 1e-9),
    "paper:quality=chrf": lambda m, p, alpha, dot: abs(m["chrf"] - p) / (alpha * dot),
    "paper:quality=ter": lambda m, p, alpha, dot: abs(m["ter"] - p) / (alpha * dot),
    "paper:statistics=false": lambda m, p, _, dot: abs(m["meteor"] - p) / dot,
    "paper:semantics=false": lambda m, p, alpha, _: abs(m["meteor"] - p) / alpha,
}


@pytest.mark.parametrize("spec", WITHOUT)
def test_the_fifth_with_the_largest_values_retrieves_in_each_row_of_table_3(spec, tmp_path):
    some, values = questions(40), []
    along = np.mean([gradient(q.answers[0]) for q in some], axis=0)
    for question in some:
        draft = answer(f"Question: {question.text}\nAnswer:")
        quality = {"meteor": meteor(draft.text, question.answers)}
        quality |= {"chrf": chrf(draft.text, question.answers)}
        quality |= {"ter": max(0.0, 1 - ter(draft.text, question.answers))}
        p = np.mean([math.exp(t.logprob) for t in draft.tokens])
        alpha = WordFrequencies().mean(question.text)
        dot = float(gradient(question.answers[0]) @ along)
        values.append(WITHOUT[spec](quality, p, alpha, dot))
    found = run_behind(spec, some, tmp_path)
    name = f"single+{spec.replace('paper', 'eq2')}"
    assert [*found] == ["single", name]
    decided = [record.decision for record in found[name]]
    assert [one["score"] for one in decided] == pytest.approx(values, rel=1e-6)
    least = sorted(values)[-8]
    assert [one["retrieve"] for one in decided] == [value >= least for value in values]
    for record, alone in zip(found[name], found["single"], strict=True):
        assert record.retrievals == record.decision["retrieve"]
        if not record.decision["retrieve"]:  # the draft is the answer
            assert record.prediction == answer(f"Question: {record.question}\nAnswer:").text
        else:
            assert record.prediction == alone.prediction


def test_the_values_are_kept_and_serve_no_other_run(tmp_path):
    some, llm = questions(20), Local()
    before = run_behind("paper", some, tmp_path, llm)
    gradients = len(llm.seen)
    (tmp_path / "records" / "single+eq2.jsonl").unlink()
    after = run_behind("paper", some, tmp_path, llm)
    decided = [[one.decision for one in run["single+eq2"]] for run in (before, after)]
    assert decided[0] == decided[1]
    assert len(llm.seen) == gradients
    for changed, why in (((questions(19), 0.2), "questions was"), ((some, 0.5), "rate was 0.2")):
        with pytest.raises(ArtifactMismatch, match=why):
            run_behind("paper", changed[0], tmp_path, llm, changed[1])
    folder, other = tmp_path / "eq2", replace(GECESettings.paper(), floor=1e-9)
    with pytest.raises(ArtifactMismatch, match=r"settings\.floor was None and is now 1e-09"):
        ReferenceGate.kept(folder, some, other, 0.2, llm=llm)


def test_a_model_without_gradients_gets_no_gate_of_eq_2_and_nothing_is_asked(tmp_path):
    llm = honest_llm()
    with pytest.raises(NeedsGradients, match=r"Load local weights.*semantics=False"):
        run_behind("paper", questions(20), tmp_path, llm)
    assert llm.calls == []
    assert run_behind("paper:semantics=false", questions(20), tmp_path, llm)


def test_questions_that_read_alike_share_a_value_and_count_as_many(tmp_path):
    """Of ten such pairs in PopQA, as of two books of one name."""
    home, emma = "Who is the author of Home?", "Who is the author of Emma?"
    other = "Who is the author of Ulysses?"
    texts, authors = (home, home, emma, other), ("Robinson", "Morrison", "Austen", "Joyce")
    some = [Question(t, (a,), a) for t, a in zip(texts, authors, strict=True)]
    answers = {home: "Robinson", emma: "Austen", other: "perhaps Homer"}
    llm = ScriptedLLM(lambda prompt: said(answers[asked(prompt)], -0.1))
    settings = GECESettings(scorer="gece", semantics=False, statistics=False)
    first, second, *_ = (s.value for s in score_questions(some, llm=llm, settings=settings))
    assert first < second
    for rate, wanted in ((0.25, {other}), (0.75, {home, other})):
        gate = ReferenceGate.kept(tmp_path / f"{rate}", some, settings, rate, llm=llm)
        decided = {text: run(gate.deciding(text), World(llm=llm)) for text in texts}
        assert decided[home].score == pytest.approx((first + second) / 2)
        assert {text for text in texts if decided[text].retrieve} == wanted
        assert decided[other].probability == 3 / 4  # of four questions, not of three texts
        again = ReferenceGate.load(tmp_path / f"{rate}")
        assert (again.name, again.values) == (gate.name, gate.values)


def test_the_values_are_ranked_once():
    class Ranked(dict[str, float]):
        times = 0

        def values(self):
            self.times += 1
            return super().values()

    found, world = Ranked({q.text: float(q.id) for q in questions(40)}), World(llm=honest_llm())
    gate = ReferenceGate(PLAIN, 0.2, found)
    decided = [run(gate.deciding(text), world) for text in found]
    assert [one.retrieve for one in decided] == [i >= 32 for i in range(40)]
    assert found.times == 1
