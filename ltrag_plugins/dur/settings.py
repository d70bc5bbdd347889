"""What can be set about DUR, and the presets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from ltrag_plugins.dur import Preset
from ltrag_plugins.dur.prompts import Encoded, PromptFormat, format_for
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.settings import Count, Positive, Range, Settings, Share, Whole
from ltrag_plugins.types import Question

_Reward = Literal["auto", "match", "contains", "p_gold", "log_p_gold", "f1", "rouge_l", "bleu"]
Preselect = Literal["bm25", "encoder", "both", "none"]

_AtLeast0 = Annotated[float, Range(0)]
_LEAST_HELD_OUT = 10  # questions; fewer would choose by chance
# what the paper and PromptPG have in common
_PUBLISHED: dict[str, Any] = {"reward": "match", "initial": "random", "replacement": True}
_PUBLISHED |= {"credit": "outcome", "advantage": False, "least_shots": None, "budget": None}
_PUBLISHED |= {"learning_rate": 1e-4, "held_out": 0.0}


@dataclass(frozen=True, slots=True)
class Bounds(Settings):
    """How much of a ranking is handed back."""

    top_n: Count | None = None
    """Most candidates; None: all that are above sigma."""
    sigma: Share = 0.0
    """Leave out what has a score of at most this (eq. 6); at 0 nothing is."""


@dataclass(frozen=True, slots=True)
class DURSettings(Settings):
    """How a head is trained and used. The defaults are what measured best in development; the
    results (docs/results/rankers.md) show the choice of `encoded` and `exploration` alone."""

    format: str | PromptFormat = "Q-A"
    """Name of a prompt format ("Q-A", "QO-A", "SQO-A", "passages"), or one of your own."""
    shots: Count = 5
    """K: most shots in a prompt (paper: 5)."""
    preselected: Count = 20
    """|C'|: candidates that are ranked for each question (paper: 20)."""
    preselect: Preselect = "both"
    """What chooses them: BM25 (paper), nearness of vectors, the two in turn, or nobody (all)."""
    encoded: Encoded = "question"
    """What of an example is encoded, and searched by BM25: its question, its "input" (authors'
    code: with statement and options), or the whole "example" (eq. 4: with its answer)."""
    reward: _Reward | Callable[[str, Question], float] = "auto"
    """What the model's reply is worth: +1 or -1 by "match", or by whether a written reply
    "contains" an accepted answer (authors' code); "p_gold" and "log_p_gold" the
    probability of the right option or of the reference; "f1", "rouge_l", "bleu" +1 above
    `threshold`, else -1; a function. "auto": "log_p_gold" if the model scores, else "match"."""
    threshold: Share = 0.5
    """For "f1", "rouge_l" and "bleu"."""
    option_calibration: Literal["none", "content-free", "batch"] = "none"
    """Take out what the model thinks of the options whatever the question: measured on a
    content-free question, or as the mean over a batch of questions."""
    initial: Literal["random", "encoder"] = "encoder"
    """The head before training: random (paper), or ranking by the encoder's own vectors."""
    dim: Count = 128
    """Rows of the head (authors' code: 128)."""
    sharpness: Positive = 1.0
    """Standard deviation of the scores of an "encoder" head, before the softmax."""
    exploration: Literal["top", "sample", "above", "cut"] = "sample"
    """The k_i shots of a training ladder: the best so far (paper), or drawn without replacement,
    from all candidates or from those "above" sigma; "cut": of K that are drawn, those above sigma
    (authors' code)."""
    likeliest: Literal["first", "last"] = "first"
    """Where in a prompt the shot that was drawn first, or ranks best, stands (authors' code: last,
    next to the question)."""
    replacement: bool = False
    """Log-probability of a pick: of the full softmax (paper), or Plackett-Luce."""
    rungs: Literal["all", "last"] = "all"
    """Ask with 0, 1, ..., k shots, or with k shots alone (PromptPG)."""
    credit: Literal["outcome", "change"] = "change"
    """What shot j is credited with: its prompt's reward (paper), or what it changed in it."""
    advantage: bool = True
    """Centre the credits of a batch rung by rung, and scale them; False: raw rewards (paper)."""
    sigma: Literal["immediate", "batch", "off"] = "batch"
    """When eq. 10 moves the threshold: at once (algorithm 1), after each batch by the mean of
    its ladders' first turns (authors' code), or never."""
    stop_at_turn: bool = False
    """End a ladder where the answer turns from right to wrong (authors' code)."""
    least_shots: _AtLeast0 | None = 1.0
    """Shots a question that sigma must leave on average; None: no floor (paper)."""
    budget: _AtLeast0 | None = 0.6
    """Most shots in the prompts of a batch, all rungs together, as a share of `shots` a
    question (what PromptPG asks with); None: no bound (paper)."""
    batch_size: Count = 20
    """Questions between two steps of the optimizer (paper: 20)."""
    epochs: Whole = 10
    """Passes over the validation questions (the paper names none; its 10 batches are one)."""
    learning_rate: Positive = 3e-3
    """Of Adam (authors' code: 1e-4)."""
    pull: _AtLeast0 = 0.0
    """Strength with which the head is pulled back to where it began."""
    held_out: Annotated[float, Range(0, below=1)] = 0.2
    """Share of the validation questions that training does not see. The trained head is kept unless
    the one before is better on these by more than the standard error; the number of shots is the
    one that served all questions best. 0, or fewer than 10: the trained head, K shots (paper)."""
    seed: Whole = 0
    """Of the random head, the order of the questions and the draws."""

    def _check_together(self) -> None:
        format_for(self.format)
        if self.rungs == "last" and self.credit == "change":
            why = "does not tell what a shot changed"
            raise InvalidInput(f"rungs='last' {why}; set credit='outcome'")

    @property
    def prompt_format(self) -> PromptFormat:
        """The format, with the likeliest shot where it belongs."""
        form = format_for(self.format)
        return form if self.likeliest == "first" else replace(form, best="last")

    def questions_learned(self, questions: int) -> int:
        """How many of so many questions are trained on; the others are held out."""
        held_out = round(self.held_out * questions)
        return questions if held_out < _LEAST_HELD_OUT else questions - held_out

    def batches(self, questions: int) -> int:
        """How many batches an epoch has over so many validation questions."""
        return -(-self.questions_learned(questions) // self.batch_size)

    @classmethod
    def preset(cls, name: Preset) -> Self:
        """The defaults, or another start: algorithm 1, its authors' "script", or PromptPG."""
        return cls() if name == "default" else getattr(cls, name)()

    @classmethod
    def paper(cls, *, seed: int = 0) -> Self:
        """Algorithm 1 to the letter, to reproduce the paper."""
        given = _PUBLISHED | {"sigma": "immediate", "encoded": "example", "seed": seed}
        return cls(**given, preselect="bm25", exploration="top")

    @classmethod
    def script(cls, *, seed: int = 0) -> Self:
        """The authors' published code, where it departs from algorithm 1: K shots are drawn and
        those not above sigma dropped, the likeliest stands next to the question, a reply is right
        that contains an answer, sigma is the mean of a batch, a ladder ends at its turn, and what
        is encoded has statement and options."""
        ours = {"exploration": "cut", "likeliest": "last", "encoded": "input", "seed": seed}
        given = _PUBLISHED | ours | {"reward": "contains", "sigma": "batch", "stop_at_turn": True}
        return cls(**given, preselect="bm25")

    @classmethod
    def promptpg(cls, *, preselect: Preselect = "none", seed: int = 0) -> Self:
        """PromptPG: the same head, one reward for the whole set of K shots, no threshold.

        Source: Lu et al., ICLR 2023, "Dynamic Prompt Learning via Policy Gradient for
        Semi-structured Mathematical Reasoning", section 4 and algorithm 1.
        """
        given = {"preselect": preselect, "seed": seed}
        return cls(**_PUBLISHED | given, exploration="sample", rungs="last", sigma="off")
