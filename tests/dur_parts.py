"""Small worlds for DUR: encoders of nonsense, models that answer by rule, houses and colours."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from ltrag_plugins.dur import DURSettings, DURTrainer, TrainingResult
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Question, Token

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "pink")
STREETS = ("Abbey", "Baker", "Canal", "Dover", "Elm", "Fleet", "Grove", "High", "Iron", "Jewry")


def number(text: str) -> int:
    """A large number that depends on the text alone, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


class Nonsense:
    """Unit vectors that follow from a hash of the text; `texts` has all it was asked for."""

    def __init__(self, dim: int = 12, name: str = "nonsense") -> None:
        self.dim, self.name = dim, name
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        rows = [np.random.default_rng(number(t)).normal(size=self.dim) for t in texts]
        unit = [row / np.linalg.norm(row) for row in rows]
        return np.array(unit, dtype=np.float32).reshape(len(texts), self.dim)


def houses(first: int, count: int) -> list[Question]:
    """Questions with a colour for an answer; a few words are shared by some of them."""
    streets = [(i, STREETS[number(f"street {i}") % 10]) for i in range(first, first + count)]
    text = "What colour is house {} in {} street?"
    return [Question(text.format(*one), (colour(one[0]),), id=str(one[0])) for one in streets]


def colour(house: int) -> str:
    return COLOURS[house % 8]


def asked(prompt: str) -> str:
    """The last question of a prompt."""
    return prompt.rsplit("Question: ", 1)[1].split("\n")[0]


def house(question: str) -> int:
    return int(question.split("house ")[1].split()[0])


def moody(prompt: str) -> str:
    """Right in six of ten prompts, by their hash; so ladders turn both ways."""
    right = colour(house(asked(prompt)))
    return f" The answer is {right if number(prompt) % 10 < 6 else 'grey'}."


def moody_llm(name: str = "moody") -> ScriptedLLM:
    return ScriptedLLM(moody, name=name)


class Scorer:
    """A model that scores given text: `tokens` makes the tokens of a (prompt, continuation)."""

    def __init__(
        self,
        tokens: Callable[[str, str], Sequence[Token] | None],
        *,
        says: Callable[[str], str] = moody,
        name: str = "scorer",
    ) -> None:
        self.name = name
        self.pairs: list[tuple[str, str]] = []
        self._tokens, self._llm = tokens, ScriptedLLM(says)

    @property
    def prompts(self) -> list[str]:
        return self._llm.prompts

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        return self._llm.generate(prompts, settings)

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Generation]:
        pairs = list(zip(prompts, continuations, strict=True))
        self.pairs += pairs
        told = [self._tokens(*pair) for pair in pairs]
        return [
            Generation(c, None if t is None else tuple(t), len(p.split()), len(t or ()))
            for (p, c), t in zip(pairs, told, strict=True)
        ]


def by_word(logprob: Callable[[str, str], float]) -> Callable[[str, str], list[Token]]:
    """Cuts a continuation into words with the space before each; the last one's log-probability
    is `logprob(prompt, last word)`, all others are certain."""

    def tokens(prompt: str, continuation: str) -> list[Token]:
        words = continuation.split(" ")
        pieces = [w if i == 0 else f" {w}" for i, w in enumerate(words)]
        pieces = [p for p in pieces if p]
        chances = [0.0] * (len(pieces) - 1) + [logprob(prompt, words[-1])]
        return [Token(p, c, alternatives=((p, c),)) for p, c in zip(pieces, chances, strict=True)]

    return tokens


CANDIDATES, VALIDATION = houses(100, 15), houses(1, 12)


def trained(
    settings: DURSettings,
    llm: object = None,
    candidates: Sequence | None = CANDIDATES,
    validation: Sequence[Question] = VALIDATION,
    *,
    encoder: object = None,
    **more: object,
) -> TrainingResult:
    trainer = DURTrainer(encoder or Nonsense(), llm or moody_llm(), settings=settings)
    return trainer.fit(candidates, validation, **more)


def numbers(result: TrainingResult) -> bytes:
    """All that was trained, to the last bit."""
    return result.ranker.head.weight.tobytes() + result.ranker.head.bias.tobytes()


def shots_of(prompt: str) -> list[str]:
    """The questions of the shots in a prompt, in their order."""
    return [part.split("\n")[0] for part in prompt.split("Question: ")[1:-1]]
