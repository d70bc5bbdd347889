"""How to fine-tune; see `finetune`.

What can be set about training data: when an answer is right, and which examples are made.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal, Self, get_args

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.answer import f1, normalized_exact_match

AT_LEAST_ONE = ("epochs", "batch", "micro_batch", "rank", "layers", "max_tokens", "steps")


@dataclass(frozen=True, slots=True)
class FinetuneSettings:
    """The paper's numbers, and for what it does not say those of the tool it used.

    Raises:
        InvalidInput: a value is out of range.

    References:
        Chen et al. (SGIC), appendix A.1: batch 16, learning rate 5e-5, 3 epochs, LoRA for
        Llama-2-7B and full tuning for Phi-3.5-mini, with LLaMA-Factory.
    """

    method: Literal["lora", "full"] = "lora"
    """"lora" learns a small adapter beside the frozen weights; "full" changes all of them."""
    epochs: int = 3
    """Passes over the examples, at least 1 (paper: 3)."""
    learning_rate: float = 5e-5
    """At its highest, above 0 (paper: 5e-5); small models learn more at 2e-4."""
    batch: int = 16
    """Examples in a step, at least 1 (paper: 16)."""
    micro_batch: int | None = None
    """Examples computed at once; must divide `batch`. None: 1 on the CPU, where more is no
    faster and padding is wasted; elsewhere as many as 16,384 tokens hold."""
    rank: int = 8
    """Of the adapter's matrices, at least 1 (LLaMA-Factory: 8); not for "full"."""
    alpha: float | None = None
    """The adapter counts alpha / rank times, above 0. None: twice the rank (LLaMA-Factory)."""
    dropout: float = 0.0
    """Share of an adapter's inputs left out while training, 0 to below 1 (LLaMA-Factory: 0)."""
    layers: int | None = None
    """Put the adapter beside the last so many layers alone, at least 1: those before them need no
    backward pass. None: all; not for "full"."""
    max_tokens: int | None = None
    """Longest prompt and answer together, in tokens; longer examples are left out and named in
    the result. None: what the model reads."""
    held_out: float = 0.05
    """Share of the questions kept for the validation loss, 0 to below 1."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises from 0; 0 to below 1."""
    weight_decay: float = 0.0
    """AdamW's, at least 0."""
    clip: float = 1.0
    """Longest gradient, above 0; longer ones are shortened to it."""
    steps: int | None = None
    """Most steps, at least 1, if `epochs` makes more. None: no bound."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, a third slower."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen weights; "auto" takes float32 on the CPU and bfloat16 on a GPU. What is
    trained is always float32."""
    save_every: int = 20
    """Steps between checkpoints, at least 1."""
    seed: int = 0
    """Of the adapter's first numbers, the order, the dropout and what is held out."""

    def __post_init__(self) -> None:
        for name in (*AT_LEAST_ONE, "save_every"):
            value = getattr(self, name)
            _check(value is None or value >= 1, name, value, "at least 1")
        for name in ("learning_rate", "alpha", "clip"):
            value = getattr(self, name)
            _check(value is None or 0 < value < math.inf, name, value, "a number above 0")
        for name in ("dropout", "held_out", "warmup"):
            value = getattr(self, name)
            _check(0 <= value < 1, name, value, "from 0 to below 1")
        _check(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "at least 0")
        _check(self.method in ("lora", "full"), "method", self.method, "'lora' or 'full'")
        _check(
            self.schedule in ("cosine", "linear", "constant"),
            "schedule",
            self.schedule,
            "'cosine', 'linear' or 'constant'",
        )
        _check(
            self.dtype in ("auto", "float32", "bfloat16"),
            "dtype",
            self.dtype,
            "'auto', 'float32' or 'bfloat16'",
        )
        if self.micro_batch is not None and self.batch % self.micro_batch:
            raise InvalidInput(
                f"micro_batch {self.micro_batch} does not divide batch {self.batch}; choose one "
                "that does, so that every step learns from as many examples."
            )
        if self.method == "full" and self.layers is not None:
            raise InvalidInput("layers is for method='lora'; full tuning trains all of them.")
        if self.method == "full" and self.dtype == "bfloat16":
            raise InvalidInput(
                "full tuning in bfloat16 loses steps smaller than its precision; use "
                "dtype='auto', which computes in bfloat16 on a GPU and keeps float32 weights."
            )


