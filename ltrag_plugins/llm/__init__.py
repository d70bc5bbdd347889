"""Ways to reach a model. Import the provider you use: `ltrag_plugins.llm.transformers`, ..."""

from ltrag_plugins.llm.base import LLM, AsyncLLM, EachLLM, Encoder, GradientLLM, ScoringLLM

__all__ = ["LLM", "AsyncLLM", "EachLLM", "Encoder", "GradientLLM", "ScoringLLM"]
