"""What `dataset.build` refuses, before anything is asked and where nothing is left."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import (
    ArtifactMismatch,
    CalibrationError,
    InvalidInput,
    MissingReferences,
)
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.sgic.dataset.corpus import LINES, MANIFEST, Example
from ltrag_plugins.sgic.dataset.settings import CorpusSettings
from ltrag_plugins.sgic.sanitize import one_line
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question

UNFINISHED = "unfinished.sqlite"
"""The model's answers so far, in the folder of data that is not done."""


def name_of(question: Question, number: int) -> str:
    """The question's id, or its place, counted from 1."""
    return question.id or f"question {number}"


def check_arguments(
    llm: LLM | None, settings: SGICSettings, corpus: CorpusSettings, batch: int
) -> None:
    """Refuse what would give no examples.

    Raises:
        InvalidInput: no model, no rounds, no batch, or the truth as a source of scores.
    """
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if corpus.form == "direct":
        return
    if llm is None:
        raise InvalidInput("no model to calibrate with; give the one to tune, or form='direct'")
    if not settings.rounds:
        raise InvalidInput(
            "with rounds=0 there is no prompt of a round to learn from; set rounds, or "
            "form='direct' for plain prompts"
        )
    if settings.source == "oracle":
        raise InvalidInput(
            "source='oracle' shows scores that no model will see again; train on those of the "
            "model (source='uncertainty')"
        )


def checked_questions(questions: Iterable[Question]) -> list[Question]:
    """The questions with their answers on one line each, blank ones left out.

    Raises:
        CalibrationError: there are none; one has no passages.
        MissingReferences: one has no accepted answers.
        InvalidInput: something else than a question came.
    """
    found = [_labelled(question, i) for i, question in enumerate(questions, 1)]
    if not found:
        raise CalibrationError("no questions to learn from; give some with answers and passages")
    return found


def _labelled(question: object, number: int) -> Question:
    if not isinstance(question, Question):
        raise InvalidInput(
            f"training data is made of Question(text, answers, ...), got {question!r:.60}"
        )
    name = name_of(question, number)
    if isinstance(question.answers, str):
        raise InvalidInput(f"the answers of question {name!r} are one string; put it in a tuple")
    answers = tuple(said for answer in question.answers if (said := one_line(answer)))
    if not answers:
        raise MissingReferences(
            f"question {name!r} has no accepted answers; add 'answers', or leave it out"
        )
    if not question.passages:
        raise CalibrationError(
            f"question {name!r} has no passages; add what your retriever finds for it, or leave it "
            "out"
        )
    return replace(question, answers=answers)


def checked_text(example: Example) -> Example:
    """The example, if a file can hold it.

    Raises:
        InvalidInput: it has half of a surrogate pair.
    """
    try:
        (example.prompt + example.target).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"question {example.id!r} has half of a surrogate pair in its texts, which is no "
            "character and cannot be written; repair it where it was read"
        ) from error
    return example


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot take the data.

    Raises:
        UnwritableArtifact: it cannot be made or written to.
        ArtifactMismatch: it holds a file that the data would replace.
    """
    with writing(folder), TemporaryFile(dir=folder):
        pass
    if (folder / LINES).exists() and not (folder / UNFINISHED).exists():
        raise ArtifactMismatch(
            f"{folder} holds a {LINES} and no {MANIFEST}, so it is not known whose it is. Name "
            "another folder, or move it away."
        )


def check_left(examples: Sequence[Example], questions: int, settings: SGICSettings) -> None:
    """Refuse data of plain prompts alone, which is what pruning leaves of a model that fails.

    Raises:
        CalibrationError: it is.
    """
    if any(example.kind != "direct" for example in examples):
        return
    raise CalibrationError(
        f"none of {questions} questions was answered right in any of {settings.rounds + 1} rounds "
        "(0 to k), so all were pruned. Keep them with their accepted answers (keep_wrong=1.0; "
        "--keep-wrong 1), call more answers right (right='f1'; --right f1), or take a better "
        "model; nothing is asked again with the same folder."
    )
