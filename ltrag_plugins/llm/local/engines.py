"""Choose how a model is run: the exact shared way where it holds, else the plain way."""

import logging

import numpy as np

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.engine import Engine, Ids
from ltrag_plugins.llm.local.masks import Windows
from ltrag_plugins.llm.local.memory import PrefixMemory
from ltrag_plugins.llm.local.plain import PlainEngine
from ltrag_plugins.llm.local.trees import TreeEngine

try:
    import torch
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error

log = logging.getLogger(__name__)

EXACT = frozenset(
    {
        "cohere",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "granite",
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    }
)
"""Families (`config.model_type`) whose shared prefixes the tests hold against their own passes."""
TOLERANCE = 1e-4
"""Mean difference of float32 log-probabilities that rounding explains."""


def best_engine(
    model: PreTrainedModel, *, batch_tokens: int, share: bool, memory: PrefixMemory | None = None
) -> Engine:
    """A `TreeEngine` if it gives this model's own log-probabilities, else a `PlainEngine`.

    Architectures differ in what they do with masks and positions handed in. Those in `EXACT`
    are known to be right; any other is tried on three short sequences, at the price of a few
    short passes and in float32 only, as half precision would drown the difference.
    """
    plain = PlainEngine(model, batch_tokens=batch_tokens)
    windows = Windows.of(model.config.get_text_config())
    # kernels other than these two do not read a mask of our making
    if windows is None or model.config._attn_implementation not in ("sdpa", "eager"):
        return _without_sharing(model, plain, "its kind of attention takes no masks of ours")
    trees = TreeEngine(model, windows, batch_tokens=batch_tokens, share=share, memory=memory)
    if model.config.model_type in EXACT:
        return trees
    if model.dtype != torch.float32:
        return _without_sharing(model, plain, "its family is not known; float32 could be tried")
    try:
        with torch.inference_mode():
            difference = _difference(trees, plain, model.config.get_text_config().vocab_size)
    except Exception as error:  # an architecture may refuse masks and positions in any way
        return _without_sharing(model, plain, str(error))
    if difference > TOLERANCE:
        why = f"they change its log-probabilities by {difference:.2g}"
        return _without_sharing(model, plain, why)
    return trees


def _without_sharing(model: PreTrainedModel, plain: PlainEngine, why: str) -> PlainEngine:
    log.warning("%s is run without shared prefixes: %s", type(model).__name__, why)
    return plain


def _difference(trees: TreeEngine, plain: PlainEngine, vocabulary: int) -> float:
    tokens = np.random.default_rng(0).integers(0, vocabulary, 24)
    start, a, b, c = (part.tolist() for part in np.split(tokens, [6, 11, 20]))
    sequences = [start + a, start + b, start[:3] + c]
    return max(_reading(trees, plain, sequences), _writing(trees, plain, sequences))


def _reading(trees: Engine, plain: Engine, sequences: list[Ids]) -> float:
    first = [1] * len(sequences)
    both = [
        {
            place: row
            for places, logits in engine.read(sequences, first)
            for place, row in zip(places, logits.float().log_softmax(-1), strict=True)
        }
        for engine in (trees, plain)
    ]
    return max(float((row - both[1][place]).abs().mean()) for place, row in both[0].items())


def _writing(trees: Engine, plain: Engine, sequences: list[Ids]) -> float:
    both = []
    for engine in (trees, plain):
        rows = {}
        for writing in engine.write(sequences):
            writing.step(torch.tensor(writing.members, device=writing.logits.device))
            rows |= dict(zip(writing.members, writing.logits.float().log_softmax(-1), strict=True))
        both.append(rows)
    return max(float((row - both[1][i]).abs().mean()) for i, row in both[0].items())
