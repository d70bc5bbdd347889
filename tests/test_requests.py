"""Requests to servers: each answer kept when it comes, in bounded number, time and size."""

import asyncio
import copy
import gc
import json
import pickle
import re
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import ContextVar
from itertools import repeat
from time import sleep
from typing import Any

import httpx
import openai
import pytest
from client_parts import CLIENTS, chat_openai, ours
from llama_index.core.llms.callbacks import llm_completion_callback
from openai_server import Answer, Server, answering, completion

from ltrag_plugins.errors import CacheUnreadable, InvalidInput, ModelFailed, ModelUnavailable
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import World, arun, ask, run, run_many
from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.concurrency import RequestLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.sgic import Calibrator
from ltrag_plugins.types import Generation, GenerationSettings, Question
from ltrag_plugins.uncertainty import measured
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM


def said(text: str, status: int = 200, **headers: str) -> Answer:
    """A whole reply."""
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"Content-Length": str(len(body)), **named}, [body]


def client(server: Server, **settings: Any) -> OpenAICompatibleLLM:
    return ours(server.base_url, **{"logprobs": False} | settings)


@pytest.fixture(params=["generate", "agenerate"])
def generate(request):
    """Asks a model, sync or on an event loop of its own."""

    def generate(llm: Any, *asked: Any) -> list[Generation]:
        found = getattr(llm, request.param)(*asked)
        return asyncio.run(found) if request.param == "agenerate" else found

    return generate


# --- each answer is kept when it comes


def rows(path) -> int:
    with closing(sqlite3.connect(path)) as file:
        return file.execute("SELECT count(*) FROM answers").fetchone()[0]


class EitherLLM(FunctionLLM):
    """A function as a LlamaIndex LLM, sync and async."""

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return self.responded(self.function(prompt))


@contextmanager
def our_client(answer: Callable[[str], str], bound: int) -> Iterator[Any]:
    with answering(lambda prompt: said(answer(prompt))) as server:
        yield client(server, max_concurrency=bound)


@contextmanager
def langchains(answer: Callable[[str], str], bound: int) -> Iterator[Any]:
    yield LangChainLLM(FunctionChat(answer), max_concurrency=bound)


@contextmanager
def llama_indexes(answer: Callable[[str], str], bound: int) -> Iterator[Any]:
    yield LlamaIndexLLM(EitherLLM(function=answer), concurrency=bound)


EVERY = pytest.mark.parametrize("client_of", [our_client, langchains, llama_indexes])


@EVERY
def test_each_answer_is_in_the_file_before_the_next_prompt_is_asked(client_of, generate, tmp_path):
    kept_before = []

    def answer(prompt: str) -> str:
        kept_before.append(rows(tmp_path / "a.sqlite"))
        return prompt.upper()

    with client_of(answer, 1) as llm:
        kept = CachedLLM(llm, tmp_path / "a.sqlite")
        prompts = [f"p{i}" for i in range(5)]
        found = generate(kept, prompts)
    assert [reply.text for reply in found] == ["P0", "P1", "P2", "P3", "P4"]
    assert kept_before == [0, 1, 2, 3, 4]
    assert (kept.hits, kept.misses) == (0, 5)
    assert all(reply.seconds > 0 for reply in found)
    assert CachedLLM(llm, kept.path).generate(prompts) == found


@pytest.mark.parametrize("drive", [run, lambda *asked: asyncio.run(arun(*asked))])
@pytest.mark.parametrize("name", CLIENTS)
def test_an_answer_and_its_samples_are_under_way_at_once(name, drive, tmp_path):
    every = threading.Barrier(4)  # lets none through before all have come

    def answer(prompt: str) -> Answer:
        every.wait(20)
        body = json.dumps(completion(prompt.upper(), 0.5)).encode()
        return 200, {"Content-Length": str(len(body))}, [body]

    with answering(answer) as server:
        llm = CLIENTS[name](server.base_url)
        for model in (llm, CachedLLM(llm, tmp_path / "a.sqlite")):
            asked = measured("a", estimator="agreement", samples=3)
            [one] = drive(asked, World(llm=model))
            assert [reply.text for reply in (one.generation, *one.samples)] == ["A"] * 4
            assert one.uncertainty == 0


