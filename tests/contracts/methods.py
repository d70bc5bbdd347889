"""What every row of `METHODS` must do."""

import dataclasses
import re

import numpy as np
import pytest

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World, arun, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS, Method
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Answer, Generation, GenerationSettings, Passage, Question, Token

PASSAGES = [
    Passage("Emma is a novel by Jane Austen. It was printed in 1815.", id="p0", title="Emma"),
    Passage("Persuasion is the last novel of Jane Austen.", id="p1", title="Persuasion"),
    Passage("Middlemarch is a novel by George Eliot.", id="p2", title="Middlemarch"),
    Passage("Bread is baked from flour.", id="p3", title="Bread"),
]
QUESTIONS = [
    Question("Who wrote Emma?", ("Jane Austen",), "q0"),
    Question("Who wrote Middlemarch?", ("George Eliot",), "q1"),
    Question("What is bread baked from?", ("flour",), "q2"),
]
LABELLED = [
    Question("Who wrote Persuasion?", ("Jane Austen",), "l0"),
    Question("Who wrote Walden?", ("Henry David Thoreau",), "l1"),
    Question("What is paper made from?", ("wood",), "l2"),
    Question("When was Emma printed?", ("1815",), "l3"),
]


class Letters:
    """Texts as counts of letters."""

    name = "letters"

    def encode(self, texts):
        return np.array([[text.lower().count(c) for c in "aeinorst"] for text in texts], "float32")


def plausible(prompt: str) -> str:
    """Knows who wrote Persuasion; else says something that depends on the prompt."""
    if "Who wrote Persuasion?" in prompt:
        return "Jane Austen"
    return ["Jane Austen", "George Eliot", "flour", "yes", "[1] > [2]"][len(prompt) % 5]


def likely(prompt: str, text: str) -> Generation:
    """The text with token probabilities that depend on the prompt."""
    logprob = -0.05 - len(prompt) % 7 / 10
    tokens = [
        Token(piece, logprob, alternatives=((piece, logprob), (" other", logprob - 3)))
        for piece in re.findall(r"\s*\S+|\s+", text)
    ]
    return Generation(text, tuple(tokens), len(prompt.split()), len(tokens))


class Scoring:
    """A function as a model that can also tell how likely a text is."""

    name = "scoring"

    def __init__(self, reply):
        self.writing = ScriptedLLM(lambda prompt: likely(prompt, reply(prompt)))
        self.scored = []

    @property
    def prompts(self):
        """All that it was asked, to write after or to score after."""
        return [*self.writing.prompts, *self.scored]

    def generate(self, prompts, settings=GenerationSettings()):
        return self.writing.generate(prompts, settings)

    def score(self, prompts, continuations):
        self.scored += prompts
        return [likely(p, c) for p, c in zip(prompts, continuations, strict=True)]


class Noting:
    """A retriever that notes what it is asked, and for how many passages."""

    def __init__(self, search):
        self.within, self.queries, self.most = search, [], 0

    def search(self, queries, k):
        self.queries += queries
        self.most = max(self.most, k)
        return self.within(queries, k)


def world(reply=plausible) -> World:
    shelf = Noting(BM25Retriever(PASSAGES).search)
    return World(llm=Scoring(reply), retriever=shelf, encoder=Letters())


def too_much(queries, k):
    """More passages than were asked for, each of 250 words that name it and their place."""
    texts = [" ".join(f"p{i}w{j}" for j in range(250)) for i in range(k + 50)]
    return [[Passage(text, id=str(i)) for i, text in enumerate(texts)] for _ in queries]


def taught(prompt: str) -> str:
    """Knows every other labelled question, so that there is something to learn."""
    known = {question.text: question.answers[0] for question in LABELLED[::2]}
    return next((known[text] for text in known if text in prompt), plausible(prompt))


def learned(method: Method, settings: object) -> object:
    return method.taught(LABELLED, settings, world(taught))


