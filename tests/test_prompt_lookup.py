"""Guessed tokens beside tokens written one at a time, and beside the model's own forward."""

import numpy as np
import pytest
import torch
from test_shared_prefix import ATTENTION, CALL, SECOND, own_logprobs, tokens
from test_transformers_llm import tiny

from ltrag_plugins.llm.engine import Ahead, Guess, PrefixMemory, best_engine
from ltrag_plugins.llm.prompting import Speller
from ltrag_plugins.llm.transformers import Lookup, Row, TransformersLLM, write
from ltrag_plugins.types import GenerationSettings

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


@pytest.mark.parametrize("model", ATTENTION, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("remembered", [0, 1000])
@pytest.mark.parametrize(
    "calls",
    [
        [SECOND[:1], SECOND[1:2], SECOND[1:2], SECOND[4:5]],
        [SECOND, SECOND],
        [[tokens(length, length) for length in (30, 28, 33)]] * 2,
    ],
    ids=["alone", "together", "apart"],
)
def test_guesses_are_tried_while_a_sequence_is_read(model, remembered, calls):
    """New or known, alone or side by side, right or wrong: beside the model's own passes."""
    memory = PrefixMemory(remembered)
    engine = best_engine(model.eval(), batch_tokens=200, share=True, memory=memory)
    throw = np.random.default_rng(0)
    with torch.inference_mode():
        for sequences in calls:
            guesses = [throw.integers(3, 53, throw.integers(0, 4)).tolist() for _ in sequences]
            for writing in engine.write(sequences, guesses):
                assert isinstance(writing, Ahead)
                assert [list(guess) for guess in writing.guessed] == [
                    guesses[i] for i in writing.members
                ]
                counts = [int(throw.integers(1, len(guesses[i]) + 2)) for i in writing.members]
                for tried, i in zip(writing.tried.log_softmax(-1), writing.members, strict=True):
                    read = [*sequences[i], *guesses[i]]
                    own = own_logprobs(model, read)[len(sequences[i]) - 1 :]
                    torch.testing.assert_close(tried[: len(own)], own, atol=1e-4, rtol=0)
                if writing.tried.shape[1] > 1:
                    writing.take(counts)
                grown = {
                    i: [*sequences[i], *guesses[i][: n - 1]]
                    for i, n in zip(writing.members, counts, strict=True)
                }
                for _ in range(3):
                    writing.keep([*range(len(writing.members))][-2:])
                    for row, i in zip(writing.logits.log_softmax(-1), writing.members, strict=True):
                        own = own_logprobs(model, grown[i])[-1]
                        torch.testing.assert_close(row, own, atol=1e-4, rtol=0)
                        grown[i].append(7)
                    writing.step(torch.full((len(writing.members),), 7))


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
                llm.generate(
                    numbered, GenerationSettings(temperature=temperature, seed=3, **settings)
                )
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
            [answer] = llm.generate(PROMPTS[:1], GenerationSettings(max_tokens=most))
        finally:
            hook.remove()
        return len(count), answer.completion_tokens

    (one_by_one, tokens), (guessed, the_same) = passes(False), passes(True)
    assert one_by_one == tokens == the_same <= most
    assert guessed == tokens if most < 4 else guessed < tokens / 2


@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("most", [1, 2, 8, 30])
def test_what_was_written_before_changes_no_answer(smollm2, most, temperature):
    remembering = TransformersLLM(smollm2.model, smollm2.tokenizer, remember_tokens=2000)
    first, second = f"{PROMPTS[0]} Once more:", f"{PROMPTS[0]} And then again:"
    settings = {"max_tokens": most, "temperature": temperature, "stop": [" cat"]}
    calls = [[first], [first], [second], [first, second, PROMPTS[2]], [second], PROMPTS * 3]
    for seed, prompts in enumerate(calls):
        both = (
            llm.generate(prompts, GenerationSettings(seed=seed // 2, **settings))
            for llm in (remembering, smollm2)
        )
        for one, other in zip(*both, strict=True):
            assert one.text == other.text
            assert one.completion_tokens == other.completion_tokens
            for ours, theirs in zip(one.tokens, other.tokens, strict=True):
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


@pytest.mark.parametrize(("lookup", "takes"), [(True, 1), (False, 12)])
def test_an_answer_given_again_takes_one_pass(smollm2, lookup, takes):
    llm = TransformersLLM(
        smollm2.model, smollm2.tokenizer, remember_tokens=2000, prompt_lookup=lookup
    )
    [first] = llm.generate([PROMPTS[0]], GenerationSettings(max_tokens=12))
    assert first.completion_tokens == 12
    count = []
    hook = smollm2.model.base_model.register_forward_pre_hook(lambda *_: count.append(1))
    try:
        assert llm.generate([PROMPTS[0]], GenerationSettings(max_tokens=12))[0].text == first.text
    finally:
        hook.remove()
    assert len(count) == takes


class Script:
    """An `Ahead` of one row whose next tokens are known, and which notes what is tried on it."""

    def __init__(self, tokens, guessed):
        self.members, self.tokens, self.at, self.notes = [0], tokens, 0, []
        self.guessed = [guessed]
        self.tried = self._scores(1 + len(guessed))
        self.logits = self.tried[:, 0]

    def _scores(self, count):
        places = torch.arange(self.at, self.at + count).clamp_max(len(self.tokens) - 1)
        return torch.eye(100)[torch.tensor(self.tokens)[places]][None]

    def step(self, chosen):
        self.notes.append(chosen.tolist())
        self.at += 1
        self.logits = self._scores(1)[:, 0]

    def try_on(self, tokens):
        self.notes.append(tokens[0].tolist())
        self.at += 1
        self.tried = self._scores(tokens.shape[1])
        return self.tried

    def take(self, counts):
        self.at += counts[0] - 1
        self.logits = self._scores(1)[:, 0]

    def keep(self, rows):
        assert rows == [0]


@pytest.mark.parametrize(
    ("guessed", "notes"),
    [
        ([], [[12, 13, 14, 15, 16, 17, 19, 11, 12], [18]]),
        ([50, 51, 52], [[12, 13, 14, 15, 16, 17, 19, 11, 12], [18]]),
        ([12, 13, 51], [[14, 15, 16, 17, 19, 11, 12], [18]]),
        ([12, 13, 14, 15, 16, 17, 18], []),
    ],
)
def test_a_wrong_guess_from_before_does_not_hold_back_those_from_the_prompt(
    smollm2, guessed, notes
):
    writing = Script([12, 13, 14, 15, 16, 17, 18, 99], guessed)
    assert isinstance(writing, Ahead)
    prompt = [11, 12, 13, 14, 15, 16, 17, 19, 11]
    row = Row(
        0,
        Speller(smollm2.tokenizer, prompt),
        np.random.default_rng(0),
        GenerationSettings(10),
        Lookup(prompt),
    )
    write(writing, [row], {99})
    assert [reading.token for reading in row.readings] == [12, 13, 14, 15, 16, 17, 18]
    assert writing.notes == notes


@pytest.mark.parametrize("most", [1, 3, 6])
def test_no_more_is_guessed_than_may_be_written(smollm2, most):
    """A model of fixed positions would read past their end."""
    llm = TransformersLLM(smollm2.model, smollm2.tokenizer, remember_tokens=2000)
    llm.generate([PROMPTS[0]], GenerationSettings(max_tokens=12))
    count = []
    hook = smollm2.model.base_model.register_forward_pre_hook(
        lambda _, __, given: count.append(given["input_ids"].numel()), with_kwargs=True
    )
    try:
        llm.generate([PROMPTS[0]], GenerationSettings(max_tokens=most))
    finally:
        hook.remove()
    assert count == [most]  # the prompt's last token, and the guess: the last is not read


def test_what_was_written_last_after_what_begins_most_alike_is_guessed(smollm2):
    llm = TransformersLLM(smollm2.model, smollm2.tokenizer)
    engine = best_engine(llm.model, batch_tokens=500, share=True, memory=(m := PrefixMemory(500)))
    one, other, short = [*range(3, 60)], [*range(3, 50), *range(70, 80)], [5, 6, 7]
    with torch.inference_mode():
        list(engine.write([one]))
        list(engine.write([other, short]))
    assert m.guess(one, 9).tokens == ()
    m.wrote(other, [1, 2])
    m.wrote(short, [3])  # too short to be kept
    assert m.guess([*other, 9], 9) == Guess((1, 2), len(other) / (len(other) + 1))
    assert m.guess([*other, 9], 1).tokens == (1,)
    assert m.guess(one[:20], 9) == m.guess(short, 9) == Guess()
    m.wrote(other, [4])
    assert m.guess(other[:55], 9).tokens == (4,)
    m.forget()
    assert m.guess(other, 9) == Guess()


def test_a_guess_that_misled_asks_for_prompts_that_are_more_alike(smollm2):
    llm = TransformersLLM(smollm2.model, smollm2.tokenizer)
    memory = PrefixMemory(500)
    engine = best_engine(llm.model, batch_tokens=500, share=True, memory=memory)
    kept = [*range(3, 103)]
    with torch.inference_mode():
        list(engine.write([kept]))
    memory.wrote(kept, [7, 8])
    half, most, least = ([*kept[:n], *range(200, 300 - n)] for n in (50, 80, 40))

    def guessed():
        return [bool(memory.guess(ids, 9).tokens) for ids in (least, half, most)]

    assert guessed() == [True, True, True]
    memory.learn(Guess(), [1])  # nothing was guessed
    memory.learn(memory.guess(half, 9), [7])  # the first was right
    assert guessed() == [True, True, True]
    memory.learn(memory.guess(half, 9), [8, 7])
    assert guessed() == [False, False, True]
    memory.learn(memory.guess(most, 9), [])
    assert guessed() == [False, False, False]
    memory.learn(memory.guess([*kept, 1], 9), [7, 8, 9])
    assert guessed() == [True, True, True]
    memory.learn(memory.guess(half, 9), [])
    memory.forget()
    with torch.inference_mode():
        list(engine.write([kept]))
    memory.wrote(kept, [7, 8])
    assert guessed() == [True, True, True]


def test_other_questions_with_the_same_instructions_are_misguessed_once(smollm2):
    """Tokens that go through a model that guesses, beside one that does not."""
    instruction = "Answer with the name of a colour, a number or an animal, and nothing else. " * 3
    asked = ["Grass is", "One and one is", "It barks:", "The sky is", "Four legs:"]

    def read(lookup: bool) -> list[int]:
        llm = TransformersLLM(
            smollm2.model, smollm2.tokenizer, remember_tokens=4000, prompt_lookup=lookup
        )
        passes, each = [], []
        hook = smollm2.model.base_model.register_forward_pre_hook(
            lambda _, __, given: passes.append(given["input_ids"].numel()), with_kwargs=True
        )
        try:
            for question in asked:
                before = sum(passes)
                llm.generate([f"{instruction}{question}"], GenerationSettings(max_tokens=2))
                each.append(sum(passes) - before)
        finally:
            hook.remove()
        return each

    assert np.subtract(read(lookup=True), read(lookup=False)).tolist() == [0, 1, 0, 0, 0]


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
