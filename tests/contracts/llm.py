"""What every `LLM` must do, as test classes to inherit from.

Give the implementation as a fixture named `llm`::

    class TestMyModel(LLMContract):
        @pytest.fixture
        def llm(self):
            return MyModel()

A model that reports no token probabilities, that cannot be seeded, or that counts no tokens
passes too: what it does not claim is not asked of it, except where `gives_tokens` says so.
"""

import asyncio
import math

import pytest

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Ask, World
from ltrag_plugins.llm.base import LLM, AsyncLLM, EachLLM, ScoringLLM
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

    def test_one_well_formed_generation_for_each_prompt(self, llm):
        assert isinstance(llm, LLM)
        assert llm.name.strip()
        prompts = list(self.prompts)
        generations = llm.generate(prompts, GenerationSettings(max_tokens=8))
        assert len(generations) == len(prompts)
        assert prompts == list(self.prompts)
        for generation in generations:
            assert_well_formed(generation)
            assert generation.tokens is not None or not self.gives_tokens
        assert llm.generate([]) == []

    def test_a_single_text_is_no_list_of_prompts(self, llm):
        with pytest.raises(InvalidInput, match=r"give a list: \[prompt\]"):
            llm.generate("one")
        if isinstance(llm, AsyncLLM):
            with pytest.raises(InvalidInput, match="give a list"):
                asyncio.run(llm.agenerate("one"))
        if isinstance(llm, ScoringLLM):
            with pytest.raises(InvalidInput, match="give a list"):
                llm.score("one", ["t", "w", "o"])

    def test_the_order_of_the_prompts_is_kept(self, llm):
        def texts(prompts):
            return [g.text for g in llm.generate(prompts, GenerationSettings(max_tokens=6))]

        alone = [text for prompt in self.prompts for text in texts([prompt])]
        assert texts(self.prompts) == texts(self.prompts[::-1])[::-1] == alone

    def test_a_prompt_asked_twice_in_one_call_gets_the_same_answer_twice(self, llm):
        first, second = llm.generate([self.prompts[0]] * 2, GenerationSettings(max_tokens=6))
        assert first.text == second.text

    def test_at_most_max_tokens_are_written(self, llm):
        brief = GenerationSettings(max_tokens=3)
        [generation] = llm.generate(["Count from one to a hundred."], brief)
        assert len(generation.tokens or ()) <= 3
        assert (generation.completion_tokens or 0) <= 3

    def test_the_text_ends_before_the_first_of_the_stop_strings(self, llm):
        def written(*stop):
            return llm.generate(self.prompts[:1], GenerationSettings(max_tokens=12, stop=stop))[0]

        free = written().text
        if len(free) < 3:
            pytest.skip("the model wrote too little to stop inside of")
        middle, late, early = free[len(free) // 2 :][:2], free[-2:], free[1:3]
        for stop in ([middle], [late, early, "\x00never"]):
            cut = written(*stop)
            assert cut.text == free[: min(free.index(s) for s in stop if s in free)]
            assert_well_formed(cut)

    def test_the_same_seed_gives_the_same_sample(self, llm):
        if not self.seeded:
            pytest.skip("this provider cannot be seeded")
        one, two = (
            llm.generate(self.prompts, GenerationSettings(max_tokens=6, temperature=1.0, seed=7))
            for _ in "ab"
        )
        assert [g.text for g in one] == [g.text for g in two]

    def test_each_prompt_may_have_settings_of_its_own(self, llm):
        seed = 7 if self.seeded else None
        heat = 1.0 if self.seeded else 0.0
        kinds = [GenerationSettings(2), GenerationSettings(6, ("e",))]
        kinds += [GenerationSettings(6, temperature=heat, seed=one) for one in (seed, seed, 8)]
        pairs = [(prompt, kind) for kind in kinds for prompt in self.prompts[::-1]]
        pairs = sorted(pairs, key=lambda pair: pair[0])  # stays in the order of the kinds
        alone = [llm.generate([prompt], kind)[0].text for prompt, kind in pairs]
        prompts, settings = zip(*pairs, strict=True)
        world, request = World(llm=llm), Ask(prompts, settings)
        for found in (world.reply(request), asyncio.run(world.areply(request))):
            assert [one.text for one in found] == alone
            for generation in found:
                assert_well_formed(generation)
        if isinstance(llm, EachLLM):
            assert llm.generate_each([], []) == []
            with pytest.raises(ValueError, match="argument 2 is shorter"):
                llm.generate_each(prompts, settings[1:])

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

    def test_scored_tokens_join_to_the_continuation(self, llm):
        continuations = ["Paris.", " Blue", "Jane Austen", "Wien, ウィーン 🙂"]
        assert isinstance(llm, ScoringLLM)
        scored = llm.score(self.prompts, continuations)
        assert [g.text for g in scored] == continuations
        for generation in scored:
            assert generation.tokens
            assert_well_formed(generation)

    def test_nothing_to_score_gives_nothing_and_an_empty_continuation_no_tokens(self, llm):
        assert llm.score([], []) == []
        empty, full = llm.score(self.prompts[:2], ["", "Blue"])
        assert (empty.text, empty.tokens) == ("", ())
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
        compared = 0
        for wrote, read in zip(written, scored, strict=True):
            if [t.text for t in wrote.tokens] == [t.text for t in read.tokens]:
                compared += bool(wrote.tokens)  # else the text was cut into other tokens
                assert [t.logprob for t in read.tokens] == pytest.approx(
                    [t.logprob for t in wrote.tokens], abs=self.tolerance
                )
        assert compared
