"""Training data that teaches a model to mend its answers without spoiling right ones.

Every question is calibrated through all rounds, as `fit` does; the first right round of each gives
an example:

* Wrong first, right in round n: the prompt of round n, which shows the wrong answers before it;
  the target is the accepted answer. ("mended")
* Right at once: the prompt of round 1, which shows that answer with its score; the target is the
  answer itself, so that nothing right is spoiled ("preserved"), or where it was not certain, or
  is another number to which EM is blind, the accepted answer ("mended" where that says more).
* Never right: dropped, or the prompt of the last round with the accepted answer. ("wrong")

The scores in the prompts are on the mean of each round over all questions (eq. 2), so they do not
depend on where the rounds of one question end.

References:
    Chen et al. (SGIC), section 3.3 (pruning and substitution).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import Any

from ltrag_plugins.artifacts import differences, writing
from ltrag_plugins.errors import ArtifactMismatch, CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Observer, World
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.sgic.answer import Round, answer_key, number
from ltrag_plugins.sgic.documents import Relevance, prepared
from ltrag_plugins.sgic.loop import checked_question
from ltrag_plugins.sgic.prompts import one_line, render
from ltrag_plugins.sgic.replay import record
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.training.examples import (
    LINES,
    MANIFEST,
    Dataset,
    Example,
    Kind,
    load,
    read_manifest,
    write_examples,
)
from ltrag_plugins.training.settings import CorpusSettings, named
from ltrag_plugins.types import Question

_UNFINISHED = "unfinished.sqlite"
"""The model's answers so far, in the folder of data that is not done."""
_SAME = ("llm", "questions_sha256", "settings", "corpus", "given_scale", "judge")
"""What two builds must share to give the same data."""


def build(
    questions: Iterable[Question],
    llm: LLM | None,
    *,
    out: str | PathLike[str],
    settings: SGICSettings | None = None,
    corpus: CorpusSettings | None = None,
    scale: ScoreScale | None = None,
    relevance: Relevance | None = None,
    encoder: Encoder | None = None,
    observers: Iterable[Observer] = (),
    batch: int = 64,
) -> Dataset:
    """Calibrate labelled questions, and write what a model can learn from them.

    The folder gets `train.jsonl` (chat JSON lines) and `manifest.json`. Until then it keeps the
    model's answers, batch by batch: the same call goes on after a kill, and neither it nor one with
    other `corpus` settings asks for an answer again. Where the folder holds this very data already,
    it is read and nothing is asked.

    Args:
        questions: for training, with accepted answers and the passages to answer from. Tune and
            judge on different ones.
        llm: the model that is to be tuned; a `CachedLLM` keeps its answers in a file of yours
            instead. None will do for `form="direct"`.
        out: the folder.
        settings: how rounds ask and score; its `rounds` is k. None: `SGICSettings.paper()`. Stop
            rules count for nothing here: rounds run to their end, as the means of eq. 2 are of all
            questions; with a `scale` too, so that another measure of right answers in `corpus`
            asks for none again.
        corpus: which examples are made. None: the defaults.
        scale: for the scores of answers; None: the mean of each round over these questions.
        relevance, encoder: for the settings' `source`.
        batch: most prompts of one model call, and so the most that a kill loses.

    Raises:
        CalibrationError: there are no questions; one has no passages; nothing is left to learn
            from.
        MissingReferences: one has no accepted answers.
        InvalidInput: something else than questions; settings that make no rounds to learn from.
        ArtifactMismatch: the folder holds other data; or the scale is of another estimator.
        UnreadableArtifact, UnwritableArtifact: the folder is damaged, or cannot be written to.
        NoTokenProbabilities, ModelError, PromptTooLong: as `calibrate`.
    """
    folder, corpus = Path(out), corpus or CorpusSettings()
    settings = replace(
        settings or SGICSettings.paper(),
        certain_below=0.0,
        least_gain=None,
        choose="last",
        keep_prompts=True,
    )
    _check_arguments(llm, settings, corpus, batch)
    asked = [_labelled(question, i) for i, question in enumerate(questions, 1)]
    if not asked:
        raise CalibrationError("no questions to learn from; give some with answers and passages")
    direct = [_plain(q, _name_of(q, i), settings) for i, q in enumerate(asked, 1)]
    model = llm if corpus.form == "sgic" else None
    judge = None
    if settings.source == "encoder" and encoder is not None:
        judge = encoder.name
    elif settings.source == "relevance" and relevance:
        judge = named(relevance)
    origin = {
        "version": _version(),
        "llm": None if model is None else model.name,
        "questions": len(asked),
        "questions_sha256": _digest(asked),
        "settings": asdict(settings),
        "corpus": corpus.as_dict(),
        "given_scale": None if scale is None else list(scale.means),
        "judge": judge,
    }
    origin = json.loads(json.dumps(origin))
    if _is_done(folder, origin):
        done = load(folder)
        _forget(folder)
        return done
    _check_folder(folder)
    if model is None:
        told = origin | _counts(direct, (), len(asked), 0)
        return Dataset(tuple(direct), write_examples(folder, direct, told))
    with _remembering(model, folder) as remembering:
        world = World(llm=remembering, encoder=encoder)
        [recorded] = record(
            asked,
            world,
            settings,
            scale=scale,
            relevance=relevance,
            observers=observers,
            batch=batch,
        )
    found = [
        learned(q, d.id, t, corpus) for q, d, t in zip(asked, direct, recorded.traces, strict=True)
    ]
    examples = _composed(found, direct, corpus)
    if all(example.kind == "direct" for example in examples):
        raise CalibrationError(
            f"none of {len(asked)} questions was answered right in any of {settings.rounds + 1} "
            "rounds (0 to k), so all were pruned. Keep them with their accepted answers "
            "(keep_wrong=1.0), call more answers right (right='f1'), or take a better model; "
            "nothing is asked again with the same folder."
        )
    told = origin | _counts(examples, found, len(asked), settings.rounds)
    told["scale"] = {
        "estimator": recorded.scale.estimator,
        "means": list(recorded.scale.means),
    }
    dataset = Dataset(tuple(examples), write_examples(folder, examples, told))
    _forget(folder)
    return dataset


