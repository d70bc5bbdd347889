"""Gates by one plain signal: retrieve where the direct answer, or the question, looks doubtful.

The threshold is the quantile of the signal over labelled questions at which a target share of them
retrieves; what their accepted answers are is not read.

References:
    Jiang et al., EMNLP 2023, "Active Retrieval Augmented Generation" (least token probability);
    Mallen et al., ACL 2023, "When Not to Trust Language Models" (a threshold on popularity; here
    the frequency of the question's words). The other signals: see `uncertainty.TOKEN_SIGNALS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask, fetch, together
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.labelled import number, some
from ltrag_plugins.methods.method import Method, Need, whole
from ltrag_plugins.methods.single import single_retrieval
from ltrag_plugins.prompts.templates import (
    DIRECT_PROMPT,
    READING_PROMPT,
    direct_prompt,
    reading_prompt,
)
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Answer, Question
from ltrag_plugins.uncertainty import estimate

FREQUENCY = "frequency"

SIGNALS: Mapping[str, str] = {
    "logprob": "mean_logprob",
    "product": "product",
    "least": "least_probability",
    "entropy": "entropy",
    "margin": "margin",
}
"""The gates that read the direct answer, with their estimator; in [0, 1], larger is doubtful."""

_UNSEEN = 1e-9  # the frequency given to a word that was never seen


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How many questions retrieve, and how the two ways of answering ask.

    Raises:
        InvalidInput: a value is out of its range.
    """

    target_rate: float = 0.5
    """Share of the labelled questions that retrieve, in [0, 1]; 0 never does, 1 always."""
    language: str = "en"
    """Whose word frequencies the gate by frequency reads; a code such as "en"."""
    k: int = 3
    """Passages to read, at least 1."""
    direct_template: str = DIRECT_PROMPT
    """`{question}` is replaced."""
    template: str = READING_PROMPT
    """`{passages}` and `{question}` are replaced."""
    max_tokens: int = 24
    """Longest answer, in tokens, at least 1."""

    def __post_init__(self) -> None:
        number("target_rate", self.target_rate, 0, 1)
        direct_prompt("", self.direct_template)
        reading_prompt("", (), self.template)
        whole("k", self.k)
        whole("max_tokens", self.max_tokens)


@dataclass(frozen=True, slots=True)
class GateThreshold:
    """What a gate learned."""

    signal: str
    """A key of `SIGNALS`, or "frequency"."""
    value: float
    """A signal above it retrieves; minus infinity always does, infinity never."""


def quantile_threshold(signals: Sequence[float], rate: float) -> float:
    """The threshold that lets the share of signals nearest to `rate` pass; of two, the lower share.

    It lies midway between the two signals it parts. Equal signals are not parted, so the share may
    be off where there are many.

    Raises:
        InvalidInput: there are no signals, or one is NaN.
    """
    ordered = sorted(signals)
    if not ordered or any(math.isnan(signal) for signal in ordered):
        raise InvalidInput(f"a quantile needs numbers, got {list(signals)[:5]}")
    n = len(ordered)
    cuts = [i for i in range(n + 1) if i in (0, n) or ordered[i - 1] < ordered[i]]
    kept = min(cuts, key=lambda i: (abs(n - i - rate * n), -i))
    if kept in (0, n):
        return -math.inf if kept == 0 else math.inf
    low, high = ordered[kept - 1], ordered[kept]
    middle = low + (high - low) / 2
    return middle if middle < high else low  # between neighbours there is no middle


def word_rarity(text: str, language: str = "en") -> float:
    """Minus log10 of the mean frequency of the text's words: about 1.3 for "the", 9 for none known.

    Raises:
        InvalidInput: there are no frequencies for that language.
    """
    from wordfreq import word_frequency  # a third of a second to import

    try:
        found = [max(_UNSEEN, word_frequency(word, language)) for word in words(text)] or [_UNSEEN]
    except (LookupError, ValueError) as error:
        raise InvalidInput(
            f"no word frequencies for the language {language!r}; give a code such as 'en' or 'de'"
        ) from error
    return -math.log10(math.fsum(found) / len(found))


