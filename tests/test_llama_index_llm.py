import asyncio
import threading
import time

import pytest
from llama_index.core.base.llms.types import CompletionResponse, LogProb
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike
from openai.types import Completion
from openai.types.chat import ChatCompletion

from ltrag_plugins.errors import InvalidInput, InvalidLogProbability, ModelFailed
from ltrag_plugins.llama_index import LlamaIndexLLM, LtragLLM
from ltrag_plugins.llm.base import LLM, AsyncLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.contracts.llm import LLMContract
from tests.llama_index_parts import AsyncFunctionLLM, FunctionLLM


def three_words(prompt: str) -> str:
    return f"{len(prompt)} letters, {prompt.split()[0]}"


class TestACompletionModelThroughLlamaIndex(LLMContract):
    @pytest.fixture
    def llm(self):
        return LlamaIndexLLM(FunctionLLM(three_words))


class TestAChatModelThroughLlamaIndex(LLMContract):
    @pytest.fixture
    def llm(self):
        return LlamaIndexLLM(FunctionLLM(three_words, is_chat_model=True))


class TestOurModelThroughLlamaIndexAndBack(LLMContract):
    @pytest.fixture
    def llm(self):
        return LlamaIndexLLM(LtragLLM(ScriptedLLM(three_words)))


CHAT = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Jane Austen"},
            "logprobs": {
                "content": [
                    {
                        "token": "Jane",
                        "logprob": -0.25,
                        "top_logprobs": [
                            {"token": "Mary", "logprob": -2.0},
                            {"token": "Jane", "logprob": -0.25},
                        ],
                    },
                    {"token": " Austen", "logprob": -0.5, "top_logprobs": []},
                ]
            },
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}
COMPLETION = {
    "id": "1",
    "object": "text_completion",
    "created": 0,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "text": "Jane Austen",
            "logprobs": {
                "tokens": ["Jane", " Austen"],
                "token_logprobs": [-0.25, -0.5],
                "top_logprobs": [{"Mary": -2.0, "Jane": -0.25}, {}],
                "text_offset": [0, 4],
            },
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}
EXPECTED = Generation(
    text="Jane Austen",
    tokens=(
        Token("Jane", -0.25, alternatives=(("Jane", -0.25), ("Mary", -2.0))),
        Token(" Austen", -0.5),
    ),
    prompt_tokens=7,
    completion_tokens=2,
)


def answer(**response) -> Generation:
    fixed = CompletionResponse(**{"text": "Jane Austen"} | response)
    [generation] = LlamaIndexLLM(FunctionLLM(lambda prompt: fixed)).generate(["Who wrote Emma?"])
    return generation


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    "raw",
    [CHAT, ChatCompletion.model_validate(CHAT), COMPLETION, Completion.model_validate(COMPLETION)],
    ids=["chat dict", "chat object", "completion dict", "completion object"],
)
def test_log_probabilities_and_usage_are_read_from_the_raw_reply(raw, chat):
    fixed = CompletionResponse(text="Jane Austen", raw=raw)
    llm = LlamaIndexLLM(FunctionLLM(lambda prompt: fixed, is_chat_model=chat))
    assert llm.generate(["Who wrote Emma?"]) == [EXPECTED]


def test_a_reply_without_log_probabilities_has_no_tokens():
    assert answer().tokens is None
    assert answer(raw={"choices": [{"logprobs": None}]}).tokens is None
    assert answer(raw=object()).tokens is None


def test_an_empty_answer_has_no_tokens_of_known_probability_rather_than_unknown_ones():
    empty = {"choices": [{"logprobs": {"content": []}}]}
    assert answer(text="", raw=empty).tokens == ()
    assert answer(text="", raw={"choices": [{"logprobs": None}]}).tokens is None
    assert answer(text="Jane", raw=empty).tokens is None


def test_top_log_probabilities_of_length_zero_are_none_at_all():
    assert answer(logprobs=[[], []]).tokens is None


def test_the_likeliest_tokens_count_only_where_they_spell_the_very_answer():
    jane, mary = LogProb(token="Jane", logprob=-0.1), LogProb(token="Mary", logprob=-0.05)
    austen, smith = LogProb(token=" Austen", logprob=-0.2), LogProb(token=" Smith", logprob=-3)
    spelled = answer(logprobs=[[jane], [smith, austen]])
    assert [(t.text, t.logprob) for t in spelled.tokens] == [("Jane", -0.1), (" Austen", -0.2)]
    assert answer(logprobs=[[jane, mary], [austen]]).tokens is None


def with_logprob(value) -> dict:
    return {"choices": [{"logprobs": {"content": [{"token": "Jane", "logprob": value}]}}]}


@pytest.mark.parametrize("value", [float("nan"), 0.5, None])
def test_an_impossible_log_probability_is_refused_by_name(value):
    with pytest.raises(InvalidLogProbability, match="FunctionLLM:function"):
        answer(raw=with_logprob(value))


