"""How to fine-tune; see `finetune`."""

import math
from dataclasses import dataclass
from typing import Literal

from ltrag_plugins.errors import InvalidInput

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
