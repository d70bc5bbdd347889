"""Any server that speaks OpenAI's protocol: OpenAI, vLLM, llama.cpp, TGI, Ollama, ..."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, final
from urllib.parse import urlsplit

from ltrag_plugins.errors import InvalidInput, ModelFailed, missing_extra
from ltrag_plugins.llm.openai_format import generation_of, lighter, remembered
from ltrag_plugins.types import Generation, GenerationSettings

try:
    import openai
    from openai import AsyncOpenAI, OpenAI
except ImportError as error:
    raise missing_extra("openai", "openai") from error


@final
class OpenAICompatibleLLM:
    """A model behind an OpenAI-compatible server.

    Where the server sends log-probabilities the generations have tokens, else None. Each prompt is
    a request; the SDK repeats those that fail for a passing reason (connection, 408, 409, 429,
    5xx). A temperature, log-probabilities or alternatives that the server refuses (reasoning
    models) are left out from then on. The API key stands in no name, repr or error.

    Args:
        model: the model's name on the server.
        base_url: where the server is, up to and with "/v1"; None: `OPENAI_BASE_URL`, or OpenAI.
        api_key: None: `OPENAI_API_KEY`; a server at a `base_url` may do without.
        chat: send the prompt as one user message; False: as text to continue.
        logprobs: ask for log-probabilities.
        top_logprobs: alternatives asked for at each token (0 to 20 at OpenAI).
        timeout: seconds that the server may stay silent.
        max_retries: repetitions of a failed request.
        max_concurrency: most requests under way at once, for each call of `generate` and,
            in `agenerate`, for each event loop.
        omit: settings that this server refuses, and that are not sent: "temperature", "seed",
            "stop" (which is then cut here), "max_tokens".
        client: used as it is, in place of `base_url`, `api_key`, `timeout`, `max_retries`; of any
            class that is an `OpenAI`, such as `AzureOpenAI`.
        async_client: the same for `agenerate`, on one event loop. Without it a `client` of yours
            answers `agenerate` in threads; without `client`, one with this one's address, key,
            timeout and retries is made.

    Raises:
        InvalidInput: a setting is out of range, or there is no API key.
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
    ) -> None:
        if max_concurrency < 1 or top_logprobs < 0:
            raise InvalidInput(
                f"max_concurrency is {max_concurrency} and top_logprobs {top_logprobs}; they "
                "must be at least 1 and 0."
            )
        if unknown := set(omit) - set(_OMITTABLE):
            raise InvalidInput(f"omit holds {sorted(unknown)}; it may hold {sorted(_OMITTABLE)}")
        self.model, self.chat, self.omit = model, chat, tuple(omit)
        self.logprobs, self.top_logprobs = logprobs, top_logprobs
        self.max_concurrency = max_concurrency
        self._threads = client is not None and async_client is None
        if client is None and async_client is not None:
            client = OpenAI(**_like(async_client))
        if client is None:
            if base_url is not None and api_key is None and not os.environ.get("OPENAI_API_KEY"):
                api_key = _NO_KEY
            try:
                client = OpenAI(
                    api_key=api_key, base_url=base_url, timeout=timeout, max_retries=max_retries
                )
            except openai.OpenAIError as error:
                raise InvalidInput(
                    "there is no API key; pass api_key=, or set OPENAI_API_KEY, or pass the "
                    "base_url of a server that needs none."
                ) from error
        self._client, self._async_client = client, async_client
        self._refused: frozenset[str] = frozenset()
        self._lanes: dict[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, asyncio.Semaphore]] = {}

    @property
    def name(self) -> str:
        """Model, server and prompt handling, what is asked for and what is not sent."""
        url = urlsplit(str(self._client.base_url))  # without user name, password and query
        port = f":{url.port}" if url.port else ""
        handling = "chat" if self.chat else "text"
        handling += f",logprobs={self.top_logprobs}" if self.logprobs else ""
        handling += "".join(f",no {name}" for name in sorted(self.omit))
        address = f"{url.scheme}://{url.hostname}{port}{url.path.rstrip('/')}"
        return f"{self.model}@{address}[{handling}]"

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation for each prompt, in their order; see `LLM`.

        Raises:
            ModelFailed: the server refused, stayed silent or sent what cannot be read; the
                SDK's exception, where there is one, is the cause.
            InvalidLogProbability: a log-probability is NaN or above 0.
        """

        def one(prompt: str) -> Generation:
            refused = self._refused
            with self._explained():
                while True:
                    try:
                        request = self._request(prompt, settings, refused)
                        reply = self._endpoint(self._client).create(**request)
                        return self._read(reply.http_response.text, settings, refused)
                    except openai.APIStatusError as error:
                        refused = lighter(refused, error)

        if len(prompts) < 2:
            return [one(prompt) for prompt in prompts]
        with ThreadPoolExecutor(min(self.max_concurrency, len(prompts))) as pool:
            return list(pool.map(one, prompts))

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`; a failing request cancels the others of its call."""
        if self._threads:
            return await asyncio.to_thread(self.generate, prompts, settings)
        # connections and semaphores belong to the loop they were first used on
        loop = asyncio.get_running_loop()
        if loop not in self._lanes:
            self._lanes = {old: lane for old, lane in self._lanes.items() if not old.is_closed()}
            client = self._async_client or AsyncOpenAI(**_like(self._client))
            self._lanes[loop] = (client, asyncio.Semaphore(self.max_concurrency))
        client, free = self._lanes[loop]

        async def one(prompt: str) -> Generation:
            async with free:
                refused = self._refused
                with self._explained():
                    while True:
                        try:
                            request = self._request(prompt, settings, refused)
                            reply = await self._endpoint(client).create(**request)
                            return self._read(reply.http_response.text, settings, refused)
                        except openai.APIStatusError as error:
                            refused = lighter(refused, error)

        tasks = [asyncio.ensure_future(one(prompt)) for prompt in prompts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def __repr__(self) -> str:
        return f"OpenAICompatibleLLM({self.name!r})"

    def _endpoint(self, client: OpenAI | AsyncOpenAI) -> Any:
        # raw: the SDK's typed replies keep neither what other servers add nor what they lack
        api = client.chat.completions if self.chat else client.completions
        return api.with_raw_response

    def _request(
        self, prompt: str, settings: GenerationSettings, refused: frozenset[str] = frozenset()
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

    def _read(self, body: str, settings: GenerationSettings, refused: frozenset[str]) -> Generation:
        """The first choice of a chat completion or of a text completion."""
        try:
            reply, cause = json.loads(body), None
        except (ValueError, RecursionError) as error:
            reply, cause = None, error
        match reply:
            case {"choices": [{"message": {"content": str() | None as text}} as choice, *_]}:
                pass
            case {"choices": [{"text": str() as text} as choice, *_]}:
                pass
            case _:
                raise ModelFailed(
                    f"{self.name} sent what is no completion: {self._safe(body)!r:.200}. Check "
                    "that base_url is an OpenAI-compatible server's, and ends in /v1 where its "
                    "paths do."
                ) from cause
        self._refused = remembered(self._refused, refused, self.name)
        return generation_of(
            text or "",
            choice.get("logprobs") if self.logprobs else None,
            reply.get("usage"),
            choice.get("finish_reason"),
            model=self.name,
            settings=settings,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except openai.OpenAIError as error:
            for field in ("message", "body"):
                if hasattr(error, field):
                    setattr(error, field, self._safe(str(getattr(error, field))))
            error.args = tuple(self._safe(str(part)) for part in error.args)
            raise ModelFailed(f"{self.name}: {self._remedy(error)} ({error})") from error

    def _remedy(self, error: openai.OpenAIError) -> str:
        match error:
            case openai.APITimeoutError():
                return f"silent for {self._client.timeout} s; raise timeout=, or mend the server"
            case openai.APIConnectionError():
                return "cannot be reached; check base_url, and that the server runs"
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                return "refused the API key; check api_key= or OPENAI_API_KEY"
            case openai.NotFoundError():
                return "no such model or address; check model and base_url"
            case openai.RateLimitError():
                return "too many requests; lower max_concurrency, raise max_retries, or wait"
            case _ if self.logprobs and "logprob" in str(error).lower():
                return "gives no log-probabilities; build with logprobs=False"
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
_OMITTABLE = ("temperature", "seed", "stop", "max_tokens")
_OPENAI = (".openai.com", ".openai.azure.com")
_SECRET = 8  # characters; a shorter key is a placeholder, and may be part of any word


def _like(client: OpenAI | AsyncOpenAI) -> dict[str, Any]:
    """Arguments for a client of the other kind."""
    names = ("api_key", "base_url", "timeout", "max_retries", "organization", "project")
    return {name: getattr(client, name) for name in names}
