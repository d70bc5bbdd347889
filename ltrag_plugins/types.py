"""The plain values that pass between rooms: frozen, without behaviour."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.settings import Count, Range, check_fields


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a retriever found."""

    text: str
    id: str = ""
    title: str = ""
    score: float | None = None
    """As the retriever reports it; larger is better, the scale is the retriever's own."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        parts: tuple[Any, ...] = (self.text, self.id, self.title)
        for part in parts:
            if not isinstance(part, str):
                told = f"the text, id and title of a passage are texts, got {part!r:.60}"
                raise InvalidInput(f"{told}; write a number as '1984', and none as ''")
        if self.score is None:
            return
        try:  # retrievers give numpy's and torch's numbers
            object.__setattr__(self, "score", float(self.score))
        except (TypeError, ValueError) as error:
            wanted = "a number, larger is better, or None"
            raise InvalidInput(f"a passage's score is {self.score!r:.40}; give {wanted}") from error


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token, as the model reported it."""

    text: str
    logprob: float
    """Natural log of the model's probability for this token; at most 0."""
    entropy: float | None = None
    """Entropy in nats of the whole next-token distribution, where the model gives it."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens at this position with their log-probabilities, best first."""


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How a model writes; the same for all prompts of one call."""

    max_tokens: Count = 64
    """Most tokens to write, at least 1."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these; a text, or any sequence of texts, none empty."""
    temperature: Annotated[float, Range(0)] = 0.0
    """0 takes the likeliest token each time; else what the logits are divided by."""
    seed: int | None = None
    """Makes sampling repeatable where the provider can."""

    def __post_init__(self) -> None:
        check_fields(self)
        stop: Any = [self.stop] if isinstance(self.stop, str) else self.stop
        named = "stop", "a text, or a list of texts"
        texts = tuple(checked(text, str, *named) for text in checked(stop, Iterable, *named))
        object.__setattr__(self, "stop", texts)
        if "" in self.stop:
            raise InvalidInput("a stop string is empty; every text would end before it begins.")


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model wrote for one prompt."""

    text: str
    tokens: tuple[Token, ...] | None = None
    """None when the provider reports no token probabilities; never a guess."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = field(default=None, compare=False)
    """Its share of the call in which the model wrote it, where an answer cache measured that."""
    finish_reason: str | None = field(default=None, compare=False)
    """Why the text ends, in the provider's word ("stop", "length", "content_filter", ...)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its accepted answers and, where known, its passages."""

    text: str
    answers: tuple[str, ...] = ()
    id: str = ""
    passages: tuple[Passage, ...] = ()
    options: tuple[str, ...] = ()
    """What a multiple-choice question offers; the accepted answers are among them."""
    context: str = ""
    """What the question is about, where it comes with a text of its own."""

    def __post_init__(self) -> None:
        for text in (self.text, self.id, *([None] if self.answers is None else self.answers)):
            if not isinstance(text, str):
                told = f"questions, answers and ids are texts, got {text!r:.60}"
                remedy = "write a number as '1984', no answers as (), and no id as ''"
                raise InvalidInput(f"{told}; {remedy}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a flow returns."""

    text: str
    uncertainty: float | None = None
    """0 = certain, 1 = no idea; None when it was not measured."""
    passages: tuple[Passage, ...] = ()
    trace: tuple[Generation, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class GradientAgreement:
    """How an instance's gradient lies to the mean gradient of a data set."""

    dot: float
    """Dot product of the two gradients."""
    cosine: float | None = None
    """The dot product over both norms, in [-1, 1]; None when the norms were not asked for."""
