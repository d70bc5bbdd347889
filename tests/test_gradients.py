"""The gradient term beside a backward loop, finite differences and explicit gradients."""

import copy
import gc
import math
import weakref

import numpy as np
import pytest
import torch
from model_parts import random_model
from torch import nn
from transformers import PreTrainedModel

from ltrag_plugins.errors import InvalidInput, NeedsGradients
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.llm.gradients import TokenBatch, gradient_agreement, mean_gradient

SIZES = {"vocab_size": 53, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
SIZES |= {"initializer_range": 0.4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KINDS = ["sliding_attention", "full_attention"] * 2
FAMILIES = {
    "llama": {"tie_word_embeddings": True, "attention_dropout": 0.3},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {"layer_types": KINDS, "sliding_window": 5, "final_logit_softcapping": 2.0},
}


def build(family: str) -> PreTrainedModel:
    return random_model(family, **SIZES | FAMILIES[family])


@pytest.fixture(params=FAMILIES)
def model(request):
    return build(request.param)


Pairs = list[tuple[list[int], list[int]]]

PAIRS: Pairs = [
    ([5, 6, 7, 8, 9, 10, 11], [12, 13]),
    ([5, 9, 4], [20]),
    ([40, 30, 20, 10, 5, 6, 7, 8, 9, 33, 34], [35, 36, 37]),
]
OPENING = list(range(3, 43))
SHARING: Pairs = [(OPENING + prompt, continuation) for prompt, continuation in PAIRS]
"""All begin alike, far beyond gemma's window, and long enough to be computed once."""
pairings = pytest.mark.parametrize("pairs", [PAIRS, SHARING], ids=["nothing shared", "an opening"])


def batch_of(pairs: Pairs, *, pad: int = 0) -> TokenBatch:
    time = max(len(p) + len(c) for p, c in pairs) + pad
    ids = torch.zeros(len(pairs), time, dtype=torch.long)
    mask, targets = torch.zeros_like(ids), torch.zeros(len(pairs), time, dtype=torch.bool)
    for row, (prompt, continuation) in enumerate(pairs):
        end = len(prompt) + len(continuation)
        ids[row, :end] = torch.tensor(prompt + continuation)
        mask[row, :end] = 1
        targets[row, len(prompt) : end] = True
    return TokenBatch(ids, mask, targets)


def loss_of(model, prompt, continuation, weights=None) -> torch.Tensor:
    read = {"input_ids": torch.tensor([prompt + continuation])}
    output = torch.func.functional_call(model, weights or {}, kwargs=read)
    logits = output.logits[0, len(prompt) - 1 : -1]
    return nn.functional.cross_entropy(logits, torch.tensor(continuation))


def backward_loop(model: PreTrainedModel, pairs: Pairs, names: list[str]) -> list[Direction]:
    """Each instance's gradient by its own backward pass, in the model as it is."""
    weights = [dict(model.named_parameters())[name] for name in names]
    gradients = [torch.autograd.grad(loss_of(model, *pair), weights) for pair in pairs]
    return [{name: part.numpy() for name, part in zip(names, g, strict=True)} for g in gradients]


def product(one: Direction, other: Direction) -> float:
    return float(sum((one[name].astype(np.float64) * other[name]).sum() for name in one))


def some_direction(model: PreTrainedModel, layers: int = 4) -> Direction:
    shapes = mean_gradient(model, [batch_of(PAIRS)], layers=layers)
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=a.shape).astype(np.float32) for name, a in shapes.items()}


def dots(model: PreTrainedModel, pairs: Pairs, along: Direction, **settings: int) -> list[float]:
    return [a.dot for a in gradient_agreement(model, batch_of(pairs), along=along, **settings)]


@pairings
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_forward_mode_and_a_backward_loop_give_the_same_products(model, pairs, layers):
    along = some_direction(model, layers)
    found = dots(model, pairs, along, layers=layers)
    for dot, gradient in zip(found, backward_loop(model, pairs, list(along)), strict=True):
        lengths = math.sqrt(product(gradient, gradient) * product(along, along))
        # the products nearly cancel: what rounding leaves goes with the lengths
        assert dot == pytest.approx(product(gradient, along), rel=0, abs=1e-6 * lengths)


def test_a_model_in_float64_has_the_products_of_float32():
    model = build("gemma3_text")
    along = some_direction(model)
    expected = dots(model, SHARING, along)
    assert dots(model.double(), SHARING, along) == pytest.approx(expected, rel=1e-3)


