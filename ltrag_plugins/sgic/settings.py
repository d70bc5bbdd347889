"""What can be set about SGIC, the presets, and the hard limits on what a question may cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, final

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.settings import Count, Percent, Positive, Settings, Whole
from ltrag_plugins.sgic.prompts import STEPS, PromptTemplates
from ltrag_plugins.types import Generation
from ltrag_plugins.uncertainty import calls_for, checked_estimator

Choose = Literal["least uncertain", "last", "repeated"]
Source = Literal["uncertainty", "encoder", "relevance", "oracle"]
_PaperRow = Literal["documents", "scores", "answers"]


@dataclass(frozen=True, slots=True)
class SGICSettings(Settings):
    """How an answer is calibrated; `InvalidInput` of values out of range or that exclude others."""

    rounds: Whole = 0
    """K: most rounds after the first answer (paper: 5). 0: the first answer, measured. A fit
    without settings tries up to 5, and says whether they pay."""
    estimator: str = "product"
    """Of answers and documents: a name of `uncertainty.TOKEN_SIGNALS` (paper: "product"), or
    "agreement", which needs no token probabilities and `samples` calls more an answer."""
    earlier: Literal["none", "text", "scores"] = "scores"
    """How a round shows the earlier answers: not at all, as text, or with their scores."""
    documents: Literal["none", "scores", "keys"] = "scores"
    """What a round shows beside the documents: nothing, scores, or marks before `keys` of them."""
    means: Count | None = None
    """Most means that a fit of the scale (eq. 2) has: round 0, 1, ... each its own, and the last
    serves the rounds after it. 1: that of the first answers for all (paper); None: each round."""
    source: Source = "uncertainty"
    """Where document scores come from: one answer per document (paper, eq. 3), an encoder,
    a function, or the truth, which scores answers too: for analysis (paper, table 6)."""
    keys: Count = 2
    """Most documents that are marked, of those with scores under 50 (for documents="keys")."""
    cut_to: Count | None = None
    """Show a round only this many documents, those with the lowest scores; None: all."""
    score_documents: Literal["needed", "always"] = "needed"
    """Score documents when a round shows or cuts by it, or for every question."""
    certain_below: Percent = 20.0
    """Stop once an answer's score, 0-100, is under this, be it the first; 0: never."""
    least_gain: Percent | None = 0.0
    """Stop when a round repeats the last answer and lowers its score by no more; None: never."""
    choose: Choose = "least uncertain"
    """Which round's answer to return. "repeated": the first that was given twice, for answers
    without scores (paper, 4.3); the last where none was."""
    document_words: Count | None = 150
    """Cut each document to this many words (paper: 200 tokens), at the last sentence end unless
    that loses half of them; None: never."""
    max_calls: Count = 128
    """Most prompts that a question may send to the model, answered or not."""
    max_tokens: Count | None = None
    """Most tokens, read and written, that a question may cost; None: no bound but `max_calls`.
    A request is sent only if it stays within it at one token per byte, 64 for a chat template, and
    `answer_tokens`. What a model puts beside every prompt above that (a system text, tools) is
    known from its first reply on: only the first answer can pass the bound, as its notes say."""
    answer_tokens: Count = 32
    """Longest answer, in tokens."""
    stop: tuple[str, ...] = ("\n",)
    """An answer ends before the first of these."""
    samples: Count = 5
    """How often each answer is asked for again, for the estimator "agreement"."""
    temperature: Positive = 0.7
    """Of those samples."""
    on_error: Literal["raise", "best"] = "raise"
    """When the model fails after the first answer: raise, or return the best answer so far with
    the error beside it. Without a first answer it is always raised."""
    keep_prompts: bool = False
    """Whether the trace holds each round's prompt."""
    templates: PromptTemplates = field(default_factory=PromptTemplates)
    """The wording."""
    seed: Whole = 0
    """Of the samples and of oracle scores."""

    def _check_together(self) -> None:
        object.__setattr__(self, "estimator", checked_estimator(self.estimator))
        listed = isinstance(self.stop, Sequence) and not isinstance(self.stop, str)
        if not listed or not all(isinstance(end, str) and end for end in self.stop):
            raise InvalidInput(f"stop must be a tuple of strings, none empty, got {self.stop!r}")
        if not isinstance(self.templates, PromptTemplates):
            raise InvalidInput(f"templates must be a PromptTemplates(...), got {self.templates!r}")
        if calls_for(1, self.estimator, self.samples) > self.max_calls:
            one = f"one answer with its {self.samples} samples"
            raise InvalidInput(f"{one} takes more than max_calls={self.max_calls}; raise it")
        alone = self.earlier == "none"
        if alone and self.rounds and self.documents == "none" and self.cut_to is None:
            both = "earlier='none' and documents='none'"
            raise InvalidInput(f"with {both} a round asks what was asked before; set rounds=0")
        if alone and self.rounds > 1:
            same = f"all {self.rounds} rounds ask the same"
            raise InvalidInput(f"with earlier='none' {same}; set rounds=1")

    @classmethod
    def paper(cls, variant: _PaperRow = "documents", *, seed: int = 0) -> Self:
        """The paper's loop: K = 5 rounds to the end for all questions, as it names no threshold,
        for GPT-4o as it is (4.1), and for small models that were tuned to read scores (3.3). The
        instruction's words, what scores mean among them, are ours. A variant is a row of table 5.
        "documents": scores of documents and answers; "scores": of answers alone; "answers": earlier
        answers without scores, of which the repeated one is taken. One mean for all rounds (eq. 2),
        and no word on what to do with earlier answers (table 1)."""
        as_printed = PromptTemplates(about_answers="")
        fixed: Any = {"rounds": 5, "certain_below": 0.0, "least_gain": None, "means": 1}
        to_the_end = cls(templates=as_printed, seed=seed, **fixed)
        if variant == "documents":
            return to_the_end
        more: Any = {} if variant == "scores" else {"earlier": "text", "choose": "repeated"}
        return replace(to_the_end, documents="none", **more)

    @classmethod
    def steps(cls, *, seed: int = 0) -> Self:
        """Reasoning steps in the place of documents, calibrated once (section 5.4, table 12)."""
        return cls(rounds=1, templates=STEPS, seed=seed)


