"""LangChain's chat models and LLMs as ours."""

import asyncio
import threading

import pytest
from langchain_core.language_models import FakeListChatModel, FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import Generation as LangChainGeneration
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from ltrag_plugins.errors import InvalidInput, InvalidLogProbability, ModelError, ModelFailed
from ltrag_plugins.flow import World, arun, ask, run
from ltrag_plugins.langchain import LangChainLLM, LtragLLM
from ltrag_plugins.llm.base import AsyncLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.contracts.llm import LLMContract
from tests.langchain_parts import FunctionChat, FunctionCompletion, Runs, soon, with_logprobs


def spell(prompt: str) -> str:
    return " ".join(prompt[::-1]) + " and so on and so on"


def spell_with_logprobs(prompt: str) -> AIMessage:
    text = prompt[::-1]
    return with_logprobs(text, *((letter, -0.5) for letter in text))


class TestAChatModel(LLMContract):
    @pytest.fixture
    def llm(self):
        return LangChainLLM(FunctionChat(spell))


class TestACompletionModel(LLMContract):
    @pytest.fixture
    def llm(self):
        return LangChainLLM(FunctionCompletion(spell))


class TestABoundModel(LLMContract):
    @pytest.fixture
    def llm(self):
        return LangChainLLM(FunctionChat(spell).bind(user="me").with_config(tags=["x"]))


async def test_sync_and_async_give_the_same_generations():
    for model in (FunctionChat(spell_with_logprobs), FunctionCompletion(spell)):
        llm = LangChainLLM(model)
        assert isinstance(llm, AsyncLLM)
        prompts = ["one", "two", ""]
        assert await llm.agenerate(prompts, GenerationSettings(stop=["o"])) == llm.generate(
            prompts, GenerationSettings(stop=["o"])
        )
        assert await llm.agenerate([]) == []


@pytest.mark.parametrize("bound", [8, 50])
async def test_the_prompts_of_all_async_calls_are_in_flight_together_up_to_the_bound(bound):
    model = FunctionChat(lambda prompt: soon(prompt.upper()))
    llm = LangChainLLM(model) if bound == 8 else LangChainLLM(model, max_concurrency=bound)
    asked = [[f"q{i}", f"r{i}"] for i in range(25)]
    replies = await asyncio.gather(*map(llm.agenerate, asked))
    assert [[r.text for r in some] for some in replies] == [[f"Q{i}", f"R{i}"] for i in range(25)]
    assert model.flying == [0, bound]


def test_the_prompts_of_a_sync_call_use_langchains_own_concurrency():
    together = threading.Barrier(4, timeout=20)

    def wait_for_the_others(prompt: str) -> str:
        together.wait()
        return prompt

    assert len(LangChainLLM(FunctionChat(wait_for_the_others)).generate(list("abcd"))) == 4


def test_a_completion_model_gets_all_prompts_in_one_call():
    model = FunctionCompletion(str.upper)
    assert [g.text for g in LangChainLLM(model).generate(["a", "b"])] == ["A", "B"]
    assert model.calls == [["a", "b"]]


def test_settings_reach_the_fields_of_a_copy_and_the_callers_model_keeps_its_own():
    model = FunctionChat(spell, temperature=0.7, max_tokens=999)
    before, fields_set = model.model_dump(), set(model.model_fields_set)
    LangChainLLM(model).generate(
        ["x"], GenerationSettings(max_tokens=5, stop=["."], temperature=0.2, seed=3)
    )
    assert model.sent == [
        {
            "max_tokens": 5,
            "temperature": 0.2,
            "seed": 3,
            "stop": ["."],
            "logprobs": True,
            "top_logprobs": 5,
        }
    ]
    assert model.model_dump() == before
    assert model.model_fields_set == fields_set
    assert model.logprobs is None


def test_nothing_of_our_calls_is_left_on_the_callers_model():
    model = FunctionChat(spell)
    llm = LangChainLLM(model)
    llm.generate(["x"], GenerationSettings(stop=["."], seed=1))
    model.invoke("x")
    assert model.sent[-1] == {}


