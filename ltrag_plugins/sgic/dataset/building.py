"""Training data that teaches a model to mend its answers without spoiling right ones.

Every question is calibrated through all rounds, as `fit` does; then the first right round of each
is looked for, and its prompt becomes an example (`corpus_choosing`). The scores in the prompts are
on the mean of each round over all questions (eq. 2), so they do not depend on where the rounds of
one question end.

References:
    Chen et al. (SGIC), section 3.3.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import writing
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.sgic.dataset.checks import (
    UNFINISHED,
    check_arguments,
    check_folder,
    check_left,
    checked_questions,
    checked_text,
    name_of,
)
from ltrag_plugins.sgic.dataset.choosing import composed, learned, plain
from ltrag_plugins.sgic.dataset.corpus import Dataset, Example, load, write
from ltrag_plugins.sgic.dataset.manifest import check_same, counts, origin
from ltrag_plugins.sgic.dataset.settings import CorpusSettings, named
from ltrag_plugins.sgic.documents import Relevance
from ltrag_plugins.sgic.fitting.recording import Source, Trace, record
from ltrag_plugins.sgic.loop import calibrate
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Question

__all__ = ["CorpusSettings", "Dataset", "Example", "build", "load"]


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
