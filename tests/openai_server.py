"""A small OpenAI-compatible server on this machine: what it writes is a Python function."""

import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[str, float]
"""(text, probability of each of its tokens)."""
Answer = tuple[int, dict[str, str], Iterable[bytes]]
"""Status, headers, and the body in pieces; without a Content-Length it ends with the connection.
Of status 0 the pieces are all that is sent."""


class Server:
    """What came, and what is open; unpacked, its address and the prompts it was asked."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.prompts: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Message] = []
        self.paths: list[str] = []
        self.connections = self.open = 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.base_url, self.prompts))

    def all_closed(self) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.open == 0, timeout=20)


Served = AbstractContextManager[Server]


def openai_server(reply: Callable[[str], Reply]) -> Served:
    """Writes what the function says."""
    return serving(lambda sent: completion(*reply(_prompt_of(sent))))


def replaying(body: dict[str, object]) -> Served:
    """Sends the same body each time."""
    return serving(lambda _: body)


def answering(answer: Callable[[str], Any]) -> Served:
    """Sends what the function makes of a prompt; see `serving`."""
    return serving(lambda sent: answer(_prompt_of(sent)))


def _prompt_of(sent: dict[str, Any]) -> str:
    if "input" in sent:  # of the Responses API
        asked = sent["input"]
        return asked if isinstance(asked, str) else asked[-1]["content"]
    return sent["prompt"] if "prompt" in sent else sent["messages"][-1]["content"]


def _whole(said: Any) -> Answer:
    status, value = said if isinstance(said, tuple) else (200, said)
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    return status, headers | {"Retry-After-Ms": "1"}, [content]


@contextmanager
def serving(reply: Callable[[dict[str, Any]], Any]) -> Iterator[Server]:
    """Sends what the function makes of a request: a body, (status, body), or an `Answer`; a body
    of bytes as it is."""

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
            server.asked.append(sent)
            server.prompts.append(_prompt_of(sent))
            server.headers.append(self.headers)
            server.paths.append(self.path)
            said = reply(sent)
            whole = isinstance(said, tuple) and len(said) == 3
            status, headers, pieces = said if whole else _whole(said)
            if status:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
            self.close_connection |= "Content-Length" not in headers
            try:
                for piece in pieces:
                    self.wfile.write(piece)
            except OSError:
                self.close_connection = True  # the client has gone

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Listener(ThreadingHTTPServer):
        request_queue_size = 128  # 5 by default, and callers beyond wait for a second or more

        def handle_error(self, request: Any, client_address: Any) -> None:
            """An answer that raises is a connection that breaks."""

    listener = Listener(("127.0.0.1", 0), Handler)
    server = Server(listener.server_port)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def completion(text: str, probability: float) -> dict[str, object]:
    """A chat completion whose tokens are the words of the text."""
    pieces = [piece if i == 0 else f" {piece}" for i, piece in enumerate(text.split(" "))]
    logprob, other = math.log(probability), math.log(1 - probability)
    rest = {"token": " other", "logprob": other, "bytes": None}
    content = [
        {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}
        | {"top_logprobs": [{"token": piece, "logprob": logprob, "bytes": None}, rest]}
        for piece in pieces
    ]
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    choice["logprobs"] = {"content": content}
    usage = {"prompt_tokens": 9, "completion_tokens": len(pieces), "total_tokens": 0}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "scripted"}
    return {**body, "choices": [choice], "usage": usage}
