"""Requests to servers: each answer kept when it comes, in bounded number, time and size."""

import asyncio
import gc
import json
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.llms.openai_like import OpenAILike

from ltrag_plugins.errors import CacheUnreadable, ModelFailed, ModelUnavailable
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import World, ask, run_many
from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.types import Generation, GenerationSettings, Question
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM
from tests.openai_server import completion

Answer = tuple[int, dict[str, str], Iterable[bytes]]
"""Status, headers, and the body in pieces; without a Content-Length it ends with the connection.
Of status 0 the pieces are all that is sent."""


class Server:
    """What came, and what is open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.connections = 0
        self.open = 0
        self.changed = threading.Condition()

    def all_closed(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.open == 0, timeout=20)


@contextmanager
def serving(answer: Callable[[str], Answer]) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with server.changed:
                server.open += 1
                server.connections += 1

        def finish(self) -> None:
            super().finish()
            with server.changed:
                server.open -= 1
                server.changed.notify_all()

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = sent["messages"][-1]["content"]
            server.asked.append(prompt)
            status, headers, body = answer(prompt)
            if status:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
            self.close_connection |= "Content-Length" not in headers
            try:
                for piece in body:
                    self.wfile.write(piece)
            except OSError:
                self.close_connection = True  # the client has gone

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """An answer that raises is a connection that breaks."""

    httpd = Listener(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{httpd.server_address[1]}/v1")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def said(text: str, status: int = 200, **headers: str) -> Answer:
    """A whole reply."""
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"Content-Length": str(len(body)), **named}, [body]


def client(server: Server, **settings: Any) -> OpenAICompatibleLLM:
    told = {"base_url": server.url, "api_key": "none", "logprobs": False, "max_retries": 0}
    return OpenAICompatibleLLM("m", **told | settings)


def asked_both_ways(make: Callable[[], Any], prompts: list[str]) -> Iterator[Callable[[], Any]]:
    yield lambda: make().generate(prompts)
    yield lambda: asyncio.run(make().agenerate(prompts))


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
    with serving(lambda prompt: said(answer(prompt))) as server:
        yield client(server, max_concurrency=bound)


@contextmanager
def langchains(answer: Callable[[str], str], bound: int) -> Iterator[Any]:
    yield LangChainLLM(FunctionChat(answer), max_concurrency=bound)


@contextmanager
def llama_indexes(answer: Callable[[str], str], bound: int) -> Iterator[Any]:
    yield LlamaIndexLLM(EitherLLM(function=answer), concurrency=bound)


EVERY = pytest.mark.parametrize("client_of", [our_client, langchains, llama_indexes])


@EVERY
@pytest.mark.parametrize("way", ["generate", "agenerate"])
def test_each_answer_is_in_the_file_before_the_next_prompt_is_asked(client_of, way, tmp_path):
    kept_before = []

    def answer(prompt: str) -> str:
        kept_before.append(rows(tmp_path / "a.sqlite"))
        return prompt.upper()

    with client_of(answer, 1) as llm:
        kept = CachedLLM(llm, tmp_path / "a.sqlite")
        prompts = [f"p{i}" for i in range(5)]
        found = getattr(kept, way)(prompts)
        found = asyncio.run(found) if way == "agenerate" else found
    assert [reply.text for reply in found] == ["P0", "P1", "P2", "P3", "P4"]
    assert kept_before == [0, 1, 2, 3, 4]
    assert (kept.hits, kept.misses) == (0, 5)
    assert all(reply.seconds > 0 for reply in found)
    assert CachedLLM(llm, kept.path).generate(prompts) == found


@EVERY
@pytest.mark.parametrize("way", ["generate", "agenerate"])
def test_a_failure_takes_no_other_answer_with_it(client_of, way, tmp_path):
    asked, broken = [], {"p3"}

    def answer(prompt: str) -> str:
        asked.append(prompt)
        if prompt in broken:
            raise ConnectionResetError(prompt)
        return prompt.upper()

    with client_of(answer, 4) as llm:
        kept = CachedLLM(llm, tmp_path / "a.sqlite")
        prompts = [f"p{i}" for i in range(30)]

        def ask_all() -> Any:
            found = getattr(kept, way)(prompts)
            return asyncio.run(found) if way == "agenerate" else found

        with pytest.raises((ModelFailed, ConnectionResetError)):
            ask_all()
        assert rows(kept.path) == 29
        broken.clear()
        assert [reply.text for reply in ask_all()] == [prompt.upper() for prompt in prompts]
    assert sorted(asked) == sorted([*prompts, "p3"])


def test_one_malformed_body_among_64_costs_one_request_more(tmp_path):
    bodies = iter([(*said("")[:2], [b"{" * int(said("")[1]["Content-Length"])])])

    def answer(prompt: str) -> Answer:
        return next(bodies, said("yes")) if prompt == "p20" else said("yes")

    with serving(answer) as server:
        kept = CachedLLM(client(server), tmp_path / "a.sqlite")
        found = run_many([ask(f"p{i}") for i in range(64)], World(llm=kept), return_exceptions=True)
    assert [reply.text for [reply] in found] == ["yes"] * 64
    assert len(server.asked) == 65


@EVERY
def test_an_answer_that_cannot_be_kept_ends_the_call(client_of):
    """A full disk: no more is asked than can be kept."""
    asked = []

    def full(i: int, reply: Generation, seconds: float) -> None:
        raise CacheUnreadable("the disk is full")

    with client_of(lambda prompt: asked.append(prompt) or "yes", 2) as llm:
        for found in (llm.generate, lambda *told: asyncio.run(llm.agenerate(*told))):
            with pytest.raises(CacheUnreadable):
                found([f"p{i}" for i in range(50)], GenerationSettings(), full)
    assert len(asked) <= 12


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


TIMED: dict[str, Callable[[str], Any]] = {  # three tenths of a second an answer
    "ours": lambda url: OpenAICompatibleLLM(
        "m", base_url=url, api_key="k", logprobs=False, timeout=0.3, max_retries=1
    ),
    "langchain": lambda url: LangChainLLM(
        ChatOpenAI(model="m", base_url=url, api_key="k", timeout=0.15, max_retries=1)
    ),
    "llama_index": lambda url: LlamaIndexLLM(
        OpenAILike(
            model="m", api_base=url, api_key="k", is_chat_model=True, timeout=0.15, max_retries=1
        )
    ),
}


@pytest.mark.parametrize("way", ["generate", "agenerate"])
@pytest.mark.parametrize("make", TIMED.values(), ids=TIMED)
@pytest.mark.parametrize(
    "slow",
    [
        dripping,
        dripping_headers,
        lambda sent: said("", 429, Retry_After="40"),
        lambda sent: said("", 503, Retry_After="40"),
    ],
    ids=["a body in drops", "headers in drops", "429 for 40 s", "503 for 40 s"],
)
def test_an_answer_that_does_not_come_in_time_is_given_up(slow, make, way):
    sent, late = list[bytes](), (200, {"Content-Length": str(len(LATE))}, [LATE])
    with serving(lambda prompt: late if server.asked[1:] else slow(sent)) as server:
        llm = make(server.url)
        found = partial(getattr(llm, way), ["a"])
        # our own client does not wait at all where it is told to wait for too long
        with pytest.raises(ModelFailed, match=r"within 0\.3 s; raise timeout=|too many|failed"):
            asyncio.run(found()) if way == "agenerate" else found()
        assert len(server.asked) <= 1
        assert len(sent) < DROPS


@pytest.mark.parametrize("header", [{"Retry_After": "2"}, {"Retry_After_Ms": "2000"}])
def test_a_server_that_wants_more_patience_than_there_is_time_is_not_waited_for(header):
    with serving(lambda prompt: said("", 429, **header)) as server:
        make = lambda: client(server, timeout=1.5, max_retries=5)  # noqa: E731
        for ask_it in asked_both_ways(make, ["a"]):
            with pytest.raises(ModelFailed, match="too many requests"):
                ask_it()
    assert len(server.asked) == 2


def test_the_time_bounds_all_repetitions_together():
    waits = threading.Event()

    def answer(prompt: str) -> Answer:
        waits.wait(0.25)
        return said("", 500, Retry_After="0")

    with serving(answer) as server:
        for ask_it in asked_both_ways(lambda: client(server, timeout=0.6, max_retries=99), ["a"]):
            with pytest.raises(ModelFailed):
                ask_it()
    assert len(server.asked) <= 6


def test_a_reply_that_breaks_off_is_asked_for_again():
    status, headers, [body] = said("yes", Connection="close")

    def answer(prompt: str) -> Answer:
        return status, headers, [body[:9] if len(server.asked) % 2 else body]

    with serving(answer) as server:
        for ask_it in asked_both_ways(lambda: client(server, max_retries=1), ["a"]):
            assert [reply.text for reply in ask_it()] == ["yes"]
    assert len(server.asked) == 4


def test_a_reply_beyond_all_measure_is_not_read_to_its_end():
    sent = []

    def megabytes() -> Iterator[bytes]:
        for piece in repeat(b" " * 1_000_000, 200):
            sent.append(1)
            yield piece

    with serving(lambda prompt: (200, {}, megabytes())) as server:
        for ask_it in asked_both_ways(lambda: client(server), ["a"]):
            with pytest.raises(ModelFailed, match=r"bytes for 64 tokens; check that base_url"):
                ask_it()
    assert len(sent) < 100


# --- a server that answers nobody


def questions(count: int) -> list[Question]:
    return [Question(f"Who wrote book {i}?", ("Jane Austen",), str(i)) for i in range(count)]


@pytest.mark.parametrize(("status", "most"), [(500, 40), (401, 8)])
def test_a_run_ends_with_one_message_where_nothing_is_answered(status, most, tmp_path):
    down = True

    def answer(prompt: str) -> Answer:
        return said("", status, Retry_After="0") if down else said("Jane Austen")

    with serving(answer) as server:
        world, cells = World(llm=client(server, max_retries=1)), [Cell(METHODS["direct"])]
        with pytest.raises(ModelUnavailable, match="not asked any more"):
            evaluate(questions(128), cells, world, out=tmp_path)
        assert len(server.asked) <= most + 16
        down = False
        found = evaluate(questions(128), cells, world, out=tmp_path)
    assert {record.prediction for record in found["direct"]} == {"Jane Austen"}


@EVERY
@pytest.mark.parametrize("way", ["generate", "agenerate"])
def test_failures_are_counted_over_calls_and_an_answer_begins_anew(client_of, way):
    def answer(prompt: str) -> str:
        if prompt == "good":
            return "yes"
        raise ConnectionResetError(prompt)

    def ask_it(prompt: str) -> Any:
        found = getattr(llm, way)([prompt])
        return asyncio.run(found) if way == "agenerate" else found

    with client_of(answer, 8) as llm:
        seen = []
        for prompt in [*["bad"] * 19, "good", *["bad"] * 21, "good"]:
            try:
                ask_it(prompt)
                seen.append("answered")
            except (ModelFailed, ConnectionResetError) as error:
                seen.append("unavailable" if isinstance(error, ModelUnavailable) else "failed")
    first = [*["failed"] * 19, "answered", *["failed"] * 19]
    assert seen == [*first, "unavailable", "unavailable", "answered"]


def test_what_the_server_finds_fault_with_is_no_failure_of_the_server(tmp_path):
    with serving(lambda prompt: said("too long", 400)) as server:
        llm = client(server, max_concurrency=1)
        found = evaluate(
            questions(30), [Cell(METHODS["direct"])], World(llm=llm), out=tmp_path / "run"
        )
    assert all(str(record.error).startswith("ModelFailed") for record in found["direct"])


# --- connections


@EVERY
def test_the_bound_holds_over_all_threads(client_of):
    lock, now, most = threading.Lock(), 0, 0
    together = threading.Barrier(3, timeout=20)

    def answer(prompt: str) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait()
        with lock:
            now -= 1
        return prompt

    with client_of(answer, 3) as llm, ThreadPoolExecutor(12) as threads:
        found = list(threads.map(lambda i: llm.generate([f"a{i}", f"b{i}", f"c{i}"]), range(12)))
    assert [reply.text for reply in found[7]] == ["a7", "b7", "c7"]
    assert most == 3


def test_a_client_is_closed_with_its_event_loop_and_used_again_within_it():
    async def three_calls() -> None:
        for _ in range(3):
            await llm.agenerate(["a"])

    with serving(lambda prompt: said("yes")) as server:
        llm = client(server)
        for runs in range(1, 4):
            asyncio.run(three_calls())
            assert server.all_closed()
            assert server.connections == runs


def test_a_client_of_ones_own_is_left_open():
    with serving(lambda prompt: said("yes")) as server:
        theirs = openai.AsyncOpenAI(base_url=server.url, api_key="none")

        async def twice() -> None:
            llm = OpenAICompatibleLLM("m", async_client=theirs, logprobs=False)
            await llm.agenerate(["a"])
            assert not theirs.is_closed()
            await theirs.close()

        asyncio.run(twice())


def test_a_loop_that_was_closed_by_hand_is_not_called_any_more(caplog):
    """`asyncio.run` ends the generators that are open; who closes a loop by hand may not."""
    with serving(lambda prompt: said("yes")) as server:
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
