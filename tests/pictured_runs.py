"""A history of a training and an analysed run, of which pictures are drawn."""

from dataclasses import replace

from ltrag_plugins.dur import Batch
from ltrag_plugins.sgic import CalibratedAnswer, LabelledAnswer, Round, ScoredDocument
from ltrag_plugins.types import Generation, Passage


def batch(epoch: int, number: int, **more) -> Batch:
    """Of 20 questions, 5 shots each, of which 2 easy and 6 hard ones turned."""
    known = Batch(
        epoch=epoch, number=number, loss=0.5, reward=-1.0, sigma=0.05, questions=20, shots=300,
        deepest=100, calls=120, tokens=9000, easy=8, easy_right=7, hard_right=3, turned_easy=2,
        turned_hard=6,
    )  # fmt: skip
    return replace(known, **more)


HISTORY = (
    batch(0, 0),
    batch(0, 1, questions=10, shots=40, deepest=20, calls=40, reward=0.5),
    batch(1, 0, shots=67, deepest=30, calls=60, reward=0.25),
)


def one(
    right: str, uncertainties, documents=(0.2, 0.7), relevant="10", p_wrong=None
) -> LabelledAnswer:
    """A judged answer: "10" is right in round 0 and wrong in round 1; round 0 is returned."""
    trace = tuple(Round(n, "x", u, 100 * u, Generation("x")) for n, u in enumerate(uncertainties))
    scored = tuple(ScoredDocument(Passage("text"), u) for u in documents)
    answer = CalibratedAnswer(
        "x", trace[0].uncertainty, trace[0].score, 0, "rounds", "product", p_wrong, scored, trace
    )
    labels = (tuple(letter == "1" for letter in letters) for letters in (right, relevant))
    return LabelledAnswer(answer, *labels, question="Where is Dirleton Castle, and who built it?")


RUN = [
    one("101", [0.2, 0.4, 0.3], p_wrong=0.1),
    one("001", [0.9, 0.8, 0.5], p_wrong=0.8),
    one("000", [0.7, 0.9, 0.6], p_wrong=0.6),
]
