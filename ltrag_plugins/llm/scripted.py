"""A Python function as a model: for tests, for offline examples, for replaying answers."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import final

from ltrag_plugins.errors import ModelError
from ltrag_plugins.llm.base import checked_token, stopped
from ltrag_plugins.types import Generation, GenerationSettings

ScriptedReply = str | Generation
_Script = Callable[[str], ScriptedReply] | Callable[[str], Awaitable[ScriptedReply]]
"""From a prompt to what the model writes for it; may be async, may raise."""


@final
class ScriptedLLM:
    """Continues a prompt with what `function` returns for it.

    A returned `str` has no token probabilities; its tokens are words separated by white
    space: `max_tokens` keeps that many of them, and the token counts count them. A returned
    `Generation` may have token probabilities, and is not held to `max_tokens`. Both end
    before the first stop string.

    An async function is awaited for all prompts of a call at once; a plain one runs in a
    thread when `agenerate` asks. What the function raises, the call raises.

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
        """One generation per prompt; temperature and seed are the function's own affair.

        Raises:
            ModelError: the function is async and this thread runs an event loop.
        """
        if self._is_async:
            _refuse_running_loop(self.name)
            return asyncio.run(self.agenerate(prompts, settings))
        self.calls.append(tuple(prompts))
        return [self._read(p, self._function(p), settings) for p in prompts]

    async def agenerate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """As `generate`."""
        if not self._is_async:
            return await asyncio.to_thread(self.generate, prompts, settings)
        self.calls.append(tuple(prompts))
        written = await asyncio.gather(*(self._await(p) for p in prompts))
        return [self._read(p, w, settings) for p, w in zip(prompts, written, strict=True)]

    def __repr__(self) -> str:
        return f"ScriptedLLM(name={self.name!r})"

    @property
    def _is_async(self) -> bool:
        call = getattr(self._function, "__call__", None)  # noqa: B004 (the method itself is wanted)
        return inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(call)

    async def _await(self, prompt: str) -> object:
        written = self._function(prompt)
        return await written if inspect.isawaitable(written) else written

    def _read(self, prompt: str, written: object, settings: GenerationSettings) -> Generation:
        match written:
            case Generation():
                for token in written.tokens or ():
                    checked_token(token, self.name)
                return stopped(written, settings.stop)
            case str():
                said = stopped(
                    Generation(_first_words(written, settings.max_tokens)), settings.stop
                )
                words = len(prompt.split()), len(said.text.split())
                return replace(said, prompt_tokens=words[0], completion_tokens=words[1])
            case _:
                raise ModelError(
                    f"the function of {self.name!r} returned {written!r}; "
                    "it must return a str or a Generation."
                )


def _first_words(text: str, count: int) -> str:
    words = list(re.finditer(r"\S+", text))
    return text[: words[count - 1].end()] if len(words) > count else text


def _refuse_running_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ModelError(
        f"the function of {name!r} is async, and generate() was called where an event loop "
        "runs. Await agenerate(), or drive the flow with arun()."
    )