@EVERY
def test_a_failure_takes_no_other_answer_with_it(client_of, generate, tmp_path):
    asked, broken = [], {"p3"}

    def answer(prompt: str) -> str:
        asked.append(prompt)
        if prompt in broken:
            raise ConnectionResetError(prompt)
        return prompt.upper()

    with client_of(answer, 4) as llm:
        kept = CachedLLM(llm, tmp_path / "a.sqlite")
        prompts = [f"p{i}" for i in range(30)]
        with pytest.raises((ModelFailed, ConnectionResetError)):
            generate(kept, prompts)
        assert rows(kept.path) == kept.misses == 29
        broken.clear()
        assert [reply.text for reply in generate(kept, prompts)] == [
            prompt.upper() for prompt in prompts
        ]
    assert sorted(asked) == sorted([*prompts, "p3"])
    assert (kept.hits, kept.misses) == (29, 30)


def test_one_malformed_body_among_64_costs_one_request_more(tmp_path):
    bodies = iter([(*said("")[:2], [b"{" * int(said("")[1]["Content-Length"])])])

    def answer(prompt: str) -> Answer:
        return next(bodies, said("yes")) if prompt == "p20" else said("yes")

    with answering(answer) as server:
        kept = CachedLLM(client(server), tmp_path / "a.sqlite")
        found = run_many([ask(f"p{i}") for i in range(64)], World(llm=kept), return_exceptions=True)
    assert [reply.text for [reply] in found] == ["yes"] * 64
    assert len(server.asked) == 65


@EVERY
def test_an_answer_that_cannot_be_kept_ends_the_call(client_of, generate):
    """A full disk: no more is asked than can be kept."""
    asked = []

    def full(i: int, reply: Generation, seconds: float) -> None:
        raise CacheUnreadable("the disk is full")

    prompts = [f"p{i}" for i in range(50)]
    asking = client_of(lambda prompt: asked.append(prompt) or "yes", 2)
    with asking as llm, pytest.raises(CacheUnreadable):
        generate(llm, prompts, GenerationSettings(), full)
    assert len(asked) <= 6


# --- time and size


LATE = json.dumps(completion("late", 0.5)).encode()
DROPS = 150


def slowly(*drops: bytes, sent: list[bytes]) -> Iterator[bytes]:
    """A drop in a fiftieth of a second; `sent` has those that went."""
    pause = threading.Event()  # that nobody sets
    for drop in drops:
        pause.wait(0.02)
        sent.append(drop)
        yield drop


def dripping(sent: list[bytes]) -> Answer:
    """A body that comes byte by byte."""
    drops = slowly(*[b" "] * DROPS, LATE, sent=sent)
    return 200, {"Content-Length": str(DROPS + len(LATE))}, drops


def dripping_headers(sent: list[bytes]) -> Answer:
    """The same of a reply's headers."""
    rest = b"\r\nContent-Length: %d\r\n\r\n%s" % (len(LATE), LATE)
    return 0, {}, slowly(b"HTTP/1.1 200 OK\r\nX: ", *[b"x"] * DROPS, rest, sent=sent)


TIMED = {  # three tenths of a second an answer
    "ours": {"logprobs": False, "timeout": 0.3, "max_retries": 1},
    "langchain": {"timeout": 0.15, "max_retries": 1},
    "llama_index": {"timeout": 0.15, "max_retries": 1},
}
SLOW: dict[str, Callable[[list[bytes]], Answer]] = {
    "nothing": lambda sent: (0, {}, slowly(*[b""] * DROPS, sent=sent)),
    "a body in drops": dripping,
    "headers in drops": dripping_headers,
    "429 for 40 s": lambda sent: said("", 429, Retry_After="40"),
    "503 for 40 s": lambda sent: said("", 503, Retry_After="40"),
}


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("slow", SLOW)
def test_an_answer_that_does_not_come_in_time_is_given_up(slow, name, generate):
    sent, late = list[bytes](), (200, {"Content-Length": str(len(LATE))}, [LATE])
    how, why = TIMED[name], r"within 0\.3 s; raise timeout="
    if name == "ours" and " for 40 s" in slow:  # it does not wait at all for so long
        how, why = how | {"timeout": 20}, {"4": "too many requests", "5": "failed"}[slow[0]]
    with answering(lambda _: late if server.asked[1:] else SLOW[slow](sent)) as server:
        with pytest.raises(ModelFailed, match=why):
            generate(CLIENTS[name](server.base_url, **how), ["a"])
        assert len(server.asked) <= 1
        assert len(sent) < DROPS


