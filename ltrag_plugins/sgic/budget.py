"""The hard limits on what one question may cost."""

from collections.abc import Sequence
from typing import Literal, final

from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Generation
from ltrag_plugins.uncertainty import calls_for

_CHAT_TEMPLATE = 64


@final
class Budget:
    """Counts calls and tokens, and tells before a request whether it would pass a limit.

    A request is taken at the most it can cost: a prompt has at most as many tokens as UTF-8
    bytes, beside them those of a chat template, and an answer has at most `answer_tokens`.
    Replies that report their tokens replace the bound by the truth.

    What else a model puts beside every prompt (a system text, tools) cannot be known before its
    first reply. A prompt has at least as many tokens as words, so what a reply reports above its
    prompt's words is the most that can stand there, and each later prompt is taken with as much.
    So the first answer, with its samples and as often as it was sent, is all that can pass
    `max_tokens`, and nothing is sent after it. Nothing is known of a model that reports no tokens
    and puts more than 64 there, nor of one that writes more than it may.
    """

    def __init__(self, settings: SGICSettings) -> None:
        self._settings = settings
        self._each = calls_for(1, settings.estimator, settings.samples)  # of one prompt
        self.calls = 0
        """Prompts sent, or about to be."""
        self.tokens: int | None = 0
        """Reported so far; None once a reply did not report them."""
        self._beside = _CHAT_TEMPLATE
        self._known = 0  # tokens of requests whose replies report them all
        self._open, self._open_bytes = 0, 0  # prompts of the others, failed ones too

    def exceeded(
        self, prompts: Sequence[str], *, and_calls: int = 0
    ) -> Literal["max_calls", "max_tokens"] | None:
        """The limit that a request with these prompts could pass.

        Args:
            and_calls: prompts that should be left to send after it.
        """
        if self.calls + self._each * (len(prompts) + and_calls) > self._settings.max_calls:
            return "max_calls"
        return "max_tokens" if self._is_over(self.bound(prompts)) else None

    def bound(self, prompts: Sequence[str]) -> int:
        """The most tokens that these prompts, their answers and samples can cost."""
        return self._each * self._most(len(prompts), _bytes(prompts))

    def sent(self, prompts: Sequence[str]) -> None:
        """Enter a request at the most it can cost."""
        self._enter(prompts, self._each)

    def repeats(self, prompts: Sequence[str]) -> bool:
        """Enter prompts that are sent once more, each alone, unless that could pass a limit."""
        over_calls = self.calls + len(prompts) > self._settings.max_calls
        if over_calls or self._is_over(self._most(len(prompts), _bytes(prompts))):
            return False
        self._enter(prompts, 1)
        return True

    def received(self, prompts: Sequence[str], replies: Sequence[Generation]) -> None:
        """Put what the replies report in the place of the bound, if they all report it.

        Args:
            replies: each prompt's answer and its samples, then those of the next.
        """
        for i, reply in enumerate(replies):
            least = len(prompts[i // self._each].split())
            self._beside = max(self._beside, (reply.prompt_tokens or 0) - least)
        known = [count for reply in replies if (count := token_count(reply)) is not None]
        if len(known) < len(replies):
            self.tokens = None
            return
        self._open -= self._each * len(prompts)
        self._open_bytes -= self._each * _bytes(prompts)
        self._known += sum(known)
        if self.tokens is not None:
            self.tokens += sum(known)

    def notes(self) -> list[str]:
        """What to say where the replies report more than `max_tokens`."""
        most = self._settings.max_tokens
        if most is None or self._known <= most:
            return []
        return [
            f"the replies report {self._known} tokens, more than max_tokens={most}: what a model "
            "puts beside the first prompt, or writes beyond its limit, is known only from its reply"
        ]

    def _enter(self, prompts: Sequence[str], times: int) -> None:
        self.calls += times * len(prompts)
        self._open += times * len(prompts)
        self._open_bytes += times * _bytes(prompts)

    def _is_over(self, more: int) -> bool:
        held, limit = self._most(self._open, self._open_bytes), self._settings.max_tokens
        return limit is not None and self._known + held + more > limit

    def _most(self, prompts: int, size: int) -> int:
        return size + prompts * (self._beside + self._settings.answer_tokens)


def _bytes(prompts: Sequence[str]) -> int:
    return sum(len(prompt.encode(errors="replace")) for prompt in prompts)


def token_count(reply: Generation) -> int | None:
    """Read and written, at least 0; None where the reply does not say."""
    written = reply.completion_tokens
    if written is None and reply.tokens is not None:
        written = len(reply.tokens)
    if written is None or reply.prompt_tokens is None or min(written, reply.prompt_tokens) < 0:
        return None
    return reply.prompt_tokens + written
