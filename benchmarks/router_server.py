"""What a router adds to its model's client: questions at once over a server that takes 50 ms each.

    python benchmarks/router_server.py

Eight requests are under way at most, so nothing can be faster than the number of questions times
50 ms over eight. Shown are the wall time over that bound and the client's own processor time for a
question, of the bare client and of the router over it.
"""

import argparse
import asyncio
import json
import logging
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from ltrag_plugins.flow import World
from ltrag_plugins.gece import Evidence, GECEGate, Outcome, fit_outcomes
from ltrag_plugins.langchain import GECERouter, LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.types import Generation, Token

TOKENS = (("Jane", -0.1), (" Austen", -0.05))
AT_ONCE, SECONDS = 8, 0.05
_Call = Callable[[str], Awaitable[object]]


def serve(told: Connection) -> None:
    """Sends the same completion after 50 ms, however many ask."""
    content = [
        {"token": t, "logprob": p, "bytes": None, "top_logprobs": [{"token": t, "logprob": p}]}
        for t, p in TOKENS
    ]
    choice = {"index": 0, "finish_reason": "stop", "logprobs": {"content": content}}
    choice |= {"message": {"role": "assistant", "content": "Jane Austen"}}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    body = json.dumps(whole | {"choices": [choice], "usage": usage}).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                [length] = [x for x in asked.split(b"\r\n") if x.startswith(b"content-length")]
                await reader.readexactly(int(length.split(b":")[1]))
                await asyncio.sleep(SECONDS)
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    asyncio.run(run())


def gate_over(llm: LLM) -> GECEGate:
    """One that answers directly where the draft is as sure as the server's."""
    outcomes = []
    for i in range(60):
        sure = i % 2 == 0
        tokens = tuple(Token(t, p if sure else p - 1.5 - i / 1000) for t, p in TOKENS)
        outcomes.append(Outcome(Evidence(f"who wrote book {i}", Generation("Jane", tokens)), sure))
    fitted, report = fit_outcomes(outcomes, target_rate=0.5)
    return GECEGate(fitted, World(llm=llm), report)


def routed(llm: LLM) -> _Call:
    return GECERouter(gate_over(llm), RunnableLambda(lambda question: "retrieved")).ainvoke


def clients(url: str) -> dict[tuple[str, str], Callable[[], _Call]]:
    """Of each client the bare call, bounded, and the router's."""
    sdk = AsyncOpenAI(base_url=url, api_key="none")
    key = SecretStr("none")
    chat = ChatOpenAI(model="m", base_url=url, api_key=key, logprobs=True, top_logprobs=5)
    like = OpenAILike(model="m", api_base=url, api_key="none", is_chat_model=True)
    asked: Any = {"logprobs": True, "top_logprobs": 5, "max_tokens": 24}

    def bounded(call: _Call) -> _Call:
        free = asyncio.Semaphore(AT_ONCE)

        async def one(question: str) -> object:
            async with free:
                return await call(question)

        return one

    def by_sdk(text: str) -> Awaitable[object]:
        return sdk.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], **asked
        )

    def by_like(text: str) -> Awaitable[object]:
        return like.achat([ChatMessage(content=text)], **asked)

    ours = OpenAICompatibleLLM("m", base_url=url, api_key="none")
    return {
        ("openai / OpenAICompatibleLLM", "bare"): lambda: bounded(by_sdk),
        ("openai / OpenAICompatibleLLM", "router"): lambda: routed(ours),
        ("ChatOpenAI", "bare"): lambda: bounded(chat.ainvoke),
        ("ChatOpenAI", "router"): lambda: routed(LangChainLLM(chat)),
        ("OpenAILike", "bare"): lambda: bounded(by_like),
        ("OpenAILike", "router"): lambda: routed(LlamaIndexLLM(like)),
    }


async def measured(call: _Call, questions: int) -> tuple[float, float]:
    """Wall time over the bound, and milliseconds of processor time for a question."""
    await call("who wrote the warm-up")
    wall, own = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call(f"who wrote book {i}") for i in range(questions)))
    wall, own = time.perf_counter() - wall, time.process_time() - own
    return wall / (questions * SECONDS / AT_ONCE), own / questions * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many is shown")
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the SDK closes its clients late
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    url, table = (
        f"http://127.0.0.1:{here.recv()}/v1",
        Table("client", "", "wall / bound", "ms each"),
    )
    found = dict[tuple[str, str], list[tuple[float, float]]]()
    for _ in range(options.repeats):
        for client in clients(url):
            # a client each time: its connections belong to one event loop
            run = measured(clients(url)[client](), options.questions)
            found.setdefault(client, []).append(asyncio.run(run))
    for (name, way), figures in found.items():
        ratio, each = (statistics.median(column) for column in zip(*figures, strict=True))
        assert math.isfinite(ratio)
        table.add_row(name, way, f"{ratio:.2f}", f"{each:.2f}")
    Console(width=88, file=sys.stdout).print(table)
    server.terminate()


if __name__ == "__main__":
    main()
