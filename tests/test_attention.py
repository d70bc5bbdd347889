"""Attention on documents, beside one full pass that hands out all its weights."""

import copy

import pytest
import torch
from model_parts import random_model
from transformers import LlamaForCausalLM

from ltrag_plugins.errors import InvalidInput, ModelError, PromptTooLong
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic import SGICSettings, calibrate
from ltrag_plugins.sgic.attention import attention_shares, round_attention
from ltrag_plugins.types import GenerationSettings
from tests.sgic_parts import QUESTION, THREE

DOCUMENTS = [
    "Dirleton Castle is a medieval fortress in East Lothian.",
    "Yellowcraig, less commonly known as Broad Sands Bay, is a coastal area. 東京 🏰!",
    "North Berwick is a seaside town.",
]
PROMPT = (
    "Use the documents.\n"
    + "\n".join(f"Document [{i}]: {text}" for i, text in enumerate(DOCUMENTS, 1))
    + "\nQuestion: Where is Dirleton Castle?\nAnswer:"
)
SIZES = {"vocab_size": 49152, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
SIZES |= {"initializer_range": 0.5, "eos_token_id": 2}
KINDS = [*["sliding_attention"] * 3, "full_attention"]
GEMMA = {"layer_types": KINDS, "sliding_window": 24, "pad_token_id": 0}
"""Its first three layers see the last 24 tokens only."""


def llama(**more):
    return random_model("llama", **SIZES, **more)


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return smollm2.tokenizer


@pytest.fixture(scope="module")
def tiny(tokenizer):
    return TransformersLLM(llama(), tokenizer, label="tiny")


def by_hand(llm, text: str, documents, *, special: bool) -> tuple[list[float], float]:
    """All weights of all positions from one eager pass, and the tokens of each document found by
    cutting the text in front of it and behind it."""
    eager = copy.deepcopy(llm.model)
    eager.set_attn_implementation("eager")

    def ids(part: str) -> list[int]:
        return llm.tokenizer.encode(part, add_special_tokens=special)

    with torch.no_grad():
        found = eager(input_ids=torch.tensor([ids(text)]), output_attentions=True).attentions
    rows = torch.stack(found)[:, 0, :, -1]  # layers, heads, tokens
    row = rows.mean((0, 1))
    # no token runs over the edge of a document here, so both cuts are exact
    shares, start = [], 0
    for document in documents:
        start = text.index(document, start)
        first = len(ids(text[:start].removesuffix(" ")))
        shares.append(float(row[first : len(ids(text[: start + len(document)]))].sum()))
    return shares, float(row.sum())


@pytest.mark.parametrize(
    ("family", "seed", "more"), [("llama", 0, {}), ("qwen3", 1, {}), ("gemma3_text", 2, GEMMA)]
)
def test_shares_are_those_of_a_full_pass(family, seed, more, tokenizer):
    llm = TransformersLLM(random_model(family, seed=seed, **SIZES, **more), tokenizer, chat=False)
    found = attention_shares(llm, PROMPT, DOCUMENTS)
    expected, whole = by_hand(llm, PROMPT, DOCUMENTS, special=True)
    assert whole == pytest.approx(1, abs=1e-5)
    assert found.documents == pytest.approx(expected, abs=1e-5)
    assert sum(found.documents) + found.elsewhere == pytest.approx(1, abs=1e-6)
    assert more or min(found.documents) > 0.01
    relative = [share / sum(expected) if sum(expected) else 0 for share in expected]
    assert found.relative == pytest.approx(relative, abs=1e-4)


def test_the_prompt_is_wrapped_as_the_model_reads_it(tokenizer):
    llm = TransformersLLM(llama(), tokenizer, system="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    expected, _ = by_hand(llm, text, DOCUMENTS, special=False)
    assert attention_shares(llm, PROMPT, DOCUMENTS).documents == pytest.approx(expected, abs=1e-5)


def test_a_template_that_strips_the_prompt_moves_its_documents_along(tokenizer):
    strips = copy.deepcopy(tokenizer)
    strips.chat_template = "{% for m in messages %}<|s|>{{ m['content'] | trim }}{% endfor %}"
    llm = TransformersLLM(llama(), strips)
    plain = attention_shares(llm, PROMPT, DOCUMENTS)
    assert attention_shares(llm, f"  \n {PROMPT} \n", DOCUMENTS) == plain


def test_of_two_documents_that_say_the_same_each_has_its_own_place(tiny):
    twice = "Document [1]: same text here\nDocument [2]: same text here\nAnswer:"
    first, second = attention_shares(tiny, twice, ["same text here"] * 2).documents
    [only] = attention_shares(tiny, twice, ["same text here"]).documents
    assert first == only
    assert first != second


def test_documents_that_touch_share_no_token(tiny):
    # " is" is one token
    found = attention_shares(tiny, "Bergen is wet today", ["Bergen i", "s wet today"])
    whole = attention_shares(tiny, "Bergen is wet today", ["Bergen is wet today"])
    assert sum(found.documents) == pytest.approx(whole.documents[0], abs=1e-6)


@pytest.mark.parametrize("mode", ["sdpa", "eager"])
def test_the_model_handed_in_is_not_changed(mode, tokenizer):
    model = llama()
    model.set_attn_implementation(mode)
    llm = TransformersLLM(model, tokenizer)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings, brief = model.config.to_dict(), GenerationSettings(max_tokens=3)
    said = llm.generate([PROMPT], brief)
    attention_shares(llm, PROMPT, DOCUMENTS)
    assert model.config._attn_implementation == mode
    assert model.config.to_dict() == settings
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert llm.generate([PROMPT], brief) == said


def test_only_one_row_of_weights_is_ever_made(tiny, monkeypatch):
    from transformers.models.llama import modeling_llama

    seen, eager = [], modeling_llama.eager_attention_forward

    def watched(module, query, *rest, **more):
        seen.append(query.shape[2])
        return eager(module, query, *rest, **more)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", watched)
    attention_shares(tiny, PROMPT, DOCUMENTS)
    assert seen == [1] * 4


@pytest.mark.parametrize(
    ("documents", "why"),
    [
        (["Nobody wrote this."], "document 1 .'Nobody wrote this.'. does not stand in the prompt"),
        (DOCUMENTS[::-1], "document 2 .* after the one before it"),
        ([""], "document 1"),
    ],
)
def test_documents_that_are_not_in_the_prompt_are_named(tiny, documents, why):
    with pytest.raises(InvalidInput, match=why):
        attention_shares(tiny, PROMPT, documents)


def test_a_model_without_weights_here_or_of_too_small_a_limit_is_refused(tokenizer, tmp_path):
    for llm in (ScriptedLLM(str), CachedLLM(ScriptedLLM(str), tmp_path / "cache")):
        with pytest.raises(InvalidInput, match=f"local weights, got {type(llm).__name__}"):
            attention_shares(llm, PROMPT, DOCUMENTS)  # pyright: ignore
    short = TransformersLLM(llama(max_position_embeddings=20), tokenizer)
    with pytest.raises(PromptTooLong, match="at most 20"):
        attention_shares(short, PROMPT, DOCUMENTS)


def test_a_model_that_hands_out_no_weights_is_named(tiny, monkeypatch):
    # stays with sdpa, which has none
    monkeypatch.setattr(LlamaForCausalLM, "set_attn_implementation", lambda self, name: None)
    with pytest.raises(ModelError, match="LlamaForCausalLM hands out no attention weights"):
        attention_shares(tiny, PROMPT, DOCUMENTS)


# --- of an answered question


def test_each_round_of_an_answer_has_its_shares(smollm2):
    rounds = {"rounds": 1, "cut_to": 2, "certain_below": 0}
    settings = SGICSettings(**rounds, keep_prompts=True, document_words=6)
    answer = run(calibrate(QUESTION, THREE, settings), World(llm=smollm2))
    first, second = (round_attention(smollm2, answer, settings, round=n) for n in (0, 1))
    assert all(share > 0 for share in first.documents)
    hidden = [i for i, one in enumerate(answer.documents) if not one.shown]
    assert [i for i, share in enumerate(second.documents) if share == 0] == hidden
    prompt = answer.trace[0].prompt
    shown = [line.partition(": ")[2] for line in prompt.splitlines() if line[:9] == "Document "]
    assert first == attention_shares(smollm2, prompt, shown)


def test_a_round_without_its_prompt_is_named(tiny):
    settings = SGICSettings(rounds=0)
    answer = run(calibrate(QUESTION, THREE, settings), World(llm=tiny))
    with pytest.raises(InvalidInput, match="keep_prompts=True"):
        round_attention(tiny, answer, settings)
    with pytest.raises(InvalidInput, match="round 1 of an answer with 1"):
        round_attention(tiny, answer, settings, round=1)
