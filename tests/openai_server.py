"""A small OpenAI-compatible server on this machine: what it writes is a Python function."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[str, float]
"""(text, probability of each of its tokens)."""


Served = AbstractContextManager[tuple[str, list[str]]]
"""The server's base URL, and the prompts it was asked, while it runs."""


def openai_server(reply: Callable[[str], Reply]) -> Served:
    """Writes what the function says."""
    return serving(lambda sent: completion(*reply(_prompt_of(sent))))


def replaying(body: dict[str, object]) -> Served:
    """Sends the same body each time."""
    return serving(lambda _: body)


def _prompt_of(sent: dict[str, Any]) -> str:
    if "input" in sent:  # of the Responses API
        asked = sent["input"]
        return asked if isinstance(asked, str) else asked[-1]["content"]
    return sent["prompt"] if "prompt" in sent else sent["messages"][-1]["content"]


@contextmanager
def serving(reply: Callable[[dict[str, Any]], object]) -> Iterator[tuple[str, list[str]]]:
    """Sends what the function makes of a request: a body, or (status, body); bytes as they are."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(_prompt_of(sent))
            said = reply(sent)
            self._send(*(said if isinstance(said, tuple) else (200, said)))

        def _send(self, status: int, value: object) -> None:
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # 5 by default, and callers beyond wait for a second or more

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


def completion(text: str, probability: float) -> dict[str, object]:
    """A chat completion whose tokens are the words of the text."""
    pieces = [piece if i == 0 else f" {piece}" for i, piece in enumerate(text.split(" "))]
    logprob = math.log(probability)
    content = [
        {
            "token": piece,
            "logprob": logprob,
            "bytes": list(piece.encode()),
            "top_logprobs": [
                {"token": piece, "logprob": logprob, "bytes": None},
                {"token": " other", "logprob": math.log(1 - probability), "bytes": None},
            ],
        }
        for piece in pieces
    ]
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": content},
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": len(pieces), "total_tokens": 0},
    }
