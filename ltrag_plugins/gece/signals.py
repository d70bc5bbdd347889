"""What can be read from a question and its draft, before any retrieval.

`SIGNALS` are the plain signals under one interface: each takes the evidence and gives one
number, **larger = the direct answer is more likely to fail**. They are the ingredients of the
fitted gate, and each can be a gate by itself (`GECESettings(scorer="product")`). Traits say what
the texts look like. `features` puts both into the columns that a fitted gate reads.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins import uncertainty
from ltrag_plugins.errors import (
    CalibrationError,
    InvalidInput,
    ModelError,
    NeedsGradients,
    NoTokenProbabilities,
)
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Generation, GradientAgreement

_UNSEEN = 1e-9
"""Relative frequency given to words that were never seen: one in a billion."""
_ABSENT = (CalibrationError, NeedsGradients, NoTokenProbabilities)
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
        """Count the words of your own texts.

        Raises:
            InvalidInput: there are no words in them.
        """
        counts = Counter(word for text in texts for word in words(text))
        if not counts:
            raise InvalidInput("the corpus has no words; pass the texts your retriever searches")
        return cls("", tuple(sorted(counts.items())))

    def of_word(self, word: str) -> float:
        """Share of all words that are this one, in (0, 1]; one in a billion at least.

        Raises:
            InvalidInput: `wordfreq` does not know the language.
        """
        if self.counts:
            return max(_UNSEEN, self._table.get(word.lower(), 0) / self._total)
        from wordfreq import word_frequency  # a third of a second to import

        try:
            return max(_UNSEEN, word_frequency(word, self.language))
        except ImportError as error:  # how words are told apart is another package's work
            raise InvalidInput(
                f"word frequencies for {self.language!r} need more: pip install "
                f"'wordfreq[cjk]' ({error}); or count your own texts: "
                "WordFrequencies.of_corpus(texts)"
            ) from error
        except (LookupError, ValueError) as error:  # no such list; no such code
            raise InvalidInput(
                f"no word frequencies for the language {self.language!r}; give a code such as "
                "'en' or 'de', or count your own texts: WordFrequencies.of_corpus(texts)"
            ) from error

    def mean(self, text: str) -> float:
        """Mean relative frequency of the words of a text: the alpha of GECE, eq. 2.

        A text without words counts as one word that was never seen.
        """
        found = np.array([self.of_word(word) for word in words(text)] or [_UNSEEN])
        return float(found.sum() / len(found))

    def rarities(self, text: str) -> list[float]:
        """Minus log10 of each word's frequency: 1 for "the", 9 for a word never seen."""
        return self._rarities(words(text))

    def _rarities(self, of_words: Iterable[str]) -> list[float]:
        return [float(-np.log10(self.of_word(word))) for word in of_words]

    @cached_property
    def _table(self) -> dict[str, int]:
        return dict(self.counts)

    @cached_property
    def _total(self) -> int:
        return sum(count for _, count in self.counts)


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


@dataclass(frozen=True, slots=True)
class _Signal:
    """A number read from the evidence; larger means more likely to fail."""

    read: Callable[[Evidence, WordFrequencies], float]
    tier: Tier
    """The least that has to be at hand."""
    about: str
    """What a person reads beside the number."""


def _disagreement(evidence: Evidence, _: WordFrequencies) -> float:
    """One minus the mean token F1 of the samples with the draft, in [0, 1]."""
    if not evidence.samples:
        raise CalibrationError(
            "disagreement needs sampled drafts; set GECESettings(samples=3) or more"
        )
    shared = [uncertainty.word_overlap(evidence.draft.text, s.text) for s in evidence.samples]
    return 1.0 - math.fsum(shared) / len(shared)


def _dot(evidence: Evidence, _: WordFrequencies) -> float:
    return -_agreement(evidence).dot


def _cosine(evidence: Evidence, _: WordFrequencies) -> float:
    cosine = _agreement(evidence).cosine
    if cosine is None:
        raise NeedsGradients("the cosine was not computed; set GECESettings(agreement='cosine')")
    return -cosine


def _agreement(evidence: Evidence) -> GradientAgreement:
    if evidence.agreement is None:
        raise NeedsGradients(
            "no gradient term was computed; use a local model and GECESettings(gradients='always')"
        )
    return evidence.agreement


def _of_draft(name: str) -> _Signal:
    signal = uncertainty.TOKEN_SIGNALS[name]
    about = signal.meaning if signal.sign > 0 else f"{signal.meaning}, negated"
    return _Signal(
        lambda evidence, _: signal.sign * signal.value(evidence.draft), "probabilities", about
    )


