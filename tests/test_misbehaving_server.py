"""What the three clients make of a server that misbehaves, sync and async."""

import asyncio
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from client_parts import CLIENTS
from openai_server import completion, serving

from ltrag_plugins.errors import InvalidLogProbability, ModelError, ModelFailed
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.types import GenerationSettings, Token

GOOD = completion("Jane Austen", 0.5)


class Chaos:
    """A server whose next replies a test sets: `replies` in turn, the last for ever."""

    def __init__(self) -> None:
        self.replies: list[Any] = [GOOD]
        self.sent: list[dict] = []

    def __call__(self, request: dict) -> Any:
        self.sent.append(request)
        said = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return said(request) if callable(said) else said

    def will(self, *replies: Any) -> None:
        self.replies, self.sent = list(replies), []


@pytest.fixture(scope="module")
def chaos():
    server = Chaos()
    with serving(server) as (server.url, _):
        yield server


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=CLIENTS)
def llm(request, chaos):
    return CLIENTS[request.param](chaos.url)


@pytest.fixture(params=["sync", "async"])
def generate(request, loop):
    """Asks a model for one generation."""

    def generate(llm, *arguments):
        if request.param == "sync":
            return llm.generate(*arguments)[0]
        return loop.run(llm.agenerate(*arguments))[0]

    return generate


def choice(**changed: Any) -> dict:
    return GOOD | {"choices": [GOOD["choices"][0] | changed]}


def saying(text: str, *pieces: tuple[str, float], **changed: Any) -> dict:
    """A reply with this text and these tokens."""
    content = [{"token": t, "logprob": p, "bytes": [*t.encode()]} for t, p in pieces]
    message = {"role": "assistant", "content": text}
    return choice(message=message, logprobs={"content": content}, **changed)


def beside(name: str, value: object) -> dict:
    """A reply whose second token, or its first alternative, has this log-probability."""
    first, second = GOOD["choices"][0]["logprobs"]["content"]
    if name == "token":
        second = second | {"logprob": value}
    else:
        top = second["top_logprobs"]
        second = second | {"top_logprobs": [top[0] | {"logprob": value}, *top[1:]]}
    return choice(logprobs={"content": [first, second]})


UNUSABLE = {
    **{
        f"{value} beside the {name}": beside(name, value)
        for name in ("token", "alternative")
        for value in (None, math.nan, -math.inf, 0.5, "certain")
    },
    "log-probabilities that are a word": choice(logprobs="yes"),
    "tokens that are no list": choice(logprobs={"content": {"token": "Jane"}}),
    "tokens that are words": choice(logprobs={"content": ["Jane", " Austen"]}),
    "alternatives that are a number": choice(
        logprobs={"content": [{"token": "Jane Austen", "logprob": -1, "top_logprobs": 7}]}
    ),
    "half an emoji": choice(message={"role": "assistant", "content": "Jane \ud83d"}),
    "no choices": GOOD | {"choices": []},
    "choices that are null": GOOD | {"choices": None},
    "no message": GOOD | {"choices": [{"index": 0}]},
    "five megabytes": choice(message={"role": "assistant", "content": "Jane " * 10**6}),
    "nested a hundred thousand deep": b"[" * 100_000 + b"]" * 100_000,
    "half of the body": b'{"choices": [{"message"',
    "a page": b"<html>busy</html>",
}


@pytest.mark.parametrize("fault", UNUSABLE)
def test_a_reply_that_cannot_be_used_is_named_not_kept_and_asked_for_again(
    fault, llm, generate, chaos, tmp_path
):
    chaos.will(UNUSABLE[fault], GOOD)
    cached = CachedLLM(llm, tmp_path / "answers.sqlite")
    with pytest.raises(ModelError) as caught:
        generate(cached, ["Who wrote Emma?"])
    assert "rate limit" not in str(caught.value)
    healed = generate(cached, ["Who wrote Emma?"])
    assert (healed.text, len(healed.tokens)) == ("Jane Austen", 2)
    assert generate(cached, ["Who wrote Emma?"]) == healed
    assert len(chaos.sent) == 2