def test_what_the_caller_bound_stays_bound_and_the_binding_is_not_changed():
    inner = FunctionChat(spell)
    bound = inner.bind(user="me")
    LangChainLLM(bound).generate(["x"], GenerationSettings(max_tokens=7))
    assert inner.sent[-1]["user"] == "me"
    assert inner.sent[-1]["max_tokens"] == 7
    assert bound.kwargs == {"user": "me"}
    assert bound.bound is inner
    assert inner.max_tokens is None


def test_a_model_that_declares_no_settings_is_sent_none():
    class Strict(FakeListChatModel):
        def _call(self, messages, stop=None, run_manager=None):  # takes no other argument
            return super()._call(messages)

    model = Strict(responses=["one", "two"])
    replies = LangChainLLM(model).generate(
        ["a", "b"], GenerationSettings(max_tokens=3, temperature=1.0, seed=1)
    )
    assert [r.text for r in replies] == ["one", "two"]


def test_settings_can_be_passed_another_way():
    model = FunctionChat(spell)
    llm = LangChainLLM(
        model, settings=lambda m, asked: m.bind(options={"num_predict": asked.max_tokens})
    )
    llm.generate(["x"], GenerationSettings(max_tokens=9))
    assert model.sent == [{"options": {"num_predict": 9}}]


def test_log_probabilities_are_only_asked_for_when_wanted():
    model = FunctionChat(spell)
    LangChainLLM(model, logprobs=None).generate(["x"])
    assert "logprobs" not in model.sent[0]


def test_a_completion_model_is_sent_stop_strings_and_a_number_of_log_probabilities():
    model = FunctionCompletion(spell)
    LangChainLLM(model, logprobs=3).generate(["x"], GenerationSettings(stop=["."]))
    assert model.sent == [{"logprobs": 3, "stop": ["."]}]
    assert model.logprobs is None


def test_token_log_probabilities_and_alternatives_are_read():
    content = [
        {
            "token": "Par",
            "logprob": -0.1,
            "top_logprobs": [
                {"token": "Lon", "logprob": -3.0},
                {"token": "Par", "logprob": -0.1},
            ],
        },
        {"token": "is", "logprob": -0.2},
    ]
    reply = AIMessage(
        "Paris",
        response_metadata={"logprobs": {"content": content}},
        usage_metadata={"input_tokens": 11, "output_tokens": 2, "total_tokens": 13},
    )
    model = GenericFakeChatModel(messages=iter([reply]))
    assert LangChainLLM(model).generate(["capital?"]) == [
        Generation(
            "Paris",
            (
                Token("Par", -0.1, alternatives=(("Par", -0.1), ("Lon", -3.0))),
                Token("is", -0.2),
            ),
            prompt_tokens=11,
            completion_tokens=2,
        )
    ]


def test_token_counts_of_a_completion_model_are_read_where_they_are_one_prompts():
    class Counting(FunctionCompletion):
        def _generate(self, prompts, stop=None, run_manager=None, **kwargs):
            result = super()._generate(prompts)
            result.llm_output = {"token_usage": {"prompt_tokens": 9, "completion_tokens": 2}}
            return result

    llm = LangChainLLM(Counting(str.upper))
    assert llm.generate(["a"]) == [Generation("A", None, 9, 2)]
    assert llm.generate(["a", "b"]) == [Generation("A"), Generation("B")]


