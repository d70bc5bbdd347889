"""What a router adds to its model's client: questions at once over a server that takes 50 ms each.

    python benchmarks/router_server.py
    python benchmarks/router_server.py --learning

Eight requests are under way at most, so nothing can be faster than the number of questions times
50 ms over eight. Shown are the wall time over that bound and the client's own processor time for a
question, of the bare client and of the router over it. With --learning: how long calls take, by
their 95th percentile, while a router learns beside them (over that of its chain), and with its
audits and a store once it has learned (over that of a router without).
"""

import argparse
import asyncio
import json
import logging
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from langchain_core.output_parsers import StrOutputParser
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


def completion(tokens: tuple[tuple[str, float], ...], read: int = 9) -> bytes:
    content = [
        {"token": t, "logprob": p, "bytes": None, "top_logprobs": [{"token": t, "logprob": p}]}
        for t, p in tokens
    ]
    choice = {"index": 0, "finish_reason": "stop", "logprobs": {"content": content}}
    choice |= {"message": {"role": "assistant", "content": "".join(t for t, _ in tokens)}}
    usage = {"prompt_tokens": read, "completion_tokens": 2, "total_tokens": read + 2}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    body = json.dumps(whole | {"choices": [choice], "usage": usage}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def serve(told: Connection) -> None:
    """Sends the same completion after 50 ms, however many ask; an unsure, wrong one to what has a
    # in it and nothing shown."""
    sure, shown = completion(TOKENS), completion(TOKENS, read=300)
    unsure = completion((("Mary", -1.9), (" Shelley", -1.1)))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                [length] = [x for x in asked.split(b"\r\n") if x.startswith(b"content-length")]
                body = await reader.readexactly(int(length.split(b":")[1]))
                await asyncio.sleep(SECONDS)
                writer.write(shown if b"shown" in body else unsure if b"#" in body else sure)
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


async def percentile(call: _Call, seed: int, questions: int) -> float:
    """The 95th percentile of how long a call takes, milliseconds, eight callers at once."""
    took, numbers = list[float](), iter(random.Random(seed).sample(range(questions), questions))

    async def caller() -> None:
        for i in numbers:
            began = time.perf_counter()
            await call(f"who wrote book {i}{' #' * (i % 2)}")
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return 1000 * statistics.quantiles(took, n=20)[-1]


def learning(url: str, questions: int, repeats: int) -> None:
    key = SecretStr("none")
    chat = ChatOpenAI(model="m", base_url=url, api_key=key, logprobs=True, top_logprobs=5)
    chain = RunnableLambda(lambda question: f"shown: {question}") | chat | StrOutputParser()
    figures: dict[str, list[float]] = {}
    for turn in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            how: dict[str, Any] = {"llm": chat, "store": f"{folder}/r.sqlite", "target_rate": 0.5}
            router: Any = GECERouter.learning(chain, warm_up=questions // 2, **how)
            bare = asyncio.run(percentile(chain.ainvoke, 0, questions))
            early = asyncio.run(percentile(router.ainvoke, 0, questions))
            router.settle()
            router.gate.refresh(now=True)
            assert router.gate.gate is not None, router.monitor
            plain = GECERouter(router.gate.gate, chain)
            alone = asyncio.run(percentile(plain.ainvoke, 1, questions))
            late = asyncio.run(percentile(router.ainvoke, 1, questions))
            router.settle()
            print(router.monitor, flush=True)
        for name, one, other in (("learning", early, bare), ("audited", late, alone)):
            figures.setdefault(name, []).append(one / other)
            print(f"turn {turn}: {name} {one:.1f} ms, without {other:.1f} ms: {one / other:.3f}")
    for name, ratios in figures.items():
        print(f"{name}: median of {repeats} ratios {statistics.median(ratios):.3f}")


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
    parser.add_argument("--learning", action="store_true", help="calls beside a router that learns")
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the SDK closes its clients late
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    if options.learning:
        learning(url, options.questions, options.repeats)
        server.terminate()
        return
    table = Table("client", "", "wall / bound", "ms each")
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