def fit_threshold(
    signal: str, questions: Sequence[Question], settings: GateSettings | None = None
) -> Flow[GateThreshold]:
    """The threshold of a gate; one request for the direct answers, none for word frequency.

    Raises:
        CalibrationError: there are no questions.
        NoTokenProbabilities: the model gives not what the signal reads.
        InvalidInput: there is no such signal.
    """
    settings = settings or GateSettings()
    checked_signal(signal)
    texts = [question.text for question in some(questions, f"gate-{signal}")]
    if signal == FREQUENCY:
        signals = [word_rarity(text, settings.language) for text in texts]
    else:
        drafts = yield from together([_draft(text, settings) for text in texts])
        signals = [estimate(draft.trace[0], SIGNALS[signal]) for draft in drafts]
    return GateThreshold(signal, quantile_threshold(signals, settings.target_rate))


def gated(
    question: str, threshold: GateThreshold, settings: GateSettings | None = None
) -> Flow[Answer]:
    """The direct answer; beyond the threshold, one search and an answer from what it found.

    By word frequency nothing is drafted first. Where nothing is found, the direct answer stands.
    `Answer.uncertainty` is the gate's signal of the answer that is given, None for word frequency.

    Raises:
        NoTokenProbabilities: the model gives not what the signal reads.
        InvalidInput: there is no such signal.
    """
    settings = settings or GateSettings()
    if checked_signal(threshold.signal) == FREQUENCY:
        if word_rarity(question, settings.language) > threshold.value:
            return (yield from _reading(question, settings))
        return (yield from _draft(question, settings))
    return (yield from _gated_by_draft(question, threshold, settings))


def checked_signal(signal: str) -> str:
    """The name itself.

    Raises:
        InvalidInput: there is no gate by it.
    """
    if signal != FREQUENCY and signal not in SIGNALS:
        raise InvalidInput(f"no gate by {signal!r}; there are {', '.join([*SIGNALS, FREQUENCY])}")
    return signal


def _gated_by_draft(
    question: str, threshold: GateThreshold, settings: GateSettings
) -> Flow[Answer]:
    drafted = yield from _draft(question, settings)
    [draft], estimator = drafted.trace, SIGNALS[threshold.signal]
    doubt = estimate(draft, estimator)
    found = []
    if doubt > threshold.value:
        [found] = yield from fetch(question, k=settings.k)
    if not found:
        return Answer(drafted.text, doubt, trace=(draft,))
    prompt = reading_prompt(question, found, settings.template)
    [reply] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), estimate(reply, estimator), tuple(found), (draft, reply))


def _draft(question: str, settings: GateSettings) -> Flow[Answer]:
    return direct(question, template=settings.direct_template, max_tokens=settings.max_tokens)


def _reading(question: str, settings: GateSettings) -> Flow[Answer]:
    return single_retrieval(
        question, k=settings.k, template=settings.template, max_tokens=settings.max_tokens
    )


def _method(signal: str, of: str, source: str) -> Method:
    def answer(question: Question, settings: GateSettings, learned: GateThreshold) -> Flow[Answer]:
        if learned.signal != signal:
            raise InvalidInput(
                f"gate-{signal} was given the threshold of gate-{learned.signal}; learn its own"
            )
        return gated(question.text, learned, settings)

    reads_draft = signal != FREQUENCY
    needs: set[Need] = {"retriever", "labelled questions"}
    if reads_draft:
        needs.add("probabilities")
    return Method(
        name=f"gate-{signal}",
        summary=f"retrieves beyond a threshold on {of}",
        source=source,
        settings=GateSettings,
        answer=answer,
        most_calls=lambda _: 2 if reads_draft else 1,
        needs=frozenset(needs),
        learn=lambda questions, settings: fit_threshold(signal, questions, settings),
    )


METHODS = (
    _method("logprob", "the direct answer's mean log-probability", "-"),
    _method("product", "the product of the direct answer's token probabilities", "-"),
    _method("least", "the direct answer's least likely token", "Jiang et al., EMNLP 2023"),
    _method("entropy", "the mean entropy of the direct answer's next-token distributions", "-"),
    _method("margin", "the direct answer's mean lead over the next likeliest token", "-"),
    _method(FREQUENCY, "how rare the question's words are", "after Mallen et al., ACL 2023"),
)
