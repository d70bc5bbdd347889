"""From the recorded rounds of a question to what a model is to learn from them.

* Wrong first, right in round n: the prompt of round n, which shows the wrong answers before it;
  the target is the accepted answer. ("mended")
* Right at once: the prompt of round 1, which shows that answer with its score; the target is the
  answer itself, so that nothing right is spoiled ("preserved"), or where it was not certain, or
  is another number to which EM is blind, the accepted answer ("mended" where that says more).
* Never right: dropped, or the prompt of the last round with the accepted answer. ("wrong")

References:
    Chen et al. (SGIC), section 3.3 (pruning and substitution).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ltrag_plugins.sgic.answer import Round, answer_key, number
from ltrag_plugins.sgic.dataset.corpus import Example, Kind
from ltrag_plugins.sgic.dataset.settings import CorpusSettings
from ltrag_plugins.sgic.documents import prepared
from ltrag_plugins.sgic.loop import checked_question
from ltrag_plugins.sgic.prompts import render
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question


@dataclass(frozen=True, slots=True)
class Learned:
    """What one question taught."""

    right_in: int | None
    """First round with a right answer; None: there was none."""
    example: Example | None
    """Of the kind "wrong" where it was never right; None where a limit left it no prompt of a
    round."""


def learned(
    question: Question, name: str, trace: Sequence[Round], corpus: CorpusSettings
) -> Learned:
    """Judge the rounds of a question, which hold their prompts; the first right one counts.

    Raises:
        InvalidInput: as `CorpusSettings.is_right`.
    """
    right = next((r for r in trace if corpus.is_right(r.text, question.answers)), None)
    if right is None:
        return Learned(None, _example(trace[-1], question.answers[0], name, "wrong"))
    accepted = _like(right.text, question.answers)
    if right.number:
        return Learned(right.number, _example(right, accepted, name, "mended"))
    blind = not callable(corpus.right) and _other_number(right.text, accepted)
    target = right.text if right.score < corpus.certain_below and not blind else accepted
    kept = answer_key(target) == answer_key(right.text)
    kind: Kind = "preserved" if kept else "mended"
    return Learned(0, _example(trace[1], target, name, kind) if trace[1:] else None)


def plain(question: Question, name: str, settings: SGICSettings) -> Example:
    """The first prompt, with nothing beside the documents, and the first accepted answer."""
    texts = prepared(question.passages, settings).plain
    prompt = render(settings.templates, checked_question(question.text), texts)
    return Example(prompt, question.answers[0], name, "direct", 0)


def composed(
    found: Sequence[Learned], direct: Sequence[Example], corpus: CorpusSettings
) -> list[Example]:
    """The examples that the settings keep, question by question."""
    drawn = _drawn(found, corpus)
    examples: list[Example] = []
    for i, (one, first) in enumerate(zip(found, direct, strict=True)):
        kept = one.example is not None and (one.right_in is not None or i in drawn)
        if kept and one.example is not None:
            examples.append(one.example)
        if corpus.include_direct == "all" or (kept and corpus.include_direct == "kept"):
            examples.append(first)
    return examples


def _drawn(found: Sequence[Learned], corpus: CorpusSettings) -> set[int]:
    """Places of the questions that were never right and stay nevertheless."""
    wrong = {i: e for i, one in enumerate(found) if (e := one.example) and e.kind == "wrong"}
    # seeded by what it is drawn for, so that a question more leaves the order of the others
    order = sorted(wrong, key=lambda i: Random(f"{corpus.seed}|{wrong[i].prompt}").random())
    return set(order[: round(corpus.keep_wrong * len(wrong))])


def _example(asked: Round, target: str, name: str, kind: Kind) -> Example | None:
    if not asked.number or asked.prompt is None:
        return None
    return Example(asked.prompt, target, name, kind, asked.number)


def _like(answer: str, references: Sequence[str]) -> str:
    """The accepted answer that says the same, or else the first."""
    same = (r for r in references if answer_key(r) == answer_key(answer))
    return next(same, references[0])


def _other_number(answer: str, accepted: str) -> bool:
    said, wanted = number(answer), number(accepted)
    return None not in (said, wanted) and said != wanted