PATIENCE = [("Retry_After", "30"), ("Retry_After_Ms", "30000")]
PATIENCE += [("Retry_After", "Fri, 31 Dec 9999 23:59:59 GMT")]


@pytest.mark.parametrize("header", [dict([one]) for one in PATIENCE], ids=str)
def test_a_server_that_wants_more_patience_than_there_is_time_is_not_waited_for(header, generate):
    limited = answering(lambda prompt: said("", 429, **header))
    with limited as server, pytest.raises(ModelFailed, match="too many requests"):
        generate(client(server, timeout=20, max_retries=5), ["a"])
    assert len(server.asked) == 1


def test_the_time_bounds_all_repetitions_together(generate):
    waits = threading.Event()

    def answer(prompt: str) -> Answer:
        waits.wait(0.25)
        return said("", 500, Retry_After="0")

    with answering(answer) as server, pytest.raises(ModelFailed):
        generate(client(server, timeout=0.6, max_retries=99), ["a"])
    assert len(server.asked) <= 3


def test_a_reply_that_breaks_off_is_asked_for_again(generate):
    status, headers, [body] = said("yes", Connection="close")

    def answer(prompt: str) -> Answer:
        return status, headers, [body[:9] if len(server.asked) % 2 else body]

    with answering(answer) as server:
        [reply] = generate(client(server, max_retries=1), ["a"])
    assert (reply.text, len(server.asked)) == ("yes", 2)


def test_a_reply_beyond_all_measure_is_not_read_to_its_end(generate):
    sent = []

    def megabytes() -> Iterator[bytes]:
        for piece in repeat(b" " * 1_000_000, 200):
            sent.append(1)
            yield piece

    endless = answering(lambda prompt: (200, {}, megabytes()))
    with endless as server, pytest.raises(ModelFailed, match="for 64 tokens; check that base_url"):
        generate(client(server), ["a"])
    assert len(sent) < 100


# --- a server that answers nobody


def questions(count: int) -> list[Question]:
    return [Question(f"Who wrote book {i}?", ("Jane Austen",), str(i)) for i in range(count)]


@pytest.mark.parametrize(("status", "most"), [(500, 40), (401, 8)])
def test_a_run_ends_with_one_message_where_nothing_is_answered(status, most, tmp_path):
    down = True

    def answer(prompt: str) -> Answer:
        return said("", status, Retry_After="0") if down else said("Jane Austen")

    with answering(answer) as server:
        world, cells = World(llm=client(server, max_retries=1)), [Cell(METHODS["direct"])]
        with pytest.raises(ModelUnavailable, match="not asked any more"):
            evaluate(questions(128), cells, world, out=tmp_path)
        assert len(server.asked) <= most + 16
        down = False
        found = evaluate(questions(128), cells, world, out=tmp_path)
    assert {record.prediction for record in found["direct"]} == {"Jane Austen"}


@EVERY
def test_failures_are_counted_over_calls_and_an_answer_begins_anew(client_of, generate):
    def answer(prompt: str) -> str:
        if prompt == "good":
            return "yes"
        raise ConnectionResetError(prompt)

    with client_of(answer, 8) as llm:
        seen = []
        for prompt in [*["bad"] * 19, "good", *["bad"] * 21, "good"]:
            try:
                generate(llm, [prompt])
                seen.append("answered")
            except (ModelFailed, ConnectionResetError) as error:
                seen.append("unavailable" if isinstance(error, ModelUnavailable) else "failed")
    first = [*["failed"] * 19, "answered", *["failed"] * 19]
    assert seen == [*first, "unavailable", "unavailable", "answered"]


def test_what_the_server_finds_fault_with_is_no_failure_of_the_server(tmp_path):
    with answering(lambda prompt: said("too long", 400)) as server:
        llm = client(server, max_concurrency=1)
        found = evaluate(questions(30), [Cell(METHODS["direct"])], World(llm=llm), out=tmp_path)
    assert all(str(record.error).startswith("ModelFailed") for record in found["direct"])


# --- connections


async def asked_on_a_loop(llm: Any, calls: list[list[str]]) -> list[list[Generation]]:
    return await asyncio.gather(*map(llm.agenerate, calls))


def asked_by_threads(llm: Any, calls: list[list[str]]) -> list[list[Generation]]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(llm.generate, calls))