SIGNALS: dict[str, _Signal] = {
    "mean_logprob": _of_draft("mean_logprob"),
    "mean_probability": _of_draft("mean_probability"),
    "product": _of_draft("product"),
    "least_probability": _of_draft("least_probability"),
    "entropy": _of_draft("entropy"),
    "margin": _of_draft("margin"),
    "word_frequency": _Signal(
        lambda evidence, frequencies: -math.log10(frequencies.mean(evidence.question)),
        "text",
        "rarity of the question's words (minus log10 of their mean frequency)",
    ),
    "rarest_word": _Signal(
        lambda evidence, frequencies: max(frequencies.rarities(evidence.question), default=9.0),
        "text",
        "rarity of the question's rarest word (minus log10 of its frequency)",
    ),
    "disagreement": _Signal(_disagreement, "text", "disagreement among sampled drafts"),
    "gradient_dot": _Signal(_dot, "gradients", "gradient agreement (dot product), negated"),
    "gradient_cosine": _Signal(_cosine, "gradients", "gradient agreement (cosine), negated"),
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

    def __len__(self) -> int:
        return len(self.signals)

    @property
    def scalars(self) -> Float[np.ndarray, "questions scalars"]:
        """Signals and traits side by side."""
        return np.concatenate([self.signals, self.traits], axis=1)


def available_signals(
    evidence: Sequence[Evidence], frequencies: WordFrequencies, *, only: Tier | None = None
) -> list[str]:
    """Names of the plain signals, and of the caller's own, that all of the evidence has.

    A wrong value (a log-probability of NaN) is not absence, and is raised.

    Args:
        only: the tier whose signals are looked at; None: all.
    """

    def has(item: Evidence, name: str) -> bool:
        try:
            SIGNALS[name].read(item, frequencies)
        except _ABSENT:
            return False
        return True

    names = [name for name, signal in SIGNALS.items() if only in (None, signal.tier)]
    for item in evidence:
        names = [name for name in names if has(item, name)]
    extra = set.intersection(*(set(item.extra) for item in evidence))
    if taken := sorted(extra & SIGNALS.keys()):
        raise InvalidInput(f"Evidence.extra has {taken}, which are names of ours; rename yours")
    return names + sorted(extra)


def features(
    evidence: Sequence[Evidence], names: Sequence[str], frequencies: WordFrequencies
) -> Features:
    """The columns of some questions, with the named signals."""
    rows = [_row(item, names, frequencies) for item in evidence]
    traits = [list(read_traits(item, frequencies).values()) for item in evidence]
    vectors = [_vectors(item) for item in evidence]
    if sizes := sorted({len(vector) for vector in vectors})[1:]:
        raise InvalidInput(
            f"embeddings of different length: {len(vectors[0])} numbers for the first question, "
            f"{sizes[-1]} for others; encode all questions with one encoder, or none"
        )
    of_tokens = [n in SIGNALS and SIGNALS[n].tier == "probabilities" for n in names]
    return Features(
        np.array(rows, dtype=float).reshape(len(rows), -1),
        np.array(traits),
        np.array(vectors),
        np.array(of_tokens, dtype=bool),
    )


def read_traits(evidence: Evidence, frequencies: WordFrequencies) -> dict[str, float]:
    """What question and draft look like: lengths, rarities, overlap, kind of question."""
    question, draft = evidence.question, evidence.draft.text.strip()
    asked, said = words(question), words(draft)
    kinds, told = set(asked), set(said)
    new = [word for word in said if word not in kinds]
    rare, rare_said, rare_new = map(frequencies._rarities, (asked, said, new))
    traits = {
        "question rarity": _mean(rare),
        "question rarest three": _mean(sorted(rare)[-3:]),
        "draft rarity": _mean(rare_said),
        "draft rarest": max(rare_said, default=0.0),
        "draft new words' rarity": _mean(rare_new),
        "draft rarest new word": max(rare_new, default=0.0),
        "question words": np.log1p(float(len(asked))),
        "draft words": np.log1p(float(len(said))),
        "draft letters": np.log1p(float(len(draft))),
        "draft new words": len(new) / (len(said) + 1),
        "draft words of the question": len(said) - len(new),
        "draft repetition": 1 - len(told) / len(said) if said else 0.0,
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


def _row(evidence: Evidence, names: Sequence[str], frequencies: WordFrequencies) -> list[float]:
    row = []
    for name in names:
        if name in SIGNALS:
            value = SIGNALS[name].read(evidence, frequencies)
        elif name in evidence.extra:
            value = float(evidence.extra[name])
        else:
            raise CalibrationError(
                f"this gate was fitted with the signal {name!r} of your own; the evidence has only "
                f"{sorted(evidence.extra)}. Pass it in Evidence.extra."
            )
        if not abs(value) < _LARGEST:
            raise InvalidInput(
                f"the signal {name!r} is {value} for the question {evidence.question[:60]!r}; "
                "signals are finite numbers. Find its source, or leave the signal out."
            )
        row.append(value)
    return row


def _vectors(evidence: Evidence) -> Float[np.ndarray, " dims"]:
    if evidence.vectors is None:
        return np.zeros(0)
    if not np.isfinite(evidence.vectors).all():
        raise ModelError(
            f"the encoder gave NaN or infinity for {evidence.question[:60]!r} or its draft "
            f"{evidence.draft.text[:60]!r}. Mend the encoder, or do without one: encoder=None."
        )
    return evidence.vectors.ravel().astype(float)
