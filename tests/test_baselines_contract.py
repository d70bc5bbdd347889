"""What every row of `METHODS` must do; a new row is held to it by itself."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
from contracts.methods import (
    LABELLED,
    QUESTIONS,
    Letters,
    Noting,
    Scoring,
    learned,
    taught,
    too_much,
    world,
)

from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Ask, World, arun, run, run_many
from ltrag_plugins.methods import METHODS, Method, method_named
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.prompts.templates import direct_prompt
from ltrag_plugins.types import Passage, Question


@pytest.fixture(params=METHODS)
def method(request) -> Method:
    return METHODS[request.param]


def flows(method):
    return [method.flow(question, None, learned(method.name)) for question in QUESTIONS]


def test_a_row_has_its_name_a_source_and_frozen_settings_of_its_own(method):
    assert METHODS[method.name] is method
    assert method.summary
    assert method.source
    assert method.settings.__dataclass_params__.frozen
    with pytest.raises(InvalidInput, match=method.name):
        method.flow(QUESTIONS[0], object())


def test_all_that_an_answer_takes_is_counted(method):
    for flow in flows(method):
        counter, there = CostCounter(), world()
        answer = run(flow, there, observers=[counter])
        assert counter.cost.calls == len(there.llm.prompts)
        assert counter.cost.retrievals == len(there.retriever.queries)
        assert all(isinstance(passage, Passage) for passage in answer.passages)


def test_a_retriever_that_hands_back_too_much_makes_it_read_no_more(method):
    for flow in flows(method):
        llm, shelf = Scoring(lambda _: "yes"), Noting(too_much)
        answer = run(flow, World(llm=llm, retriever=shelf, encoder=Letters()))
        words = [pair for prompt in llm.prompts for pair in re.findall(r"p(\d+)w(\d+)", prompt)]
        assert all(int(i) < shelf.most and int(j) < 200 for i, j in words)
        assert all(int(passage.id) < shelf.most for passage in answer.passages)
        if answer.passages:
            assert max(int(j) for _, j in words) == 199


async def test_alone_side_by_side_and_on_an_event_loop_are_the_same(method):
    alone = [run(flow, world()) for flow in flows(method)]
    assert run_many(flows(method), world()) == alone
    assert [await arun(flow, world()) for flow in flows(method)] == alone


@pytest.mark.parametrize(
    "name", ["single", "ircot", "iter-retgen", "self-rag", "sure", "listwise", "filco", "k-samples"]
)
def test_where_nothing_is_found_the_question_is_asked_directly(name):
    there = dataclasses.replace(world(lambda _: "yes"), retriever=Noting(lambda *_: [[]]))
    answer = run(METHODS[name].flow(QUESTIONS[0]), there)
    assert (answer.text, answer.passages) == ("yes", ())
    assert there.llm.prompts[-1] == direct_prompt(QUESTIONS[0].text)
    assert len(set(there.llm.prompts)) == (2 if name == "self-rag" else 1)  # to search?


def test_what_speaks_of_placeholders_changes_nothing_but_itself(method):
    sly = Passage("Quills {question} write {answer}, {thoughts} or {0}.", title="{passages}")
    asked = Question("Is {passages} a word, {question}?")
    reply = "Pens {question} {passages} {summary}"
    there = dataclasses.replace(world(lambda _: reply), retriever=Noting(lambda *_: [[sly]]))
    run(method.flow(asked, None, learned(method.name)), there)
    for prompt in there.llm.prompts:
        assert prompt.count("Is {") == prompt.count(asked.text) > 0
        assert prompt.count("Quills") == prompt.count(sly.text)
        assert prompt.count("Pens") == prompt.count(reply)


@pytest.mark.parametrize("learned_alike", [True, False])
def test_what_a_question_offers_and_is_about_is_shown_and_never_searched_for(method, learned_alike):
    """Both are put where methods look that know texts alone; a search would be led astray."""
    asked = Question(
        "Who wrote Emma?", ("Austen",), "q", options=("Austen", "Zola"), context="A quizz."
    )
    alike = [
        dataclasses.replace(q, options=("Zola", q.answers[0]), context="A quizz.") for q in LABELLED
    ]
    knows = learned(method.name)
    if learned_alike:
        knows = method.taught(alike, method.settings(), world(taught))
    searched = []

    class Encoded(Letters):
        def encode(self, texts):
            searched.extend(texts)
            return super().encode(texts)

    there = dataclasses.replace(world(lambda _: "It was Emma"), encoder=Encoded())
    run(method.flow(asked, None, knows), there)
    last = [prompt for prompt in there.llm.prompts if asked.text in prompt][-1]
    assert re.search(r"Options: \W*(A\W*)?Austen\b.*\bZola\b", last)
    assert "quizz" in last
    searched += there.retriever.queries
    assert not [text for text in searched if "Zola" in text or "quizz" in text]


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.learns])
def test_questions_to_learn_from_are_checked(name):
    row = METHODS[name]
    with pytest.raises(CalibrationError, match="learns from labelled questions and got none"):
        row.taught([], row.settings(), world())
    if not name.startswith("gate-"):  # they need no answers
        with pytest.raises(MissingReferences, match=r"'Why\?' has no accepted"):
            row.taught([LABELLED[0], Question("Why?")], row.settings(), world())
    with pytest.raises(InvalidInput, match=r"method\.taught"):
        row.flow(QUESTIONS[0])


def test_by_default_all_read_and_write_as_much():
    for name, row in METHODS.items():
        settings = row.settings()
        assert getattr(settings, "k", 3) == 3, name
        # the chain of thought is the answer's
        assert getattr(settings, "max_tokens", 24) == (96 if name == "iter-retgen" else 24), name
    loop = METHODS["sgic"].settings().loop
    assert (loop.document_words, loop.answer_tokens) == (200, 24)


BOTH = "Emile Zola", "Jane Austen"


@pytest.mark.parametrize("name", ["random-shots", "bm25-shots", "dur-shots", "promptpg"])
@pytest.mark.parametrize(
    ("reply", "options", "text"),
    [
        (" The answer is Jane Austen.\n", (), "Jane Austen"),
        ("the answer is jane austen", BOTH, "Jane Austen"),
        ("(B) Jane Austen, I think", BOTH, "Jane Austen"),
        ("B.", BOTH, "Jane Austen"),
        ("Nobody.", BOTH, "Nobody"),
    ],
)
def test_all_that_show_examples_read_a_reply_alike_and_ask_for_as_much(name, reply, options, text):
    asked: list[int] = []

    def note(step):
        if step.kind == "request" and isinstance(step.request, Ask):
            asked.append(step.request.settings.max_tokens)

    flow = METHODS[name].flow(Question("Who wrote Emma?", options=options), None, learned(name))
    assert run(flow, world(lambda _: reply), observers=[note]).text == text
    assert asked == [24]


def test_every_method_has_a_row_among_those_of_the_papers():
    page = (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")
    lines = page.partition("## Methods")[2].splitlines()
    rows = [line.split("|")[1] for line in lines if "|" in line]
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
        ("k-samples", {"samples": 0, "temperature": 0, "k": 0, "seed": -1}),
        ("k-samples", {"temperature": math.nan, "template": "{question}"}),
        ("random-shots", {"shots": 0, "max_tokens": 0, "context_words": 0, "seed": -1}),
        ("bm25-shots", {"template": "{shots}"}),
        ("listwise-shots", {"candidates": 4, "max_words": 0, "ranking_template": "{passages}"}),
        ("sure-shots", {"candidates": 1, "shots": 0, "context_words": 0, "summary_tokens": 0}),
        ("dur-shots", {"examples": 1.0, "max_calls": 0, "training": "paper"}),
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
