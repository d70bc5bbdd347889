"""The frameworks' models as ours, and ours as theirs: what holds for both."""

import asyncio
import threading

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import Generation as LangChainGeneration
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms import MockLLM
from openai.types import Completion
from openai.types.chat import ChatCompletion

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.errors import InvalidInput, ModelError
from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.base import AsyncLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.contracts.llm import LLMContract
from tests.langchain_parts import FunctionChat, FunctionCompletion, soon
from tests.llama_index_parts import AsyncFunctionLLM, FunctionLLM


def spell(prompt: str) -> str:
    return " ".join(prompt[::-1]) + " and so on and so on"


def there_and_back(ours):
    """Our model as theirs, and that as ours."""
    yield LangChainLLM(langchain.LtragLLM(llm=ours))
    yield LlamaIndexLLM(llama_index.LtragLLM(ours))


MODELS = {
    "chat": lambda: LangChainLLM(FunctionChat(spell)),
    "completion": lambda: LangChainLLM(FunctionCompletion(spell)),
    "bound": lambda: LangChainLLM(FunctionChat(spell).bind(user="me").with_config(tags=["x"])),
    "llama completion": lambda: LlamaIndexLLM(FunctionLLM(spell)),
    "llama chat": lambda: LlamaIndexLLM(FunctionLLM(spell, is_chat_model=True)),
    "llama async": lambda: LlamaIndexLLM(AsyncFunctionLLM(spell)),
    "ours there and back": lambda: [*there_and_back(ScriptedLLM(spell))][1],
}


class TestTheModelsOfTheFrameworks(LLMContract):
    @pytest.fixture(params=MODELS)
    def llm(self, request):
        return MODELS[request.param]()

    async def test_sync_and_async_calls_give_the_same(self, llm):
        assert isinstance(llm, AsyncLLM)
        prompts, settings = ["one", "two", ""], GenerationSettings(stop=["o"], max_tokens=9)
        assert await llm.agenerate(prompts, settings) == llm.generate(prompts, settings)
        assert await llm.agenerate([]) == []


CONTENT = [
    {
        "token": "Jane",
        "logprob": -0.25,
        "top_logprobs": [{"token": "Mary", "logprob": -2}, {"token": "Jane", "logprob": -0.25}],
    },
    {"token": " Austen", "logprob": -0.5, "top_logprobs": []},
]
COLUMNS = {
    "tokens": ["Jane", " Austen"],
    "token_logprobs": [-0.25, -0.5],
    "top_logprobs": [{"Mary": -2.0, "Jane": -0.25}, {}],
}
TOKENS = (
    Token("Jane", -0.25, alternatives=(("Jane", -0.25), ("Mary", -2.0))),
    Token(" Austen", -0.5),
)


CHOICE = {"index": 0, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def chat(text, logprobs):
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    told = {"response_metadata": {"logprobs": logprobs}, "usage_metadata": usage}
    message = AIMessage(text, **told)
    return LangChainLLM(FunctionChat(lambda _: message))


def completion(text, logprobs):
    said = LangChainGeneration(text=text, generation_info={"logprobs": logprobs})
    return LangChainLLM(FunctionCompletion(lambda _: said))


def llama(text, logprobs, *, raw=None, **model):
    raw = raw or {"choices": [{"logprobs": logprobs}], "usage": USAGE}
    return LlamaIndexLLM(FunctionLLM(lambda _: CompletionResponse(text=text, raw=raw), **model))


def llama_chat(text, logprobs, **told):
    return llama(text, logprobs, is_chat_model=True, **told)


REPLYING = pytest.mark.parametrize("replying", [chat, completion, llama, llama_chat])


@REPLYING
@pytest.mark.parametrize(
    "logprobs", [{"content": CONTENT}, CONTENT, COLUMNS], ids=["content", "list", "columns"]
)
def test_log_probabilities_alternatives_and_counts_are_read(replying, logprobs):
    [found] = replying("Jane Austen", logprobs).generate(["Who wrote Emma?"])
    counts = (None, None) if replying is completion else (7, 2)
    assert found == Generation("Jane Austen", TOKENS, *counts, finish_reason=None)


@pytest.mark.parametrize("replying", [llama, llama_chat])
def test_replies_of_openais_package_are_read_as_dictionaries_are(replying):
    message = {"message": {"role": "assistant", "content": "Jane Austen"}}
    chat = CHOICE | message | {"logprobs": {"content": CONTENT}}
    text = CHOICE | {"text": "Jane Austen", "logprobs": COLUMNS | {"text_offset": [0, 4]}}
    told = {"id": "1", "created": 0, "model": "m", "usage": USAGE}
    for raw in (
        ChatCompletion(**told, object="chat.completion", choices=[chat]),
        Completion(**told, object="text_completion", choices=[text]),
    ):
        [found] = replying("Jane Austen", None, raw=raw).generate(["Who wrote Emma?"])
        assert found == Generation("Jane Austen", TOKENS, 7, 2, finish_reason="stop")


@REPLYING
@pytest.mark.parametrize(
    "logprobs",
    [None, {"content": None}, {"content": []}, {"tokens": None, "token_logprobs": [-0.1]}],
    ids=str,
)
def test_missing_log_probabilities_are_none_and_never_a_guess(replying, logprobs):
    assert replying("ab", logprobs).generate(["x"])[0].tokens is None
    empty = () if logprobs == {"content": []} else None
    assert replying("", logprobs).generate(["x"])[0].tokens == empty


@REPLYING
@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [{"token": "a", "logprob": None}]},
        {"content": [{"token": "a", "logprob": float("nan")}]},
        {"content": [{"token": "a", "logprob": 0.5}]},
        {"tokens": ["a", "b"], "token_logprobs": [None, -0.1]},
        {"tokens": ["a", "b"], "token_logprobs": [-0.1]},
        "yes",
    ],
    ids=str,
)
def test_log_probabilities_that_cannot_be_are_an_error_that_names_the_model(replying, logprobs):
    with pytest.raises(ModelError, match=r"Function(Chat|Completion|LLM)"):
        replying("ab", logprobs).generate(["x"])


