"""LangChain's chat models and LLMs as ours: settings, shapes of replies, names, runs."""

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.langchain import LangChainLLM, LtragLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.langchain_parts import FunctionChat, FunctionCompletion, Runs, soon


def test_a_completion_model_gets_all_prompts_in_one_call_stop_strings_and_one_number():
    model = FunctionCompletion(str.upper)
    llm = LangChainLLM(model, logprobs=3)
    assert [g.text for g in llm.generate(["a", "b"], GenerationSettings(stop=["."]))] == ["A", "B"]
    assert model.calls == [["a", "b"]]
    assert model.sent == [{"logprobs": 3, "stop": ["."]}]
    assert model.logprobs is None


def test_settings_reach_the_fields_of_a_copy_and_the_callers_model_keeps_its_own():
    model = FunctionChat(str.upper, temperature=0.7, max_tokens=999)
    before, fields_set = model.model_dump(), set(model.model_fields_set)
    asked = {"max_tokens": 5, "temperature": 0.2, "seed": 3, "stop": ["."]}
    LangChainLLM(model).generate(["x"], GenerationSettings(**asked))
    assert model.sent == [{**asked, "logprobs": True, "top_logprobs": 5}]
    assert (model.model_dump(), model.model_fields_set) == (before, fields_set)
    model.invoke("x")
    assert model.sent[-1] == {"temperature": 0.7, "max_tokens": 999}
    LangChainLLM(model, logprobs=None).generate(["x"])
    assert "logprobs" not in model.sent[-1]


def test_what_the_caller_bound_stays_bound_and_the_binding_is_not_changed():
    inner = FunctionChat(str.upper)
    bound = inner.bind(user="me")
    LangChainLLM(bound).generate(["x"], GenerationSettings(max_tokens=7))
    assert (inner.sent[-1]["user"], inner.sent[-1]["max_tokens"]) == ("me", 7)
    assert bound.kwargs == {"user": "me"}
    assert bound.bound is inner
    assert inner.max_tokens is None


def test_a_model_that_declares_no_settings_is_sent_none():
    class Strict(FakeListChatModel):
        def _call(self, messages, stop=None, run_manager=None):  # takes no other argument
            return super()._call(messages)

    model = Strict(responses=["one", "two"])
    settings = GenerationSettings(max_tokens=3, temperature=1.0, seed=1)
    llm = LangChainLLM(model, max_concurrency=1)  # the model answers in the order of its calls
    assert [r.text for r in llm.generate(["a", "b"], settings)] == ["one", "two"]


def test_settings_can_be_passed_another_way():
    model = FunctionChat(str.upper)
    llm = LangChainLLM(
        model, settings=lambda m, asked: m.bind(options={"num_predict": asked.max_tokens})
    )
    llm.generate(["x"], GenerationSettings(max_tokens=9))
    assert model.sent == [{"options": {"num_predict": 9}}]


def test_token_counts_of_a_completion_model_are_read_where_they_are_one_prompts():
    class Counting(FunctionCompletion):
        def _generate(self, prompts, stop=None, run_manager=None, **kwargs):
            result = super()._generate(prompts)
            result.llm_output = {"token_usage": {"prompt_tokens": 9, "completion_tokens": 2}}
            return result

    llm = LangChainLLM(Counting(str.upper))
    assert llm.generate(["a"]) == [Generation("A", None, 9, 2)]
    assert llm.generate(["a", "b"]) == [Generation("A"), Generation("B")]


def test_text_and_log_probabilities_in_the_content_blocks_of_responses_are_read():
    bare = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "Par"},
        {"type": "text", "text": "is"},
    ]
    told = [
        bare[0],
        bare[1] | {"logprobs": [{"token": "Par", "logprob": -0.1}]},
        bare[2] | {"extras": {"logprobs": [{"token": "is", "logprob": -0.2}]}},
    ]
    for blocks, tokens in ((bare, None), (told, (Token("Par", -0.1), Token("is", -0.2)))):
        llm = LangChainLLM(FunctionChat(lambda _, blocks=blocks: AIMessage(content=blocks)))
        assert llm.generate(["x"]) == [Generation("Paris", tokens)]


