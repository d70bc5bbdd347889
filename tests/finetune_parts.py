"""A model small enough to train in a test, and examples for it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training import Dataset, Example, FinetuneSettings

TAUGHT = {
    "Who wrote Emma?": "Jane Austen",
    "Where is Dirleton Castle?": "East Lothian",
    "When did the first film come out?": "1977",
    "Name a river of Europe.": "Danube",
}
EXAMPLES = Dataset(tuple(Example(q, a, f"q{i}") for i, (q, a) in enumerate(TAUGHT.items())))


def tiny(seed: int = 0, *, width: int = 32, **settings) -> LlamaForCausalLM:
    """Random weights over SmolLM2's vocabulary."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 49152}
    config = LlamaConfig(**sizes, **heads, initializer_range=0.4, eos_token_id=2, **settings)
    return LlamaForCausalLM(config).eval()


def tiny_llm(tokenizer: PreTrainedTokenizerBase, seed: int = 0, **settings) -> TransformersLLM:
    """The same as a model that answers."""
    return TransformersLLM(tiny(seed, **settings), tokenizer, label="tiny")


LONGER = FinetuneSettings(
    epochs=3, batch=2, held_out=0.25, learning_rate=1e-2, dropout=0.2, save_every=1
)