@pytest.mark.parametrize("bound", [4, 8, 200])
async def test_the_prompts_of_all_async_calls_are_in_flight_together_up_to_the_bound(bound):
    flying = [0, 0]

    async def slow(prompt: str) -> str:
        flying[0] += 1
        flying[1] = max(flying)
        await soon(None)
        flying[0] -= 1
        return prompt.upper()

    asked = [[f"q{i}", f"r{i}"] for i in range(100)]
    chat, llama = FunctionChat(slow), AsyncFunctionLLM(slow)
    for llm in (
        LangChainLLM(chat) if bound == 8 else LangChainLLM(chat, max_concurrency=bound),
        LlamaIndexLLM(llama) if bound == 8 else LlamaIndexLLM(llama, concurrency=bound),
    ):
        flying[:] = [0, 0]
        replies = await asyncio.gather(*map(llm.agenerate, asked))
        assert [[g.text.lower() for g in some] for some in replies] == asked
        assert flying == [0, bound]


@pytest.mark.parametrize(
    "model", [lambda f: LangChainLLM(FunctionChat(f)), lambda f: LlamaIndexLLM(AsyncFunctionLLM(f))]
)
def test_the_prompts_of_a_sync_call_are_asked_at_once_and_keep_their_order(model):
    together = threading.Barrier(4, timeout=20)

    def wait_for_the_others(prompt: str) -> str:
        together.wait()
        return prompt

    assert [g.text for g in model(wait_for_the_others).generate([*"abcd"])] == [*"abcd"]


@pytest.mark.parametrize(
    "written",
    [Generation("Jane Austen.", (*TOKENS, Token(".", -0.1)), 7, 2), Generation("", ()),
     Generation("no probabilities")],
    ids=lambda one: one.text,
)  # fmt: skip
async def test_our_model_as_theirs_and_back_is_our_model(written):
    ours, cut = ScriptedLLM(lambda prompt: written), GenerationSettings(stop=["."])
    for llm in there_and_back(ours):
        assert llm.generate(["Who?"]) == await llm.agenerate(["Who?"]) == [written]
        assert llm.generate(["Who?"], cut) == ours.generate(["Who?"], cut)


@pytest.mark.parametrize("ask", [
    lambda ours, **told: langchain.LtragLLM(llm=ours).bind(**told).invoke("?"),
    lambda ours, **told: llama_index.LtragLLM(ours).complete("?", **told).text,
])  # fmt: skip
def test_our_model_takes_one_stop_string_whole_and_leaves_out_what_is_none(ask):
    said = "Observe: Observation: rain"
    ours = ScriptedLLM(lambda _: said)
    assert ask(ours, stop="Observation:") == "Observe: "
    assert ask(ours, **dict.fromkeys(["max_tokens", "temperature", "seed", "stop"])) == said


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: LangChainLLM("gpt-4o"), "chat model or LLM"),
        (lambda: LlamaIndexLLM(ScriptedLLM(spell)), "llm must be a LlamaIndex LLM"),
        (lambda: llama_index.LtragLLM(MockLLM()), "llm must be an ltrag_plugins LLM"),
        (lambda: langchain.LtragLLM(llm=ScriptedLLM(spell)).invoke("x", top_p=0.5), "top_p"),
        (lambda: llama_index.LtragLLM(ScriptedLLM(spell)).complete("x", top_p=0.5), "top_p"),
    ],
)
def test_what_is_no_model_and_a_setting_that_would_be_ignored_are_refused(build, match):
    with pytest.raises(InvalidInput, match=match):
        build()
