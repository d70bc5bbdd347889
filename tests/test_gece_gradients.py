"""The gate with real gradients, of a small model with random weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ltrag_plugins.errors import ArtifactMismatch
from ltrag_plugins.flow import Agree, Ask
from ltrag_plugins.gece import GECEGate, GECESettings, score_questions
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.prompts.templates import direct_prompt
from ltrag_plugins.types import GenerationSettings, Question
from tests.gece_parts import honest_llm

PAPER = replace(GECESettings.paper(), layers=2, max_tokens=6, correct="exact_match")
NEW = [f"What is the colour of house {i}?" for i in range(100, 108)]


@pytest.fixture(scope="module")
def tiny(smollm2) -> TransformersLLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 49152}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.4, eos_token_id=2))
    return TransformersLLM(model.eval(), smollm2.tokenizer, label="tiny")


@pytest.fixture(scope="module")
def calibration(tiny) -> list[Question]:
    """Questions of which every other one has the model's own answer for its reference."""
    texts = [f"What is the colour of house {i}?" for i in range(24)]
    prompts = [direct_prompt(text) for text in texts]
    drafts = tiny.generate(
        prompts, GenerationSettings(max_tokens=PAPER.max_tokens, stop=PAPER.stop)
    )
    return [
        Question(text, (draft.text.strip() if i % 2 and draft.text.strip() else "red",))
        for i, (text, draft) in enumerate(zip(texts, drafts, strict=True))
    ]


@pytest.fixture(scope="module")
def gate(tiny, calibration) -> GECEGate:
    return GECEGate.fit(calibration, llm=tiny, settings=PAPER, target_rate=0.25)


def dot_by_backward_pass(llm, question: str, said: str, along: Direction) -> float:
    """The instance's own gradient, held whole and multiplied by hand."""
    own = llm.mean_gradient([direct_prompt(question)], [said], layers=PAPER.layers)
    return float(sum(np.vdot(own[name], along[name]) for name in along))


def test_the_papers_gate_reads_gradients(gate):
    assert gate.report.tier == "gradients"
    assert gate.report.scorer == "gece"
    assert gate.along is not None
    assert gate.report.retrieval_rate.value == pytest.approx(6 / 24)


def test_at_run_time_the_draft_stands_in_the_references_place(gate, tiny):
    for decision in gate.decide_many(NEW):
        by_hand = dot_by_backward_pass(tiny, decision.question, decision.draft.text, gate.along)
        assert -decision.ingredients["gradient_dot"] == pytest.approx(by_hand, rel=1e-3, abs=1e-6)


def test_many_questions_share_one_call_for_the_drafts_and_one_for_the_gradients(gate):
    requests = []
    gate.decide_many(
        NEW, observers=[lambda s: requests.append(s.request) if s.kind == "request" else None]
    )
    assert [(type(r), len(r.prompts)) for r in requests] == [(Ask, 8), (Agree, 8)]


def test_a_saved_gate_with_its_mean_gradient_decides_the_same_to_the_last_bit(gate, tiny, tmp_path):
    gate.save(tmp_path)
    assert GECEGate.load(tmp_path, llm=tiny).decide_many(NEW) == gate.decide_many(NEW)


def test_a_gate_that_reads_gradients_is_not_loaded_for_a_model_without(gate, tiny, tmp_path):
    gate.save(tmp_path)
    with pytest.raises(ArtifactMismatch, match="TransformersLLM"):
        GECEGate.load(tmp_path, llm=honest_llm(tiny.name))


def test_scores_with_references_hold_each_gradient_against_their_mean(tiny, calibration):
    scores = score_questions(calibration, llm=tiny, settings=PAPER)
    prompts = [direct_prompt(q.text) for q in calibration]
    drafts = tiny.generate(
        prompts, GenerationSettings(max_tokens=PAPER.max_tokens, stop=PAPER.stop)
    )
    references = [
        d.text[: len(d.text) - len(d.text.lstrip())] + q.answers[0]
        for d, q in zip(drafts, calibration, strict=True)
    ]
    along = tiny.mean_gradient(prompts, references, layers=PAPER.layers)
    by_hand = [
        dot_by_backward_pass(tiny, q.text, reference, along)
        for q, reference in zip(calibration, references, strict=True)
    ]
    found = [score.gradient_agreement for score in scores]
    assert found == pytest.approx(by_hand, rel=1e-3, abs=1e-6)
    # the mean of the dot products with the mean is its squared length
    assert np.mean(found) == pytest.approx(
        sum(float(np.vdot(part, part)) for part in along.values()), rel=1e-3
    )


def test_gradients_that_do_not_pay_are_left_out_of_the_gate(tiny, calibration):
    settings = replace(PAPER, scorer="product", gradients="auto")
    gate = GECEGate.fit(calibration, llm=tiny, settings=settings)
    assert (gate.along, gate.report.tier) == (None, "probabilities")
    assert "gradient_dot" not in gate.decide(NEW[0]).ingredients


def test_a_gate_on_the_cosine_alone(tiny, calibration):
    settings = replace(PAPER, scorer="gradient_cosine", agreement="cosine")
    gate = GECEGate.fit(calibration, llm=tiny, settings=settings)
    for decision in gate.decide_many(NEW):
        assert decision.score == decision.ingredients["gradient_cosine"]
        assert -1 <= decision.score <= 1