def test_settings_go_with_the_call_and_nothing_stays_on_the_callers_model():
    model = FunctionLLM(lambda prompt: "a b STOP c")
    before, attributes = model.model_dump(), set(vars(model))
    llm = LlamaIndexLLM(model, logprobs=True)
    [cut] = llm.generate(
        ["x"], GenerationSettings(max_tokens=5, stop=[" STOP"], temperature=0.5, seed=3)
    )
    [whole] = llm.generate(["x"])
    assert (cut.text, whole.text) == ("a b", "a b STOP c")
    assert model.seen == [
        {"max_tokens": 5, "temperature": 0.5, "stop": [" STOP"], "seed": 3, "logprobs": True},
        {"max_tokens": 64, "temperature": 0.0, "logprobs": True},
    ]
    assert model.model_dump() == before
    assert set(vars(model)) == attributes


def test_settings_are_sent_under_the_names_that_the_model_wants():
    model = FunctionLLM(three_words)
    keywords = {"max_tokens": "max_new_tokens", "stop": "stop_sequences"}
    LlamaIndexLLM(model, keywords=keywords).generate(
        ["x"], GenerationSettings(stop=["."], temperature=1.0, seed=1)
    )
    assert model.seen == [{"max_new_tokens": 64, "stop_sequences": ["."]}]


def test_an_unknown_setting_is_refused():
    with pytest.raises(InvalidInput, match=r"\['top_k'\].*'max_tokens'"):
        LlamaIndexLLM(MockLLM(), keywords={"top_k": "top_k"})


def test_something_else_in_place_of_an_llm_is_refused():
    with pytest.raises(InvalidInput, match="llm must be a LlamaIndex LLM"):
        LlamaIndexLLM(ScriptedLLM(three_words))
    with pytest.raises(InvalidInput, match="llm must be an ltrag_plugins LLM"):
        LtragLLM(MockLLM())


def test_the_name_has_class_and_model_and_what_changes_the_replies():
    inner = FunctionLLM(three_words, model_name="m1")
    assert LlamaIndexLLM(inner).name == "FunctionLLM:m1"
    changed = [
        LlamaIndexLLM(inner, logprobs=True),
        LlamaIndexLLM(inner, logprobs=5),
        LlamaIndexLLM(inner, keywords={"max_tokens": "max_tokens"}),
        LlamaIndexLLM(inner, keywords={}),
    ]
    assert len({"FunctionLLM:m1", *(one.name for one in changed)}) == 5
    assert LlamaIndexLLM(MockLLM(), name="mine").name == "mine"


def test_the_name_turns_on_the_address_and_fixed_arguments_and_on_no_connection():
    def name(**fields):
        like = {"model": "m", "api_key": "k", "api_base": "http://a/v1"} | fields
        return LlamaIndexLLM(OpenAILike(**like)).name

    other = [
        name(api_base="http://b/v1"),
        name(system_prompt="Be brief."),
        name(additional_kwargs={"top_k": 1}),
    ]
    assert len({name(), *other}) == 4
    assert name() == name(api_key="z", timeout=3, max_retries=9, context_window=99)
    assert LlamaIndexLLM(OpenAI(model="gpt-4o", api_key="k")).name == "OpenAI:gpt-4o"


def test_sync_calls_overlap_and_keep_their_order():
    second_asked = threading.Event()

    def first_waits_for_second(prompt: str) -> str:
        if prompt == "first":
            assert second_asked.wait(10)
        else:
            second_asked.set()
        return prompt

    llm = LlamaIndexLLM(AsyncFunctionLLM(first_waits_for_second))
    assert [g.text for g in llm.generate(["first", "second"])] == ["first", "second"]


def test_a_model_without_async_of_its_own_is_asked_one_by_one_and_off_the_loop():
    inside = threading.Lock()

    def alone(prompt: str) -> str:
        assert inside.acquire(blocking=False)
        time.sleep(0.01)  # long enough for a second caller to meet the first one here
        inside.release()
        return prompt.upper()

    async def both():
        return await asyncio.gather(llm.agenerate(["a", "b"]), llm.agenerate(["c"]))

    for chat in (False, True):
        model = FunctionLLM(alone, is_chat_model=chat)
        llm = LlamaIndexLLM(model)
        (one, two) = asyncio.run(both())
        assert [g.text for g in one + two] == ["A", "B", "C"]
        assert model.blocked_the_loop == []


async def test_an_async_model_is_awaited_with_bounded_concurrency_and_order_kept():
    flying, most = 0, 0

    async def count(prompt: str) -> str:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.01 / (1 + int(prompt)))
        flying -= 1
        return prompt

    llm = LlamaIndexLLM(AsyncFunctionLLM(count), concurrency=4)
    prompts = [str(i) for i in range(12)]
    assert [g.text for g in await llm.agenerate(prompts)] == prompts
    assert most == 4


