"""From evidence to the columns that the fitted gate reads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ltrag_plugins.errors import (
    CalibrationError,
    InvalidInput,
    ModelError,
    NeedsGradients,
    NoTokenProbabilities,
)
from ltrag_plugins.gece.decision import Tier
from ltrag_plugins.gece.frequency import WordFrequencies
from ltrag_plugins.gece.signals import SIGNALS, Evidence
from ltrag_plugins.words import words

_ABSENT = (CalibrationError, NeedsGradients, NoTokenProbabilities)
_LARGEST = float(np.finfo(np.float32).max)  # the trees split in single precision
_ASKING = ("who", "what", "which", "when", "where", "how", "why", "first", "last", "same")


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
        return np.hstack([self.signals, self.traits])


def available_signals(
    evidence: Sequence[Evidence], frequencies: WordFrequencies, *, only: Tier | None = None
) -> list[str]:
    """Names of the plain signals, and of the caller's own, that all of the evidence has.

    Errors of the model (a NaN log-probability) are not absence, and are raised.

    Args:
        only: the tier whose signals are looked at; None: all.

    Raises:
        InvalidInput: a signal of the caller's own has the name of a plain signal.
    """
    names = [name for name, signal in SIGNALS.items() if only in (None, signal.tier)]
    for item in evidence:
        names = [name for name in names if _has(item, name, frequencies)]
    extra = set.intersection(*(set(item.extra) for item in evidence))
    if taken := sorted(extra & SIGNALS.keys()):
        raise InvalidInput(f"Evidence.extra has {taken}, which are names of ours; rename yours")
    return names + sorted(extra)


def read_signals(
    evidence: Evidence, names: Sequence[str], frequencies: WordFrequencies
) -> dict[str, float]:
    """The named signals of one question.

    Raises:
        CalibrationError: one of the caller's own signals is missing.
        NoTokenProbabilities, NeedsGradients: a signal's source is missing.
    """
    return {name: _read(evidence, name, frequencies) for name in names}


def read_traits(evidence: Evidence, frequencies: WordFrequencies) -> dict[str, float]:
    """What question and draft look like: lengths, rarities, overlap, kind of question."""
    question, draft = evidence.question, evidence.draft.text.strip()
    asked, said = words(question), words(draft)
    new = [word for word in said if word not in set(asked)]
    rare, rare_said, rare_new = (
        frequencies.rarities(" ".join(part)) for part in (asked, said, new)
    )
    traits = {
        "question rarity": _mean(rare),
        "question rarest three": _mean(sorted(rare)[-3:]),
        "draft rarity": _mean(rare_said),
        "draft rarest": max(rare_said, default=0.0),
        "draft new words' rarity": _mean(rare_new),
        "draft rarest new word": max(rare_new, default=0.0),
        "question words": np.log1p(len(asked)),
        "draft words": np.log1p(len(said)),
        "draft letters": np.log1p(len(draft)),
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
    traits |= {f"asks {word}": word in asked for word in _ASKING}
    return {name: float(value) for name, value in traits.items()}


def features(
    evidence: Sequence[Evidence], names: Sequence[str], frequencies: WordFrequencies
) -> Features:
    """The columns of some questions, with the named signals.

    Raises:
        InvalidInput: a signal is not finite, or only some of the questions have embeddings.
        ModelError: an embedding is not finite.
    """
    rows = [read_signals(item, names, frequencies) for item in evidence]
    for item, row in zip(evidence, rows, strict=True):
        _check_finite(item, row)
    traits = [read_traits(item, frequencies) for item in evidence]
    vectors = [_vectors(item) for item in evidence]
    if sizes := sorted({len(vector) for vector in vectors})[1:]:
        raise InvalidInput(
            f"embeddings of different length: {len(vectors[0])} numbers for the first question, "
            f"{sizes[-1]} for others; encode all questions with one encoder, or none"
        )
    of_tokens = [n in SIGNALS and SIGNALS[n].tier == "probabilities" for n in names]
    probability = np.array(of_tokens, dtype=bool)
    return Features(_table(rows), _table(traits), np.stack(vectors), probability)


def _table(rows: Sequence[Mapping[str, float]]) -> Float[np.ndarray, "rows columns"]:
    return np.array([list(row.values()) for row in rows], dtype=float).reshape(len(rows), -1)


def _check_finite(evidence: Evidence, row: Mapping[str, float]) -> None:
    for name, value in row.items():
        if not abs(value) < _LARGEST:
            raise InvalidInput(
                f"the signal {name!r} is {value} for the question {evidence.question[:60]!r}; "
                "signals are finite numbers. Find its source, or leave the signal out."
            )


def _vectors(evidence: Evidence) -> Float[np.ndarray, " dims"]:
    if evidence.vectors is None:
        return np.zeros(0)
    if not np.isfinite(evidence.vectors).all():
        raise ModelError(
            f"the encoder gave NaN or infinity for {evidence.question[:60]!r} or its draft "
            f"{evidence.draft.text[:60]!r}. Mend the encoder, or do without one: encoder=None."
        )
    return evidence.vectors.ravel().astype(float)


def _read(evidence: Evidence, name: str, frequencies: WordFrequencies) -> float:
    if name in SIGNALS:
        return SIGNALS[name].read(evidence, frequencies)
    if name not in evidence.extra:
        raise CalibrationError(
            f"this gate was fitted with the signal {name!r} of your own; the evidence has only "
            f"{sorted(evidence.extra)}. Pass it in Evidence.extra."
        )
    return float(evidence.extra[name])


def _has(evidence: Evidence, name: str, frequencies: WordFrequencies) -> bool:
    try:
        SIGNALS[name].read(evidence, frequencies)
    except _ABSENT:
        return False
    return True


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
