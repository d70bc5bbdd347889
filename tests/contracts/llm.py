"""What every `LLM` must do, as test classes to inherit from.

Give the implementation as a fixture named `llm`::

    class TestMyModel(LLMContract):
        @pytest.fixture
        def llm(self):
            return MyModel()

A model that reports no token probabilities, that cannot be seeded, or that counts no tokens
passes too: what it does not claim is not asked of it, except where `gives_tokens` says so.
"""

import math

import pytest

from ltrag_plugins.llm.base import LLM, ScoringLLM
from ltrag_plugins.types import Generation, GenerationSettings

PROMPTS = (
    "What is the capital of France?",
    "Name a colour.",
    "Who wrote the novel Emma? Answer with the name only.",
    "Was ist die Hauptstadt von Österreich? 答えて 🙂",
)


def assert_well_formed(generation: Generation) -> None:
    """Log-probabilities are finite and at most 0, and the tokens join to the text."""
    assert isinstance(generation.text, str)
    if generation.tokens is None:
        return
    assert "".join(token.text for token in generation.tokens) == generation.text
    for token in generation.tokens:
        assert math.isfinite(token.logprob)
        assert token.logprob <= 1e-4
        assert token.entropy is None or token.entropy >= 0
        best_first = [logprob for _, logprob in token.alternatives]
        assert best_first == sorted(best_first, reverse=True)
        assert all(logprob <= 1e-4 for logprob in best_first)


class LLMContract:
    """Any implementation of `LLM`."""

    gives_tokens: bool = False
    """The implementation promises token probabilities."""
    seeded: bool = True
    """The same seed gives the same sample."""
    prompts: tuple[str, ...] = PROMPTS

    @pytest.fixture
    def llm(self) -> LLM:
        raise NotImplementedError("override the fixture `llm`")

    def test_it_is_an_llm_with_a_name(self, llm):
        assert isinstance(llm, LLM)
        assert isinstance(llm.name, str)
        assert llm.name.strip()

    def test_one_well_formed_generation_for_each_prompt(self, llm):
        generations = llm.generate(self.prompts, GenerationSettings(max_tokens=8))
        assert len(generations) == len(self.prompts)
        for generation in generations:
            assert_well_formed(generation)
            if self.gives_tokens:
                assert generation.tokens is not None

    def test_no_prompts_give_no_generations(self, llm):
        assert llm.generate([]) == []

    def test_the_order_of_the_prompts_is_kept(self, llm):
        forward = [g.text for g in llm.generate(self.prompts, GenerationSettings(max_tokens=6))]
        backward = [
            g.text for g in llm.generate(self.prompts[::-1], GenerationSettings(max_tokens=6))
        ]
        alone = [
            llm.generate([prompt], GenerationSettings(max_tokens=6))[0].text
            for prompt in self.prompts
        ]
        assert forward == backward[::-1] == alone

    def test_a_prompt_asked_twice_in_one_call_gets_the_same_answer_twice(self, llm):
        first, second = llm.generate([self.prompts[0]] * 2, GenerationSettings(max_tokens=6))
        assert first.text == second.text

    def test_the_prompts_handed_in_are_not_changed(self, llm):
        prompts = list(self.prompts)
        llm.generate(prompts, GenerationSettings(max_tokens=2))
        assert prompts == list(self.prompts)

    def test_at_most_max_tokens_are_written(self, llm):
        [generation] = llm.generate(
            ["Count from one to a hundred."], GenerationSettings(max_tokens=3)
        )
        if generation.tokens is not None:
            assert len(generation.tokens) <= 3
        if generation.completion_tokens is not None:
            assert generation.completion_tokens <= 3

    def test_the_text_ends_before_a_stop_string(self, llm):
        [free] = llm.generate(self.prompts[:1], GenerationSettings(max_tokens=12))
        if len(free.text) < 3:
            pytest.skip("the model wrote too little to stop inside of")
        stop = free.text[len(free.text) // 2 :][:2]
        [cut] = llm.generate(self.prompts[:1], GenerationSettings(max_tokens=12, stop=[stop]))
        assert cut.text == free.text[: free.text.index(stop)]
        assert_well_formed(cut)

    def test_the_first_of_several_stop_strings_counts(self, llm):
        [free] = llm.generate(self.prompts[:1], GenerationSettings(max_tokens=12))
        if len(free.text) < 4:
            pytest.skip("the model wrote too little to stop inside of")
        late, early = free.text[-2:], free.text[1:3]
        [cut] = llm.generate(
            self.prompts[:1], GenerationSettings(max_tokens=12, stop=[late, early, "\x00never"])
        )
        assert cut.text == free.text[: min(free.text.index(late), free.text.index(early))]

    def test_the_same_seed_gives_the_same_sample(self, llm):
        if not self.seeded:
            pytest.skip("this provider cannot be seeded")
        one, two = (
            llm.generate(self.prompts, GenerationSettings(max_tokens=6, temperature=1.0, seed=7))
            for _ in "ab"
        )
        assert [g.text for g in one] == [g.text for g in two]

    def test_unicode_survives(self, llm):
        prompts = ["Ünïcödé ✓", "日本語で答えて", "emoji 🙂🏳️‍🌈", "tab\there\nand a new line"]
        generations = llm.generate(prompts, GenerationSettings(max_tokens=6))
        assert len(generations) == len(prompts)
        for generation in generations:
            assert_well_formed(generation)
            generation.text.encode("utf-8")


class ScoringContract(LLMContract):
    """Any implementation of `ScoringLLM`; `tolerance` in nats."""

    gives_tokens = True
    tolerance: float = 1e-3

    def test_it_scores(self, llm):
        assert isinstance(llm, ScoringLLM)

    def test_scored_tokens_join_to_the_continuation(self, llm):
        continuations = ["Paris.", " Blue", "Jane Austen", "Wien, ウィーン 🙂"]
        scored = llm.score(self.prompts, continuations)
        assert [g.text for g in scored] == continuations
        for generation in scored:
            assert generation.tokens
            assert_well_formed(generation)

    def test_nothing_to_score_gives_nothing(self, llm):
        assert llm.score([], []) == []

    def test_an_empty_continuation_has_no_tokens(self, llm):
        empty, full = llm.score(self.prompts[:2], ["", "Blue"])
        assert empty.text == ""
        assert empty.tokens == ()
        assert full.tokens

    def test_scores_do_not_depend_on_what_else_is_in_the_call(self, llm):
        continuations = ["Paris is the capital.", "Blue", "Jane Austen", "Wien"]
        together = llm.score(self.prompts, continuations)
        for prompt, continuation, batched in zip(
            self.prompts, continuations, together, strict=True
        ):
            [alone] = llm.score([prompt], [continuation])
            assert [t.logprob for t in alone.tokens] == pytest.approx(
                [t.logprob for t in batched.tokens], abs=self.tolerance
            )

    def test_scoring_the_greedy_answer_gives_the_log_probabilities_of_writing_it(self, llm):
        written = llm.generate(self.prompts, GenerationSettings(max_tokens=6))
        scored = llm.score(self.prompts, [g.text for g in written])
        for wrote, read in zip(written, scored, strict=True):
            if [t.text for t in wrote.tokens] != [t.text for t in read.tokens]:
                continue  # the text alone does not tell how it was cut into tokens
            assert [t.logprob for t in read.tokens] == pytest.approx(
                [t.logprob for t in wrote.tokens], abs=self.tolerance
            )
        assert any(
            [t.text for t in w.tokens] == [t.text for t in r.tokens] and w.tokens
            for w, r in zip(written, scored, strict=True)
        )