@pytest.mark.parametrize(
    "logprobs",
    [
        {
            "tokens": ["a", "b"],
            "token_logprobs": [-0.1, -0.2],
            "top_logprobs": [{"a": -0.1, "z": -2.0}, None],
        },
        {
            "content": [
                {
                    "token": "a",
                    "logprob": -0.1,
                    "top_logprobs": [
                        {"token": "a", "logprob": -0.1},
                        {"token": "z", "logprob": -2},
                    ],
                },
                {"token": "b", "logprob": -0.2, "top_logprobs": []},
            ]
        },
        [
            {
                "token": "a",
                "logprob": -0.1,
                "top_logprobs": [{"token": "z", "logprob": -2}, {"token": "a", "logprob": -0.1}],
            },
            {"token": "b", "logprob": -0.2},
        ],
    ],
    ids=["columns", "content", "list"],
)
def test_generation_info_is_read_in_each_of_the_partners_forms(logprobs):
    model = FunctionCompletion(
        lambda _: LangChainGeneration(text="ab", generation_info={"logprobs": logprobs})
    )
    [generation] = LangChainLLM(model).generate(["x"])
    assert generation.tokens == (
        Token("a", -0.1, alternatives=(("a", -0.1), ("z", -2.0))),
        Token("b", -0.2),
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"logprobs": None},
        {"logprobs": {"content": None}},
        {"logprobs": {"content": []}},
        {"logprobs": {"tokens": None, "token_logprobs": [-0.1]}},
    ],
    ids=str,
)
def test_missing_log_probabilities_are_none_and_never_a_guess(metadata):
    model = GenericFakeChatModel(messages=iter([AIMessage("ab", response_metadata=metadata)]))
    assert LangChainLLM(model).generate(["x"]) == [Generation("ab", None)]


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"token": "a", "logprob": None}]},
        {"tokens": ["a", "b"], "token_logprobs": [None, -0.1]},
        {"tokens": ["a", "b"], "token_logprobs": [-0.1]},
        "yes",
    ],
    ids=str,
)
def test_log_probabilities_that_cannot_be_read_are_a_named_error(logprobs):
    reply = AIMessage("ab", response_metadata={"logprobs": logprobs})
    with pytest.raises(ModelError, match="FunctionChat"):
        LangChainLLM(FunctionChat(lambda _: reply)).generate(["x"])


@pytest.mark.parametrize("wrong", [float("nan"), 0.5])
def test_an_impossible_log_probability_is_refused(wrong):
    model = FunctionChat(lambda _: with_logprobs("a", ("a", wrong)))
    with pytest.raises(InvalidLogProbability, match="natural logarithms"):
        LangChainLLM(model).generate(["x"])


def test_log_probabilities_in_the_text_blocks_of_responses_are_read():
    blocks = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "Par", "logprobs": [{"token": "Par", "logprob": -0.1}]},
        {"type": "text", "text": "is", "extras": {"logprobs": [{"token": "is", "logprob": -0.2}]}},
    ]
    llm = LangChainLLM(FunctionChat(lambda _: AIMessage(content=blocks)))
    assert llm.generate(["x"]) == [Generation("Paris", (Token("Par", -0.1), Token("is", -0.2)))]


def test_the_text_of_content_blocks_is_joined():
    blocks = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "Par"},
        {"type": "text", "text": "is"},
    ]
    model = GenericFakeChatModel(messages=iter([AIMessage(content=blocks)]))
    assert LangChainLLM(model).generate(["x"])[0].text == "Paris"


def test_a_stop_string_the_model_ignored_ends_the_text_and_its_tokens():
    reply = with_logprobs("a.b", ("a", -0.1), (".", -0.2), ("b", -0.3))
    [cut] = LangChainLLM(FunctionChat(lambda _: reply)).generate(
        ["x"], GenerationSettings(stop=["."])
    )
    assert cut == Generation("a", (Token("a", -0.1),))


def test_the_name_tells_models_apart_and_keeps_secrets():
    name = LangChainLLM(FunctionChat(spell)).name
    assert name == LangChainLLM(FunctionChat(spell)).name
    assert name != LangChainLLM(FunctionChat(spell, model_name="other")).name
    assert name != LangChainLLM(FunctionChat(spell).bind(user="me")).name
    assert name != LangChainLLM(FakeListLLM(responses=["x"])).name
    assert "FunctionChat:function" in name
    assert "secret" not in name + repr(LangChainLLM(FunctionChat(spell)))


def test_the_name_does_not_turn_on_settings_that_every_call_sets():
    warm, cold = (FunctionChat(spell, temperature=t, max_tokens=9) for t in (0.0, 0.9))
    assert LangChainLLM(warm).name == LangChainLLM(cold).name


