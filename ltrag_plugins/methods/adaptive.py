"""Adaptive retrieval: a classifier of the question picks none, one or several searches.

Labelled questions are answered all three ways; each is labelled with the cheapest that was right,
or, where none was, with the data set's prior. A multinomial logistic regression on the question's
embedding learns the labels.

References:
    Jeong et al., NAACL 2024, "Adaptive-RAG: Learning to Adapt Retrieval-Augmented Large Language
    Models through Question Complexity", section 3.2, https://arxiv.org/abs/2403.14403. There the
    classifier is a tuned T5-large, and several searches are IRCoT's; here they are ITER-RETGEN's,
    at a lower bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, embed, together
from ltrag_plugins.methods.iter_retgen import IterRetGenSettings, iter_retgen
from ltrag_plugins.methods.method import Method, labelled_questions
from ltrag_plugins.methods.single import RoutingSettings
from ltrag_plugins.metrics.answer import Correct, is_right
from ltrag_plugins.prompts.templates import READING_PROMPT, ReadingTemplate
from ltrag_plugins.settings import Count, Range
from ltrag_plugins.types import Answer, Question

_Route = Literal["none", "one", "many"]
"""How often to search."""

ROUTES: tuple[_Route, ...] = get_args(_Route)
"""The cheapest first."""


@dataclass(frozen=True, slots=True)
class AdaptiveSettings(RoutingSettings):
    """How questions are labelled, learned from and answered."""

    k: Count = 3
    """Passages of each search."""
    template: ReadingTemplate = READING_PROMPT
    """`{passages}` and `{question}` are replaced; the route "many" has its own."""
    max_tokens: Count = 24
    """Longest answer of the routes "none" and "one", in tokens."""
    iterations: Annotated[int, Range(2)] = 2
    """Most searches of the route "many"."""
    unsolved: _Route = "many"
    """The label of a question that no route answers right: what its data set is like (paper: "one"
    for single-hop data, "many" for multi-hop)."""
    inverse_strength: Annotated[float, Range(1e-6, 1e6)] = 1.0
    """C of the regression: larger fits the labels closer."""
    correct: Correct = "contains"
    """When an answer to a labelled question is right."""

    def taking(self, route: _Route, question: str) -> Flow[Answer]:
        """Answer by that route."""
        if route == "many":
            return iter_retgen(question, IterRetGenSettings(iterations=self.iterations, k=self.k))
        return self.directly(question) if route == "none" else self.reading(question)


@dataclass(frozen=True, slots=True, eq=False)
class Complexity:
    """The classifier: the route with the largest linear function of the embedding."""

    routes: tuple[_Route, ...]
    """Those that some labelled question took."""
    weights: Float[np.ndarray, "dim routes"]
    intercepts: Float[np.ndarray, " routes"]

    def route(self, vector: Float[np.ndarray, " dim"]) -> _Route:
        """The route for a question with this embedding."""
        if len(vector) != len(self.weights):
            raise InvalidInput(
                f"adaptive was fitted on embeddings of {len(self.weights)} numbers and got "
                f"{len(vector)}; run it with the encoder it was fitted with"
            )
        return self.routes[int(np.argmax(vector @ self.weights + self.intercepts))]


def fit_complexity(
    vectors: Float[np.ndarray, "questions dim"],
    labels: Sequence[_Route],
    inverse_strength: float = 1.0,
) -> Complexity:
    """The regression; where all labels are the same, every question gets that label."""
    places = [ROUTES.index(label) for label in labels]
    routes: tuple[_Route, ...] = tuple(ROUTES[place] for place in sorted(set(places)))
    if len(routes) == 1:
        return Complexity(routes, np.zeros((vectors.shape[1], 1)), np.zeros(1))
    from sklearn.linear_model import LogisticRegression  # for learning only

    model = LogisticRegression(C=inverse_strength, max_iter=1000).fit(vectors, places)
    weights, intercepts = np.array(model.coef_.T), np.array(model.intercept_)
    if len(routes) == 2:  # one function there, whose sign decides
        weights, intercepts = np.c_[0 * weights, weights], np.r_[0.0, intercepts]
    return Complexity(routes, weights, intercepts)


def learn_complexity(
    questions: Sequence[Question], settings: AdaptiveSettings | None = None
) -> Flow[Complexity]:
    """Answer all labelled questions on every route, and learn the cheapest right one.

    At most `iterations` searches, `iterations` + 2 requests to the model and one to the encoder,
    for all questions together.
    """
    settings = settings or AdaptiveSettings()
    questions = labelled_questions(questions, "adaptive")
    tried = [settings.taking(route, q.text) for q in questions for route in ROUTES]
    answers = iter((yield from together(tried)))
    said = [[next(answers).text for _ in ROUTES] for _ in questions]
    labels: list[_Route] = [
        cheapest_right(q, texts, settings) for q, texts in zip(questions, said, strict=True)
    ]
    vectors = yield from embed(*(question.text for question in questions))
    return fit_complexity(np.asarray(vectors), labels, settings.inverse_strength)


def cheapest_right(question: Question, said: Sequence[str], settings: AdaptiveSettings) -> _Route:
    """The first route whose answer (in the order of `ROUTES`) is right; else the prior."""
    for route, text in zip(ROUTES, said, strict=True):
        if is_right(text, question.answers, settings.correct):
            return route
    return settings.unsolved


def adaptive(
    question: str, complexity: Complexity, settings: AdaptiveSettings | None = None
) -> Flow[Answer]:
    """One embedding, then the route that the classifier picks: at most `iterations` model calls."""
    settings = settings or AdaptiveSettings()
    [vector] = yield from embed(question)
    return (yield from settings.taking(complexity.route(vector), question))


METHOD = Method(
    name="adaptive",
    summary="a classifier of the question picks none, one or several searches",
    source="Jeong et al., NAACL 2024",
    settings=AdaptiveSettings,
    answer=lambda question, settings, complexity: adaptive(question.text, complexity, settings),
    most_calls=lambda settings: settings.iterations,
    needs=frozenset({"retriever", "encoder", "labelled questions"}),
    learn=learn_complexity,
)