def test_the_products_are_the_slopes_of_the_losses_along_the_direction(model):
    along = some_direction(model)
    exact = dots(model, PAIRS, along)
    weights, step = dict(model.double().named_parameters()), 1e-3

    def losses_after(distance: float) -> np.ndarray:
        moved = {name: weights[name] + distance * torch.tensor(along[name]) for name in along}
        return np.array([float(loss_of(model, *pair, weights=moved)) for pair in PAIRS])

    with torch.no_grad():
        near = losses_after(step) - losses_after(-step)
        far = losses_after(2 * step) - losses_after(-2 * step)
    assert exact == pytest.approx(((8 * near - far) / (12 * step)).tolist(), rel=1e-3)


@pairings
def test_the_mean_gradient_is_the_mean_of_the_instances_whatever_the_batches(model, pairs):
    uneven = mean_gradient(model, [batch_of(pairs[:2]), batch_of(pairs[2:])], layers=2)
    single = backward_loop(model, pairs, list(uneven))
    for name, array in uneven.items():
        assert array.dtype == np.float32
        expected = np.mean([g[name] for g in single], axis=0)
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)


def test_the_squared_length_of_the_mean_is_the_mean_of_the_products_with_it(model):
    mean = mean_gradient(model, [batch_of(SHARING)])
    assert np.mean(dots(model, SHARING, mean)) == pytest.approx(product(mean, mean), rel=1e-4)


@pairings
def test_the_cosine_is_that_of_explicit_gradients(model, pairs):
    along = some_direction(model, layers=2)
    expected = [
        product(g, along) / np.sqrt(product(g, g) * product(along, along))
        for g in backward_loop(model, pairs, list(along))
    ]
    found = gradient_agreement(model, batch_of(pairs), along=along, cosine=True, layers=2)
    assert [a.cosine for a in found] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert [a.dot for a in found] == dots(model, pairs, along, layers=2)


def test_a_direction_of_no_length_has_cosine_zero():
    model = build("llama")
    nowhere = {name: 0 * array for name, array in some_direction(model).items()}
    found = gradient_agreement(model, batch_of(PAIRS), along=nowhere, cosine=True)
    assert {a.cosine for a in found} == {0.0}


def test_neither_padding_nor_order_nor_company_changes_a_product(model):
    along = some_direction(model)
    together = dots(model, PAIRS, along)
    padded = gradient_agreement(model, batch_of(PAIRS, pad=9), along=along)
    assert [a.dot for a in padded] == pytest.approx(together, rel=1e-4)
    assert dots(model, PAIRS[::-1], along)[::-1] == pytest.approx(together, rel=1e-4)
    alone = [dots(model, [pair], along)[0] for pair in PAIRS]
    assert alone == pytest.approx(together, rel=1e-4)


def test_the_direction_names_the_last_layers_matrices_and_nothing_else():
    model = build("gemma3_text")
    names = set(mean_gradient(model, [batch_of(PAIRS)], layers=2))
    wanted = ("layers.2.mlp", "layers.3.mlp")
    ours = {n for n, _ in model.named_parameters() if any(w in n for w in wanted)}
    assert names == ours
    assert len(names) == 6


def test_the_model_is_left_as_it_was():
    model = build("llama").train()
    model.set_attn_implementation("sdpa")
    frozen = "model.layers.3.mlp.up_proj.weight"
    dict(model.named_parameters())[frozen].requires_grad_(False)

    def state() -> list[object]:
        parameters = [(n, p.requires_grad, p.grad, p.dtype) for n, p in model.named_parameters()]
        parts = [
            (n, m.training, len(m._forward_hooks), len(m._forward_pre_hooks), type(m))
            for n, m in model.named_modules()
        ]
        return [parameters, parts, model.config.to_dict(), model.config._attn_implementation]

    before, weights = state(), {n: p.clone() for n, p in model.named_parameters()}
    mean = mean_gradient(model, [batch_of(SHARING)])
    gradient_agreement(model, batch_of(SHARING), along=mean, cosine=True)
    assert state() == before
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())


def test_dropout_is_off_even_for_a_model_in_training():
    model = build("llama")
    along = some_direction(model)
    quiet = dots(model, PAIRS, along)
    assert dots(model.train(), PAIRS, along) == quiet


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_it_works_where_the_caller_has_switched_gradients_off(without):
    model = build("qwen2")
    along = some_direction(model)
    expected = gradient_agreement(model, batch_of(SHARING), along=along, cosine=True)
    with without():
        mean_gradient(model, [batch_of(SHARING)])
        assert gradient_agreement(model, batch_of(SHARING), along=along, cosine=True) == expected


