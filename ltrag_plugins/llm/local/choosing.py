"""Choose the next token, and read off how likely it was."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_extra("torch", "local") from error

ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """One token and the distribution it came from; log-probabilities and entropy in nats."""

    token: int
    logprob: float
    entropy: float
    likeliest: tuple[tuple[int, float], ...]
    """Token and log-probability, best first."""


def readings(
    logits: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, " rows"]
) -> list[Reading]:
    """The tokens under the untempered softmax of the logits."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    best, which = logprobs.topk(min(ALTERNATIVES, logprobs.shape[-1]), dim=-1)
    return [
        Reading(token, logprob, nats, tuple(zip(ids, values, strict=True)))
        for token, logprob, nats, ids, values in zip(
            tokens.tolist(),
            chosen.clamp_max(0).tolist(),
            entropy.tolist(),
            which.tolist(),
            best.clamp_max(0).tolist(),
            strict=True,
        )
    ]


def chosen(
    logits: Float[Tensor, "rows vocabulary"],
    temperature: float,
    dice: Sequence[np.random.Generator],
) -> Int[Tensor, " rows"]:
    """The next token of each row: the likeliest, or drawn with one throw of the row's dice."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    # float64: a float32 running sum over 262,144 tokens loses the small ones; MPS has no float64
    home = logits.to("cpu", torch.float64)
    heights = torch.softmax(home / temperature, dim=-1).cumsum(dim=-1)
    throws = torch.tensor([die.random() for die in dice], dtype=torch.float64)[:, None]
    drawn = torch.searchsorted(heights, throws * heights[:, -1:], right=True)[:, 0]
    return drawn.clamp_max(logits.shape[-1] - 1).to(logits.device)


def dice(prompt: str, seed: int | None) -> np.random.Generator:
    """Randomness that depends on the seed and the prompt, and on nothing else in the call."""
    if seed is None:
        return np.random.default_rng()
    digest = hashlib.blake2b(f"{seed}\0{prompt}".encode("utf-8", "surrogatepass"))
    return np.random.default_rng(int.from_bytes(digest.digest()[:16]))
