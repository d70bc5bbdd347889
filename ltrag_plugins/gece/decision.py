"""What a gate says about one question, and any flow behind a gate.

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", section 4.2: retrieve for long-tail questions, else answer directly.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, ModelError, PromptTooLong, checked
from ltrag_plugins.flow import Flow, World
from ltrag_plugins.prompts.templates import NOT_TEXT, standalone
from ltrag_plugins.types import Answer, Generation, Passage

try:
    from opentelemetry import trace
except ImportError:  # attributes are set where the application traces
    trace = None

_logger = logging.getLogger(__name__)

Tier = Literal["gradients", "probabilities", "text"]
"""What a gate reads: local weights, token probabilities, or nothing but text."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to retrieve for one question, and why."""

    question: str
    retrieve: bool
    score: float
    """What the gate compares with its threshold; larger means more long-tail. Infinity where the
    model failed and `guarded` decided."""
    probability: float
    """Calibrated probability, 0 to 1, that the direct answer fails."""
    tier: Tier
    reason: str
    """One sentence for a person."""
    draft: Generation = field(repr=False)
    """The zero-shot answer that the gate read; without retrieval it is the answer."""
    ingredients: Mapping[str, float] = field(default_factory=dict, repr=False)
    """The signals behind the score, by name."""
    learning: ClassVar[bool] = False
    """Whether a gate that has not learned yet decided, which retrieves for everything."""
    history: ClassVar[Sequence[tuple[str, str]]] = ()
    """The turns before a question that such a gate left as it was."""

    def __post_init__(self) -> None:
        # a gate of one's own may give NumPy's numbers: JSON refuses them, SQLite keeps bytes
        for name, plain in (("retrieve", bool), ("score", float), ("probability", float)):
            if type(value := getattr(self, name)) is not plain:
                object.__setattr__(self, name, plain(value))

    @property
    def answer(self) -> str:
        """The draft's text without surrounding white space."""
        return self.draft.text.strip()

    def as_passage(self) -> Passage:
        """The draft in a passage's place, marked by metadata `gece`, for what reads passages."""
        text = f"Question: {self.question}\nAnswer: {self.answer}"
        return Passage(text, metadata={"gece": self.as_metadata()})

    def as_metadata(self) -> dict[str, Any]:
        """The decision as plain values for traces, run metadata and JSON (without the draft)."""
        names = ("retrieve", "score", "probability", "tier", "reason")
        plain = {name: getattr(self, name) for name in names}
        score = self.score if math.isfinite(self.score) else None  # JSON has no infinity
        read = {name: float(value) for name, value in self.ingredients.items()}
        return plain | {"score": score, "ingredients": read}


class Gate(Protocol):
    """What decides; `GECEGate` is one."""

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow that drafts an answer and decides whether to retrieve."""
        ...


@runtime_checkable
class DecidingGate(Gate, Protocol):
    """A gate that holds its model; what the integrations build on."""

    @property
    def world(self) -> World:
        """The model (and encoder) the gate drafts with."""
        ...


def checked_gate(gate: Any, on_error: str = "raise") -> DecidingGate:
    """The gate itself, if it and `on_error` are what an integration takes; else InvalidInput."""
    if on_error not in ("retrieve", "raise"):
        raise InvalidInput(f"on_error must be 'retrieve' or 'raise', got {on_error!r}.")
    return checked(gate, DecidingGate, "gate", "a gate (GECEGate.fit or GECEGate.load gives one)")


def warn_of_learning(gate: DecidingGate, name: str) -> None:
    """For a part that has no chain's answers to learn from."""
    if hasattr(gate, "learn"):
        _logger.warning("a gate learns in a GECERouter; a %s only asks it", name)


