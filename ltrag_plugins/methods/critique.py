"""What a model thinks of an answer from one passage: is that relevant, supporting, useful?

Read from reflection tokens (`reflected`) or from replies to yes-or-no questions (`judged`).

References:
    Asai et al., ICLR 2024 (Self-RAG), https://arxiv.org/abs/2310.11511, section 3.3; the
    yes-or-no questions are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ltrag_plugins.methods import reflection
from ltrag_plugins.prompts.templates import filled, passages_block
from ltrag_plugins.types import Generation, Passage
from ltrag_plugins.uncertainty import mean_logprob, yes_probability

RELEVANT = (
    "{passage}\n\nQuestion: {question}\n"
    "Does the text above help to answer the question? Reply yes or no.\nReply:"
)
SUPPORTED = (
    "{passage}\n\nQuestion: {question}\nAnswer: {answer}\n"
    "Does the text above say that this answer is right? Reply yes or no.\nReply:"
)
USEFUL = (
    "Question: {question}\nAnswer: {answer}\n"
    "Is this a useful answer to the question? Reply yes or no.\nReply:"
)


@dataclass(frozen=True, slots=True)
class Critique:
    """One passage, what the model answered from it, and what it thinks of both."""

    passage: Passage
    text: str
    """The answer, without reflection tokens."""
    likelihood: float
    """Geometric mean of the answer's token probabilities, in [0, 1]; 0 without."""
    relevance: float
    """In [0, 1]; larger is better, as in all of them."""
    support: float
    """In [0, 1]."""
    usefulness: float
    """In [-1, 1]."""


def judging_prompts(question: str, passage: Passage, answer: str) -> list[str]:
    """Whether the passage is relevant, whether it supports the answer, whether that is useful."""
    shown = passages_block([passage])
    return [
        filled(RELEVANT, passage=shown, question=question),
        filled(SUPPORTED, passage=shown, question=question, answer=answer),
        filled(USEFUL, question=question, answer=answer),
    ]


def judged(passage: Passage, draft: Generation, replies: Sequence[Generation]) -> Critique:
    """From the replies to `judging_prompts`; usefulness is 2 p - 1."""
    relevant, supported, useful = map(yes_probability, replies)
    text = draft.text.strip()
    return Critique(passage, text, _likelihood(draft), relevant, supported, 2 * useful - 1)


def reflected(passage: Passage, reply: Generation) -> Critique:
    """From the reflection tokens of a reply; one it did not write counts as 0 (authors' code)."""
    groups = (reflection.RELEVANT, reflection.SUPPORTED, reflection.USEFUL)
    relevant, supported, useful = (reflection.value(reply, group) or 0.0 for group in groups)
    text = reflection.answer_text(reply)
    return Critique(passage, text, _likelihood(reply), relevant, supported, useful)


def _likelihood(reply: Generation) -> float:
    return math.exp(mean_logprob(reply)) if reply.tokens else 0.0
