"""What can be read from a question and its draft, before any retrieval.

`SIGNALS` are the plain signals: each takes the evidence and gives one number, **larger = the direct
answer is more likely to fail**. They are the ingredients of the fitted gate, and each can be a gate
by itself (`GECESettings(scorer="product")`). Traits say what the texts look like. `drafting`
gathers the evidence; `features` makes columns of it.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from numbers import Real
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins import errors, uncertainty
from ltrag_plugins.errors import CalibrationError, InvalidInput, NeedsGradients
from ltrag_plugins.flow import Flow, agree, compute, embed, sample
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.tokenize import length, words
from ltrag_plugins.types import Generation, GradientAgreement
from ltrag_plugins.uncertainty import percent

_UNSEEN = 1e-9  # relative frequency of words never seen: one in a billion
_ABSENT = (CalibrationError, NeedsGradients, errors.NoTokenProbabilities)
_LARGEST = float(np.finfo(np.float32).max)  # the trees split in single precision
_ASKING = ("who", "what", "which", "when", "where", "how", "why", "first", "last", "same")


@dataclass(frozen=True)
class WordFrequencies:
    """Relative frequencies of words: of a language (`wordfreq`), or of your own corpus."""

    language: str = "en"
    """Language code, where no corpus was counted."""
    counts: tuple[tuple[str, int], ...] = ()
    """Words of a corpus with their counts; empty for the language's own frequencies."""

    @classmethod
    def of_corpus(cls, texts: Iterable[str]) -> "WordFrequencies":
        """Count the words of your own texts; without any, `InvalidInput` is raised."""
        counts = Counter(word for text in texts for word in words(text))
        if not counts:
            raise InvalidInput("the corpus has no words; pass the texts your retriever searches")
        return cls("", tuple(sorted(counts.items())))

    def of_word(self, word: str) -> float:
        """Share of all words that are this one, in (0, 1]; one in a billion at least.

        Raises:
            InvalidInput: `wordfreq` does not know the language.
            MissingExtra: it is not installed.
        """
        if self.counts:
            return self._shares.get(word.lower(), _UNSEEN)
        try:
            from wordfreq import word_frequency  # a third of a second to import
        except ImportError as error:
            raise errors.missing_extra("wordfreq", "frequency") from error
        try:
            return max(_UNSEEN, word_frequency(word, self.language))
        except (ImportError, LookupError, ValueError) as error:  # no tokenizer, list, or such code
            raise InvalidInput(
                f"no word frequencies for the language {self.language!r} ({error}); give a code "
                "such as 'en', pip install 'wordfreq[cjk]' for Chinese, Japanese or Korean, or "
                "count your own texts: WordFrequencies.of_corpus(texts)"
            ) from error

    def mean(self, text: str) -> float:
        """Mean relative frequency of a text's words (of none: 1e-9): the alpha of GECE, eq. 2."""
        found = np.array([self.of_word(word) for word in words(text)] or [_UNSEEN])
        return float(found.sum() / len(found))

    def rarities(self, asked: Iterable[str]) -> list[float]:
        """Minus log10 of each word's frequency: 1 for "the", 9 for a word never seen."""
        return [float(-np.log10(self.of_word(word))) for word in asked]

    @cached_property
    def _shares(self) -> dict[str, float]:
        total = sum(count for _, count in self.counts)
        return {word: max(_UNSEEN, count / total) for word, count in self.counts}


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What one question left behind before any retrieval."""

    question: str
    draft: Generation
    samples: tuple[Generation, ...] = ()
    """Further drafts, sampled; for their agreement with the first."""
    vectors: Float[np.ndarray, "2 dim"] | None = None
    """Embeddings of the question and of the draft."""
    agreement: GradientAgreement | None = None
    """Of the draft's gradient with the mean gradient of the calibration questions."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Signals of the caller's own, by name; a gate fitted with them asks for them again."""


OwnSignals = Mapping[str, Callable[[str], float]]
"""Of a question each a number, larger where the direct answer is more likely to fail. On an event
loop a signal's `acall`, where it has one, is awaited."""