@final
class Budget:
    """Counts calls and tokens, and tells before a request whether it would pass a limit. A request
    is taken at the most it can cost, see `SGICSettings.max_tokens`, until its replies say their
    tokens; what these are above the prompt's words bounds what stands beside every prompt."""

    def __init__(self, settings: SGICSettings, each: int) -> None:
        """`each` prompt is sent so often: once, and once for every sample."""
        self._settings, self._each = settings, each
        self.calls = 0  # prompts sent, or about to be
        self.tokens: int | None = 0  # reported so far; None once a reply did not
        self._beside = 64  # of a chat template
        self._known = 0  # tokens of requests whose replies report them all
        self._open: list[int] = []  # bytes of the other prompts, failed ones too

    def exceeded(
        self, prompts: Sequence[str], *, and_calls: int = 0
    ) -> Literal["max_calls", "max_tokens"] | None:
        """The limit that a request could pass that leaves `and_calls` answers to ask for."""
        settings, sizes = self._settings, self._sizes(prompts)
        if self.calls + len(sizes) + self._each * and_calls > settings.max_calls:
            return "max_calls"
        held = [size + self._beside + settings.answer_tokens for size in (*self._open, *sizes)]
        most = settings.max_tokens
        return "max_tokens" if most is not None and self._known + sum(held) > most else None

    def sent(self, prompts: Sequence[str]) -> None:
        """Enter a request at the most it can cost."""
        sizes = self._sizes(prompts)
        self._open = [*self._open, *sizes]
        self.calls += len(sizes)

    def repeats(self, prompts: Sequence[str]) -> bool:
        """Enter prompts that are sent once more, unless that could pass a limit."""
        if may := not self.exceeded(prompts):
            self.sent(prompts)
        return may

    def received(self, prompts: Sequence[str], replies: Sequence[Generation]) -> None:
        """Put what the replies report, with each answer its samples, in the place of the bound."""
        for i, reply in enumerate(replies):
            least = len(prompts[i // self._each].split())
            self._beside = max(self._beside, (reply.prompt_tokens or 0) - least)
        counts = [*map(self.reported, replies)]
        if None in counts:
            self.tokens = None
            return
        self._open = [*(Counter(self._open) - Counter(self._sizes(prompts))).elements()]
        self._known += (known := sum(filter(None, counts)))
        self.tokens = None if self.tokens is None else self.tokens + known

    def notes(self) -> list[str]:
        """What to say where the replies report more than `max_tokens`."""
        most, known = self._settings.max_tokens, self._known
        passed = (
            f"the replies report {known} tokens, more than max_tokens={most}: what a model puts "
        )
        why = "beside the first prompt, or writes beyond its limit, is known only from its reply"
        return [] if most is None or known <= most else [passed + why]

    @staticmethod
    def reported(reply: Generation) -> int | None:
        """Read and written, at least 0; None where the reply does not say."""
        read, written = reply.prompt_tokens, reply.completion_tokens
        if written is None and reply.tokens is not None:
            written = len(reply.tokens)
        return None if read is None or written is None or min(read, written) < 0 else read + written

    def _sizes(self, prompts: Sequence[str]) -> list[int]:
        return [len(prompt.encode(errors="replace")) for prompt in prompts] * self._each