class MethodContract:
    """A subclass for each method sets `name`, and `settings` where the defaults will not do."""

    name: str
    settings: object = None

    @property
    def method(self) -> Method:
        return METHODS[self.name]

    @property
    def chosen(self) -> object:
        return self.method.settings() if self.settings is None else self.settings

    def flows(self):
        knows = learned(self.method, self.chosen)
        return [self.method.flow(question, self.chosen, knows) for question in QUESTIONS]

    def test_it_is_a_row_of_its_own_name_with_checked_settings(self):
        method = self.method
        assert method.name == self.name
        assert method.summary
        assert method.source
        assert dataclasses.is_dataclass(method.settings)
        assert method.settings.__dataclass_params__.frozen

    def test_settings_of_another_method_are_refused(self):
        with pytest.raises(InvalidInput, match=self.name):
            self.method.flow(QUESTIONS[0], object())

    def test_every_question_is_answered_within_its_bound(self):
        for flow in self.flows():
            counter, there = CostCounter(), world()
            answer = run(flow, there, observers=[counter])
            assert isinstance(answer, Answer)
            assert len(there.llm.prompts) <= self.method.most_calls(self.chosen)
            assert counter.cost.calls == len(there.llm.prompts)
            assert counter.cost.retrievals == len(there.retriever.queries)
            assert all(isinstance(passage, Passage) for passage in answer.passages)

    def test_a_retriever_that_hands_back_too_much_makes_it_read_and_cost_no_more(self):
        for flow in self.flows():
            llm, shelf = Scoring(lambda _: "yes"), Noting(too_much)
            answer = run(flow, World(llm=llm, retriever=shelf, encoder=Letters()))
            assert len(llm.prompts) <= self.method.most_calls(self.chosen)
            words = [pair for prompt in llm.prompts for pair in re.findall(r"p(\d+)w(\d+)", prompt)]
            assert all(int(i) < shelf.most and int(j) < 200 for i, j in words)
            assert all(int(passage.id) < shelf.most for passage in answer.passages)
            if answer.passages:
                assert max(int(j) for _, j in words) == 199

    @pytest.mark.parametrize("reply", ["", "\n\n", "Doc: 0", "I don't know.", "[9] > [1] > [1]"])
    def test_replies_of_no_use_break_nothing(self, reply):
        for flow in self.flows():
            counter = CostCounter()
            run(flow, world(lambda _: reply), observers=[counter])
            assert counter.cost.calls <= self.method.most_calls(self.chosen)

    async def test_alone_side_by_side_and_on_an_event_loop_are_the_same(self):
        alone = [run(flow, world()) for flow in self.flows()]
        assert run_many(self.flows(), world()) == alone
        assert [await arun(flow, world()) for flow in self.flows()] == alone

    def test_where_nothing_is_found_it_answers_all_the_same(self):
        nothing = World(llm=Scoring(plausible), retriever=Nothing(), encoder=Letters())
        for flow in self.flows():
            assert isinstance(run(flow, nothing), Answer)

    @pytest.mark.parametrize("learned_alike", [True, False])
    def test_what_a_question_offers_is_shown_and_never_searched_for(self, learned_alike):
        """Both are put where methods look that know texts alone; a search would be led astray."""
        asked = Question(
            "Who wrote Emma?", ("Austen",), "q", options=("Austen", "Zola"), context="A quizz."
        )
        others = LABELLED
        if learned_alike:
            more = [{"options": ("Zola", q.answers[0]), "context": "A quizz."} for q in others]
            others = [dataclasses.replace(q, **one) for q, one in zip(others, more, strict=True)]
        knows = self.method.taught(others, self.chosen, world(taught))
        seen, searched, shelf = [], [], BM25Retriever(PASSAGES)

        class Shelf:
            def search(self, queries, k):
                searched.extend(queries)
                return shelf.search(queries, k)

        class Encoded(Letters):
            def encode(self, texts):
                searched.extend(texts)
                return super().encode(texts)

        def reply(prompt):
            seen.append(prompt)
            return "It was Emma"

        there = World(llm=Scoring(reply), retriever=Shelf(), encoder=Encoded())
        run(self.method.flow(asked, self.chosen, knows), there)
        last = [prompt for prompt in seen if "Who wrote Emma?" in prompt][-1]
        assert "Zola" in last
        assert "quizz" in last
        assert not [text for text in searched if "Zola" in text or "quizz" in text]


class Nothing:
    """A retriever that finds nothing."""

    def search(self, queries, k):
        return [[] for _ in queries]