def test_the_name_turns_on_the_address_and_fixed_arguments_and_on_no_connection():
    def name(**fields):
        chat = {"model": "m", "api_key": "k", "base_url": "http://a/v1"} | fields
        return LangChainLLM(ChatOpenAI(**chat)).name

    other = [
        name(base_url="http://b/v1"),
        name(base_url=None),
        name(extra_body={"top_k": 1}),
        name(model_kwargs={"x": 1}),
        name(top_p=0.5),
    ]
    assert len({name(), *other}) == 6
    connection = {"streaming": True, "timeout": 3, "max_retries": 9, "api_key": "z"}
    assert name() == name(**connection, organization="o", default_headers={"x": "y"})
    # as before the address was a part of it: saved gates and caches of plain models are read
    assert name(base_url=None) == "langchain:ChatOpenAI:m:3ee36feb1939"
    bound = ChatOpenAI(model="m", api_key="k").bind(stream=True, timeout=3)
    assert LangChainLLM(bound).name == name(base_url=None)


def test_what_the_model_raises_is_the_cause_of_the_named_error():
    def broken(prompt: str) -> str:
        raise ConnectionError("no route")

    def asking():
        return (yield from ask("x"))

    world = World(llm=LangChainLLM(FunctionChat(broken)))
    for call in (lambda: run(asking(), world), lambda: asyncio.run(arun(asking(), world))):
        with pytest.raises(ModelFailed, match="no route") as caught:
            call()
        assert isinstance(caught.value.__cause__, ConnectionError)


def test_what_is_no_model_is_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match="chat model or LLM"):
        LangChainLLM("gpt-4o")


def test_a_chain_is_no_model_unless_it_is_named():
    first, second = FunctionChat(spell), FunctionChat(str.upper)
    for chain in (RunnableLambda(str) | first, first.with_fallbacks([second])):
        with pytest.raises(InvalidInput, match="name="):
            LangChainLLM(chain)
    named = LangChainLLM(first.with_fallbacks([second]), name="first-or-second")
    assert named.name == "first-or-second"
    assert named.generate(["hi"])[0].text == LangChainLLM(first).generate(["hi"])[0].text
    assert LangChainLLM(first.with_retry().bind(user="me")).name


async def test_calls_inside_a_chain_are_seen_by_the_chains_callbacks():
    for model in (FunctionChat(spell), FunctionCompletion(spell)):
        llm, runs = LangChainLLM(model), Runs()

        async def aasked(prompt: str, llm: LangChainLLM = llm) -> str:
            return (await llm.agenerate([prompt]))[0].text

        chain = RunnableLambda(lambda p, llm=llm: llm.generate([p])[0].text, aasked, name="chain")
        chain.invoke("x", {"callbacks": [runs]})
        await chain.ainvoke("x", {"callbacks": [runs]})
        lineages = [runs.ancestry(run) for run in runs.named("ltrag_call")]
        assert lineages == [["ltrag_call", "chain"]] * 2


async def test_our_model_as_langchains_and_back_is_our_model():
    def write(prompt: str) -> Generation:
        tokens = tuple(Token(c, -0.5, alternatives=((c, -0.5), ("?", -2.0))) for c in prompt)
        return Generation(prompt, tokens, prompt_tokens=3, completion_tokens=len(prompt))

    ours = ScriptedLLM(write)
    there_and_back = LangChainLLM(LtragLLM(llm=ours))
    assert there_and_back.generate(["abc"], GenerationSettings(stop=["c"])) == ours.generate(
        ["abc"], GenerationSettings(stop=["c"])
    )
    assert await there_and_back.agenerate(["abc"]) == ours.generate(["abc"])


def test_our_model_writes_in_a_chain_and_a_batch_is_one_call():
    ours = ScriptedLLM(lambda prompt: prompt.upper())
    chain = PromptTemplate.from_template("read {x} now") | LtragLLM(llm=ours, max_tokens=2)
    assert chain.invoke({"x": "tea"}) == "READ TEA"
    assert chain.batch([{"x": "a"}, {"x": "b"}]) == ["READ A", "READ B"]
    assert ours.calls[-1] == ("read a now", "read b now")
    assert LtragLLM(llm=ours).invoke("one two three", max_tokens=1, stop=["E"]) == "ON"
    with pytest.raises(InvalidInput, match="top_p"):
        LtragLLM(llm=ours).invoke("x", top_p=0.5)
