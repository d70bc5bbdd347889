"""A Python function as a model: for tests, for offline examples, for replaying answers."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

from ltrag_plugins.errors import ModelError
from ltrag_plugins.llm.base import checked_prompts, checked_token, stopped
from ltrag_plugins.types import Generation, GenerationSettings

_Script = Callable[[str], str | Generation] | Callable[[str], Awaitable[str | Generation]]


@final
class ScriptedLLM:
    """Continues a prompt with what `function` returns for it.

    A returned `str` has no token probabilities; `max_tokens` and the token counts count its words.
    A returned `Generation` is not held to `max_tokens`. Both end before the first stop string. An
    async function is awaited for all prompts at once; `agenerate` runs a plain one in a thread.

    Args:
        function: from a prompt to a text or a generation.
        name: tells one script from another, for instance in an answer cache.
    """

    def __init__(self, function: _Script, *, name: str = "scripted") -> None:
        self.name = name
        self.calls: list[tuple[str, ...]] = []
        """The prompts of each call so far, oldest call first."""
        self._function = function

    @property
    def prompts(self) -> list[str]:
        """Every prompt asked so far."""
        return [prompt for call in self.calls for prompt in call]

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt; temperature and seed are the function's own affair. An async
        function raises `ModelError` where this thread runs an event loop."""
        if not self._is_async:
            self.calls.append(tuple(checked_prompts(prompts)))
            return [self._read(prompt, self._function(prompt), settings) for prompt in prompts]
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            where = "generate() was called where an event loop runs"
            remedy = "Await agenerate(), or drive the flow with arun()."
            raise ModelError(f"the function of {self.name!r} is async, and {where}. {remedy}")
        return asyncio.run(self.agenerate(prompts, settings))

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`."""
        if not self._is_async:
            return await asyncio.to_thread(self.generate, prompts, settings)

        async def one(prompt: str) -> Generation:
            written: Any = self._function(prompt)
            return self._read(prompt, await written, settings)

        self.calls.append(tuple(checked_prompts(prompts)))
        return list(await asyncio.gather(*map(one, prompts)))

    def __repr__(self) -> str:
        return f"ScriptedLLM(name={self.name!r})"

    @property
    def _is_async(self) -> bool:
        call = getattr(self._function, "__call__", None)  # noqa: B004 (the method itself is wanted)
        return inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(call)

    def _read(self, prompt: str, written: object, settings: GenerationSettings) -> Generation:
        if isinstance(written, Generation):
            for token in written.tokens or ():
                checked_token(token, self.name)
            return stopped(written, settings.stop)
        if not isinstance(written, str):
            why = f"the function of {self.name!r} returned {written!r}"
            raise ModelError(f"{why}; it must return a str or a Generation.")
        words = list(re.finditer(r"\S+", written))
        end = words[settings.max_tokens - 1].end() if len(words) > settings.max_tokens else None
        reason = "length" if end else None
        said = stopped(Generation(written[:end], finish_reason=reason), settings.stop)
        asked, answered = len(prompt.split()), len(said.text.split())
        return replace(said, prompt_tokens=asked, completion_tokens=answered)
