"""Training data for FILCO's filter: a prompt about a passage, and the sentences to keep of it.

References:
    Wang et al., 2023, "Learning to Filter Context for Retrieval-Augmented Generation", section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, fetch, together
from ltrag_plugins.methods.filco import FILTER_PROMPT, NONE, as_shown, filter_prompt
from ltrag_plugins.methods.filco_measures import (
    cross_mutual_information,
    lexical_overlap,
    sentences,
    string_inclusion,
)
from ltrag_plugins.methods.labelled import labelled
from ltrag_plugins.methods.method import whole
from ltrag_plugins.prompts.templates import filled
from ltrag_plugins.types import Passage, Question

Measure = Literal["inclusion", "overlap", "cxmi"]


@dataclass(frozen=True, slots=True)
class FilterDataSettings:
    """Which sentences a filter is taught to keep.

    Raises:
        InvalidInput: a value is out of its range.
    """

    measure: Measure = "inclusion"
    """"inclusion" of an accepted answer, lexical "overlap" with one, or "cxmi" (which needs a
    model that tells how likely a text is). The paper finds the first best for short answers, the
    second for dialogue, the third for questions of several steps."""
    threshold: float = 0.0
    """A sentence is kept only above it; 0 keeps what helps at all. In [0, 1] for "inclusion" and
    "overlap", in nats for "cxmi"."""
    most: int = 1
    """Sentences to keep of a passage, the best first, at least 1 (authors' code: 1)."""
    k: int = 3
    """Passages to fetch for a question that has none of its own, at least 1."""
    template: str = FILTER_PROMPT
    """The filter's prompt; `{passage}` and `{question}` are replaced."""

    def __post_init__(self) -> None:
        if self.measure not in get_args(Measure):
            raise InvalidInput(
                f"measure must be one of {', '.join(get_args(Measure))}; got {self.measure!r}"
            )
        filled(self.template, passage="", question="")
        whole("most", self.most)
        whole("k", self.k)


@dataclass(frozen=True, slots=True)
class FilterExample:
    """What the filter is asked, and what it should write."""

    prompt: str
    reply: str

    @property
    def chat(self) -> dict[str, list[dict[str, str]]]:
        """As one line of chat JSON: a user's message, then an assistant's."""
        said = {"user": self.prompt, "assistant": self.reply}
        return {"messages": [{"role": role, "content": text} for role, text in said.items()]}


def filter_examples(
    questions: Sequence[Question], settings: FilterDataSettings | None = None
) -> Flow[list[FilterExample]]:
    """An example for each question and passage; at most one search and one request for all.

    Only sentences that the prompt shows are taught, so of a longer passage those of its first 200
    words. A passage with none above the threshold teaches the filter to say "none".

    Raises:
        CalibrationError: there are no questions.
        MissingReferences: a question has no accepted answer.
        NoTokenProbabilities: "cxmi", and the model cannot tell how likely a given text is.
    """
    settings = settings or FilterDataSettings()
    questions = labelled(questions, "filco")
    passages = yield from together([_passages(question, settings.k) for question in questions])
    made = yield from together(
        [_examples(q, found, settings) for q, found in zip(questions, passages, strict=True)]
    )
    return [example for examples in made for example in examples]


def best_sentences(
    candidates: Sequence[str], values: Sequence[float], *, threshold: float, most: int
) -> list[str]:
    """At most `most` sentences with the largest values above `threshold`, in the text's order."""
    above = [i for i, value in enumerate(values) if value > threshold]
    chosen = sorted(above, key=lambda i: -values[i])[:most]
    return [candidates[i] for i in sorted(chosen)]


def _passages(question: Question, k: int) -> Flow[list[Passage]]:
    if question.passages:
        return list(question.passages)
    [found] = yield from fetch(question.text, k=k)
    return found


def _examples(
    question: Question, passages: Sequence[Passage], settings: FilterDataSettings
) -> Flow[list[FilterExample]]:
    # a prompt has single spaces, and the filter is to copy it
    split = [[" ".join(s.split()) for s in sentences(as_shown(p).text)] for p in passages]
    values = yield from _values(question, [s for found in split for s in found], settings.measure)
    rest, examples = iter(values), []
    for passage, found in zip(passages, split, strict=True):
        own = [next(rest) for _ in found]
        kept = best_sentences(found, own, threshold=settings.threshold, most=settings.most)
        prompt = filter_prompt(question.text, passage, settings.template)
        examples.append(FilterExample(prompt, " ".join(kept) or NONE))
    return examples


def _values(question: Question, found: Sequence[str], measure: Measure) -> Flow[list[float]]:
    if measure == "cxmi":
        if not found:
            return []
        answer = question.answers[0]
        return (yield from cross_mutual_information(question.text, answer, found))
    value = string_inclusion if measure == "inclusion" else lexical_overlap
    return [value(sentence, question.answers) for sentence in found]