def _check_arguments(
    llm: LLM | None, settings: SGICSettings, corpus: CorpusSettings, batch: int
) -> None:
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if corpus.form == "direct":
        return
    if llm is None:
        raise InvalidInput("no model to calibrate with; give the one to tune, or form='direct'")
    if not settings.rounds:
        raise InvalidInput(
            "with rounds=0 there is no prompt of a round to learn from; set rounds, or "
            "form='direct' for plain prompts"
        )
    if settings.source == "oracle":
        raise InvalidInput(
            "source='oracle' shows scores that no model will see again; train on those of the "
            "model (source='uncertainty')"
        )


def _name_of(question: Question, place: int) -> str:
    return question.id or f"question {place}"


def _labelled(question: object, place: int) -> Question:
    """The question with its answers on one line each, blank ones left out."""
    if not isinstance(question, Question):
        raise InvalidInput(
            f"training data is made of Question(text, answers, ...), got {question!r:.60}"
        )
    name = _name_of(question, place)
    if isinstance(question.answers, str):
        raise InvalidInput(f"the answers of question {name!r} are one string; put it in a tuple")
    answers = tuple(said for answer in question.answers if (said := one_line(answer)))
    if not answers:
        raise MissingReferences(
            f"question {name!r} has no accepted answers; add 'answers', or leave it out"
        )
    if not question.passages:
        raise CalibrationError(
            f"question {name!r} has no passages; add what your retriever finds for it, or leave it "
            "out"
        )
    return replace(question, answers=answers)


def _plain(question: Question, name: str, settings: SGICSettings) -> Example:
    """The first prompt, with nothing beside the documents, and the first accepted answer."""
    texts = prepared(question.passages, settings).plain
    prompt = render(settings.templates, checked_question(question.text), texts)
    try:
        f"{prompt}{question.answers[0]}".encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"question {name!r} has half of a surrogate pair in its texts, which is no "
            "character and cannot be written; repair it where it was read"
        ) from error
    return Example(prompt, question.answers[0], name, "direct", 0)


@dataclass(frozen=True, slots=True)
class _Learned:
    """What one question taught."""

    right_in: int | None
    """First round with a right answer; None: there was none."""
    example: Example | None
    """Of the kind "wrong" where it was never right; None where a limit left it no prompt of a
    round."""


