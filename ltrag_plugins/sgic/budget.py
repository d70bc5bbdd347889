"""The hard limits on what one question may cost."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, final

from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Generation


@final
class Budget:
    """Counts calls and tokens, and tells before a request whether it would pass a limit.

    A request is taken at the most it can cost, see `SGICSettings.max_tokens`; replies that report
    their tokens replace the bound by the truth. As a prompt has at least as many tokens as words,
    what a reply reports above these bounds what the model puts beside every prompt.
    """

    def __init__(self, settings: SGICSettings, each: int) -> None:
        """`each` prompt is sent so often: once, and once for every sample."""
        self._settings, self._each = settings, each
        self.calls = 0
        """Prompts sent, or about to be."""
        self.tokens: int | None = 0
        """Reported so far; None once a reply did not report them."""
        self._beside = 64  # of a chat template
        self._known = 0  # tokens of requests whose replies report them all
        self._open: list[int] = []  # bytes of the other prompts, failed ones too

    def exceeded(
        self, prompts: Sequence[str], *, times: int | None = None, and_calls: int = 0
    ) -> Literal["max_calls", "max_tokens"] | None:
        """The limit that a request could pass that leaves `and_calls` answers to ask for.

        Each prompt is sent so many `times`; None: as an answer with its samples takes.
        """
        settings, sizes = self._settings, self._sizes(prompts, times)
        if self.calls + len(sizes) + self._each * and_calls > settings.max_calls:
            return "max_calls"
        held = [size + self._beside + settings.answer_tokens for size in (*self._open, *sizes)]
        most = settings.max_tokens
        return "max_tokens" if most is not None and self._known + sum(held) > most else None

    def sent(self, prompts: Sequence[str], *, times: int | None = None) -> None:
        """Enter a request at the most it can cost."""
        sizes = self._sizes(prompts, times)
        self._open = [*self._open, *sizes]
        self.calls += len(sizes)

    def repeats(self, prompts: Sequence[str]) -> bool:
        """Enter prompts that are sent once more, each alone, unless that could pass a limit."""
        if self.exceeded(prompts, times=1):
            return False
        self.sent(prompts, times=1)
        return True

    def received(self, prompts: Sequence[str], replies: Sequence[Generation]) -> None:
        """Put what all replies report in the place of the bound.

        They are each prompt's answer and its samples, then those of the next.
        """
        for i, reply in enumerate(replies):
            least = len(prompts[i // self._each].split())
            self._beside = max(self._beside, (reply.prompt_tokens or 0) - least)
        known = [count for reply in replies if (count := self.reported(reply)) is not None]
        if len(known) < len(replies):
            self.tokens = None
            return
        self._open = [*(Counter(self._open) - Counter(self._sizes(prompts))).elements()]
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

    @staticmethod
    def reported(reply: Generation) -> int | None:
        """Read and written, at least 0; None where the reply does not say."""
        read, written = reply.prompt_tokens, reply.completion_tokens
        if written is None and reply.tokens is not None:
            written = len(reply.tokens)
        return None if read is None or written is None or min(read, written) < 0 else read + written

    def _sizes(self, prompts: Sequence[str], times: int | None = None) -> list[int]:
        sizes = [len(prompt.encode(errors="replace")) for prompt in prompts]
        return sizes * (self._each if times is None else times)
