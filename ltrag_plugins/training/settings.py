"""What can be set about training data and about fine-tuning."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.metrics.answer import Correct, is_right
from ltrag_plugins.settings import Count, Percent, Positive, Range, Settings, Share, Whole

_BelowOne = Annotated[float, Range(0, below=1)]


@dataclass(frozen=True, slots=True)
class FinetuneSettings(Settings):
    """The paper's numbers, and for what it does not say those of the tool it used.

    Source: Chen et al. (SGIC), appendix A.1: LoRA for Llama-2-7B and full tuning for Phi-3.5-mini.
    """

    method: Literal["lora", "full"] = "lora"
    """"lora" learns a small adapter beside the frozen weights; "full" changes all of them."""
    epochs: Count = 3
    """Passes over the examples (paper: 3)."""
    learning_rate: Positive = 5e-5
    """At its highest (paper: 5e-5); small models learn more at 2e-4."""
    batch: Count = 16
    """Examples in a step (paper: 16)."""
    micro_batch: Count | None = None
    """Examples computed at once; must divide `batch`. None: 1 on the CPU, elsewhere as many as
    16,384 tokens hold."""
    rank: Count = 8
    """Of the adapter's matrices (LLaMA-Factory: 8); not for "full"."""
    alpha: Positive | None = None
    """The adapter counts alpha / rank times. None: twice the rank (LLaMA-Factory)."""
    dropout: _BelowOne = 0.0
    """Share of an adapter's inputs left out while training (LLaMA-Factory: 0)."""
    layers: Count | None = None
    """Put the adapter beside the last so many layers alone. None: all; not for "full"."""
    max_tokens: Count | None = None
    """Longest prompt and answer together; longer ones are left out. None: what the model reads."""
    held_out: _BelowOne = 0.05
    """Share of the questions kept for the validation loss."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: _BelowOne = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Range(0)] = 0.0
    """AdamW's."""
    clip: Positive = 1.0
    """Longest gradient; longer ones are shortened to it."""
    steps: Count | None = None
    """Most steps, if `epochs` makes more. None: no bound."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, a third slower."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen weights; "auto": float32 on the CPU and bfloat16 on a GPU."""
    save_every: Count = 20
    """Steps between checkpoints."""
    seed: Whole = 0
    """Of the adapter's first numbers, the order, the dropout and what is held out."""

    def _check_together(self) -> None:
        if self.micro_batch is not None and self.batch % self.micro_batch:
            raise InvalidInput(f"micro_batch {self.micro_batch} must divide batch {self.batch}.")
        if self.method == "full" and self.layers is not None:
            raise InvalidInput("layers is for method='lora'; full tuning trains all of them.")
        if self.method == "full" and self.dtype == "bfloat16":
            raise InvalidInput("full tuning in bfloat16 loses small steps; use dtype='auto'.")


@dataclass(frozen=True, slots=True)
class CorpusSettings(Settings):
    """Which examples are made of calibrated questions."""

    form: Literal["sgic", "direct"] = "sgic"
    """"sgic": prompts of the rounds. "direct", the baseline: plain first prompts, accepted answers,
    and no call of a model."""
    include_direct: Literal["all", "kept", "none"] = "all"
    """Whether the plain first prompts are added: of all questions, of those that got right, or none
    (paper). First answers are given from such prompts; without them their form is unlearned."""
    keep_wrong: Share = 0.0
    """Share of the questions never right that stay, with the accepted answer (paper: 0)."""
    right: Literal["em", "f1", "contains"] | Callable[[str, Sequence[str]], float] = "em"
    """When an answer is right: exact match after SQuAD's normalization (paper), word F1, one that
    contains an accepted one, or a function of yours, from an answer and the accepted ones to how
    right it is, 0 to 1."""
    right_from: Annotated[float, Range(above=0, most=1)] = 0.8
    """The least value of `right` with which an answer is right."""
    certain_below: Percent = 50.0
    """A right first answer with a score, 0-100, under this is the target as it stands; a less
    certain one is replaced by the accepted answer. 50 is the mean of first answers."""
    seed: int = 0
    """Of the draw of `keep_wrong`."""

    @classmethod
    def paper(cls) -> Self:
        """Section 3.3 to the letter: examples of the rounds alone, wrong questions dropped."""
        return cls(include_direct="none")

    def is_right(self, answer: str, references: Sequence[str]) -> bool:
        """Whether the answer is right (a blank one never is); `InvalidInput` if `right` fails."""
        if not answer.strip():
            return False
        if not callable(self.right):
            metric: Correct = "normalized_exact_match" if self.right == "em" else self.right
            return is_right(answer, references, metric, least=self.right_from)
        try:
            value = float(self.right(answer, references))
        except Exception as error:
            raise InvalidInput(f"'right' raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise InvalidInput(f"the function of 'right' gave {value} for {answer[:60]!r}")
        return value >= self.right_from
