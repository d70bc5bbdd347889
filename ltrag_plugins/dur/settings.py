"""What can be set about DUR, and the presets."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, Self, get_args

from ltrag_plugins.dur.prompts import PromptFormat, format_for
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.types import Question

RewardFunction = Callable[[str, Question], float]
"""From what the model answered and the question to a reward; larger is better."""
Reward = Literal["auto", "match", "p_gold", "log_p_gold", "f1", "rouge_l", "bleu"]
Preselect = Literal["bm25", "encoder", "both", "none"]


@dataclass(frozen=True, slots=True)
class DURSettings:
    """How a head is trained and used; the defaults are what measured best (docs/dur.md).

    Raises:
        InvalidInput: a value is out of its range.
    """

    format: str | PromptFormat = "Q-A"
    """Name of a prompt format ("Q-A", "QO-A", "SQO-A", "passages"), or one of your own."""
    shots: int = 5
    """K: most shots in a prompt (paper: 5)."""
    preselected: int = 20
    """|C'|: candidates that are ranked for each question (paper: 20)."""
    preselect: Preselect = "both"
    """Who chooses them: BM25 (paper), nearness of the encoder's vectors, the two in turn, or
    nobody (all)."""
    reward: Reward | RewardFunction = "auto"
    """What the model's reply is worth: "match" +1 or -1; "p_gold" and "log_p_gold" the
    probability of the right option or of the reference text; "f1", "rouge_l", "bleu" +1 above
    `threshold`, else -1; or a function. "auto": "log_p_gold" where the model scores given text,
    else "match"."""
    threshold: float = 0.5
    """For "f1", "rouge_l" and "bleu", 0 to 1."""
    option_calibration: Literal["none", "content-free", "batch"] = "none"
    """Take out what the model thinks of the options whatever the question: measured on a
    content-free question, or as the mean over a batch of questions."""
    initial: Literal["random", "encoder"] = "encoder"
    """The head before training: random (paper), or ranking by the encoder's own vectors."""
    dim: int = 128
    """Rows of the head (authors' code: 128)."""
    sharpness: float = 1.0
    """Standard deviation of the scores of an "encoder" head, before the softmax; above 0."""
    exploration: Literal["top", "sample"] = "sample"
    """Shots of a training ladder: the best so far (paper), or drawn without replacement."""
    replacement: bool = False
    """Log-probability of a pick: of the full softmax (paper), or Plackett-Luce."""
    rungs: Literal["all", "last"] = "all"
    """Ask with 0, 1, ..., k shots, or with k shots alone (PromptPG)."""
    credit: Literal["outcome", "change"] = "change"
    """What shot j is credited with: the reward of the prompt it completes (paper), or what it
    changed in it."""
    advantage: bool = True
    """Centre the credits of a batch rung by rung, and scale them; False: raw rewards (paper)."""
    sigma: Literal["immediate", "batch", "off"] = "batch"
    """When eq. 10 moves the threshold: at once (algorithm 1), after each batch by the mean of
    the batch (authors' code), or never."""
    stop_at_turn: bool = False
    """End a ladder where the answer turns from right to wrong (authors' code)."""
    least_shots: float | None = 1.0
    """Shots a question that sigma must leave on average; None: no floor (paper)."""
    budget: float | None = 0.6
    """Most shots in the prompts of a batch, all rungs together, as a share of `shots` a
    question (what PromptPG asks with); None: no bound (paper)."""
    batch_size: int = 20
    """Questions between two steps of the optimizer (paper: 20)."""
    epochs: int = 10
    """Passes over the validation questions (paper: 10)."""
    learning_rate: float = 3e-3
    """Of Adam (authors' code: 1e-4)."""
    pull: float = 0.0
    """Strength, at least 0, with which the head is pulled back to where it began."""
    held_out: float = 0.2
    """Share of the validation questions that training does not see, 0 to below 1. After it, the
    trained head is kept unless the one that it began with is better on these by more than the
    standard error, and the number of shots to answer with is the one that served all questions
    best. 0, or fewer than 10 held out: the trained head, with K shots (paper)."""
    seed: int = 0
    """Of the random head, the order of the questions and the draws."""

    def __post_init__(self) -> None:
        format_for(self.format)
        for name, least in _LEAST.items():
            value: Any = getattr(self, name)
            whole = isinstance(value, Integral)
            if isinstance(least, int) and not whole:
                raise InvalidInput(f"{name} must be a whole number, got {value!r}")
            if value is not None and not value >= least:
                raise InvalidInput(f"{name} must be at least {least}, got {value!r}")
        for name in ("sharpness", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} must be above 0, got {getattr(self, name)!r}")
        for field in fields(self):
            choices = _CHOICES.get(field.name)
            value = getattr(self, field.name)
            own = field.name == "reward" and callable(value)
            if choices and value not in choices and not own:
                raise InvalidInput(f"{field.name} must be one of {choices}, got {value!r}")
        if not self.held_out < 1:
            raise InvalidInput(f"held_out must be below 1, got {self.held_out!r}")
        if not 0 <= self.threshold <= 1:
            raise InvalidInput(f"threshold must lie in [0, 1], got {self.threshold!r}")
        if self.rungs == "last" and self.credit == "change":
            raise InvalidInput(
                "with rungs='last' nobody knows what one shot changed; set credit='outcome'"
            )

    @classmethod
    def paper(
        cls,
        *,
        sigma: Literal["immediate", "batch"] = "immediate",
        format: str | PromptFormat = "Q-A",
        seed: int = 0,
    ) -> Self:
        """Algorithm 1 to the letter; "batch" is the reading of the authors' code.

        It is kept to reproduce the paper. With a small model it loses to nearest neighbours;
        docs/dur.md has the figures.
        """
        return cls(
            format=format,
            preselect="bm25",
            reward="match",
            initial="random",
            exploration="top",
            replacement=True,
            credit="outcome",
            advantage=False,
            sigma=sigma,
            stop_at_turn=sigma == "batch",
            least_shots=None,
            budget=None,
            learning_rate=1e-4,
            held_out=0.0,
            seed=seed,
        )

    @classmethod
    def promptpg(
        cls,
        *,
        preselect: Preselect = "none",
        format: str | PromptFormat = "Q-A",
        seed: int = 0,
    ) -> Self:
        """PromptPG: the same head, one reward for the whole set of K shots, no threshold.

        References:
            Lu et al., ICLR 2023, "Dynamic Prompt Learning via Policy Gradient for
            Semi-structured Mathematical Reasoning", section 4 and algorithm 1.
        """
        return cls(
            format=format,
            preselect=preselect,
            reward="match",
            initial="random",
            exploration="sample",
            replacement=True,
            rungs="last",
            credit="outcome",
            advantage=False,
            sigma="off",
            least_shots=None,
            budget=None,
            learning_rate=1e-4,
            held_out=0.0,
            seed=seed,
        )


_LEAST = {
    "shots": 1,
    "preselected": 1,
    "dim": 1,
    "batch_size": 1,
    "epochs": 0,
    "pull": 0.0,
    "least_shots": 0.0,
    "budget": 0.0,
    "held_out": 0.0,
}
_CHOICES = {
    "preselect": get_args(Preselect),
    "reward": get_args(Reward),
    "option_calibration": ("none", "content-free", "batch"),
    "initial": ("random", "encoder"),
    "exploration": ("top", "sample"),
    "rungs": ("all", "last"),
    "credit": ("outcome", "change"),
    "sigma": ("immediate", "batch", "off"),
}
