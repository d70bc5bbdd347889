"""Shared prefixes beside separate passes: plans by enumeration, models by their own forward."""

import itertools
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_parts import random_model
from transformers import PreTrainedModel

from ltrag_plugins.llm.engine import _EXACT, PlainEngine, TreeEngine, best_engine
from ltrag_plugins.llm.engine import _plan as plan
from ltrag_plugins.types import GenerationSettings

WINDOW = 8
SIZES = {"vocab_size": 53, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES |= {"initializer_range": 0.4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KINDS = ["sliding_attention", "full_attention"]
GEMMA = {"sliding_window": WINDOW, "layer_types": KINDS, "query_pre_attn_scalar": 8}
GPT2 = {"vocab_size": 53, "n_embd": 32, "n_layer": 2, "n_head": 4}
SPECIAL = {
    "cohere": {"logit_scale": 0.3},
    "gemma2": {**GEMMA, "final_logit_softcapping": 3.0},
    "gemma3_text": GEMMA,
    "granite": {"logits_scaling": 3.0},
    "mistral": {"sliding_window": WINDOW},
}
ATTENTION = {
    family: random_model(family, **(GPT2 if family == "gpt2" else SIZES | SPECIAL.get(family, {})))
    for family in sorted(_EXACT)
}
SMALL = {"vocab_size": 53, "hidden_size": 32}
OTHERS = {
    "bloom": random_model("bloom", **SMALL, n_layer=2, n_head=4),
    "mamba": random_model("mamba", **SMALL, num_hidden_layers=2, state_size=4),
}


def tokens(length: int, seed: int) -> list[int]:
    drawn = torch.randint(3, 53, (length,), generator=torch.Generator().manual_seed(seed))
    return drawn.tolist()


SHOTS = [tokens(6, seed) for seed in range(5)]
LADDER = [
    [1, 7, 8, *itertools.chain(*SHOTS[:shots]), *tokens(9, 99)] for shots in range(len(SHOTS) + 1)
]
STRANGERS = [tokens(5, 50), tokens(30, 51), tokens(1, 52), LADDER[2], LADDER[3][:-4]]
CALL = [STRANGERS[0], *LADDER[3:], *STRANGERS[1:], *LADDER[:3]]


def own_logprobs(model: PreTrainedModel, sequence: list[int]) -> torch.Tensor:
    """The model's own forward pass over one sequence: row t predicts token t + 1."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([sequence])).logits[0].log_softmax(-1)


class TestPlan:
    sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12)

    @given(sequences, st.integers(1, 40))
    @settings(max_examples=100)
    def test_every_sequence_is_spelled_by_its_path_in_one_tree(self, sequences, budget):
        batches = plan(sequences, batch_tokens=budget, attention_scale=50.0)
        trees = [tree for batch in batches for tree in batch]
        assert sorted(i for tree in trees for i in tree.paths) == list(range(len(sequences)))
        for tree in trees:
            for member, path in tree.paths.items():
                assert [tree.ids[node] for node in path] == sequences[member]
                assert [tree.positions[node] for node in path] == list(range(len(path)))

    @given(sequences)
    @settings(max_examples=100)
    def test_a_node_sees_the_nodes_before_it_on_its_path_and_no_other(self, sequences):
        for batch in plan(sequences, batch_tokens=1000, attention_scale=1e9):
            for tree in batch:
                for path in tree.paths.values():
                    for place, node in enumerate(path):
                        seen = tree.visible()[node].nonzero()[0]
                        assert sorted(seen) == sorted(path[: place + 1])
                        if len(path) == len(tree):
                            assert seen.tolist() == list(range(node + 1))

    @given(sequences)
    @settings(max_examples=100)
    def test_no_beginning_stands_in_a_tree_twice(self, sequences):
        for batch in plan(sequences, batch_tokens=1000, attention_scale=1e9):
            for tree in batch:
                own = [sequences[i] for i in tree.paths]
                beginnings = {tuple(s[:n]) for s in own for n in range(1, len(s) + 1)}
                assert len(tree) == len(beginnings)

    def test_a_ladder_becomes_one_tree_with_its_shots_computed_once(self):
        [[tree]] = plan(LADDER, batch_tokens=2048, attention_scale=96.0)
        header, shot, question = 3, 6, 9
        assert len(tree) == header + 5 * shot + 6 * question
        assert sum(map(len, LADDER)) == 6 * header + 15 * shot + 6 * question

    def test_strangers_stay_apart_and_batches_keep_to_their_budget(self):
        strangers = [[i, *tokens(10 + i, i)] for i in range(20)]
        batches = plan(strangers, batch_tokens=64, attention_scale=96.0)
        for batch in batches:
            assert all(len(tree.paths) == 1 for tree in batch)
            assert len(batch) * max(map(len, batch)) <= 64
            assert min(map(len, batch)) >= max(map(len, batch)) / 2

    def test_a_tree_stops_growing_where_attention_would_cost_more_than_it_saves(self):
        fan = [[1, 2, *tokens(30, seed)] for seed in range(40)]
        trees = [t for b in plan(fan, batch_tokens=4096, attention_scale=96.0) for t in b]
        assert len(trees) > 10


@pytest.mark.parametrize("model", (ATTENTION | OTHERS).values(), ids=ATTENTION | OTHERS)
class TestAnyModel:
    @pytest.mark.parametrize("batch_tokens", [2048, 64])
    def test_reading_gives_the_log_probabilities_of_separate_passes(self, model, batch_tokens):
        engine = best_engine(model, batch_tokens=batch_tokens)
        calls = [sequence for sequence in CALL if len(sequence) > 1]
        first = [1 + i % 2 if len(s) > 2 else 1 for i, s in enumerate(calls)]
        wanted = {(i, t) for i, s in enumerate(calls) for t in range(first[i], len(s))}
        own = [own_logprobs(model, sequence) for sequence in calls]
        with torch.inference_mode():
            for places, logits in engine.read(calls, first):
                for (i, t), row in zip(places, logits.log_softmax(-1), strict=True):
                    torch.testing.assert_close(row, own[i][t - 1], atol=1e-3, rtol=0)
                    wanted.remove((i, t))
        assert not wanted

    @pytest.mark.parametrize("batch_tokens", [2048, 16])
    def test_writing_on_gives_the_log_probabilities_of_separate_passes(self, model, batch_tokens):
        engine = best_engine(model, batch_tokens=batch_tokens)
        grown = {i: list(sequence) for i, sequence in enumerate(CALL)}
        rows = {i: [] for i in grown}
        with torch.inference_mode():
            for members, steps in engine.write(CALL):
                logits = next(steps)
                for step in range(WINDOW + 4):
                    for row, i in zip(logits.log_softmax(-1), members, strict=True):
                        rows[i].append(row)
                    kept = range(0, len(members), 2 if step == 3 and len(members) > 2 else 1)
                    members = [members[row] for row in kept]
                    chosen = torch.tensor([3 + (i + step) % 50 for i in members])
                    for i, token in zip(members, chosen.tolist(), strict=True):
                        grown[i].append(token)
                    logits = steps.send((kept, chosen))
        for i, sequence in grown.items():
            assert len(rows[i]) in (4, WINDOW + 4)
            own = own_logprobs(model, sequence)[len(CALL[i]) - 1 :][: len(rows[i])]
            torch.testing.assert_close(torch.stack(rows[i]), own, atol=1e-3, rtol=0)


def test_rows_of_several_batches_are_written_together_while_they_hold_four_times_the_tokens():
    engine = TreeEngine(ATTENTION["llama"], batch_tokens=40)
    with torch.inference_mode():
        groups = [members for members, _ in engine.write([tokens(20, seed) for seed in range(10)])]
    assert [*map(len, groups)] == [8, 2]  # two are read at a time
    assert sorted(itertools.chain(*groups)) == [*range(10)]


def test_short_prompts_are_not_padded_to_a_long_one_beyond_what_is_held():
    engine = TreeEngine(ATTENTION["llama"], batch_tokens=40)
    call = [tokens(60, 0), *(tokens(5, seed) for seed in range(1, 11))]
    with torch.inference_mode():
        groups = [members for members, _ in engine.write(call)]
    assert [*map(len, groups)] == [1, 10]


@pytest.mark.parametrize("model", ATTENTION.values(), ids=ATTENTION)
def test_models_of_full_and_sliding_attention_share_prefixes(model):
    assert isinstance(best_engine(model, batch_tokens=99), TreeEngine)


@pytest.mark.parametrize("family", [*OTHERS, "llama of other kernels"])
def test_any_other_architecture_is_run_the_plain_way(family, caplog):
    model = OTHERS.get(family) or random_model("llama", **SIZES)
    if family not in OTHERS:
        model.config._attn_implementation = "flex_attention"
    with caplog.at_level(logging.WARNING):
        assert isinstance(best_engine(model, batch_tokens=99), PlainEngine)
    assert "without shared prefixes" in caplog.text


def test_the_sliding_window_of_these_tests_bites():
    gemma = ATTENTION["gemma3_text"]
    wide = random_model("gemma3_text", **SIZES | GEMMA | {"sliding_window": 500})
    wide.load_state_dict(gemma.state_dict())
    difference = own_logprobs(gemma, LADDER[5])[-1] - own_logprobs(wide, LADDER[5])[-1]
    assert difference.abs().max() > 0.01


SOLVED = [
    ("who is the author of the book Gulliver's Travels", "Jonathan Swift"),
    ("when did the first Star Wars film come out", "1977"),
    ("which river runs through Vienna", "the Danube"),
    ("who painted the ceiling of the Sistine Chapel", "Michelangelo"),
    ("what is the chemical symbol of gold", "Au"),
]
ASKED = "who has played Raoul in The Phantom of the Opera?"


def shots(count: int) -> str:
    solved = "".join(f"Question: {q}?\nAnswer: {a}\n\n" for q, a in SOLVED[:count])
    return f"Answer with a few words.\n\n{solved}Question: {ASKED}\nAnswer:"


def test_a_ladder_gets_the_answers_and_log_probabilities_of_separate_prompts(smollm2):
    ladder, brief = [shots(count) for count in range(6)], GenerationSettings(max_tokens=4)
    answers = ["Michael Crawford"] * 6
    written, scored = smollm2.generate(ladder, brief), smollm2.score(ladder, answers)
    for i, prompt in enumerate(ladder):
        [alone] = smollm2.generate([prompt], brief)
        assert written[i].text == alone.text
        assert logprobs(written[i]) == pytest.approx(logprobs(alone), abs=1e-3)
        [alone] = smollm2.score([prompt], answers[:1])
        assert logprobs(scored[i]) == pytest.approx(logprobs(alone), abs=1e-3)


def logprobs(generation):
    return [token.logprob for token in generation.tokens]
