r"""Do the documents that help stand first? R@k, of uncertainty or of attention.

References:
    Chen et al. (SGIC), section 5.8 and table 10 (R10@k: of ten documents).
"""

from collections.abc import Iterable, Mapping, Sequence

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.sgic.analysis.judged import Judged


def recall_at(values: Sequence[float], relevant: Sequence[bool], k: int) -> float:
    r"""Share of the relevant documents among the k with the largest values, in [0, 1].

    Of t documents that tie, with b above them, each is among the first k with the probability
    :math:`\min(1, \max(0, (k - b) / t))`, so ties count as what a random order gives on average,
    and not as the place in which a retriever happened to put them.

    Args:
        values: of each document; larger is ranked higher.
        relevant: whether each helps; at least one does.

    Raises:
        InvalidInput: lengths differ, no document is relevant, a value is NaN, or k is below 1.
    """
    _check(values, relevant, k)
    wanted = [value for value, helps in zip(values, relevant, strict=True) if helps]
    shares = (
        (k - sum(other > value for other in values)) / sum(other == value for other in values)
        for value in wanted
    )
    return sum(min(1.0, max(0.0, share)) for share in shares) / len(wanted)


def r_at_k(
    values: Sequence[Sequence[float]],
    relevant: Sequence[Sequence[bool]],
    ks: Iterable[int] = (2, 5),
) -> dict[int, float]:
    """Mean `recall_at` over questions, for each k (table 10: attention, k = 2 and 5).

    Args:
        values: for each question one number a document, larger is ranked higher; of attention
            `AttentionShares.documents`.
        relevant: the same shape.

    Raises:
        InvalidInput: there are no questions, or more of one than of the other; see `recall_at`.
    """
    if not values or len(values) != len(relevant):
        raise InvalidInput(
            f"values of {len(values)} questions came with labels of {len(relevant)}; give one list "
            "of each for a question, and at least one question"
        )
    pairs = list(zip(values, relevant, strict=True))
    return {k: sum(recall_at(v, r, k) for v, r in pairs) / len(pairs) for k in ks}


def document_recall(run: Sequence[Judged], ks: Iterable[int] = (1, 2)) -> Mapping[int, float]:
    """R@k of the documents that help, the least uncertain document first.

    Documents scored by other means rank by their score. Questions whose documents have neither,
    or of which none is known to help, do not count; empty where no question counts.
    """
    values, relevant = [], []
    for one in run:
        found = _certainties(one)
        if found and any(one.relevant):
            values.append(found)
            relevant.append(one.relevant)
    return r_at_k(values, relevant, ks) if values else {}


def _certainties(one: Judged) -> list[float]:
    """Minus the uncertainty (or the score) of each document; nothing where one has none."""
    documents = one.answer.documents
    for found in ([d.uncertainty for d in documents], [d.score for d in documents]):
        known = [value for value in found if value is not None]
        if len(known) == len(documents):
            return [-value for value in known]
    return []


def _check(values: Sequence[float], relevant: Sequence[bool], k: int) -> None:
    if len(values) != len(relevant):
        raise InvalidInput(
            f"{len(values)} values came for {len(relevant)} labels; give one of each a document"
        )
    if not any(relevant):
        raise InvalidInput("no document is relevant; leave such questions out of R@k")
    if any(value != value for value in values):
        raise InvalidInput("a value is NaN; leave that question out, or find its source")
    if k < 1:
        raise InvalidInput(f"k must be at least 1, got {k}")
