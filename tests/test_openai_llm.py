"""A model behind a server, met over a real socket."""

import asyncio
from typing import Any

import openai
import pytest
from client_parts import ours
from openai_server import Server, serving

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.types import Generation, GenerationSettings, Token
from tests.contracts.llm import LLMContract

KEY = "sk-very-secret-0123456789"


def entry(token: str, logprob: float = -0.5, top: dict[str, float] | None = None) -> dict:
    others = [{"token": t, "logprob": p, "bytes": None} for t, p in (top or {}).items()]
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": others}


def chat(text: str | None, entries: list[dict] | None = None) -> dict:
    logprobs = None if entries is None else {"content": entries}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
    return {**body, "choices": [choice], "usage": usage}


def speller(request: dict) -> dict:
    """Spells the prompt backwards, a token a character, as a well-mannered server would."""
    whole = request["messages"][0]["content"][::-1]
    text = whole[: request["max_tokens"]]
    text = text[: min((text.find(s) for s in request.get("stop", ()) if s in text), default=None)]
    reply = chat(text, [entry(c) for c in text])
    reply["usage"]["completion_tokens"] = len(text)
    return reply


def model(server: Server, **settings: Any) -> OpenAICompatibleLLM:
    return ours(server.base_url, **{"api_key": KEY} | settings)


class TestAServer(LLMContract):
    gives_tokens = True

    @pytest.fixture
    def llm(self):
        with serving(speller) as server:
            yield model(server)


class TestACarelessServer(LLMContract):
    """It hands back the stop string, what follows it, and its end-of-text marker."""

    gives_tokens = True

    @pytest.fixture
    def llm(self):
        def careless(request):
            text = request["messages"][0]["content"][::-1][: request["max_tokens"]]
            reply = chat(text, [*map(entry, text), entry("<|im_end|>")])
            reply["usage"]["completion_tokens"] = len(text)
            return reply

        with serving(careless) as server:
            yield model(server)


class TestATextCompletionServer(LLMContract):
    gives_tokens = True

    @pytest.fixture
    def llm(self):
        def complete(request):
            text = speller({"messages": [{"content": request["prompt"]}]} | request)
            text = text["choices"][0]["message"]["content"]
            logprobs = {
                "tokens": list(text),
                "token_logprobs": [-0.5] * len(text),
                "top_logprobs": [{c: -0.5, "x": -1.5} for c in text],
            }
            return {"object": "text_completion", "choices": [{"text": text, "logprobs": logprobs}]}

        with serving(complete) as server:
            yield model(server, chat=False)


def test_a_chat_request_says_what_is_wanted():
    settings = {"max_tokens": 9, "stop": ["\n"], "temperature": 0.5, "seed": 7}
    with serving(lambda _: chat("Jane Austen")) as server:
        model(server, top_logprobs=3).generate(["Who?"], GenerationSettings(**settings))
    assert server.paths == ["/v1/chat/completions"]
    messages = [{"role": "user", "content": "Who?"}]
    wanted = {"model": "m", "messages": messages, "logprobs": True, "top_logprobs": 3, **settings}
    assert server.asked == [wanted]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_a_text_request_continues_the_prompt():
    with serving(lambda _: {"choices": [{"text": " Austen"}]}) as server:
        llm = model(server, chat=False, logprobs=False)
        [told] = llm.generate(["Jane"], GenerationSettings(max_tokens=2))
    assert server.paths == ["/v1/completions"]
    assert server.asked == [{"model": "m", "prompt": "Jane", "max_tokens": 2, "temperature": 0.0}]
    assert told == Generation(" Austen")


def test_log_probabilities_alternatives_and_counts_are_the_servers():
    first, second = {"Lon": -3.5, "Par": -0.25}, {"is": -0.125}
    entries = [entry("Par", -0.25, first), entry("is", -0.125, second)]
    with serving(lambda _: chat("Paris", entries)) as server:
        [told] = model(server).generate(["?"])
    tokens = (
        Token("Par", -0.25, None, (("Par", -0.25), ("Lon", -3.5))),
        Token("is", -0.125, None, (("is", -0.125),)),
    )
    assert told == Generation("Paris", tokens, prompt_tokens=7, completion_tokens=3)


@pytest.mark.parametrize("entries", [None, []], ids=str)
def test_missing_log_probabilities_are_no_tokens_and_never_a_guess(entries):
    with serving(lambda _: chat("Paris", entries)) as server:
        assert model(server).generate(["?"])[0] == Generation("Paris", None, 7, 3)


def test_log_probabilities_that_were_not_asked_for_are_not_reported():
    with serving(lambda _: chat("x", [entry("x")])) as server:
        assert model(server, logprobs=False).generate(["?"])[0].tokens is None
    assert "logprobs" not in server.asked[0]