def _check(fine: bool, name: str, value: object, wanted: str) -> None:
    if not fine:
        raise InvalidInput(f"{name} is {value!r}; it must be {wanted}.")


Form = Literal["sgic", "direct"]
IncludeDirect = Literal["all", "kept", "none"]
Judge = Callable[[str, Sequence[str]], float]
"""From an answer and the accepted ones to how right it is, 0 to 1 (or a bool)."""
JUDGES: Mapping[str, Judge] = {"em": normalized_exact_match, "f1": f1}


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """Which examples are made of calibrated questions.

    Raises:
        InvalidInput: a value is out of its range.
    """

    form: Form = "sgic"
    """"sgic": prompts of the rounds. "direct": the plain first prompt of every question with its
    accepted answer, and no call of a model; tuned on that, a model is the baseline."""
    include_direct: IncludeDirect = "all"
    """Whether the plain first prompts are added, line for line those of form="direct": of all
    questions, of those that got right, or none (paper). A tuned model gives its first answer, and
    its answer to each document, from such prompts; without them it unlearns their form."""
    keep_wrong: float = 0.0
    """Share, 0 to 1, of the questions that never got right that stay, their last prompt with the
    accepted answer (paper: 0). For models that are right too rarely to learn from the rest."""
    right: Literal["em", "f1"] | Judge = "em"
    """When an answer is right: exact match after SQuAD's normalization (paper), word F1, or a
    function of yours."""
    right_from: float = 0.8
    """The least value of `right`, in (0, 1], with which an answer is right."""
    certain_below: float = 50.0
    """A right first answer with a score, 0-100, under this is the target as it stands; a less
    certain one is replaced by the accepted answer. 50 is the mean of first answers."""
    seed: int = 0
    """Of the draw of `keep_wrong`."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidInput(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        if not callable(self.right) and self.right not in JUDGES:
            raise InvalidInput(
                f"right must be one of {list(JUDGES)} or a function of an answer and the accepted "
                f"ones, got {self.right!r}"
            )
        _within("keep_wrong", self.keep_wrong, 0, 1)
        _within("certain_below", self.certain_below, 0, 100)
        _within("right_from", self.right_from, 0, 1)
        if not self.right_from:
            raise InvalidInput("right_from must be above 0; with 0 every answer is right")

    @classmethod
    def paper(cls) -> Self:
        """Section 3.3 to the letter: examples of the rounds alone, wrong questions dropped."""
        return cls(include_direct="none")

    def is_right(self, answer: str, references: Sequence[str]) -> bool:
        """Whether the answer is right; a blank one never is.

        Raises:
            InvalidInput: the function of `right` raised, or gave something else than a number.
        """
        if not answer.strip():
            return False
        judge = self.right if callable(self.right) else JUDGES[self.right]
        try:
            value = float(judge(answer, references))
        except Exception as error:
            raise InvalidInput(
                f"the function of 'right' raised {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(value):
            raise InvalidInput(f"the function of 'right' gave {value} for {answer[:60]!r}")
        return value >= self.right_from

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a function by its name."""
        right = self.right if isinstance(self.right, str) else named(self.right)
        return {**asdict(self), "right": right, "keep_wrong": float(self.keep_wrong)}


def named(function: Callable[..., object]) -> str:
    """What a function is called, to tell it from others in a manifest."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _within(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, Real) or not least <= float(value) <= most:
        raise InvalidInput(f"{name} must lie in [{least}, {most}], got {value!r}")


_CHOICES = {"form": get_args(Form), "include_direct": get_args(IncludeDirect)}