@pytest.mark.parametrize(
    ("client_of", "ask_all"),
    [
        (our_client, asked_by_threads),
        (our_client, lambda *told: asyncio.run(asked_on_a_loop(*told))),
        (langchains, asked_by_threads),
        (llama_indexes, asked_by_threads),
    ],
)
def test_the_bound_is_reached_and_holds_over_all_calls(client_of, ask_all):
    lock, now, most = threading.Lock(), 0, 0
    together = threading.Barrier(3, timeout=20)

    def answer(prompt: str) -> str:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        together.wait()
        with lock:
            now -= 1
        return prompt

    calls = [[f"a{i}", f"b{i}", f"c{i}"] for i in range(12)]
    with client_of(answer, 3) as llm:
        assert [[reply.text for reply in call] for call in ask_all(llm, calls)] == calls
    assert most == 3


TRACE = ContextVar("TRACE", default="")


def blocking(answer: Callable[[], str], most: int) -> OpenAICompatibleLLM:
    """A model over a client that has no async calls."""

    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"choices": [{"message": {"content": answer()}}]})

    http = httpx.Client(transport=httpx.MockTransport(reply))
    theirs = openai.OpenAI(api_key="none", base_url="http://here/v1", http_client=http)
    return OpenAICompatibleLLM("m", client=theirs, logprobs=False, max_concurrency=most)


@pytest.mark.parametrize("calls", [[16], [1] * 16], ids=["one call", "many calls"])
async def test_the_bound_of_a_client_that_blocks_is_reached_on_a_loop_too(calls):
    together = threading.Barrier(16, timeout=20)

    def answer() -> str:
        together.wait()
        return TRACE.get()

    TRACE.set("ours")
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    llm = blocking(answer, 16)
    found = await asyncio.gather(*(llm.agenerate(["?"] * count) for count in calls))
    assert [reply.text for call in found for reply in call] == ["ours"] * 16


