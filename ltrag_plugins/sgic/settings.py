"""What can be set about SGIC, and the presets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, Self

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.settings import Count, Percent, Positive, Settings, Whole
from ltrag_plugins.sgic.prompts import STEPS, PromptTemplates
from ltrag_plugins.uncertainty import AGREEMENT, calls_for, checked_estimator

Choose = Literal["least uncertain", "last", "repeated"]
PaperRow = Literal["documents", "scores", "answers"]


@dataclass(frozen=True, slots=True)
class SGICSettings(Settings):
    """How an answer is calibrated.

    Raises:
        InvalidInput: a value is out of its range, or two exclude each other.
    """

    rounds: Whole = 5
    """K: most rounds after the first answer (paper: 5); 0: the first answer, measured."""
    estimator: str = "product"
    """Of answers and documents: a name of `uncertainty.TOKEN_SIGNALS` (paper: "product"), or
    "agreement", which needs no token probabilities and `samples` calls more an answer."""
    earlier: Literal["none", "text", "scores"] = "scores"
    """How a round shows the earlier answers: not at all, as text, or with their scores."""
    documents: Literal["none", "scores", "keys"] = "scores"
    """What a round shows beside the documents: nothing, scores, or marks before `keys` of them."""
    source: Literal["uncertainty", "encoder", "relevance", "oracle"] = "uncertainty"
    """Where document scores come from: one answer per document (paper, eq. 3); the nearness of an
    encoder's vectors; a relevance function (paper, table 6); or the truth, which also scores the
    answers: for analysis alone (table 6, "oracle")."""
    keys: Count = 2
    """Most documents that are marked, of those with scores under 50 (for documents="keys")."""
    cut_to: Count | None = None
    """Show a round only this many documents, those with the lowest scores; None: all."""
    score_documents: Literal["needed", "always"] = "needed"
    """Score documents when a round shows or cuts by it, or for every question."""
    certain_below: Percent = 20.0
    """Stop once an answer's score, 0-100, is under this: a certain first answer is left alone.
    0: never."""
    least_gain: Percent | None = 0.0
    """Stop when a round repeats the answer before it and lowers its score, 0-100, by no more than
    this; None: never."""
    choose: Choose = "least uncertain"
    """Which round's answer to return. "repeated": the first that was given twice, for answers
    without scores (paper, 4.3); the last where none was."""
    document_words: Count | None = 150
    """Cut each document to this many words (paper: 200 tokens, which are about as many), at the
    last sentence end unless that loses half of them; None: never."""
    max_calls: Count = 128
    """Most prompts that a question may send to the model, answered or not."""
    max_tokens: Count | None = None
    """Most tokens, read and written, that a question may cost; None: no bound but `max_calls`.
    A request is sent only if it stays within the bound at one token per byte, 64 for a chat
    template, and `answer_tokens`. What a model puts beside every prompt above that (a system text,
    tools) is known from its first reply on, if that reports its tokens: only the first answer, with
    its samples, can pass the bound, and the answer's notes say so."""
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
    seed: int = 0
    """Of the samples and of oracle scores."""

    def _check_together(self) -> None:
        object.__setattr__(self, "estimator", checked_estimator(self.estimator))
        if not (
            isinstance(self.stop, Sequence)
            and not isinstance(self.stop, str)
            and all(isinstance(end, str) and end for end in self.stop)
        ):
            raise InvalidInput(f"stop must be a tuple of strings, none empty, got {self.stop!r}")
        if not isinstance(self.templates, PromptTemplates):
            raise InvalidInput(f"templates must be a PromptTemplates(...), got {self.templates!r}")
        if calls_for(1, self.estimator, self.samples) > self.max_calls:
            raise InvalidInput(
                f"one answer with its {self.samples} samples takes more than max_calls="
                f"{self.max_calls}; raise it, or lower samples"
            )
        if self.earlier != "none" or not self.rounds:
            return
        if self.documents == "none" and self.cut_to is None:
            raise InvalidInput(
                "with earlier='none' and documents='none' a round asks what was asked before; "
                "set rounds=0, or give it something to look at"
            )
        if self.rounds > 1:
            raise InvalidInput(
                f"with earlier='none' all {self.rounds} rounds ask the same; set rounds=1"
            )

    def check_samples(self, samples: object) -> None:
        """Refuse a number of sampled answers that makes no sense with the estimator."""
        least = 2 if self.estimator == AGREEMENT else 1
        if not isinstance(samples, Integral) or isinstance(samples, bool) or int(samples) < least:
            raise InvalidInput(
                f"samples must be a whole number, at least {least} with the estimator "
                f"{self.estimator!r}, got {samples!r}"
            )

    @classmethod
    def paper(cls, variant: PaperRow = "documents", *, seed: int = 0) -> Self:
        """The paper's loop: K = 5 rounds to the end, the least uncertain answer.

        All questions are calibrated, as the paper names no threshold. The rounds are meant for a
        model that was tuned for them (section 3.3).

        Args:
            variant: a row of table 5. "documents": scores of documents and answers, the full
                form; "scores": of answers alone; "answers": earlier answers without scores, of
                which the repeated one is taken.
        """
        return cls(
            earlier="text" if variant == "answers" else "scores",
            documents="scores" if variant == "documents" else "none",
            choose="repeated" if variant == "answers" else "least uncertain",
            certain_below=0.0,
            least_gain=None,
            seed=seed,
        )

    @classmethod
    def steps(cls, *, seed: int = 0) -> Self:
        """Reasoning steps in the place of documents, calibrated once (section 5.4, table 12)."""
        return cls(rounds=1, templates=STEPS, seed=seed)
