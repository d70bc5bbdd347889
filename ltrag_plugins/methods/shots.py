"""Solved examples in front of a question: what "random-shots" and "bm25-shots" share.

References:
    Brown et al., NeurIPS 2020, "Language Models are Few-Shot Learners"; compared with by
    Yu et al., NAACL 2025 (DUR), section 6.1. Our wording.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.methods.labelled import labelled
from ltrag_plugins.methods.method import whole
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.prompts.templates import direct_prompt, filled
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Answer, Passage, Question

PROMPT = "Answer each question in a few words, as the examples do.\n\n{shots}\n\n{question}"
"""`{shots}` and `{question}` are replaced; other braces are left alone."""


@dataclass(frozen=True)
class ShotPool:
    """Solved examples to choose from."""

    examples: tuple[Question, ...]
    """Each with at least one accepted answer; the first is the one shown."""

    def others(self, question: Question) -> list[int]:
        """Indices of the examples that are not the question itself."""
        key = _key(question)
        return [i for i, found in enumerate(self._keys) if found != key]

    @cached_property
    def index(self) -> BM25Retriever:
        """BM25 over what the examples ask; built once, a passage's id is its example's index."""
        pool = [
            Passage(render_question(example), id=str(i)) for i, example in enumerate(self.examples)
        ]
        return BM25Retriever(pool, engine="auto")

    @cached_property
    def _keys(self) -> list[str]:
        return [_key(example) for example in self.examples]


def shot_pool(questions: Sequence[Question], method: str) -> Flow[ShotPool]:
    """Keep the labelled questions; asks nothing.

    Raises:
        CalibrationError: there are none.
        MissingReferences: one has no accepted answer.
    """
    yield from ()
    return ShotPool(labelled(questions, method))


def shots_prompt(
    shots: Sequence[Question],
    question: Question,
    template: str = PROMPT,
    *,
    context_words: int = 200,
) -> str:
    """The solved examples in their order, then the question; without examples, as in `direct`.

    Raises:
        InvalidInput: the template has no place for one of them.
    """
    query = render_question(question, context_words=context_words)
    if not shots:
        return direct_prompt(query)
    solved = "\n\n".join(
        f"Question: {render_question(shot, context_words=context_words)}\nAnswer: {shot.answers[0]}"
        for shot in shots
    )
    return filled(template, shots=solved, question=f"Question: {query}\nAnswer:")


def answer_after(
    shots: Sequence[Question],
    question: Question,
    *,
    template: str = PROMPT,
    context_words: int = 200,
    max_tokens: int = 24,
) -> Flow[Answer]:
    """One model call that shows the examples; its reply is read by `read_reply`."""
    prompt = shots_prompt(shots, question, template, context_words=context_words)
    [reply] = yield from ask(prompt, max_tokens=max_tokens, stop=("\n",))
    return Answer(read_reply(reply.text, question.options), trace=(reply,))


def check_shots(shots: object, template: str, context_words: object, max_tokens: object) -> None:
    """Check what both methods can be set to.

    Raises:
        InvalidInput: a value is out of its range.
    """
    filled(template, shots="", question="")
    whole("shots", shots)
    whole("context_words", context_words)
    whole("max_tokens", max_tokens)


def _key(question: Question) -> str:
    # with the context: "What does this text say?" may be asked of every text
    text = f"{question.text} {question.context}"
    return " ".join(words(text)) or text.strip()
