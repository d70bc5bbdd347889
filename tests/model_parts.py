"""Causal language models of random weights, of any family that transformers knows."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel


def random_model(family: str, *, seed: int = 0, **sizes: object) -> PreTrainedModel:
    torch.manual_seed(seed)  # the same weights in every run
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
