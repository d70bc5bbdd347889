"""Short answers against the accepted ones; each metric is the best over the references.

Exact match and F1 are those of SQuAD (Rajpurkar et al., EMNLP 2016, section 6.1).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from unicodedata import category

from ltrag_plugins.errors import MissingReferences, listed, require
from ltrag_plugins.tokenize import folded, spaced, words
from ltrag_plugins.types import Question

Correct = Literal["contains", "normalized_exact_match", "exact_match", "accuracy", "f1"]
"""Metrics by which an answer counts as right; see `is_right`."""

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_LEAD_INS = (["the", "answer", "is"], ["answer", "is"], ["answer"])


def normalized(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces (SQuAD). Articles stay where
    nothing else would be left ("A", "The The"). Beyond ASCII, text is `folded` first and all
    Unicode punctuation goes, so that "1914–18" and "1914-18" are equal; Korean and scripts without
    blanks are set character by character."""
    lowered = folded(text)
    marks = {c for c in set(lowered) if c in string.punctuation or category(c).startswith("P")}
    bare = spaced("".join(c for c in lowered if c not in marks))
    return " ".join(_ARTICLE.sub(" ", bare).split()) or " ".join(bare.split())


def normalized_exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction equals a reference after `normalized`, else 0; SQuAD's "EM"."""
    return float(any(_equal(prediction, reference) for reference in checked(references)))


def f1(prediction: str, references: Sequence[str]) -> float:
    """Harmonic mean of word precision and recall after `normalized`, in [0, 1]."""
    best, said = 0.0, normalized(prediction).split()
    for reference in checked(references):
        wanted = normalized(reference).split()
        shared = (Counter(said) & Counter(wanted)).total()
        both = 2 * shared / (len(said) + len(wanted)) if said and wanted else 0.0
        best = max(best, both or float(_equal(prediction, reference)))
    return best


def contains(prediction: str, references: Sequence[str]) -> float:
    """1 if a normalized reference stands, as whole words, in the normalized prediction, else 0."""
    padded = f" {normalized(prediction)} "
    return max(
        float(f" {normalized(r)} " in padded if normalized(r) else _equal(prediction, r))
        for r in checked(references)
    )


def accuracy(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction begins, word for word, with a reference, else 0. A lead-in goes: "Answer:
    maybe" picks "maybe"; one that a reference itself begins with stays ("The answer is unclear").
    Articles count, as an option may be "A"."""
    said, starts = words(prediction), [0]
    while lead := _lead_in(said, starts[-1]):
        starts.append(starts[-1] + len(lead))
    for reference in checked(references):
        option = words(reference)
        places = starts if _lead_in(option) else starts[-1:]
        found = any(said[place : place + len(option)] == option for place in places)
        if found if option else _equal(prediction, reference):
            return 1.0
    return 0.0


def _lead_in(said: list[str], start: int = 0) -> list[str] | None:
    return next((w for w in _LEAD_INS if said[start : start + len(w)] == w), None)


def is_right(
    prediction: str,
    references: Sequence[str],
    correct: Correct = "normalized_exact_match",
    *,
    least: float = 0.5,
) -> bool:
    """Whether an answer counts as right: its metric `correct` is at `least` so much, in (0, 1];
    "exact_match" is character for character between outer spaces."""
    if correct == "exact_match":
        return prediction.strip() in [reference.strip() for reference in checked(references)]
    return _METRICS[correct](prediction, references) >= least


def macro_f1(said: Sequence[str], questions: Sequence[Question]) -> float:
    """Mean F1 of the options of multiple-choice questions, in [0, 1]; 0 for one that nobody says.
    Of several right options the one that was said counts."""
    require("fit")
    from sklearn.metrics import f1_score

    gold = []
    for answer, question in zip(said, questions, strict=True):
        right = [option for option in question.options if option in question.answers]
        gold.append(answer if answer in right else right[0])
    labels = sorted({option for question in questions for option in question.options})
    how: Any = {"labels": labels, "average": "macro", "zero_division": 0}
    return float(f1_score(gold, said, **how))


def checked(references: Sequence[str]) -> Sequence[str]:
    """The references, if they are a list with something in it."""
    if found := listed(references, "references"):
        return found
    remedy = "give at least one accepted answer, or leave unanswered questions out"
    raise MissingReferences(f"no references to compare the prediction with; {remedy}")


_METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    metric.__name__: metric for metric in (contains, normalized_exact_match, accuracy, f1)
}


def _equal(prediction: str, reference: str) -> bool:
    # "!!!" is a band: where normalization leaves nothing, the texts themselves are compared
    said, wanted = normalized(prediction), normalized(reference)
    return said == wanted if said or wanted else prediction.strip() == reference.strip()
