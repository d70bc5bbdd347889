"""Run an algorithm that is written as a generator of requests.

A flow yields what it wants (`Ask` a model, `Fetch` passages, `Embed` texts, `Score` given
texts, `Agree` on gradients), receives the reply, and returns its answer. It does no I/O, so
one flow runs alone (`run`), on an event loop (`arun`), or beside many others with their
requests merged (`run_many`). The idea is httpx's `Auth.auth_flow`.

Write flows with the typed helpers, which keep the type checker's eyes open::

    def brief(question: str) -> Flow[str]:
        [found] = yield from fetch(question, k=3)
        [reply] = yield from ask(f"{found[0].text} {question}", max_tokens=16)
        return reply.text

    run(brief("who wrote Emma?"), World(llm=llm, retriever=retriever))
"""

from ltrag_plugins.flow.drivers import (
    Observer,
    Returned,
    Step,
    World,
    arun,
    arun_steps,
    changing,
    run,
    run_many,
    run_steps,
    together,
)
from ltrag_plugins.flow.requests import (
    Agree,
    Ask,
    Compute,
    Embed,
    Fetch,
    Flow,
    OwnedPrompt,
    Request,
    Score,
    agree,
    ask,
    compute,
    embed,
    fetch,
    score,
)

__all__ = [
    "Agree",
    "Ask",
    "Compute",
    "Embed",
    "Fetch",
    "Flow",
    "Observer",
    "OwnedPrompt",
    "Request",
    "Returned",
    "Score",
    "Step",
    "World",
    "agree",
    "arun",
    "arun_steps",
    "ask",
    "changing",
    "compute",
    "embed",
    "fetch",
    "run",
    "run_many",
    "run_steps",
    "score",
    "together",
]
