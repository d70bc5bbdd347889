r"""SKR: retrieve where the most similar labelled questions were ones the model did not know.

Labelled questions are answered without retrieval and with it. One is *known* if the direct answer
is at least as good, *unknown* if it is worse, and left out if both are wrong. Of the :math:`k`
nearest to a new one (cosine of embeddings), :math:`\ell` are known; of all, :math:`m` are known and
:math:`n` unknown. The new one counts as known, and is answered directly, if

.. math:: \frac{\ell}{k - \ell} \ge \lambda \frac{m}{n}

After Wang et al., Findings of EMNLP 2023, https://arxiv.org/abs/2310.05002, sections 3.1 and 3.2
(nearest neighbours). As in the paper, not in its code, what is right both ways is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Flow, embed, together
from ltrag_plugins.gece.labels import reply_is_right
from ltrag_plugins.methods.direct import RoutingSettings
from ltrag_plugins.methods.method import Method
from ltrag_plugins.metrics.answer import Correct
from ltrag_plugins.retrieval.dense import unit_rows
from ltrag_plugins.settings import Count, Range
from ltrag_plugins.types import Answer, Question


@dataclass(frozen=True, slots=True)
class SKRSettings(RoutingSettings):
    """How neighbours decide, and how the two ways of answering ask."""

    neighbours: Count = 5
    """k, the labelled questions that are looked at (paper: 3 to 10)."""
    ratio: Annotated[float, Range(0, 1000)] = 1.0
    """Lambda: larger retrieves more."""
    correct: Correct = "contains"
    """When an answer to a labelled question is right."""


@dataclass(frozen=True, slots=True, eq=False)
class _SelfKnowledge:
    """Which labelled questions the model knew."""

    vectors: Float[np.ndarray, "questions dim"]  # of the labelled questions, of length 1 (or 0)
    known: Bool[np.ndarray, " questions"]

    def knows(self, vector: Float[np.ndarray, " dim"], k: int, ratio: float) -> bool:
        """Whether the model knows a question, by its `k` nearest; not if it knew none of them."""
        if len(vector) != self.vectors.shape[1]:
            learned = f"skr learned from embeddings of {self.vectors.shape[1]} numbers"
            remedy = "run it with the encoder it learned with"
            raise InvalidInput(f"{learned} and got {len(vector)}; {remedy}")
        cosines = self.vectors @ unit_rows(vector[None])[0]
        near = self.known[np.argsort(-cosines, kind="stable")[:k]]
        known, unknown = int(near.sum()), int((~near).sum())
        m, n = int(self.known.sum()), int((~self.known).sum())
        # both sides times (k - l) n, which may be 0
        return known > 0 and known * n >= ratio * m * unknown


def _learn(questions: Sequence[Question], settings: SKRSettings) -> Flow[_SelfKnowledge]:
    """Answer all labelled questions both ways, at once, and encode those that tell something."""
    flows = [*map(settings.directly, questions), *map(settings.searching, questions)]
    answers = yield from together(flows)
    judged = [
        reply_is_right(answer.text, question, settings.correct)
        for answer, question in zip(answers, [*questions, *questions], strict=True)
    ]
    without, with_it = np.array(judged).reshape(2, len(questions))
    kept = np.flatnonzero(without | with_it)
    if not len(kept):
        raise CalibrationError(
            f"none of the {len(questions)} labelled questions is answered right, without retrieval "
            f"or with it. Give easier or more, or look at correct={settings.correct!r}."
        )
    vectors = yield from embed(*(questions[i].text for i in kept.tolist()))
    return _SelfKnowledge(unit_rows(vectors), without[kept])


def _answer(question: Question, settings: SKRSettings, knowledge: _SelfKnowledge) -> Flow[Answer]:
    """One embedding, then as `direct` or as `single`: one model call either way."""
    [vector] = yield from embed(question.text)
    known = knowledge.knows(vector, settings.neighbours, settings.ratio)
    return (yield from settings.directly(question) if known else settings.searching(question))


METHOD = Method(
    name="skr",
    summary="retrieves where the nearest labelled questions were ones the model did not know",
    source="Wang et al., Findings of EMNLP 2023",
    settings=SKRSettings,
    answer=_answer,
    needs=frozenset({"retriever", "encoder", "labelled questions"}),
    learn=_learn,
)