async def test_a_call_that_is_cancelled_does_not_wait_for_a_client_that_blocks():
    begun, over = threading.Semaphore(0), threading.Event()

    def answer() -> str:
        begun.release()
        over.wait(20)
        return "late"

    try:
        asked = asyncio.ensure_future(blocking(answer, 2).agenerate(["?"] * 5))
        for _ in range(2):
            await asyncio.to_thread(begun.acquire)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not over.is_set()
    finally:
        over.set()


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class StagedLLM(RequestLLM):
    """Sends after some rounds of the event loop, as HTTP clients do; the replies come together."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.log, self.replies = list[str](), asyncio.Event()
        self.now = self.most = 0

    @property
    def name(self) -> str:
        return "staged"

    def _ask(self, prompts: Any, settings: Any, refused: Any) -> list[Generation]:
        raise NotImplementedError

    async def _aask(self, prompts: Any, settings: Any, refused: Any) -> list[Generation]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            self.log.append(f"begin {prompts[0]}")
            await rounds(3)
            self.log.append(f"send {prompts[0]}")
            await self.replies.wait()
            return [Generation(prompts[0])]
        finally:
            self.now -= 1


async def test_after_replies_that_come_at_once_a_request_is_sent_before_the_next_is_begun():
    llm = StagedLLM(2)
    asked = [asyncio.ensure_future(llm.agenerate([prompt])) for prompt in "abcd"]
    await rounds(20)
    assert llm.log == ["begin a", "begin b", "send a", "send b"]
    llm.replies.set()
    await asyncio.gather(*asked)
    assert llm.log[4:] == ["begin c", "send c", "begin d", "send d"]


@pytest.mark.parametrize("when", range(24))
async def test_a_call_that_is_cancelled_at_any_time_leaves_the_bound_as_it_was(when):
    llm = StagedLLM(2)
    asked = [asyncio.ensure_future(llm.agenerate([prompt])) for prompt in "abcdef"]
    await rounds(6)
    llm.replies.set()
    await rounds(when)
    for one in asked[:4]:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    llm.replies.clear()
    again = [asyncio.ensure_future(llm.agenerate([prompt])) for prompt in "ghij"]
    await rounds(20)
    assert llm.now == llm.most == 2
    llm.replies.set()
    await asyncio.gather(*again)
    assert llm.most == 2


def test_a_client_is_closed_with_its_event_loop_and_used_again_within_it():
    async def three_calls() -> None:
        for _ in range(3):
            [reply] = await llm.agenerate(["a"])
            assert reply.text == "yes"

    with answering(lambda prompt: said("yes")) as server:
        llm = client(server)
        for runs in range(1, 4):
            asyncio.run(three_calls())
            assert server.all_closed()
            assert server.connections == runs


async def test_a_client_of_ones_own_is_left_open():
    with answering(lambda prompt: said("yes")) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as theirs:
            await OpenAICompatibleLLM("m", async_client=theirs, logprobs=False).agenerate(["a"])
            assert not theirs.is_closed()


def test_a_loop_that_was_closed_by_hand_is_not_called_any_more(caplog):
    """`asyncio.run` ends the generators that are open; who closes a loop by hand may not."""

    async def swept() -> None:
        gc.collect()  # the clients of other tests, which are not what is asked
        await asyncio.sleep(0)

    asyncio.run(swept())
    gc.collect()
    caplog.clear()
    with answering(lambda prompt: said("yes")) as server:
        llm = client(server)
        for _ in range(3):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(llm.agenerate(["a"]))
            loop.close()

        async def last() -> None:
            await llm.agenerate(["a"])
            gc.collect()
            await asyncio.sleep(0)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # they are the loops' own
            asyncio.run(last())
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_threads_with_event_loops_of_their_own_keep_each_others_bounds():
    """As a web server has them that answers each request on a new loop."""
    came, looked, two = threading.Event(), threading.Event(), threading.Event()
    under_way = list[str]()

    async def one_then_another() -> None:
        one = asyncio.create_task(llm.agenerate(["one"]))
        await asyncio.to_thread(looked.wait, 20)
        await asyncio.gather(one, llm.agenerate(["another"]))

    third = threading.Thread(target=lambda: asyncio.run(one_then_another()))

    class Loop(asyncio.SelectorEventLoop):
        """While the second thread sees whether it has ended, the third begins to ask."""

        def is_closed(self) -> bool:
            if threading.current_thread() is second and not came.is_set():
                third.start()
                came.wait(20)
            return super().is_closed()

    def answer(prompt: str) -> Answer:
        if prompt in ("one", "another"):
            under_way.append(prompt)
            came.set()
            if len(under_way) > 1:
                two.set()
            two.wait(0.3)
            under_way.remove(prompt)
        return said(prompt)

    second = threading.Thread(target=lambda: asyncio.run(llm.agenerate(["second"])))
    with answering(answer) as server, asyncio.Runner(loop_factory=Loop) as first:
        llm = client(server, max_concurrency=1)
        first.run(llm.agenerate(["first"]))
        second.start()
        second.join()
        looked.set()
        third.join()
    assert len(server.asked) == 4
    assert not two.is_set()


def test_connections_of_a_loop_that_has_ended_are_no_failure():
    body = json.dumps(completion("yes", 0.5)).encode()
    whole: Answer = (200, {"Content-Length": str(len(body))}, [body])
    with answering(lambda _: whole) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # they are the ended loops' own
        wire = httpx.AsyncClient(limits=httpx.Limits(keepalive_expiry=0.01))
        chat = chat_openai(server.base_url, max_retries=0, http_async_client=wire)
        llm = LangChainLLM(chat, logprobs=None)
        for _ in range(3):
            assert len(asyncio.run(llm.agenerate(["one", "two", "three"]))) == 3
            sleep(0.05)  # an expired connection is closed by whoever comes next


# --- a model in copies and other processes


@pytest.mark.parametrize("maker", CLIENTS)
def test_for_another_process_a_model_says_where_to_make_it(maker, tmp_path):
    llm = CLIENTS[maker]("http://localhost:1/v1")
    why = rf"{re.escape(llm.name)} cannot be .* another process\. Make it there, in a function"
    for kept in llm, CachedLLM(llm, tmp_path / "answers.sqlite"):
        with pytest.raises(InvalidInput, match=why):
            pickle.dumps(kept)


@pytest.mark.parametrize("maker", CLIENTS)
def test_a_copy_of_a_component_shares_its_model(maker):
    with answering(lambda prompt: completion("Jane Austen", 0.5)) as server:
        calibrator = Calibrator(CLIENTS[maker](server.base_url))
        answer = calibrator.answer("Who wrote Emma?", [])
        for copied in copy.copy, copy.deepcopy:
            twin = copied(calibrator)
            assert twin is not calibrator
            assert twin.llm is calibrator.llm
            assert twin.answer("Who wrote Emma?", []) == answer