def own_signals(given: OwnSignals | None) -> OwnSignals:
    """A copy of the caller's own signals, if they are functions by name."""
    found = dict(errors.checked(given or {}, Mapping, "signals", "functions by name"))
    for name, signal in found.items():
        errors.checked(signal, Callable, f"signals[{name!r}]", "a function of a question")
    return found


def askable_question(question: str, max_words: int) -> str:
    """The question without surrounding white space."""
    if not isinstance(question, str):
        raise InvalidInput(f"a question is a string, got {type(question).__name__}")
    count = length(question)
    if not count:
        raise errors.EmptyQuestion(f"the question {question!r} has no words; ask something")
    if count > max_words:
        much = f"the question has {count} words, the gate takes {max_words}"
        raise errors.PromptTooLong(f"{much}. Shorten it, or raise the setting max_words")
    return question.strip()


def drafting(
    question: str,
    settings: GECESettings,
    *,
    vectors: bool = False,
    along: Direction | None = None,
    own: OwnSignals = MappingProxyType({}),
) -> Flow[Evidence]:
    """Draft an answer and gather evidence: embeddings with `vectors`, a gradient term `along`, and
    under `extra` the caller's `own` signals of the question."""
    question = askable_question(question, settings.max_words)
    [(draft, *samples)] = yield from sample(
        settings.prompt.replace("{question}", question),
        samples=settings.samples,
        temperature=settings.temperature,
        seed=settings.seed,
        draft=True,
        max_tokens=settings.max_tokens,
        stop=settings.stop,
    )
    rows = (yield from embed(question, draft.text.strip())) if vectors else None
    extra = dict[str, float]()
    for name, signal in own.items():
        waiting = getattr(signal, "acall", None)
        later = waiting and partial(waiting, question)
        try:
            value: object = yield from compute(partial(signal, question), later)
        except errors.ModelFailed as error:
            raised, wrong = error.__cause__, f"your signal {name!r} raised"
            raise errors.ModelError(
                f"{wrong} {type(raised).__name__}: {raised} (for {question[:60]!r})"
            ) from raised
        if not isinstance(value, Real) or not abs(value) < _LARGEST:
            raise errors.ModelError(
                f"your signal {name!r} gave {value!r} for {question[:60]!r}; a signal is a finite "
                "number, so mend the function, or fit a gate without it"
            )
        extra[name] = float(value)
    evidence = Evidence(question, draft, tuple(samples), rows, extra=extra)
    return evidence if along is None else (yield from with_gradient_term(evidence, settings, along))


def with_gradient_term(
    evidence: Evidence, settings: GECESettings, along: Direction
) -> Flow[Evidence]:
    """Add how the draft's gradient agrees with the mean gradient `along`."""
    if not evidence.draft.text:  # nothing was said, so no token has a gradient
        return replace(evidence, agreement=GradientAgreement(0.0, 0.0))
    [found] = yield from agree(
        [settings.prompt.replace("{question}", evidence.question)],
        [evidence.draft.text],
        along=along,
        cosine=settings.agreement == "cosine",
        layers=settings.layers,
    )
    return replace(evidence, agreement=found)


@dataclass(frozen=True, slots=True)
class _Signal:
    """A number read from the evidence; larger means more likely to fail."""

    read: Callable[[Evidence, WordFrequencies | None], float]
    tier: Tier
    """The least that has to be at hand."""
    about: str
    """What a person reads beside the number as it is `shown`."""
    shown: Callable[[float], str] = "{:.3g}".format
    """From the number to text."""
    than: str = "surer than"
    """What a question is of those with a larger number."""


def _disagreement(evidence: Evidence, _: object) -> float:
    if not evidence.samples:
        raise CalibrationError("disagreement needs samples; set GECESettings(samples=3) or more")
    shared = [uncertainty.word_overlap(evidence.draft.text, s.text) for s in evidence.samples]
    return 1.0 - math.fsum(shared) / len(shared)