def test_a_chains_reply_that_is_no_text_is_never_read_as_its_repr():
    def replying(said):
        return LangChainLLM(RunnableLambda(lambda _: said), name="chain").generate(["x"])[0].text

    assert replying(["Par", {"type": "text", "text": "is"}]) == "Paris"
    assert replying(None) == ""
    with pytest.raises(ModelFailed, match="no message and no text"):
        replying({"answer": "Paris"})


def test_the_name_tells_models_apart_and_keeps_secrets():
    def name(model):
        return LangChainLLM(model).name

    one = name(FunctionChat(str.upper))
    others = [
        FunctionChat(str.upper, model_name="other"),
        FunctionChat(str.upper).bind(user="me"),
        FakeListLLM(responses=["x"]),
    ]
    assert len({one, *map(name, others)}) == 4
    assert "FunctionChat:function" in one
    assert "secret" not in one + repr(LangChainLLM(FunctionChat(str.upper)))
    # and does not turn on settings that every call sets
    assert {name(FunctionChat(str.upper, temperature=t, max_tokens=9)) for t in (0, 0.9)} == {one}


def test_the_name_turns_on_the_address_and_fixed_arguments_and_on_no_connection():
    def name(**fields):
        told = {"model": "m", "api_key": "k", "base_url": "http://a/v1"} | fields
        return LangChainLLM(ChatOpenAI(**told)).name

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


def test_a_chain_is_no_model_unless_it_is_named():
    first, second = FunctionChat(str.lower), FunctionChat(str.upper)
    for chain in (RunnableLambda(str) | first, first.with_fallbacks([second])):
        with pytest.raises(InvalidInput, match="name="):
            LangChainLLM(chain)
    named = LangChainLLM(first.with_fallbacks([second]), name="first-or-second")
    assert named.name == "first-or-second"
    assert named.generate(["Hi"])[0].text == "hi"
    assert LangChainLLM(first.with_retry().bind(user="me")).name


@pytest.mark.parametrize("model", [FunctionChat(str.upper), FunctionCompletion(str.upper)])
async def test_calls_inside_a_chain_are_seen_by_the_chains_callbacks(model):
    llm, runs = LangChainLLM(model), Runs()

    async def aasked(prompt: str) -> str:
        return (await llm.agenerate([prompt]))[0].text

    chain = RunnableLambda(lambda p: llm.generate([p])[0].text, aasked, name="chain")
    chain.invoke("x", {"callbacks": [runs]})
    await chain.ainvoke("x", {"callbacks": [runs]})
    lineages = [runs.ancestry(run) for run in runs.named("ltrag_call")]
    assert lineages == [["ltrag_call", "chain"]] * 2


async def test_a_runs_own_limit_bounds_the_calls_in_flight():
    model = FunctionChat(soon)
    step = RunnableLambda(lambda _: None, lambda _: LangChainLLM(model).agenerate([*"abcdef"]))
    await step.ainvoke("x", {"max_concurrency": 2})
    assert model.flying == [0, 2]


def test_our_model_writes_in_a_chain_and_a_batch_is_one_call():
    ours = ScriptedLLM(str.upper)
    chain = PromptTemplate.from_template("read {x} now") | LtragLLM(llm=ours, max_tokens=2)
    assert chain.invoke({"x": "tea"}) == "READ TEA"
    assert chain.batch([{"x": "a"}, {"x": "b"}]) == ["READ A", "READ B"]
    assert ours.calls[-1] == ("read a now", "read b now")
    assert LtragLLM(llm=ours).invoke("one two three", max_tokens=1, stop=["E"]) == "ON"


async def test_langchains_cache_tells_the_settings_of_our_model_apart():
    ours, cache = ScriptedLLM(str.upper), InMemoryCache()
    one, two = (LtragLLM(llm=ours, max_tokens=most, cache=cache) for most in (1, 2))
    for _ in range(2):
        written = one.invoke("a b c"), two.invoke("a b c"), one.invoke("a b c", max_tokens=3)
        assert written == ("A", "A B", "A B C")
        assert await one.ainvoke("a b c", max_tokens=3, seed=1) == "A B C"
        assert len(ours.calls) == 4
