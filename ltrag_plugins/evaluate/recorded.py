"""Answers that a model gave elsewhere, in the place of the model: gates are judged without it.

Every search finds one passage; where it stands in the prompt, the model gives the answer with
retrieval, else the one without. So flows, gates and costs run as with the model itself.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import ClassVar, Self

from ltrag_plugins.data import read_texts
from ltrag_plugins.errors import InvalidInput, ModelError
from ltrag_plugins.flow import World
from ltrag_plugins.llm.base import Encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, Passage

_FOUND = "[what was retrieved then]"  # the text of the passage that every search finds


@dataclass(frozen=True, slots=True)
class Recording:
    """By question, the answer without retrieval and the one with it."""

    answers: Mapping[str, tuple[str, str]]

    METHODS: ClassVar = frozenset({"direct", "single", "gate-frequency", "skr"})
    """Those that ask for nothing but the two answers."""

    @classmethod
    def read(
        cls, paths: Iterable[str | PathLike[str]], fields: Sequence[str] = ("direct", "retrieved")
    ) -> Self:
        """The lines of these files: `question`, and the answers without retrieval and with it.

        Raises:
            BadRecord, InvalidInput: a line lacks its question or an answer; a file cannot be read
                or has no lines, or there are not two fields.
        """
        if len(fields) != 2:
            raise InvalidInput(f"recorded answers have two fields, got {', '.join(fields)!r}")
        rows = [row for path in paths for row in read_texts(path, "question", *fields)]
        if not rows or not all(question.strip() for question, *_ in rows):
            raise InvalidInput("there are no recorded answers, or one has an empty question")
        return cls({question.strip(): (direct, found) for question, direct, found in rows})

    def world(self, encoder: Encoder | None = None) -> World:
        """The recording as a model and a retriever."""
        content = json.dumps(sorted(self.answers.items())).encode()
        name = f"recorded@{hashlib.sha256(content).hexdigest()[:12]}"
        return World(llm=ScriptedLLM(self.answer, name=name), retriever=_Then(), encoder=encoder)

    def answer(self, prompt: str) -> Generation:
        """What the model answered to the last question in the prompt; `ModelError` without one."""
        known = [question for question in self.answers if question in prompt]
        if not known:
            raise ModelError(f"no answer was recorded for the question of {prompt[-80:]!r}")
        asked = max(known, key=lambda one: (prompt.rfind(one) + len(one), len(one)))
        direct, retrieved = self.answers[asked]
        return Generation(retrieved if _FOUND in prompt else direct)


class _Then:
    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[Passage(_FOUND, id="then")] for _ in queries]
