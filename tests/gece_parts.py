"""Questions, a model that knows half of them and is honest about it, and recorded outcomes."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ltrag_plugins.gece import Evidence, Outcome
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, Passage, Question, Token

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "pink")


def tokens_of(text: str, logprob: float) -> tuple[Token, ...]:
    """The words of a text as tokens, all of one log-probability, with their runner-up."""
    words = text.split(" ")
    spelled = [word if i == 0 else f" {word}" for i, word in enumerate(words)] if text else []
    rest = math.log(max(1e-6, (1 - math.exp(logprob)) / 2))
    likeliest = sorted([("x", logprob), ("y", rest)], key=lambda pair: -pair[1])
    return tuple(Token(word, logprob, alternatives=tuple(likeliest)) for word in spelled)


def said(text: str, logprob: float) -> Generation:
    return Generation(text, tokens_of(text, logprob))


def asked(prompt: str) -> str:
    """The question inside a prompt."""
    return prompt.rsplit("Question: ", 1)[1].removesuffix("\nAnswer:")


def questions(count: int = 60) -> list[Question]:
    return [
        Question(f"What is the colour of house {i}?", (COLOURS[i % 8],), id=str(i))
        for i in range(count)
    ]


def knows(question: str) -> bool:
    """The model has seen the houses with an even number."""
    return int(question.removesuffix("?").split()[-1]) % 2 == 0


def answer(prompt: str) -> Generation:
    """Right and sure (0.90 to 0.99) on what it knows, else wrong and unsure (0.3 to 0.6)."""
    question = asked(prompt)
    number = int(question.removesuffix("?").split()[-1])
    if f"house {number} is" in prompt or knows(question):
        return said(COLOURS[number % 8], math.log(0.99 - number % 10 / 100))
    return said("perhaps " + COLOURS[(number + 3) % 8], math.log(0.3 + number % 11 * 0.03))


def honest_llm(name: str = "honest", change: Callable[[Generation], Generation] | None = None):
    return ScriptedLLM(
        (lambda prompt: change(answer(prompt))) if change else answer,
        name=name,
    )


class Houses:
    """A retriever that finds the house in the question."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.queries.extend(queries)
        numbers = [int(query.removesuffix("?").split()[-1]) for query in queries]
        return [[Passage(f"house {n} is {COLOURS[n % 8]}")][:k] for n in numbers]


class Letters:
    """An encoder that counts letters."""

    def __init__(self, name: str = "letters") -> None:
        self.name = name

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        counts = [[text.lower().count(c) for c in "abcdefghij"] for text in texts]
        rows = np.array(counts, dtype=np.float32).reshape(len(counts), 10) + 0.1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def outcomes(
    fails: Iterable[int],
    certainty: Sequence[float],
    *,
    mended: Sequence[int] | None = None,
    extra: Sequence[float] | None = None,
) -> list[Outcome]:
    """Recorded outcomes: `certainty` is the probability of each draft's only token."""
    return [
        Outcome(
            Evidence(
                f"What is the colour of house {i}?",
                said(COLOURS[i % 8], math.log(certainty[i])),
                extra={} if extra is None else {"own": extra[i]},
            ),
            right=not fail,
            right_with_retrieval=None if mended is None else bool(mended[i]),
            quality=0.1 if fail else 0.9,
        )
        for i, fail in enumerate(fails)
    ]


def ladder(count: int = 40, *, noise: float = 0.15, seed: int = 0) -> list[Outcome]:
    """Outcomes whose failures follow the draft's uncertainty, with some noise."""
    rng = np.random.default_rng(seed)
    certainty = np.linspace(0.05, 0.95, count)
    fails = (rng.random(count) * noise * 2 - noise + certainty < 0.5).astype(int)
    return outcomes(fails, certainty.tolist())
