"""The two kinds of cache: the model under each, and how it is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.types import Generation, GenerationSettings
from tests.dur_parts import Nonsense


class Answers:
    """Says a prompt two hundred times; `asked` has all it was asked for."""

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.asked: list[str] = []

    def generate(self, prompts: Sequence[str], settings: Any = GenerationSettings()) -> list:
        self.asked += prompts
        return [Generation(f"{self.name}: {prompt * 200}") for prompt in prompts]


class Vectors(Nonsense):
    """An encoder of long vectors."""

    def __init__(self, name: str = "model") -> None:
        super().__init__(300, name)
        self.asked = self.texts

    def encode(self, texts: Sequence[str]) -> Any:
        return super().encode(texts) + len(self.name)


@dataclass(frozen=True)
class Kind:
    cached: Any
    model: Any
    method: str
    noun: str

    def told(self, asked: Any, texts: Sequence[str]) -> list[object]:
        """What a cache or a model says to these texts, every bit of it."""
        found = getattr(asked, self.method)(texts)
        return [one if isinstance(one, Generation) else one.tobytes() for one in found]


KINDS = {
    "answers": Kind(CachedLLM, Answers, "generate", "answer cache"),
    "vectors": Kind(CachedEncoder, Vectors, "encode", "vector cache"),
}
