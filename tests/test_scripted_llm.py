"""A Python function as a model."""

import asyncio
import math
import threading

import pytest

from ltrag_plugins.errors import InvalidLogProbability, ModelError
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.contracts.llm import LLMContract


def spell(prompt: str) -> str:
    return " ".join(prompt[::-1]) + " and so on and so on"


class TestAScript(LLMContract):
    @pytest.fixture
    def llm(self):
        return ScriptedLLM(spell)


class TestAnAsyncScript(LLMContract):
    @pytest.fixture
    def llm(self):
        async def slowly(prompt: str) -> str:
            await asyncio.sleep(0)
            return spell(prompt)

        return ScriptedLLM(slowly)


class TestAScriptWithTokenProbabilities(LLMContract):
    gives_tokens = True

    @pytest.fixture
    def llm(self):
        return ScriptedLLM(lambda _: Generation("a b", (Token("a", -0.5), Token(" b", -0.1))))


def test_tokens_are_words_and_their_spacing_is_kept():
    llm = ScriptedLLM(lambda _: "  one\ttwo \n three four")
    [cut] = llm.generate(["how many words?"], GenerationSettings(max_tokens=3))
    assert cut == Generation("  one\ttwo \n three", None, prompt_tokens=3, completion_tokens=3)


def test_a_stop_string_beyond_max_tokens_is_never_reached():
    llm = ScriptedLLM(lambda _: "one two STOP three")
    for most, text in ((2, "one two"), (9, "one two ")):
        [cut] = llm.generate(["?"], GenerationSettings(max_tokens=most, stop=["STOP"]))
        assert cut.text == text


@pytest.mark.parametrize(("most", "stop", "reason"), [
    (2, ["STOP"], "length"), (9, ["STOP"], "stop"), (3, [], "length"), (4, [], None)
])  # fmt: skip
def test_a_text_that_was_cut_says_so(most, stop, reason):
    llm = ScriptedLLM(lambda _: "one two STOP three")
    [said] = llm.generate(["?"], GenerationSettings(most, stop))
    assert said.finish_reason == reason


def test_a_generation_is_handed_on_with_the_tokens_of_the_text_that_a_stop_leaves():
    tokens = (Token("Par", -0.1, 0.5, (("Par", -0.1),)), Token("is. No", -0.2), Token("w", -0.3))
    said = Generation("Paris. Now", tokens, 7, 3)
    llm = ScriptedLLM(lambda _: said)
    assert llm.generate(["?"], GenerationSettings(max_tokens=1, stop=["!"])) == [said]
    [cut] = llm.generate(["?"], GenerationSettings(stop=["w", ". "]))
    assert (cut.text, cut.tokens) == ("Paris", (tokens[0], Token("is", -0.2)))


@pytest.mark.parametrize("logprob", [math.nan, 0.5])
def test_an_impossible_log_probability_is_refused(logprob):
    llm = ScriptedLLM(lambda _: Generation("x", (Token("x", logprob),)))
    with pytest.raises(InvalidLogProbability, match="scripted"):
        llm.generate(["?"])


def test_what_the_function_raises_the_call_raises():
    def broken(prompt: str) -> str:
        raise ZeroDivisionError(prompt)

    with pytest.raises(ZeroDivisionError, match="why"):
        ScriptedLLM(broken).generate(["why"])


def test_a_function_that_returns_neither_text_nor_generation_is_named():
    with pytest.raises(ModelError, match="'odd' returned None"):
        ScriptedLLM(lambda _: None, name="odd").generate(["?"])


async def polly(prompt: str) -> str:
    return prompt


async def test_an_async_function_cannot_be_called_from_a_running_loop():
    with pytest.raises(ModelError, match="agenerate"):
        ScriptedLLM(polly).generate(["?"])


async def test_all_prompts_of_an_async_call_are_in_flight_together():
    everyone_is_here = asyncio.Barrier(20)

    async def meet(prompt: str) -> str:
        await everyone_is_here.wait()  # deadlocks unless all twenty arrive
        return prompt

    prompts = [str(i) for i in range(20)]
    replies = await ScriptedLLM(meet).agenerate(prompts)
    assert [reply.text for reply in replies] == prompts


async def test_a_plain_function_leaves_the_event_loop_free():
    threads = []
    llm = ScriptedLLM(lambda prompt: threads.append(threading.get_ident()) or prompt)
    await llm.agenerate(["?"])
    assert threads != [threading.get_ident()]


def test_a_callable_object_with_an_async_call_is_async():
    class Parrot:
        async def __call__(self, prompt: str) -> str:
            return prompt

    assert ScriptedLLM(Parrot()).generate(["polly"])[0].text == "polly"


def test_it_remembers_what_it_was_asked_call_by_call():
    llm = ScriptedLLM(spell)
    llm.generate(["a", "b"])
    llm.generate(["c"])
    assert (llm.calls, llm.prompts) == ([("a", "b"), ("c",)], ["a", "b", "c"])