def test_nothing_is_kept_after_a_call():
    model = build("llama")
    gc.collect()
    gc.disable()  # a twin in a cycle would wait for it, with float32 layers of its own
    try:
        before = sum(type(found) is type(model) for found in gc.get_objects())
        mean = mean_gradient(model, [batch_of(PAIRS)])
        gradient_agreement(model, batch_of(PAIRS), along=mean, cosine=True)
        after = sum(type(found) is type(model) for found in gc.get_objects())
        assert after == before
        watch = weakref.ref(model)
        del model
        assert watch() is None
    finally:
        gc.enable()


def test_a_half_precision_model_has_its_last_layers_computed_in_float32(model):
    model = model.bfloat16()
    wide = copy.deepcopy(model).float()
    # all layers are last layers here; from below them come the embeddings, the same in both,
    # and the rotary angles, which the model rounds
    wide.model.rotary_emb.register_forward_hook(
        lambda module, args, output: tuple(part.bfloat16().float() for part in output)
    )
    along = some_direction(wide)
    loop = [product(g, along) for g in backward_loop(wide, SHARING, list(along))]
    assert dots(model, SHARING, along) == pytest.approx(loop, rel=1e-3)
    mean = mean_gradient(model, [batch_of(PAIRS)])
    assert {a.dtype for a in mean.values()} == {np.dtype(np.float32)}
    assert np.mean(dots(model, PAIRS, mean)) == pytest.approx(product(mean, mean), rel=1e-4)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


QUESTIONS = {
    "who has played Raoul in The Phantom of the Opera?": "Patrick Wilson",
    "Who was named African footballer of the year 2014?": "Yaya Touré",
    "what is the capital of France?": "Paris",
    "when did the isle of wight become an island": "During the last Ice Age",
    "what is the name of the process by which plants make their food from sunlight, water and "
    "carbon dioxide?": "photosynthesis",
    "who wrote Emma?": "Jane Austen",
}


def test_on_a_real_model_the_products_agree_with_the_backward_loop_within_a_thousandth(smollm2):
    def tokens(text: str) -> list[int]:
        return smollm2.tokenizer(text, add_special_tokens=False).input_ids

    opening = "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\n"
    closing = "<|im_end|>\n<|im_start|>assistant\n"
    pairs = [(tokens(opening + q + closing), tokens(a)) for q, a in QUESTIONS.items()]
    mean = mean_gradient(smollm2.model, [batch_of(pairs)])
    gradients = backward_loop(smollm2.model, pairs, list(mean))
    loop = [product(gradient, mean) for gradient in gradients]
    norms = [np.sqrt(product(g, g) * product(mean, mean)) for g in gradients]
    found = gradient_agreement(smollm2.model, batch_of(pairs), along=mean, cosine=True)
    assert [a.dot for a in found] == pytest.approx(loop, rel=1e-3)
    assert [a.cosine for a in found] == pytest.approx(np.divide(loop, norms).tolist(), rel=1e-3)
    assert {name.split(".")[2] for name in mean} == {"26", "27", "28", "29"}


def test_what_has_no_agreement_is_refused():
    model = build("llama")
    for layers in (0, 5):
        with pytest.raises(InvalidInput, match="take 1 to 4"):
            mean_gradient(model, [batch_of(PAIRS)], layers=layers)
    with pytest.raises(InvalidInput, match="no instances"):
        mean_gradient(model, [])
    with pytest.raises(InvalidInput, match="same number of layers"):
        gradient_agreement(model, batch_of(PAIRS), along=some_direction(model, 2), layers=3)


OTHERS = {
    "gpt2": {"vocab_size": 53, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "qwen3_moe": {**SIZES, "num_experts": 2, "moe_intermediate_size": 8},
}


@pytest.mark.parametrize("family", [*OTHERS, "no language model"])
def test_other_architectures_are_refused_with_what_is_supported(family):
    model = random_model(family, **OTHERS[family]) if family in OTHERS else nn.Linear(2, 2)
    with pytest.raises(NeedsGradients, match=r"Llama.*Gemma-3.*gradients='never'"):
        mean_gradient(model, [batch_of(PAIRS)])