def test_a_byte_order_mark_before_a_reply_is_no_part_of_it(llm, generate, chaos):
    chaos.will(GOOD)
    plain = generate(llm, ["Who wrote Emma?"])
    chaos.will(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert generate(llm, ["Who wrote Emma?"]) == plain


def test_a_log_probability_that_can_be_none_says_which_remedy_helps(llm, generate, chaos):
    chaos.will(beside("token", 0.5))
    why = rf"{re.escape(llm.name)}.*' Austen'.*natural logarithms"
    with pytest.raises(InvalidLogProbability, match=why):
        generate(llm, ["?"])


@pytest.mark.parametrize(
    "usage", ["12", {"completion_tokens": "12"}, [], {"completion_tokens": -3}]
)
def test_token_counts_that_are_none_are_unknown_or_a_named_error(usage, llm, generate, chaos):
    chaos.will(GOOD | {"usage": usage})
    with suppress(ModelFailed):  # of clients that add them up
        written = generate(llm, ["?"])
        assert (written.text, written.completion_tokens) == ("Jane Austen", None)


WHOLE = ("1912", -0.5)
SPELLED = {
    "by itself": [WHOLE],
    "a closing token without text": [WHOLE, ("", -3.0)],
    "a closing token with text": [WHOLE, ("<|im_end|>", -3.0)],
    "reasoning before it": [("<think>", -2.0), ("19", -2.0), ("</think>", -1.0), WHOLE],
    "the answer in the reasoning too": [("1912", -2.0), ("</think>", -1.0), WHOLE],
    "half of it": [("19", -0.5)],
    "another": [("18", -0.5), ("15", -0.5)],
}


@pytest.mark.parametrize("pieces", SPELLED.values(), ids=SPELLED)
def test_tokens_are_those_that_spell_the_text_or_none(pieces, llm, generate, chaos):
    chaos.will(saying("1912", *pieces))
    tokens = generate(llm, ["?"]).tokens
    assert tokens == ((Token(*WHOLE),) if WHOLE in pieces else None)


@pytest.mark.parametrize("reason", ["length", "content_filter", "stop"])
def test_why_the_text_ends_is_kept_in_the_cache_too(reason, llm, generate, chaos, tmp_path):
    chaos.will(choice(finish_reason=reason))
    cached = CachedLLM(llm, tmp_path / "answers.sqlite")
    assert [generate(cached, ["?"]).finish_reason for _ in "ab"] == [reason, reason]


def refusing(*names: str) -> Callable[[dict], Any]:
    """A server of a reasoning model: it answers with 400 while one of these is asked for."""

    def reply(request: dict) -> Any:
        for name in names:
            if name in request and request[name] is not None:
                return 400, {"error": {"message": f"{name} is not supported", "param": name}}
        return choice(logprobs=None) if "logprobs" in names else GOOD

    return reply


REFUSED = [("temperature",), ("top_logprobs",), ("top_logprobs", "logprobs", "temperature")]


@pytest.mark.parametrize("names", REFUSED, ids=" ".join)
@pytest.mark.parametrize("maker", ["ours", "langchain"])
def test_what_a_reasoning_model_refuses_is_left_out_and_said_once(names, maker, generate, caplog):
    with serving(refusing(*names)) as server:
        llm = CLIENTS[maker](server.base_url)
        first, second = generate(llm, ["?"]), generate(llm, ["?"])
        assert llm.name == CLIENTS[maker](server.base_url).name
    assert first == second
    assert (first.tokens is None) == ("logprobs" in names)
    assert len(server.asked) == 2 + len(names)  # refused once, each of them
    said = [r.getMessage().split(" refuses ")[1].split(";")[0] for r in caplog.records]
    assert sorted(said) == sorted(names)


@pytest.mark.parametrize("maker", ["ours", "langchain"])
def test_a_refusal_that_nothing_helps_against_is_raised_and_forgotten(maker, generate, chaos):
    llm = CLIENTS[maker](chaos.url)
    chaos.will((400, {"error": {"message": "too long: 'What is the temperature in Rome?'"}}))
    with pytest.raises(ModelFailed, match="too long"):
        generate(llm, ["?"])
    chaos.will(GOOD)
    generate(llm, ["?"], GenerationSettings(temperature=0.5))
    assert chaos.sent[0]["temperature"] == 0.5


def test_answers_of_two_addresses_with_one_model_name_are_kept_apart(chaos, tmp_path):
    chaos.will(GOOD)
    with serving(lambda _: completion("Mary Shelley", 0.5)) as (other, _):
        for maker in CLIENTS.values():
            for url, text in ((chaos.url, "Jane Austen"), (other, "Mary Shelley")):
                cached = CachedLLM(maker(url), tmp_path / "answers.sqlite")
                assert cached.generate(["Who?"])[0].text == text