def test_a_character_of_several_tokens_is_put_together():
    smile = "🙂".encode()
    entries = [entry("\\xf0\\x9f") | {"bytes": list(smile[:2])}]
    entries += [entry("\\x99\\x82") | {"bytes": list(smile[2:])}, entry("!") | {"bytes": [33]}]
    with serving(lambda _: chat("🙂!", entries)) as server:
        [told] = model(server).generate(["?"])
    assert told.tokens is not None
    assert [token.text for token in told.tokens] == ["", "🙂", "!"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None}, ""),
        ({}, ""),
        ({"content": []}, ""),
        ({"content": ["Par", {"type": "text", "text": "is"}]}, "Paris"),
        ({"content": [{"type": "reasoning", "text": "hm"}, {"type": "text"}]}, ""),
    ],
    ids=str,
)
def test_content_is_a_text_or_blocks_of_text_or_none(message, text):
    reply = chat(None)
    reply["choices"][0]["message"] = {"role": "assistant", **message}
    with serving(lambda _: reply) as server:
        assert model(server).generate(["?"])[0].text == text


def test_a_passing_failure_is_repeated():
    replies = iter([(500, {"error": "busy"}), (429, {"error": "busy"}), chat("Paris")])
    with serving(lambda _: next(replies)) as server:
        assert model(server, max_retries=2).generate(["?"])[0].text == "Paris"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("reply", "remedy", "cause"),
    [
        ((401, {"error": {"message": f"bad key {KEY}"}}), "api_key=", openai.AuthenticationError),
        ((404, {"error": {"message": "no m"}}), "check model", openai.NotFoundError),
        ((429, {"error": {"message": "slow"}}), "max_concurrency", openai.RateLimitError),
        ((400, {"error": {"message": "too long"}}), "too long", openai.BadRequestError),
        ((500, {"error": {"message": "boom"}}), "boom", openai.InternalServerError),
        (b'{"choices": [', "OpenAI-compatible server", ValueError),
        (b"<html>" + KEY.encode(), "OpenAI-compatible server", ValueError),
        ({"choices": []}, "OpenAI-compatible server", None),
        ({"choices": [{"message": {"content": 5}}]}, "OpenAI-compatible server", None),
        ([], "OpenAI-compatible server", None),
    ],
)
async def test_a_failure_names_the_model_and_the_remedy_and_hides_the_key(reply, remedy, cause):
    with serving(lambda _: reply) as server:
        llm = model(server)
        for failing in (
            lambda: asyncio.to_thread(llm.generate, ["?"]),
            lambda: llm.agenerate(["?"]),
        ):
            with pytest.raises(ModelFailed, match=remedy) as caught:
                await failing()
            assert llm.name in str(caught.value)
            assert cause is None or isinstance(caught.value.__cause__, cause)
            told = caught.value.__cause__ if cause is not ValueError else None
            assert KEY not in f"{caught.value}{caught.value!r}{told}{vars(told or object)}"


def test_a_server_that_is_not_there_is_named():
    with serving(speller) as server:
        pass
    with pytest.raises(ModelFailed, match="cannot be reached") as caught:
        model(server).generate(["?"])
    assert isinstance(caught.value.__cause__, openai.APIConnectionError)


def test_clients_of_ones_own_are_used_and_not_changed():
    with serving(speller) as server:
        settings = {"base_url": server.base_url, "api_key": "of the client", "max_retries": 0}
        client = openai.OpenAI(**settings, default_headers={"X-Mine": "sync"})
        own = {"default_headers": {"X-Mine": "async"}, "default_query": {"mine": "1"}}
        async_client = openai.AsyncOpenAI(**settings, **own)
        llm = OpenAICompatibleLLM("m", client=client, async_client=async_client)
        llm.generate(["?"])
        asyncio.run(llm.agenerate(["?"]))
        OpenAICompatibleLLM("m", async_client=async_client).generate(["?"])
        asyncio.run(OpenAICompatibleLLM("m", client=client).agenerate(["?"]))
    said = [headers.get("X-Mine") for headers in server.headers]
    assert said == ["sync", "async", "async", "sync"]
    assert [path.endswith("?mine=1") for path in server.paths] == [False, True, True, False]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer of the client"}


