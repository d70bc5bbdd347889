"""Training data that teaches a model to mend its answers without spoiling right ones.

Every question is calibrated through all rounds, as `fit` does; then the first right round of each
is looked for, and its prompt becomes an example (`corpus_choosing`). The scores in the prompts are
on the mean of each round over all questions (eq. 2), so they do not depend on where the rounds of
one question end.

References:
    Chen et al. (SGIC), section 3.3.

What `dataset.build` refuses, before anything is asked and where nothing is left.

From the recorded rounds of a question to what a model is to learn from them.

* Wrong first, right in round n: the prompt of round n, which shows the wrong answers before it;
  the target is the accepted answer. ("mended")
* Right at once: the prompt of round 1, which shows that answer with its score; the target is the
  answer itself, so that nothing right is spoiled ("preserved"), or where it was not certain, or
  is another number to which EM is blind, the accepted answer ("mended" where that says more).
* Never right: dropped, or the prompt of the last round with the accepted answer. ("wrong")

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

from ltrag_plugins.artifacts import writing
from ltrag_plugins.errors import ArtifactMismatch, CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.sgic.answer import Round, answer_key, number
from ltrag_plugins.sgic.documents import Relevance, prepared
from ltrag_plugins.sgic.fitting.recording import Source, Trace, record
from ltrag_plugins.sgic.loop import calibrate, checked_question
from ltrag_plugins.sgic.prompts import render
from ltrag_plugins.sgic.sanitize import one_line
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
    write,
)
from ltrag_plugins.training.settings import CorpusSettings, named
from ltrag_plugins.types import Question

UNFINISHED = "unfinished.sqlite"
"""The model's answers so far, in the folder of data that is not done."""


def name_of(question: Question, number: int) -> str:
    """The question's id, or its place, counted from 1."""
    return question.id or f"question {number}"


def check_arguments(
    llm: LLM | None, settings: SGICSettings, corpus: CorpusSettings, batch: int
) -> None:
    """Refuse what would give no examples.

    Raises:
        InvalidInput: no model, no rounds, no batch, or the truth as a source of scores.
    """
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


def checked_questions(questions: Iterable[Question]) -> list[Question]:
    """The questions with their answers on one line each, blank ones left out.

    Raises:
        CalibrationError: there are none; one has no passages.
        MissingReferences: one has no accepted answers.
        InvalidInput: something else than a question came.
    """
    found = [_labelled(question, i) for i, question in enumerate(questions, 1)]
    if not found:
        raise CalibrationError("no questions to learn from; give some with answers and passages")
    return found


def _labelled(question: object, number: int) -> Question:
    if not isinstance(question, Question):
        raise InvalidInput(
            f"training data is made of Question(text, answers, ...), got {question!r:.60}"
        )
    name = name_of(question, number)
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


