"""Guessed tokens beside tokens written one at a time, and beside the model's own forward."""

import numpy as np
import pytest
import torch
from test_shared_prefix import ATTENTION, CALL, own_logprobs
from test_transformers_llm import tiny

from ltrag_plugins.llm.local.engine import Ahead
from ltrag_plugins.llm.local.engines import best_engine
from ltrag_plugins.llm.local.lookup import Lookup
from ltrag_plugins.llm.transformers import TransformersLLM

PHRASE = "the quick brown fox jumps over the lazy dog and the quick brown cat sleeps"
PROMPTS = [
    f"Repeat: {PHRASE}. {PHRASE}.",
    "Write the same again: one two three four five six seven eight nine ten",
    "Who wrote Emma?",
    "Answer: Jane Austen wrote Emma in 1815.\nAnswer:",
]


@pytest.mark.parametrize("model", ATTENTION, ids=lambda model: type(model).__name__)
def test_tokens_that_are_tried_and_taken_back_leave_no_trace(model):
    engine = best_engine(model.eval(), batch_tokens=64, share=True)
    throw = np.random.default_rng(0)
    grown = {i: list(sequence) for i, sequence in enumerate(CALL)}
    tried_some = False
    with torch.inference_mode():
        for writing in engine.write(CALL):
            assert isinstance(writing, Ahead)
            for round_ in range(6):
                if round_ == 3 and len(writing.members) > 2:
                    writing.keep(list(range(len(writing.members)))[::2])
                tokens = throw.integers(3, 53, (len(writing.members), 1 + round_ % 4))
                counts = throw.integers(1, tokens.shape[1] + 1, len(tokens)).tolist()
                tried = writing.try_on(torch.from_numpy(tokens)).log_softmax(-1)
                writing.take(counts)
                for row, (i, count) in enumerate(zip(writing.members, counts, strict=True)):
                    grown[i] += tokens[row, :count].tolist()
                    own = own_logprobs(model, [*grown[i], 0])[-count - 1 : -1]
                    torch.testing.assert_close(tried[row, :count], own, atol=1e-4, rtol=0)
                    last = writing.logits[row].log_softmax(-1)
                    torch.testing.assert_close(last, own[-1], atol=1e-4, rtol=0)
                    tried_some |= count < tokens.shape[1]
                writing.step(torch.full((len(writing.members),), 7))
                for i in writing.members:
                    grown[i].append(7)
    assert tried_some


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS[:2], PROMPTS, PROMPTS * 5])
def test_guesses_change_no_answer(smollm2, prompts, temperature):
    """With a model that makes sense, and with one that repeats itself soon."""
    for model in (smollm2.model, tiny()):
        with_, without = (
            TransformersLLM(model, smollm2.tokenizer, prompt_lookup=lookup)
            for lookup in (True, False)
        )
        for settings in ({"max_tokens": 24}, {"max_tokens": 24, "stop": [" lazy", "Emma", "."]}):
            numbered = [f"{prompt} ({i})" for i, prompt in enumerate(prompts)]
            both = (
                llm.generate(numbered, temperature=temperature, seed=3, **settings)
                for llm in (with_, without)
            )
            for one, other in zip(*both, strict=True):
                assert one.text == other.text
                assert one.completion_tokens == other.completion_tokens
                assert [t.text for t in one.tokens] == [t.text for t in other.tokens]
                for ours, theirs in zip(one.tokens, other.tokens, strict=True):
                    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
                    assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)


@pytest.mark.parametrize(("most", "share"), [(3, True), (40, True), (40, False)])
def test_a_text_that_copies_takes_fewer_passes(smollm2, most, share):
    def passes(lookup: bool) -> tuple[int, int]:
        llm = TransformersLLM(
            smollm2.model, smollm2.tokenizer, prompt_lookup=lookup, share_prefixes=share
        )
        count = []
        hook = smollm2.model.base_model.register_forward_pre_hook(lambda *_: count.append(1))
        try:
            [answer] = llm.generate(PROMPTS[:1], max_tokens=most)
        finally:
            hook.remove()
        return len(count), answer.completion_tokens

    (one_by_one, tokens), (guessed, the_same) = passes(False), passes(True)
    assert one_by_one == tokens == the_same <= most
    assert guessed == tokens if most < 4 else guessed < tokens / 2


def test_what_followed_last_time_is_guessed():
    lookup = Lookup([1, 2, 3, 4, 5, 6, 1, 2, 9, 8, 7, 6, 5, 1])
    assert lookup.guess(10) == []  # (5, 1) has not been seen
    lookup.add(2)
    assert lookup.guess(10) == [9, 8, 7, 6, 5, 1, 2]  # after the later (1, 2)
    assert lookup.guess(3) == [9, 8, 7]
    assert lookup.guess(2) == []  # too few to pay
    lookup.add(3)
    assert lookup.guess(4) == [4, 5, 6, 1]


def test_wrong_guesses_ask_for_more_that_was_seen():
    lookup = Lookup([1, 2, 3, 4, 5, 6, 7, 1, 2])
    assert lookup.guess(4) == [3, 4, 5, 6]
    lookup.learn(0)
    assert lookup.guess(4) == []
    lookup.add(3)
    assert lookup.guess(4) == [4, 5, 6, 7]
    lookup.learn(1)
    lookup.learn(2)
    lookup.learn(2)  # at most four must have been seen
    assert lookup.guess(4) == []
    lookup.add(4)
    assert lookup.guess(4) == [5, 6, 7, 1]
    lookup.learn(4)
    lookup.add(9)
    lookup.add(2)
    lookup.add(3)
    assert lookup.guess(3) == [4, 9, 2]


def test_short_prompts_have_nothing_to_copy():
    for prompt in ([], [1], [1, 1], [1, 1, 1]):
        assert Lookup(prompt).guess(10) == []