def _of_gradient(kind: str, name: str) -> _Signal:
    def read(evidence: Evidence, _: object) -> float:
        value = getattr(evidence.agreement, kind, None)
        if value is None:
            how = f"use a local model and GECESettings(gradients='always', agreement={kind!r})"
            raise NeedsGradients(f"no {name} of gradients was computed; {how}")
        return -value

    return _Signal(read, "gradients", f"{name} of gradients", lambda x: f"{-x:.3g}")


def _of_words(value: Callable[[WordFrequencies, str], float], about: str) -> _Signal:
    def read(evidence: Evidence, frequencies: WordFrequencies | None) -> float:
        if frequencies is None:
            raise CalibrationError("no word frequencies; give frequencies=WordFrequencies()")
        return value(frequencies, evidence.question)

    return _Signal(read, "text", about, lambda x: f"1 in {10**x:,.0f}", "commoner than")


def frequencies_for(
    settings: GECESettings, given: WordFrequencies | None
) -> WordFrequencies | None:
    """Those given; without, English ones for a scorer that reads some, and none for others. An
    unknown language or a missing package is named at once."""
    reads = settings.scorer in ("gece", "word_frequency", "rarest_word")
    found = given or (WordFrequencies() if reads else None)
    if found is not None:
        errors.checked(found, WordFrequencies, "frequencies", "WordFrequencies(...)").of_word("a")
    return found


def _of_draft(name: str) -> _Signal:
    signal = uncertainty.TOKEN_SIGNALS[name]
    return _Signal(
        lambda evidence, _: signal.sign * signal.value(evidence.draft),
        "probabilities",
        signal.meaning,
        lambda x: signal.shown(signal.sign * x),
    )


_DRAFT = ("mean_logprob", "mean_probability", "product", "least_probability", "entropy", "margin")
SIGNALS: dict[str, _Signal] = {
    **{name: _of_draft(name) for name in _DRAFT},
    "draft_words": _Signal(
        lambda evidence, _: float(len(words(evidence.draft.text))),
        "text",
        "words in the draft",
        "{:.0f}".format,
        "shorter than",
    ),
    "word_frequency": _of_words(
        lambda frequencies, text: -math.log10(frequencies.mean(text)), "mean word of the question"
    ),
    "rarest_word": _of_words(
        lambda frequencies, text: max(frequencies.rarities(words(text)), default=9.0),
        "rarest word of the question",
    ),
    "disagreement": _Signal(_disagreement, "text", "sampled drafts disagree", percent),
    "gradient_dot": _of_gradient("dot", "dot product"),
    "gradient_cosine": _of_gradient("cosine", "cosine"),
}
"""The plain signals by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Columns for a set of questions."""

    signals: Float[np.ndarray, "questions signals"]
    """Plain signals, larger = more likely to fail."""
    traits: Float[np.ndarray, "questions traits"]
    """What the texts look like; which way each points is learned."""
    vectors: Float[np.ndarray, "questions dims"]
    """Embeddings of question and draft side by side; no columns without an encoder."""
    probability: Bool[np.ndarray, " signals"]
    """Which signals are read from token probabilities."""

    def __getitem__(self, rows: Int[np.ndarray, " rows"] | slice) -> "Features":
        parts = self.signals[rows], self.traits[rows], self.vectors[rows]
        return Features(*parts, self.probability)

    @property
    def scalars(self) -> Float[np.ndarray, "questions scalars"]:
        """Signals and traits side by side."""
        return np.concatenate([self.signals, self.traits], axis=1)


def available_signals(
    evidence: Sequence[Evidence], frequencies: WordFrequencies | None, *, tier: str = "auto"
) -> list[str]:
    """Names of the plain signals, and of the caller's own, that all of the evidence has."""
    names = [name for name, signal in SIGNALS.items() if tier != "text" or signal.tier == "text"]
    for item, name in product(evidence, [*names]):
        if name in names:
            try:
                SIGNALS[name].read(item, frequencies)
            except _ABSENT:  # a wrong value, as a log-probability of NaN, is not absence
                names.remove(name)
    for item in evidence if tier == "probabilities" else ():
        uncertainty.checked_tokens(item.draft)
    extra = set.intersection(*(set(item.extra) for item in evidence))
    if taken := sorted(extra & SIGNALS.keys()):
        raise InvalidInput(f"Evidence.extra has {taken}, which are names of ours; rename yours")
    return names + sorted(extra)