def test_the_name_tells_servers_and_prompt_handling_apart_and_no_secrets():
    def name(**settings):
        return OpenAICompatibleLLM("m", **{"api_key": KEY} | settings).name

    names = [
        name(base_url="http://one:8000/v1"),
        name(base_url="http://two:8000/v1"),
        name(base_url="http://one:8000/v1", chat=False),
        name(base_url="http://one:8000/v1", logprobs=False),
        name(base_url="http://one:8000/v1", top_logprobs=1),
        OpenAICompatibleLLM("other", base_url="http://one:8000/v1", api_key=KEY).name,
    ]
    assert len(set(names)) == len(names)
    assert name(base_url="http://user:pass@one:8000/v1/?token=t0k3n") == names[0]
    llm = OpenAICompatibleLLM("m", base_url="http://user:pass@one/v1", api_key=KEY)
    assert "pass" not in repr(llm)
    assert KEY not in repr(llm)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_concurrency": 0}, "at least"),
        ({"max_concurrency": "8"}, "whole number, at least 1, got '8'"),
        ({"top_logprobs": -1}, "at least"),
        ({"top_logprobs": "5"}, "top_logprobs must be a whole number"),
        ({"max_retries": "2"}, "max_retries must be a whole number"),
        ({"timeout": "60"}, "timeout must be a number of seconds, got str '60'"),
        ({"base_url": ""}, "base_url .* must be an address such as"),
        ({"base_url": "localhost:8000/v1"}, "with http:// or https:// before the host"),
        ({"base_url": "http://:8000/v1"}, "must be an address"),
        ({"base_url": "http://user:password@/v1"}, "must be an address"),
        ({"base_url": "http://?host=one"}, "must be an address"),
        ({"base_url": "http://one:8OOO/v1"}, "must be an address"),
        ({"base_url": "http://one:80000/v1"}, "must be an address"),
        ({"base_url": "http://one:8000/v1\n"}, "must be an address"),
        ({"omit": ("heat",)}, "omit holds"),
        ({"omit": ("max_completion_tokens",)}, "it may hold"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, why):
    with pytest.raises(InvalidInput, match=why):
        OpenAICompatibleLLM("m", api_key=KEY, **settings)


def test_no_key_is_refused_at_openai_and_fine_elsewhere(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(speller) as server:
        for empty in (None, ""):  # a variable that is set to nothing is none
            if empty is not None:
                monkeypatch.setenv("OPENAI_API_KEY", empty)
                monkeypatch.setenv("OPENAI_BASE_URL", empty)
                llm = OpenAICompatibleLLM("m", api_key=KEY)
                assert llm.name.startswith("m@https://api.openai.com/v1[")
            with pytest.raises(InvalidInput, match=r"there is no API key.* set OPENAI_API_KEY"):
                OpenAICompatibleLLM("m")
            assert model(server, api_key=None).generate(["ab"])[0].text == "ba"
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert OpenAICompatibleLLM("m").generate(["ab"])[0].text == "ba"


def test_an_azure_client_answers_on_an_event_loop_as_itself():
    with serving(speller) as server:
        settings = {"api_version": "2026-01-01", "api_key": "azure's", "max_retries": 0}
        client = openai.AzureOpenAI(azure_endpoint=server.base_url, **settings)
        llm = OpenAICompatibleLLM("m", client=client)
        assert asyncio.run(llm.agenerate(["ab"]))[0].text == llm.generate(["ab"])[0].text == "ba"
    assert {headers.get("api-key") for headers in server.headers} == {"azure's"}


async def fetched_key() -> str:
    return KEY


@pytest.mark.parametrize(
    "build",
    [
        lambda url: openai.AsyncAzureOpenAI(base_url=url, api_version="2026-01-01", api_key=KEY),
        lambda url: openai.AsyncOpenAI(base_url=url, api_key=fetched_key),
    ],
    ids=["azure", "fetched key"],
)
def test_an_async_client_that_has_no_sync_twin_answers_on_an_event_loop_alone(build):
    with serving(speller) as server:
        llm = OpenAICompatibleLLM("m", async_client=build(server.base_url))
        assert asyncio.run(llm.agenerate(["ab"]))[0].text == "ba"
        with pytest.raises(InvalidInput, match=r"Async\w*OpenAI; pass client= too"):
            llm.generate(["ab"])
    assert len(server.asked) == 1


def test_what_a_server_refuses_is_not_sent():
    with serving(lambda request: chat("ba")) as server:
        llm = model(server, omit=("temperature", "stop", "max_tokens"))
        assert llm.generate(["?"], GenerationSettings(seed=3, stop=("a",)))[0].text == "b"
    [body] = server.asked
    assert {"temperature", "stop", "max_tokens", "max_completion_tokens"} & body.keys() == set()
    assert body["seed"] == 3
    assert llm.name.endswith(",no max_tokens,no stop,no temperature]")


def test_a_refused_setting_is_named_with_what_leaves_it_out():
    said = {"error": {"message": "Unsupported value: 'seed' is not known"}}
    with serving(lambda request: (400, said)) as server, pytest.raises(ModelFailed) as error:
        model(server).generate(["?"])
    assert "build with omit=('seed',)" in str(error.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai", "max_completion_tokens"),
        ("https://openai.com.example.org/v1", "max_tokens"),
    ],
)
def test_openai_is_told_the_bound_by_its_new_name(url, name):
    llm = OpenAICompatibleLLM("m", base_url=url, api_key="x")
    assert llm._request("?", GenerationSettings(max_tokens=5))[name] == 5
