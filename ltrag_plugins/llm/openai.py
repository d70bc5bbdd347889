"""Any server that speaks OpenAI's protocol: OpenAI, vLLM, llama.cpp, TGI, Ollama, ..."""

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncGenerator, Sequence, Set
from contextlib import aclosing, asynccontextmanager, closing, suppress
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import count
from numbers import Integral, Real
from time import monotonic, sleep, time
from typing import Any, final
from urllib.parse import urlsplit

from ltrag_plugins.errors import InvalidInput, ModelFailed, checked, missing_extra
from ltrag_plugins.llm.concurrency import RequestLLM, forget_closed
from ltrag_plugins.llm.openai_format import generation_of, text_in
from ltrag_plugins.types import Generation, GenerationSettings

try:
    import httpx
    import openai
    from openai import AsyncOpenAI, OpenAI
except ImportError as error:
    raise missing_extra("openai", "openai") from error


@final
class OpenAICompatibleLLM(RequestLLM):
    """A model behind an OpenAI-compatible server.

    Where the server sends log-probabilities the generations have tokens, else None. Each prompt is
    a request; those that fail for a passing reason (connection, 408, 409, 429, 5xx) are repeated.
    A refused key, or 20 failures in a row, raise `ModelUnavailable`, which ends a run. A
    temperature, log-probabilities, alternatives or stop strings that the server refuses are left
    out from then on (and the text is cut here). The API key stands in no name, repr or error.

    Args:
        model: the model's name on the server.
        base_url: where the server is, up to and with "/v1"; None: `OPENAI_BASE_URL`, or OpenAI.
        api_key: None: `OPENAI_API_KEY`; a server of your own may do without.
        chat: send the prompt as one user message; False: as text to continue.
        logprobs, top_logprobs: ask for log-probabilities, and how many alternatives (0 to 20).
        timeout: seconds for an answer as a whole, with repetitions and the waiting between them.
        max_retries: repetitions of a failed request.
        max_concurrency: most requests under way at once, over all threads and, in `agenerate`,
            for each event loop.
        omit: settings not sent: "temperature", "seed", "stop" (then cut here), "max_tokens".
        client: used in place of `base_url`, `api_key`, `timeout`, `max_retries`; an `OpenAI`, or
            of a class that is one, such as `AzureOpenAI`. It is yours to close.
        async_client: the same for `agenerate`, on one event loop. Without it a `client` of yours
            answers `agenerate` in threads. An `AsyncOpenAI` alone serves `generate` too; one of
            another class, such as `AsyncAzureOpenAI`, needs a `client` beside it for that.
        name: what caches and saved gates know it by; equal names must mean equal answers.

    Raises:
        InvalidInput: a setting is out of range, an address is none, or there is no API key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        chat: bool = True,
        logprobs: bool = True,
        top_logprobs: int = 5,
        timeout: float = 60.0,
        max_retries: int = 2,
        max_concurrency: int = 8,
        omit: Sequence[str] = (),
        client: OpenAI | None = None,
        async_client: AsyncOpenAI | None = None,
        name: str | None = None,
    ) -> None:
        for field, value in (("top_logprobs", top_logprobs), ("max_retries", max_retries)):
            if not isinstance(value, Integral) or value < 0:
                raise InvalidInput(f"{field} must be a whole number, at least 0, got {value!r}.")
        checked(timeout, Real | httpx.Timeout | None, "timeout", "a number of seconds")
        if unknown := set(omit) - set(_OMITTABLE):
            raise InvalidInput(f"omit holds {sorted(unknown)}; it may hold {sorted(_OMITTABLE)}")
        self.model, self.chat, self._name = model, chat, name
        self.omit: tuple[str, ...] = tuple(omit)
        self.logprobs, self.top_logprobs = logprobs, top_logprobs
        super().__init__(max_concurrency)
        self._blocking = client is not None and async_client is None
        self._async_only = client is None and async_client is not None and not _plain(async_client)
        if client is None and async_client is not None:
            client = OpenAI(**{**_like(async_client), "api_key": async_client.api_key or _NO_KEY})
        if client is None:
            if base_url is None:  # an empty variable is none
                base_url = os.environ.get("OPENAI_BASE_URL") or None
            if base_url is not None and not _is_address(str(base_url)):
                like = "an address such as 'http://localhost:8000/v1', with http:// or https://"
                whole = f"{like} before the host, a port to 65535 or none, and no blank"
                raise InvalidInput(f"base_url (or OPENAI_BASE_URL) must be {whole}")
            if base_url is not None and api_key is None and not os.environ.get("OPENAI_API_KEY"):
                api_key = _NO_KEY
            how: Any = {"timeout": timeout, "max_retries": max_retries}
            try:
                client = OpenAI(api_key=api_key, base_url=base_url or _DEFAULT, **how)
            except openai.OpenAIError as error:
                keys = "pass api_key=, or set OPENAI_API_KEY"
                none = "or pass the base_url of a server that needs none."
                raise InvalidInput(f"there is no API key; {keys}, {none}") from error
        self._retries, limit = client.max_retries, client.timeout
        limit = limit if isinstance(limit, int | float) else getattr(limit, "read", None)
        self._seconds = math.inf if limit is None else limit
        # retries are ours, which end when the time is up; the connections stay the client's
        self._client = client.with_options(max_retries=0)
        self._async_client = async_client and async_client.with_options(max_retries=0)
        self._opened: dict[asyncio.AbstractEventLoop, tuple[list[AsyncOpenAI], Any]] = {}

    @property
    def name(self) -> str:
        """As given; else model, server, prompt handling, what is asked for, what is not sent."""
        if self._name:
            return self._name
        url = urlsplit(str(self._client.base_url))  # without user name, password and query
        port = f":{url.port}" if url.port else ""
        how = ["chat" if self.chat else "text", *(f"no {name}" for name in sorted(self.omit))]
        how[1:1] = [f"logprobs={self.top_logprobs}"] if self.logprobs else []
        address = f"{url.scheme}://{url.hostname}{port}{url.path.rstrip('/')}"
        return f"{self.model}@{address}[{','.join(how)}]"

    def _ask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        if self._async_only:
            why = f"a sync client cannot be made from your {type(self._async_client).__name__}"
            raise InvalidInput(f"{self.name}: {why}; pass client= too, or await agenerate().")
        ends, limit, body = monotonic() + self._seconds, dict[str, float](), bytearray()
        request = self._request(prompts[0], settings, refused)
        for tried in count():
            if isinstance(self._client.timeout, int | float):
                limit = {"timeout": max(ends - monotonic(), 0.001)}
            try:
                with closing(self._sent(self._client, request, **limit)) as reply:
                    for chunk in reply.iter_bytes():
                        self._grow(body, chunk, settings.max_tokens, ends)
                break
            except (openai.APIError, httpx.HTTPError) as error:
                sleep(self._pause(error, tried, ends))
                body.clear()
        return [self._read(body.decode(errors="replace"), settings)]

    async def _aask(
        self, prompts: Sequence[str], settings: GenerationSettings, refused: Set[str]
    ) -> list[Generation]:
        ends, body = monotonic() + self._seconds, bytearray()
        request = self._request(prompts[0], settings, refused)
        async with self._connected() as client:
            for tried in count():
                try:
                    async with aclosing(await self._sent(client, request)) as reply:
                        async for chunk in reply.aiter_bytes():
                            self._grow(body, chunk, settings.max_tokens, ends)
                    break
                except (openai.APIError, httpx.HTTPError) as error:
                    await asyncio.sleep(self._pause(error, tried, ends))
                    body.clear()
        return [self._read(body.decode(errors="replace"), settings)]

    def _grow(self, body: bytearray, chunk: bytes, most_tokens: int, ends: float) -> None:
        body += chunk
        if monotonic() > ends:
            raise TimeoutError
        if len(body) > _BYTES + _BYTES_A_TOKEN * most_tokens * (1 + self.top_logprobs):
            why = f"{self.name} sent more than {len(body)} bytes for {most_tokens} tokens"
            raise ModelFailed(f"{why}; check that base_url is an OpenAI-compatible server's.")

    def _pause(self, error: openai.APIError | httpx.HTTPError, tried: int, ends: float) -> float:
        """Seconds until the request is sent again; raises the error where it is not."""
        if isinstance(error, httpx.HTTPError):  # the SDK calls those so that come before the body
            late = isinstance(error, httpx.TimeoutException)
            kind = openai.APITimeoutError if late else openai.APIConnectionError
            error = kind(request=error.request)
        reply = getattr(error, "response", None)
        status, headers = (503, {}) if reply is None else (reply.status_code, reply.headers)
        passing = status in (408, 409, 429) or status >= 500
        passing = {"true": True, "false": False}.get(str(headers.get("x-should-retry")), passing)
        pause = min(0.5 * 2**tried, 8.0)
        with suppress(KeyError, ValueError):  # seconds are no date
            until = parsedate_to_datetime(headers["retry-after"]).timestamp()
            pause = max(pause, until - time())
        for header, seconds in (("retry-after", 1), ("retry-after-ms", 0.001)):
            with suppress(KeyError, ValueError):
                pause = max(0.0, float(headers[header]) * seconds)
        if not passing or tried >= self._retries or monotonic() + pause >= ends:
            raise error
        return pause

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[AsyncOpenAI]:
        """A client of this event loop, to which its connections belong."""
        if self._async_client:
            yield self._async_client
            return
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            forget_closed(self._opened)
            opened = _closing()
            self._opened[loop] = (await anext(opened), opened)
        # each for one request at a time: httpx gives many one connection, and all but one try anew
        free = self._opened[loop][0]
        if not free:
            # the SDK's own, when it is forgotten, would call its loop once more, closed or not
            wire = openai.DefaultAsyncHttpxClient(verify=_certificates())
            free.append(AsyncOpenAI(**_like(self._client), http_client=wire))
        client = free.pop()
        try:
            yield client
        finally:
            free.append(client)

    def __repr__(self) -> str:
        return f"OpenAICompatibleLLM({self.name!r})"

    def _sent(self, client: OpenAI | AsyncOpenAI, request: dict[str, Any], **limit: float) -> Any:
        """The reply, or what to await for it; its body is still to be read."""
        # raw: the SDK's typed replies keep neither what other servers add nor what they lack, and
        # its typed requests cost half a millisecond
        path = "/chat/completions" if self.chat else "/completions"
        how: Any = {"headers": {"X-Stainless-Raw-Response": "stream"}, **limit}
        return client.post(path, body=request, cast_to=httpx.Response, options=how)

    def _request(
        self, prompt: str, settings: GenerationSettings, refused: Set[str] = frozenset()
    ) -> dict[str, Any]:
        wanted: dict[str, Any] = {"temperature": settings.temperature, "seed": settings.seed}
        wanted |= {"max_tokens": settings.max_tokens, "stop": list(settings.stop) or None}
        if self.logprobs and "logprobs" not in refused:
            wanted["logprobs"] = True if self.chat else self.top_logprobs
            wanted["top_logprobs"] = self.top_logprobs if self.chat else None
        omitted = {*self.omit, *refused}
        sent = {k: v for k, v in wanted.items() if v is not None and k not in omitted}
        if not self.chat:
            return {"model": self.model, "prompt": prompt, **sent}
        # OpenAI's newer models know only the new name, most other servers only the old one
        host = urlsplit(str(self._client.base_url)).hostname or ""
        if "max_tokens" in sent and host.endswith(_OPENAI):
            sent["max_completion_tokens"] = sent.pop("max_tokens")
        return {"model": self.model, "messages": [{"role": "user", "content": prompt}], **sent}

    def _read(self, body: str, settings: GenerationSettings) -> Generation:
        try:
            reply, cause = json.loads(body.removeprefix("\ufeff")), None
        except (ValueError, RecursionError) as error:
            reply, cause = None, error
        match reply:
            case {"choices": [{"message": {**message}} as choice, *_]} if (
                text := text_in(message.get("content"))
            ) is not None:
                pass
            case {"choices": [{"text": str() as text} as choice, *_]}:
                pass
            case _:
                raise ModelFailed(
                    f"{self.name} sent what is no completion: {self._safe(body)!r:.200}. See that "
                    "base_url is an OpenAI-compatible server's, and ends in /v1 where its paths do."
                ) from cause
        logprobs = choice.get("logprobs") if self.logprobs else None
        usage, reason = reply.get("usage"), choice.get("finish_reason")
        return generation_of(text, logprobs, usage, reason, self.name, settings)

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, openai.APITimeoutError):
            error = TimeoutError()
        if not isinstance(error, openai.OpenAIError):
            return super()._named(error)
        for field in ("message", "body"):
            if hasattr(error, field):
                setattr(error, field, self._safe(str(getattr(error, field))))
        error.args = tuple(self._safe(str(part)) for part in error.args)
        return ModelFailed(f"{self.name}: {self._remedy(error)} ({error})")

    def _remedy(self, error: openai.OpenAIError) -> str:
        match error:
            case openai.APIConnectionError():
                return "cannot be reached; check base_url, and that the server runs"
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                return "refused the API key; check api_key= or OPENAI_API_KEY"
            case openai.NotFoundError():
                return "no such model or address; check model and base_url"
            case openai.RateLimitError():
                return "too many requests; lower max_concurrency, raise max_retries, or wait"
            case _ if refused := [name for name in _OMITTABLE if name in str(error)]:
                return f"failed; if it refuses {refused[0]!r}, build with omit=({refused[0]!r},)"
            case _:
                return "the request failed"

    def _safe(self, text: str) -> str:
        """Without the API key, which some servers echo."""
        for client in filter(None, (self._client, self._async_client)):
            if len(client.api_key) >= _SECRET and client.api_key != _NO_KEY:
                text = text.replace(client.api_key, "***")
        return text


_NO_KEY = "none-needed"
_DEFAULT = "https://api.openai.com/v1"
_OMITTABLE = ("temperature", "seed", "stop", "max_tokens")
_OPENAI = (".openai.com", ".openai.azure.com")
_SECRET = 8  # characters; a shorter key is a placeholder, and may be part of any word
_BYTES, _BYTES_A_TOKEN = 2_000_000, 2_000  # of the largest reply; the latter for each alternative
_certificates = cache(httpx.create_ssl_context)  # reading them takes 20 ms


def _is_address(url: str) -> bool:
    """Whether it has what a request needs: http or https, a host, no blank, and a port or none."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return named and re.search(r"\s", url) is None
    except ValueError:  # of a port that is no number, or too large
        return False


async def _closing() -> AsyncGenerator[list[AsyncOpenAI]]:
    """Clients that are closed with their event loop, which ends the generators that are open."""
    clients = list[AsyncOpenAI]()
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


def _plain(client: AsyncOpenAI) -> bool:
    """False for one that says in its own way who asks: Azure's, or one that fetches its key."""
    return type(client) is AsyncOpenAI and client._api_key_provider is None


def _like(client: OpenAI | AsyncOpenAI) -> dict[str, Any]:
    """Arguments for a client of the other kind."""
    names = ("api_key", "base_url", "timeout", "max_retries", "organization", "project")
    own = {"default_headers": client._custom_headers, "default_query": client._custom_query}
    return own | {name: getattr(client, name) for name in names}
