"""What `ltrag dur` reads: what is ranked, and the questions it is ranked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ltrag_plugins.data import read_candidates, read_passages, read_questions
from ltrag_plugins.dur.prompts import PromptFormat, Shot, text_of
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Passage, Question


@dataclass(frozen=True, slots=True)
class Material:
    """Labelled questions and their candidates."""

    candidates: Sequence[Shot] | None
    """Shared by all questions; None: each question has passages of its own."""
    questions: Sequence[Question]

    @property
    def told(self) -> str:
        """How many of what."""
        if self.candidates is None:
            kind = f"{sum(len(q.passages) for q in self.questions)} passages of their own"
        else:
            kind = f"{len(self.candidates)} {_kind(self.candidates)}"
        return f"{kind}, {len(self.questions)} questions"

    @property
    def texts(self) -> list[str]:
        """All that is encoded."""
        asked = [question.text for question in self.questions]
        if self.candidates is not None:
            return [*asked, *map(text_of, self.candidates)]
        return [*asked, *(text_of(p) for q in self.questions for p in q.passages)]


def read_material(files: Sequence[Path], *, own_passages: bool, limit: int | None) -> Material:
    """From CANDIDATES and QUESTIONS; with `own_passages`, from QUESTIONS and perhaps a pool.

    Raises:
        InvalidInput: a line cannot be used; the message names file, line and field.
    """
    *before, path = files
    if not own_passages:
        candidates = read_candidates(before[0], solved=True)
        return Material(candidates, read_questions(path, require_answers=True)[:limit])
    pool = read_passages(before[0]) if before else ()
    questions = read_questions(path, require_answers=True, pool=pool)[:limit]
    for number, question in enumerate(questions, start=1):
        if not question.passages:
            raise InvalidInput(
                f"{path}, record {number} (id {question.id!r}): no passages of its own; add "
                "'passages', or 'passage_ids' and the pool as CANDIDATES.jsonl"
            )
    return Material(None, questions)


def format_for(candidates: Sequence[Shot] | None) -> str:
    """The prompt format that shows all there is in these candidates."""
    if candidates is None or _kind(candidates) == "passages":
        return "passages"
    examples = [c for c in candidates if isinstance(c, Question)]
    if not all(example.options for example in examples):
        return "Q-A"
    return "SQO-A" if all(example.context for example in examples) else "QO-A"


def check_format(name: str | PromptFormat, candidates: Sequence[Shot] | None) -> None:
    """Refuse a format that would show nothing of the candidates.

    Raises:
        InvalidInput: passages in a format for solved examples, or the other way round.
    """
    if isinstance(name, PromptFormat):
        return
    kind = "passages" if candidates is None else _kind(candidates)
    shown = "passages" if name == "passages" else "solved examples"
    if kind != shown:
        raise InvalidInput(
            f"the format {name!r} shows {shown}, and the candidates are {kind}; use "
            f"{'the format ' + repr(format_for(candidates))}, or other candidates"
        )


def _kind(candidates: Sequence[Shot]) -> str:
    return "passages" if isinstance(candidates[0], Passage) else "solved examples"
