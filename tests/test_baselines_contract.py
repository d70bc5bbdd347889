"""The contract, held by every row; one line a method."""

import math
import re
from pathlib import Path

import pytest
from contracts.methods import LABELLED, MethodContract, taught, world

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Ask, run
from ltrag_plugins.methods import METHODS, method_named
from ltrag_plugins.types import Question


class TestDirect(MethodContract):
    name = "direct"


class TestSingle(MethodContract):
    name = "single"


class TestIRCoT(MethodContract):
    name = "ircot"


class TestIterRetGen(MethodContract):
    name = "iter-retgen"


class TestSelfRAG(MethodContract):
    name = "self-rag"


class TestSuRe(MethodContract):
    name = "sure"


class TestListwise(MethodContract):
    name = "listwise"


class TestFilco(MethodContract):
    name = "filco"


class TestKSamples(MethodContract):
    name = "k-samples"


class TestRandomShots(MethodContract):
    name = "random-shots"


class TestBM25Shots(MethodContract):
    name = "bm25-shots"


class TestSKR(MethodContract):
    name = "skr"


class TestAdaptive(MethodContract):
    name = "adaptive"


class TestGateLogprob(MethodContract):
    name = "gate-logprob"


class TestGateProduct(MethodContract):
    name = "gate-product"


class TestGateLeast(MethodContract):
    name = "gate-least"


class TestGateEntropy(MethodContract):
    name = "gate-entropy"


class TestGateMargin(MethodContract):
    name = "gate-margin"


class TestGateFrequency(MethodContract):
    name = "gate-frequency"


class TestDUR(MethodContract):
    name = "dur"


class TestDURShots(MethodContract):
    name = "dur-shots"


class TestPromptPG(MethodContract):
    name = "promptpg"


class TestSGIC(MethodContract):
    name = "sgic"


def test_by_default_all_read_and_write_as_much():
    for name, row in METHODS.items():
        settings = row.settings()
        assert getattr(settings, "k", 3) == 3, name
        # the chain of thought is the answer's
        assert getattr(settings, "max_tokens", 24) == (96 if name == "iter-retgen" else 24), name
    loop = METHODS["sgic"].settings().loop
    assert (loop.document_words, loop.answer_tokens) == (200, 24)


@pytest.mark.parametrize("name", ["random-shots", "bm25-shots", "dur-shots", "promptpg"])
@pytest.mark.parametrize(
    ("reply", "options", "text"),
    [
        (" The answer is Jane Austen.\n", (), "Jane Austen"),
        ("the answer is jane austen", ("Emile Zola", "Jane Austen"), "Jane Austen"),
        ("(B) Jane Austen, I think", ("Emile Zola", "Jane Austen"), "Jane Austen"),
        ("B.", ("Emile Zola", "Jane Austen"), "Jane Austen"),
        ("Nobody.", ("Emile Zola", "Jane Austen"), "Nobody"),
    ],
)
def test_all_that_show_examples_read_a_reply_alike_and_ask_for_as_much(name, reply, options, text):
    row, asking = METHODS[name], world(lambda _: reply)
    learned = row.taught(LABELLED, row.settings(), world(taught))
    asked: list[int] = []

    def note(step):
        if step.kind == "request" and isinstance(step.request, Ask):
            asked.append(step.request.settings.max_tokens)

    flow = row.flow(Question("Who wrote Emma?", options=options), None, learned)
    assert run(flow, asking, observers=[note]).text == text
    assert asked == [24]


def test_every_method_is_held_to_the_contract():
    held = {cls.name for cls in MethodContract.__subclasses__()}
    assert held == set(METHODS)


def test_every_method_has_a_row_among_those_of_the_papers():
    page = (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1] for line in page.partition("## Methods")[2].splitlines() if "|" in line
    ]
    assert {name for row in rows for name in re.findall("`([a-z0-9-]+)`", row)} == set(METHODS)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("direct", {"template": "Answer:", "max_tokens": 0}),
        ("single", {"k": 0, "template": "{question}", "max_tokens": True}),
        ("ircot", {"steps": 0, "k": 1.5, "most_passages": True, "template": "{question}"}),
        ("ircot", {"thought_template": "{passages}{question}", "thought_tokens": 0}),
        ("iter-retgen", {"iterations": 0, "k": 0, "template": "{question}"}),
        ("self-rag", {"reflection_tokens": "yes", "threshold": 1.5, "w_support": -1}),
        ("self-rag", {"threshold": math.nan, "w_relevance": math.inf, "k": 0, "max_tokens": 0}),
        ("self-rag", {"template": "{question}", "w_likelihood": 1001, "w_usefulness": "much"}),
        ("sure", {"candidates": 1, "k": 0, "summary_tokens": "9"}),
        ("listwise", {"k": 0, "candidates": 2, "window": 1, "step": 20, "max_words": 0}),
        ("listwise", {"step": 0, "template": "{passages}", "ranking_template": "{passages}"}),
        ("filco", {"k": 0, "filter_tokens": 0, "max_tokens": True, "template": "{passages}"}),
        ("filco", {"filter_template": "{question}"}),
        (
            "k-samples",
            {"samples": 0, "temperature": 0, "k": 0, "seed": -1, "template": "{question}"},
        ),
        ("k-samples", {"temperature": math.nan}),
        ("skr", {"neighbours": 0, "ratio": -1, "correct": "maybe", "k": 0, "direct_template": "x"}),
        ("adaptive", {"iterations": 1, "unsolved": "some", "inverse_strength": 0, "correct": "x"}),
        ("adaptive", {"k": 0, "direct_template": "x"}),
        ("gate-least", {"target_rate": 1.1, "k": 0, "max_tokens": 0, "direct_template": "x"}),
        ("gate-least", {"target_rate": math.nan}),
        ("dur", {"found": 0, "k": 0, "template": "{question}", "ranker": "head/"}),
        ("sgic", {"k": 0}),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(name, wrong):
    for setting, value in wrong.items():
        with pytest.raises(InvalidInput, match=rf"\b{setting}\b"):
            METHODS[name].settings(**{setting: value})


def test_an_unknown_method_is_refused_with_the_nearest_names():
    with pytest.raises(InvalidInput, match="did you mean direct"):
        method_named("dirct")