def features(
    evidence: Sequence[Evidence], names: Sequence[str], frequencies: WordFrequencies | None
) -> Features:
    """The columns of some questions, with the named signals; word frequencies where given."""
    rows = [[_value(item, name, frequencies) for name in names] for item in evidence]
    vectors = [np.zeros(0) if e.vectors is None else e.vectors.ravel() for e in evidence]
    for item, vector in zip(evidence, vectors, strict=True):
        if len(vector) != len(vectors[0]):
            lengths = f"lengths {len(vectors[0])} and {len(vector)}"
            raise InvalidInput(f"embeddings of {lengths}; use one encoder for all, or none")
        if not np.isfinite(vector).all():
            raise errors.ModelError(
                f"the encoder gave NaN or infinity for {item.question[:60]!r} or its draft "
                f"{item.draft.text[:60]!r}. Mend the encoder, or do without one: encoder=None."
            )
    signals = np.array(rows, dtype=float).reshape(len(rows), -1)
    traits = np.array([list(_traits(item, frequencies).values()) for item in evidence])
    tokens = [name in SIGNALS and SIGNALS[name].tier == "probabilities" for name in names]
    return Features(signals, traits, np.array(vectors, dtype=float), np.array(tokens, dtype=bool))


def _value(evidence: Evidence, name: str, frequencies: WordFrequencies | None) -> float:
    if name in SIGNALS:
        value = SIGNALS[name].read(evidence, frequencies)
    elif name in evidence.extra:
        value = float(evidence.extra[name])
    else:
        told = f"is a signal of yours; there are {sorted(evidence.extra)}"
        remedy = f"pass signals={{{name!r}: ...}} to GECEGate.load, as to the fit"
        raise CalibrationError(f"this gate reads {name!r}, which {told}: {remedy}")
    if not abs(value) < _LARGEST:
        raise InvalidInput(
            f"the signal {name!r} is {value} for the question {evidence.question[:60]!r}; "
            "signals are finite numbers. Find its source, or leave the signal out."
        )
    return value


def _traits(evidence: Evidence, frequencies: WordFrequencies | None) -> dict[str, float]:
    question, draft = evidence.question, evidence.draft.text.strip()
    asked, said = words(question), words(draft)
    kinds = set(asked)
    new, traits = [word for word in said if word not in kinds], {}
    if frequencies is not None:
        rare, rare_said, rare_new = map(frequencies.rarities, (asked, said, new))
        traits = {
            "question rarity": _mean(rare),
            "question rarest three": _mean(sorted(rare)[-3:]),
            "draft rarity": _mean(rare_said),
            "draft rarest": max(rare_said, default=0.0),
            "draft new words' rarity": _mean(rare_new),
            "draft rarest new word": max(rare_new, default=0.0),
        }
    traits |= {
        "question words": np.log1p(float(len(asked))),
        "draft words": np.log1p(float(len(said))),
        "draft letters": np.log1p(float(len(draft))),
        "draft new words": len(new) / (len(said) + 1),
        "draft words of the question": len(said) - len(new),
        "draft repetition": 1 - len(set(said)) / len(said) if said else 0.0,
        "question names": len(re.findall(r"\b[A-Z]\w+", question)),
        "draft names": len(re.findall(r"\b[A-Z]\w+", draft)),
        "draft capital": draft[:1].isupper(),
        "draft digits": any(map(str.isdigit, draft)),
        "draft is a year": bool(re.fullmatch(r"\D*\d{4}\D*", draft)),
        "question digits": any(map(str.isdigit, question)),
        "question mark": question.rstrip().endswith("?"),
        "draft commas": draft.count(","),
        "draft yes or no": said in (["yes"], ["no"]),
    }
    traits |= {f"asks {word}": word in kinds for word in _ASKING}
    return {name: float(value) for name, value in traits.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
