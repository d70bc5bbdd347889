"""Adaptive retrieval: a classifier of the question picks none, one or several searches.

Labelled questions are answered all three ways; a multinomial logistic regression on a question's
embedding learns the cheapest that was right or, where none was, the data set's prior. After Jeong
et al., NAACL 2024 (Adaptive-RAG), https://arxiv.org/abs/2403.14403, section 3.2: there a tuned
T5-large classifies, and several searches are IRCoT's; here ITER-RETGEN's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np

from ltrag_plugins.errors import InvalidInput, require
from ltrag_plugins.flow import Flow, embed, together
from ltrag_plugins.gece.labels import reply_is_right
from ltrag_plugins.methods.direct import RoutingSettings
from ltrag_plugins.methods.iter_retgen import METHOD as ITER_RETGEN
from ltrag_plugins.methods.method import Method
from ltrag_plugins.metrics.answer import Correct
from ltrag_plugins.settings import Range
from ltrag_plugins.types import Answer, Question

_Route = Literal["none", "one", "many"]
_ROUTES: tuple[str, ...] = get_args(_Route)  # the cheapest first


@dataclass(frozen=True, slots=True)
class AdaptiveSettings(RoutingSettings):
    """How questions are labelled and answered; "many" has its own template and answer length."""

    iterations: Annotated[int, Range(2)] = 2
    """Most searches of the route "many"."""
    unsolved: _Route = "one"
    """The label of a question that no route answers right: "one" for single-hop data such as NQ,
    TriviaQA and PopQA, "many" for multi-hop data such as HotpotQA and MuSiQue (as in the paper)."""
    inverse_strength: Annotated[float, Range(1e-6, 1e6)] = 1.0
    """C of the regression: larger fits the labels closer."""
    correct: Correct = "contains"
    """When an answer to a labelled question is right."""

    def taking(self, route: str, question: Question) -> Flow[Answer]:
        """Answer by that route."""
        if route == "many":
            many = ITER_RETGEN.settings(iterations=self.iterations, k=self.k)
            return ITER_RETGEN.answer(question, many, None)
        return self.directly(question) if route == "none" else self.searching(question)


def _classifier(vectors: np.ndarray, labels: Sequence[str], strength: float) -> Any:
    """The regression; where all labels are the same, every question gets that label."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression  # for learning only

    several = len(set(labels)) > 1
    model = LogisticRegression(C=strength, max_iter=1000) if several else DummyClassifier()
    return model.fit(vectors, [_ROUTES.index(label) for label in labels])


def _learn(questions: Sequence[Question], settings: AdaptiveSettings) -> Flow[Any]:
    """Answer all labelled questions on every route, at once, and learn the cheapest right one."""
    require("fit")
    answers = yield from together([settings.taking(r, q) for q in questions for r in _ROUTES])
    rest, labels = iter(answers), []
    for question in questions:
        right = [reply_is_right(next(rest).text, question, settings.correct) for _ in _ROUTES]
        labels.append(_ROUTES[right.index(True)] if any(right) else settings.unsolved)
    vectors = yield from embed(*(question.text for question in questions))
    return _classifier(np.asarray(vectors), labels, settings.inverse_strength)


def _answer(question: Question, settings: AdaptiveSettings, learned: Any) -> Flow[Answer]:
    """One embedding, then the route that the classifier picks: at most `iterations` model calls."""
    vectors = np.asarray((yield from embed(question.text)))
    if vectors.shape[1] != (size := getattr(learned, "n_features_in_", vectors.shape[1])):
        fitted = f"adaptive was fitted on embeddings of {size} numbers"
        remedy = "run it with the encoder it was fitted with"
        raise InvalidInput(f"{fitted} and got {vectors.shape[1]}; {remedy}")
    return (yield from settings.taking(_ROUTES[int(learned.predict(vectors)[0])], question))


METHOD = Method(
    name="adaptive",
    summary="a classifier of the question picks none, one or several searches",
    source="Jeong et al., NAACL 2024",
    settings=AdaptiveSettings,
    answer=_answer,
    most_calls=lambda settings: settings.iterations,
    needs=frozenset({"retriever", "encoder", "labelled questions"}),
    learn=_learn,
)