async def test_as_many_calls_are_in_flight_together_as_may_be():
    barrier = asyncio.Barrier(200)  # lets nobody through before all 200 are there

    async def slow(prompt: str) -> str:
        await barrier.wait()
        return prompt

    llm = LlamaIndexLLM(AsyncFunctionLLM(slow), concurrency=200)
    async with asyncio.timeout(30):
        replies = await asyncio.gather(*(llm.agenerate([str(i)]) for i in range(200)))
    assert [g.text for [g] in replies] == [str(i) for i in range(200)]


async def test_after_a_failure_the_other_calls_are_cancelled():
    cancelled = []

    async def fail_or_wait(prompt: str) -> str:
        if prompt == "bad":
            raise ValueError("no")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(prompt)
            raise
        return prompt

    llm = LlamaIndexLLM(AsyncFunctionLLM(fail_or_wait))
    with pytest.raises(ModelFailed, match="ValueError: no"):
        await llm.agenerate(["good", "bad"])
    await asyncio.sleep(0)
    assert cancelled == ["good"]


async def test_sync_and_async_give_equal_generations():
    def plain(prompt):
        return CompletionResponse(text="Jane Austen", raw=CHAT)

    async def awaited(prompt):
        return plain(prompt)

    sync, native = LlamaIndexLLM(FunctionLLM(plain)), LlamaIndexLLM(AsyncFunctionLLM(awaited))
    settings = {"stop": [" Au"], "max_tokens": 3}
    expected = sync.generate(["p", "q"], GenerationSettings(**settings))
    assert await native.agenerate(["p", "q"], GenerationSettings(**settings)) == expected
    assert await sync.agenerate(["p", "q"], GenerationSettings(**settings)) == expected
    assert [t.text for t in expected[0].tokens] == ["Jane"]


def test_it_is_an_async_llm():
    assert isinstance(LlamaIndexLLM(MockLLM()), LLM)
    assert isinstance(LlamaIndexLLM(MockLLM()), AsyncLLM)


def test_our_model_through_llama_index_and_back_keeps_every_probability():
    for written in (EXPECTED, Generation("", ()), Generation("no probabilities")):
        ours = ScriptedLLM(lambda prompt, written=written: written)
        assert LlamaIndexLLM(LtragLLM(ours)).generate(["Who wrote Emma?"]) == [written]


class OnlySync:
    """An `LLM` and no `AsyncLLM`, that notes where it was called."""

    name = "only-sync"

    def __init__(self) -> None:
        self.threads = []

    def generate(self, prompts, settings=GenerationSettings()):
        self.threads.append(threading.current_thread())
        return [Generation(f"{prompt[-4:]} {settings.max_tokens}") for prompt in prompts]


async def test_our_model_answers_alike_through_all_eight_calls_of_an_llm():
    async def awaited(prompt):
        return f"{prompt[-4:]} 9"

    messages = [ChatMessage(role="user", content="hi")]
    for ours in (OnlySync(), ScriptedLLM(awaited)):
        llm = LtragLLM(ours, num_output=9)
        wanted = f"{llm.messages_to_prompt(messages)[-4:]} 9"
        assert (await llm.acomplete("word")).text == "word 9"
        assert [r.delta async for r in await llm.astream_complete("word")] == ["word 9"]
        assert (await llm.achat(messages)).message.content == wanted
        assert [r.delta async for r in await llm.astream_chat(messages)] == [wanted]
    only_sync = OnlySync()
    llm = LtragLLM(only_sync, num_output=9)
    assert llm.complete("word").text == "word 9"
    assert [r.text for r in llm.stream_complete("word")] == ["word 9"]
    assert llm.chat(messages).message.content == wanted
    assert [r.delta for r in llm.stream_chat(messages)] == [wanted]
    assert llm.complete("word", max_tokens=2).text == "word 2"


async def test_our_sync_model_does_not_run_on_the_event_loop():
    ours = OnlySync()
    llm = LtragLLM(ours)
    await llm.acomplete("word")
    await llm.achat([ChatMessage(role="user", content="hi")])
    assert [thread for thread in ours.threads if thread is threading.current_thread()] == []


def test_our_model_refuses_a_setting_it_would_ignore():
    with pytest.raises(InvalidInput, match=r"\['top_p'\]"):
        LtragLLM(OnlySync()).complete("word", top_p=0.5)


def test_our_model_tells_llama_index_its_limits():
    metadata = LtragLLM(OnlySync(), context_window=512, num_output=8).metadata
    assert (metadata.context_window, metadata.num_output) == (512, 8)
    assert (metadata.model_name, metadata.is_chat_model) == ("only-sync", False)