def checked_text(example: Example) -> Example:
    """The example, if a file can hold it.

    Raises:
        InvalidInput: it has half of a surrogate pair.
    """
    try:
        (example.prompt + example.target).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"question {example.id!r} has half of a surrogate pair in its texts, which is no "
            "character and cannot be written; repair it where it was read"
        ) from error
    return example


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot take the data.

    Raises:
        UnwritableArtifact: it cannot be made or written to.
        ArtifactMismatch: it holds a file that the data would replace.
    """
    with writing(folder), TemporaryFile(dir=folder):
        pass
    if (folder / LINES).exists() and not (folder / UNFINISHED).exists():
        raise ArtifactMismatch(
            f"{folder} holds a {LINES} and no {MANIFEST}, so it is not known whose it is. Name "
            "another folder, or move it away."
        )


def check_left(examples: Sequence[Example], questions: int, settings: SGICSettings) -> None:
    """Refuse data of plain prompts alone, which is what pruning leaves of a model that fails.

    Raises:
        CalibrationError: it is.
    """
    if any(example.kind != "direct" for example in examples):
        return
    raise CalibrationError(
        f"none of {questions} questions was answered right in any of {settings.rounds + 1} rounds "
        "(0 to k), so all were pruned. Keep them with their accepted answers (keep_wrong=1.0; "
        "--keep-wrong 1), call more answers right (right='f1'; --right f1), or take a better "
        "model; nothing is asked again with the same folder."
    )


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
    settings = _to_the_end(settings or SGICSettings.paper())
    check_arguments(llm, settings, corpus, batch)
    asked = checked_questions(questions)
    direct = [checked_text(plain(q, name_of(q, i), settings)) for i, q in enumerate(asked, 1)]
    model = llm if corpus.form == "sgic" else None
    name = None if model is None else model.name
    judge = _judge(settings, relevance, encoder)
    wanted = origin(asked, name, settings, corpus, scale, judge)
    if check_same(folder, wanted):
        done = load(folder)
        _forget(folder)
        return done
    check_folder(folder)
    if model is None:
        return _written(folder, direct, wanted | counts(direct, (), len(asked), 0))
    with _remembering(model, folder) as remembering:
        source = Source(World(llm=remembering, encoder=encoder), (*observers,), batch, relevance)
        traces, fitted = _traces(asked, source, settings, scale)
    found = [learned(q, d.id, t, corpus) for q, d, t in zip(asked, direct, traces, strict=True)]
    examples = composed(found, direct, corpus)
    check_left(examples, len(asked), settings)
    told = counts(examples, found, len(asked), settings.rounds) | {"scale": _told(fitted)}
    dataset = _written(folder, examples, wanted | told)
    _forget(folder)
    return dataset


def _to_the_end(settings: SGICSettings) -> SGICSettings:
    return replace(settings, certain_below=0.0, least_gain=None, choose="last", keep_prompts=True)


def _traces(
    questions: Sequence[Question], source: Source, settings: SGICSettings, scale: ScoreScale | None
) -> tuple[Sequence[Trace], ScoreScale]:
    """All rounds of each question, and the scale of the scores that they show."""
    if scale is None:
        [recorded] = record(questions, source, settings, ())
        return recorded.traces, recorded.scale
    flows = [
        calibrate(q.text, q.passages, settings, scale, relevance=source.relevance)
        for q in questions
    ]
    answers = run_many(flows, source.world, observers=source.observers, batch=source.batch)
    return [answer.trace for answer in answers], scale


def _told(scale: ScoreScale) -> dict[str, Any]:
    return {"estimator": scale.estimator, "means": list(scale.means)}


def _written(folder: Path, examples: Sequence[Example], told: Mapping[str, Any]) -> Dataset:
    return Dataset(tuple(examples), write(folder, examples, told))


@contextmanager
def _remembering(llm: LLM, folder: Path) -> Iterator[LLM]:
    if isinstance(llm, CachedLLM):
        yield llm
        return
    with CachedLLM(llm, folder / UNFINISHED) as remembering:
        yield remembering


def _forget(folder: Path) -> None:
    with writing(folder):
        for path in folder.glob(f"{UNFINISHED}*"):  # SQLite's log stands beside it
            path.unlink()


def _judge(
    settings: SGICSettings, relevance: Relevance | None, encoder: Encoder | None
) -> str | None:
    """What scores the documents in the model's place."""
    if settings.source == "encoder" and encoder is not None:
        return encoder.name
    return named(relevance) if settings.source == "relevance" and relevance else None


SAME = ("llm", "questions_sha256", "settings", "corpus", "given_scale", "judge")
"""What two builds must share to give the same data."""


def origin(
    questions: Sequence[Question],
    llm: str | None,
    settings: SGICSettings,
    corpus: CorpusSettings,
    scale: ScoreScale | None,
    judge: str | None,
) -> dict[str, Any]:
    """All that the examples depend on, save the model's answers; plain values for JSON.

    Args:
        llm: the model's name; None for examples that no model was asked for.
        scale: the one that was handed in.
        judge: what scores the documents in the place of the model.
    """
    told = {
        "version": _version(),
        "llm": llm,
        "questions": len(questions),
        "questions_sha256": _digest(questions),
        "settings": asdict(settings),
        "corpus": corpus.as_dict(),
        "given_scale": None if scale is None else list(scale.means),
        "judge": judge,
    }
    return json.loads(json.dumps(told))


def counts(
    examples: Sequence[Example], found: Sequence[Learned], questions: int, rounds: int
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


def check_same(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the folder holds the data that this build would make; False where it holds none.

    Raises:
        ArtifactMismatch: it holds other data; the message says in what they differ.
        UnreadableArtifact: there is a manifest that cannot be read.
    """
    if not (folder / MANIFEST).exists():
        return False
    found = read_manifest(folder)
    differing = [told for name in SAME for told in _differences(name, found, wanted)]
    if differing:
        raise ArtifactMismatch(
            f"{folder} holds other training data: {'; '.join(differing[:5])}. Name another folder, "
            f"or move its {LINES} and {MANIFEST} away."
        )
    return True


def _differences(
    name: str, found: Mapping[str, Any], wanted: Mapping[str, Any], above: str = ""
) -> Iterator[str]:
    before, now = found.get(name), wanted.get(name)
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for inner in now:
            yield from _differences(inner, before, now, f"{above}{name}.")
    elif name == "questions_sha256":
        yield "it was made of other questions"
    else:
        yield f"{above}{name} was {before!r} and is now {now!r}"


def _digest(questions: Sequence[Question]) -> str:
    lines = [[q.text, q.answers, q.id, [[p.title, p.text] for p in q.passages]] for q in questions]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def _version() -> str:
    try:
        return version("ltrag-plugins")
    except PackageNotFoundError:
        return "unknown"