def guarded(
    question: str,
    gate: Gate,
    on_error: Literal["retrieve", "raise"] = "retrieve",
    *,
    history: Sequence[tuple[str, str]] = (),
    failed: ModelError | None = None,
    searches: bool = False,
) -> Flow[Decision]:
    """As `gate.deciding`; where the model fails, a decision to retrieve that says why.

    A question that holds `NOT_TEXT`, or comes right after one that does, retrieves. One with a
    `history` (see `prompts.templates.standalone`) is made to stand alone first, if the gate takes
    it for one; a gate that has not learned yet does not read it, so it stays as it is unless the
    decision's question `searches`. What made it stand alone elsewhere may have `failed`.

    A model fails that cannot be reached, gives no token probabilities where the gate reads them,
    sends what cannot be used, or has its answer cut by a content filter. The decision then has an
    empty draft and the probability 1, and a warning goes to the log.

    Raises:
        ModelError: the model failed, and `on_error` is "raise".
        EmptyQuestion, PromptTooLong: as `gate.deciding`, where `on_error` is "raise"; else a text
            without a word (an emoji) or too long a one retrieves too. A blank text is refused.
        InvalidInput: as `gate.deciding`, whatever `on_error` is.
    """
    why = "the input holds what is no text, as an image or a command"
    if NOT_TEXT in question:
        return _announced(_blind(question.replace(NOT_TEXT, "") or question, why))
    try:
        if failed:
            raise failed
        turn = _check_turn(question, gate, history) if history else None
        unread = None if searches else turn
        if unread is None:
            question = yield from standalone(question, history)
        if shows(history):
            return _announced(_blind(question, why))
        decision = unread or (yield from gate.deciding(question))
        if getattr(decision.draft, "finish_reason", None) == "content_filter":
            raise ModelError("a content filter cut the model's answer; ask something else")
        return _announced(decision)
    except (ModelError, EmptyQuestion, PromptTooLong) as error:
        if on_error == "raise" or not question.strip():
            raise
        why = "this is no question for the gate"
        if isinstance(error, ModelError):
            why = "the gate's model failed"
            _logger.warning("the gate's model failed, so the question retrieves: %s", error)
        return _announced(_blind(question, why, error))


def shows(history: Sequence[tuple[str, str]]) -> bool:
    """Whether a person's last turn holds what is no text, which a follow-up may be about."""
    return NOT_TEXT in "".join([text for who, text in history if who == "human"][-1:])


def _check_turn(question: str, gate: Gate, history: Sequence[tuple[str, str]]) -> Decision | None:
    """Raise what the gate raises of a turn before it asks anything; the decision of one that has
    not learned yet."""
    with closing(gate.deciding(question)) as flow:
        try:
            next(flow)
        except StopIteration as end:
            if getattr(end.value, "learning", False):
                object.__setattr__(end.value, "history", tuple(history))
                return end.value
    return None


def _blind(question: str, why: str, *error: object) -> Decision:
    """To retrieve, as the gate could not read the question."""
    reason = ": ".join(map(str, (f"{why}, so nothing spoke against retrieval", *error)))
    return Decision(question, True, math.inf, 1.0, "text", reason, Generation(""))


def question_digest(question: str) -> str:
    """16 hex digits that tell a question from others without its text."""
    return hashlib.sha256(question.strip().encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _announced(decision: Decision) -> Decision:
    """A line in the log, where it is heard, and attributes of the OpenTelemetry span around; the
    question's text only where the level is DEBUG."""
    heard, span = _logger.isEnabledFor(logging.INFO), trace and trace.get_current_span()
    if not heard and not (span and span.is_recording()):
        return decision
    told = decision.as_metadata() | {"question": decision.question}
    del told["ingredients"]
    if not _logger.isEnabledFor(logging.DEBUG):  # a model's error may quote the question
        told["question"] = question_digest(decision.question)
        told["reason"] = decision.reason.partition(": ")[0]
    short = {n: f"{v:.3g}" if isinstance(v, float) else repr(v) for n, v in told.items()}
    _logger.info("gece %s", " ".join(f"{name}={value}" for name, value in short.items()))
    if span:
        span.set_attributes({f"gece.{name}": v for name, v in told.items() if v is not None})
    return decision


def routed(question: str, gate: Gate, retrieving: Callable[[str], Flow[Answer]]) -> Flow[Answer]:
    """The gate's draft where it is good enough, else the answer of the retrieving flow."""
    return (yield from decided(question, gate, retrieving))[0]


def decided(
    question: str, gate: Gate, retrieving: Callable[[str], Flow[Answer]]
) -> Flow[tuple[Answer, Decision]]:
    """As `routed`, with the decision."""
    decision = yield from gate.deciding(question)
    if decision.retrieve:
        return (yield from retrieving(question)), decision
    draft = Answer(decision.answer, uncertainty=decision.probability, trace=(decision.draft,))
    return draft, decision
