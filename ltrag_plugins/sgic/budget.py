"""The hard limits on what one question may cost."""

from collections.abc import Sequence
from typing import Literal, final

from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Generation
from ltrag_plugins.uncertainty import calls_for

CHAT_TEMPLATE = 64
"""Tokens that a chat template may put around a prompt."""


@final
class Budget:
    """Counts calls and tokens, and tells before a request whether it would pass a limit.

    A request is taken at the most it can cost. A prompt has at most as many tokens as UTF-8
    bytes, and a chat template around it; an answer at most `answer_tokens`. Replies that report
    their tokens replace the bound by the truth.
    """

    def __init__(self, settings: SGICSettings) -> None:
        self._settings = settings
        self.calls = 0
        """Prompts sent, or about to be."""
        self.tokens: int | None = 0
        """Reported so far; None once a reply did not report them."""
        self._held = 0  # the same, with the bound in the place of what is not known

    def exceeded(
        self, prompts: Sequence[str], *, and_calls: int = 0
    ) -> Literal["max_calls", "max_tokens"] | None:
        """The limit that a request with these prompts could pass.

        Args:
            and_calls: prompts that should be left to send after it.
        """
        settings = self._settings
        if self.calls + self._calls(len(prompts)) + self._calls(and_calls) > settings.max_calls:
            return "max_calls"
        if (
            settings.max_tokens is not None
            and self._held + self.bound(prompts) > settings.max_tokens
        ):
            return "max_tokens"
        return None

    def bound(self, prompts: Sequence[str]) -> int:
        """The most tokens that these prompts, their answers and samples can cost."""
        return self._calls(1) * self._bound(prompts)

    def sent(self, prompts: Sequence[str]) -> None:
        """Enter a request at the most it can cost."""
        self.calls += self._calls(len(prompts))
        self._held += self.bound(prompts)

    def repeats(self, prompts: Sequence[str]) -> bool:
        """Enter prompts that are sent once more, each alone, unless that could pass a limit."""
        calls, held = self.calls + len(prompts), self._held + self._bound(prompts)
        settings = self._settings
        if calls > settings.max_calls or held > (settings.max_tokens or held):
            return False
        self.calls, self._held = calls, held
        return True

    def received(self, prompts: Sequence[str], replies: Sequence[Generation]) -> None:
        """Put what the replies report in the place of the bound, if they all report it."""
        counts = [tokens_of(reply) for reply in replies]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            self.tokens = None
            return
        self._held += sum(known) - self.bound(prompts)
        if self.tokens is not None:
            self.tokens += sum(known)

    def _bound(self, prompts: Sequence[str]) -> int:
        each = CHAT_TEMPLATE + self._settings.answer_tokens
        return sum(len(prompt.encode(errors="replace")) + each for prompt in prompts)

    def _calls(self, prompts: int) -> int:
        return calls_for(prompts, self._settings.estimator, self._settings.samples)


def tokens_of(reply: Generation) -> int | None:
    """Read and written, at least 0; None where the reply does not say."""
    written = reply.completion_tokens
    if written is None and reply.tokens is not None:
        written = len(reply.tokens)
    if written is None or reply.prompt_tokens is None or min(written, reply.prompt_tokens) < 0:
        return None
    return reply.prompt_tokens + written
