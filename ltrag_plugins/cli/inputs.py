"""What a command reads: questions that can be asked, and passages to search."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ltrag_plugins.data import read_passages
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.draft import askable_question
from ltrag_plugins.prompts.question import render_question
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage, Question


def check_askable(questions: Sequence[Question], path: Path, max_words: int) -> None:
    """Let pass what a gate can ask.

    Raises:
        InvalidInput: a question has no words, or more than `max_words`; the message names the
            file and the record.
    """
    for number, question in enumerate(questions, start=1):
        try:
            askable_question(render_question(question), max_words)
        except InvalidInput as error:
            raise type(error)(f"{path}, record {number} (id {question.id!r}): {error}") from error


def retriever_of(pool: Path | None, questions: Sequence[Question]) -> BM25Retriever | None:
    """BM25 over a file of passages, or else over those of the questions; None without any.

    Raises:
        InvalidInput: the file cannot be read.
    """
    found = pool_of(pool, questions)
    return BM25Retriever(found, engine="auto") if found else None


def pool_of(path: Path | None, questions: Sequence[Question]) -> list[Passage]:
    """The passages of a file, or else those of the questions, each once.

    Questions may number their own passages; where an id then means several texts, all but the
    first get one of their own.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if path is not None:
        return read_passages(path)
    found: dict[tuple[str, str, str], Passage] = {}
    texts: Counter[str] = Counter()
    for passage in (passage for question in questions for passage in question.passages):
        key = (passage.id, passage.title, passage.text)
        if key not in found:
            texts[passage.id] += 1
            again = f"{passage.id}#{texts[passage.id]}"
            found[key] = passage if texts[passage.id] == 1 else replace(passage, id=again)
    return list(found.values())