def learned(
    question: Question, name: str, trace: Sequence[Round], corpus: CorpusSettings
) -> _Learned:
    """Judge the rounds of a question, which hold their prompts; the first right one counts."""
    right = next((r for r in trace if corpus.is_right(r.text, question.answers)), None)
    if right is None:
        return _Learned(None, _example(trace[-1], question.answers[0], name, "wrong"))
    key = answer_key(right.text)
    accepted = next((a for a in question.answers if answer_key(a) == key), question.answers[0])
    if right.number:
        return _Learned(right.number, _example(right, accepted, name, "mended"))
    said, wanted = number(right.text), number(accepted)
    blind = not callable(corpus.right) and None not in (said, wanted) and said != wanted
    target = right.text if right.score < corpus.certain_below and not blind else accepted
    kind: Kind = "preserved" if answer_key(target) == key else "mended"
    return _Learned(0, _example(trace[1], target, name, kind) if trace[1:] else None)


def _example(asked: Round, target: str, name: str, kind: Kind) -> Example | None:
    if not asked.number or asked.prompt is None:
        return None
    return Example(asked.prompt, target, name, kind, asked.number)


def _composed(
    found: Sequence[_Learned], direct: Sequence[Example], corpus: CorpusSettings
) -> list[Example]:
    """The examples that the settings keep, question by question."""
    wrong = {i: e for i, one in enumerate(found) if (e := one.example) and e.kind == "wrong"}
    # seeded by what it is drawn for, so that a question more leaves the order of the others
    order = sorted(wrong, key=lambda i: Random(f"{corpus.seed}|{wrong[i].prompt}").random())
    drawn = set(order[: round(corpus.keep_wrong * len(wrong))])
    examples: list[Example] = []
    for i, (one, first) in enumerate(zip(found, direct, strict=True)):
        kept = one.example if one.right_in is not None or i in drawn else None
        if kept is not None:
            examples.append(kept)
        if corpus.include_direct == "all" or (kept and corpus.include_direct == "kept"):
            examples.append(first)
    return examples


def _counts(
    examples: Sequence[Example], found: Sequence[_Learned], questions: int, rounds: int
) -> dict[str, Any]:
    """What came of the questions; of `pruned` ones, `wrong` stayed with the accepted answer."""
    kinds = Counter(example.kind for example in examples)
    first = Counter(one.right_in for one in found)
    kept = kinds["mended"] + kinds["preserved"]
    return {
        "examples": len(examples),
        "kept": kept,
        "pruned": questions - kept if found else 0,
        **{kind: kinds[kind] for kind in ("mended", "preserved", "wrong", "direct")},
        "first_right_in_round": [first[n] for n in range(rounds + 1)] if found else [],
    }


def _is_done(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the folder holds the data that this build would make; False where it holds none."""
    if not (folder / MANIFEST).exists():
        return False
    found = read_manifest(folder)
    before, now = ({name: one.get(name) for name in _SAME} for one in (found, wanted))
    differing = differences(before, now)
    if differing:
        raise ArtifactMismatch(
            f"{folder} holds other training data: {'; '.join(differing[:5])}. Name another folder, "
            f"or move its {LINES} and {MANIFEST} away."
        )
    return True


def _check_folder(folder: Path) -> None:
    with writing(folder), TemporaryFile(dir=folder):
        pass
    if (folder / LINES).exists() and not (folder / _UNFINISHED).exists():
        raise ArtifactMismatch(
            f"{folder} holds a {LINES} and no {MANIFEST}, so it is not known whose it is. Name "
            "another folder, or move it away."
        )


@contextmanager
def _remembering(llm: LLM, folder: Path) -> Iterator[LLM]:
    if isinstance(llm, CachedLLM):
        yield llm
        return
    with CachedLLM(llm, folder / _UNFINISHED) as remembering:
        yield remembering


def _forget(folder: Path) -> None:
    with writing(folder):
        for path in folder.glob(f"{_UNFINISHED}*"):  # SQLite's log stands beside it
            path.unlink()


def _digest(questions: Sequence[Question]) -> str:
    lines = [[q.text, q.answers, q.id, [[p.title, p.text] for p in q.passages]] for q in questions]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def _version() -> str:
    try:
        return version("ltrag-plugins")
    except PackageNotFoundError:
        return "unknown"
