"""`DURTrainer`: from candidates, labelled questions and a model to a ranker.

A head can learn what is true of its training questions alone, and a small model often does better
with one or two shots than with five. So the trainer chooses at the end: the head as it was trained
or as it began, on questions that training did not see, and the number of shots, on all questions.

A run on disk is `checkpoint.safetensors`, replaced after every batch: as the draws of a batch
depend on seed, epoch and batch alone, a run that was killed ends where it would have ended.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from numbers import Integral
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, final

import numpy as np
from jaxtyping import Float
from safetensors import safe_open
from safetensors.numpy import save

from ltrag_plugins.artifacts import identity_of, reading, replace_file, writing
from ltrag_plugins.data import check_labelled, digest_of
from ltrag_plugins.dur.batch import Batch, TrainingCase, trained_batch
from ltrag_plugins.dur.feedback import (
    check_same_options,
    contextual_calibration,
    read_feedback,
    reward,
)
from ltrag_plugins.dur.head import Adam, Head, initial_head
from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import Shot, text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.shots import Preselector
from ltrag_plugins.errors import (
    ArtifactMismatch,
    InvalidInput,
    NoTokenProbabilities,
    checked,
    listed,
    path_of,
    require,
)
from ltrag_plugins.flow import Observer, World, check_world, embed, run
from ltrag_plugins.llm.base import LLM, Encoder, ScoringLLM
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.types import Question

_logger = logging.getLogger(__name__)
_Cases = Sequence[TrainingCase]
_History = tuple[Batch, ...]
_Observers = Sequence[Observer]
_FORMAT = 3  # of the checkpoint
_PARTS = ("head", "mean", "square")


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the model's replies were worth after training, and what follows from it."""

    questions: int  # held out: training did not see them
    trained: tuple[float, ...]  # mean reward with the best 0, 1, ..., K shots by the trained head
    start: tuple[float, ...]  # the same by the head as it was before training
    error: float  # standard error, over the questions, of the difference between the best of both
    everywhere: tuple[float, ...]  # as `trained`, over all questions, also those trained on
    calls: int  # prompts sent to find out
    tokens: int | None  # read and written; None: the model does not tell

    @property
    def head(self) -> Literal["trained", "start"]:
        """The trained one, unless the one before was better by more than the standard error."""
        lost = max(self.start[1:]) - max(self.trained[1:])
        return "start" if lost > self.error else "trained"

    @property
    def shots(self) -> int:
        """How many, at least 1, served that head best; the start over the held-out questions."""
        values = self.start if self.head == "start" else self.everywhere
        return 1 + int(np.argmax(values[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class TrainingResult:
    """What a training run leaves."""

    ranker: DURRanker
    history: tuple[Batch, ...]
    stopped: str | None
    """Why it ended before its last epoch; None: it did not."""
    choice: _Choice | None = None
    """How head and shots were chosen; None: nothing was held out, or the run was stopped."""

    @property
    def calls(self) -> int:
        """Prompts of all batches and of the choice, whether the model or its cache answered."""
        return sum(one.calls for one in (*self.history, self.choice) if one is not None)


@final
class DURTrainer:
    """Trains a ranking head from a model's own feedback. Equal candidates, questions, settings and
    answers give equal heads, to the last bit.

    Args:
        encoder: gives the vectors; it is not trained. Wrap it in a `CachedEncoder` to keep them.
        llm: the model whose answers are to get better. In a `CachedLLM` no prompt is paid twice.

    Raises:
        NoTokenProbabilities: the reward needs them, and the model does not score given text.
    """

    encoder: Encoder
    llm: LLM
    settings: DURSettings

    def __init__(self, encoder: Encoder, llm: LLM, *, settings: DURSettings | None = None) -> None:
        settings = checked(settings or DURSettings(), DURSettings, "settings", "DURSettings(...)")
        check_world(World(llm=llm, encoder=encoder))
        if settings.reward in ("rouge_l", "bleu"):
            require("evaluate")
        self._scores = isinstance(llm, ScoringLLM)
        for name, plain in (("reward", "match"), ("option_calibration", "none")):
            value = getattr(settings, name)
            if not self._scores and value in ("p_gold", "log_p_gold", "content-free", "batch"):
                why = f"{name}={value!r} needs the log-probability of given text"
                remedy = f"Use TransformersLLM, or {name}={plain!r}."
                raise NoTokenProbabilities(f"{why}, and {llm.name} does not tell it. {remedy}")
        if settings.reward == "auto":
            settings = replace(settings, reward="log_p_gold" if self._scores else "match")
        self.encoder, self.llm, self.settings = encoder, llm, settings

    def fit(
        self,
        candidates: Sequence[Shot] | None,
        validation: Sequence[Question],
        *,
        checkpoint: str | PathLike[str] | None = None,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        on_batch: Callable[[Batch], None] | None = None,
        observers: Sequence[Observer] = (),
    ) -> TrainingResult:
        """Train.

        Args:
            candidates: solved examples or passages that all questions share; None: each
                question's own `passages`.
            validation: questions with their accepted answers.
            checkpoint: a folder that is written after every batch; where it holds a run with
                the same arguments, that run goes on.
            max_calls, max_tokens: no batch is begun once so many prompts were sent, or tokens
                read and written. Where they leave no room for choosing the number of shots, the
                trained head answers with K.

        Raises:
            InvalidInput: nothing to train on, ids that come twice, or a reward that raised.
            MissingReferences: a question or example without an answer.
            ArtifactMismatch: the checkpoint belongs to another run.
            UnwritableArtifact: it cannot be written to.
            ModelFailed: the model raised; the batches before are in the checkpoint.
        """
        for name, most in (("max_calls", max_calls), ("max_tokens", max_tokens)):
            checked(most, Integral | None, name, "a whole number, or None")
        validation = listed(validation, "validation questions")
        candidates = None if candidates is None else listed(candidates, "candidates")
        settings, cases = self.settings, self._cases(candidates, validation)
        order, count = np.arange(len(cases)), settings.questions_learned(len(cases))
        if count < len(cases):
            order = np.random.default_rng([settings.seed, 4]).permutation(len(cases))
        learned_from, held_out = ([cases[i] for i in part] for part in np.split(order, [count]))
        batches = settings.batches(len(cases))
        # each vector once, in order
        offered = {row.tobytes(): row for case in cases for row in case.vectors}
        asked = [case.vector for case in cases]
        start = initial_head(np.stack([*asked, *offered.values()]), settings)
        path = None if checkpoint is None else path_of(checkpoint) / "checkpoint.safetensors"
        run = _identity(cases, settings, self.encoder, self.llm)
        adam, history, choice = _read(path, run) or (Adam.start(start), (), None)
        if len(history) > settings.epochs * batches:
            done = f"{checkpoint} holds a run of {len(history) // batches} epochs"
            raise ArtifactMismatch(f"{done}, more than epochs={settings.epochs}; name another")
        if path is not None and len(history) < settings.epochs * batches:
            with writing(path.parent), TemporaryFile(dir=path.parent):
                pass  # what cannot be written to is found out before anything is paid for
        stopped, sigma = None, history[-1].sigma if history else 0.0
        while len(history) < settings.epochs * batches:
            if stopped := _spent(history, max_calls, max_tokens):
                break
            epoch, number = divmod(len(history), batches)
            order = np.random.default_rng([settings.seed, 3, epoch]).permutation(count)
            first, place = number * settings.batch_size, (epoch, number)
            part = [learned_from[i] for i in order[first : first + settings.batch_size]]
            adam, batch = trained_batch(
                part, adam, self.llm, settings, start, sigma=sigma, place=place, observers=observers
            )
            history, choice, sigma = (*history, batch), None, batch.sigma
            _write(path, run, adam, history, choice)
            if on_batch is not None:
                on_batch(batch)
        if held_out and stopped is None and choice is None:
            free = 2 if settings.option_calibration == "content-free" else 1
            most = sum(
                (1 + min(settings.shots, len(case.candidates)))
                * (max(1, len(case.question.options)) * free if self._scores else 1)
                for case in [*learned_from, *held_out, *held_out]
            )
            stopped = _spent(history, max_calls, max_tokens, and_calls=most)
            if stopped is None:
                choice = self._choice(learned_from, held_out, adam.head, start, observers)
                _write(path, run, adam, history, choice)
        plus_or_minus = settings.reward in ("match", "contains")
        if plus_or_minus and history and all(batch.reward == -1 for batch in history):
            _logger.warning(
                "every reward was -1, so next to nothing was learned: no reply is an accepted "
                "answer%s",
                " (reward='contains' takes one among other words)" * (settings.reward == "match"),
            )
        head = start if choice and choice.head == "start" else adam.head
        shots = choice.shots if choice else settings.shots
        data = digest_of(validation)
        if candidates:
            data += f"; {digest_of(candidates, 'candidates')}"
        ranker = DURRanker(head, self.encoder, settings, sigma=sigma, shots=shots, data=data)
        return TrainingResult(ranker, history, stopped, choice)

    def _cases(
        self, candidates: Sequence[Shot] | None, validation: Sequence[Question]
    ) -> list[TrainingCase]:
        """Each question with the candidates that are ranked for it, all encoded."""
        _check(validation, candidates)
        if self.settings.option_calibration == "batch":
            check_same_options(validation)
        of = partial(text_of, encoded=self.settings.encoded)
        asked = self._encoded([of(replace(q, answers=())) for q in validation])
        pairs = [*zip(validation, asked, strict=True)]
        if candidates is None:
            texts = list(dict.fromkeys(text_of(p) for q in validation for p in q.passages))
            rows = dict(zip(texts, self._encoded(texts), strict=True))
            own = (np.stack([rows[text_of(p)] for p in q.passages]) for q in validation)
            return [
                TrainingCase(*pair, pair[0].passages, v) for pair, v in zip(pairs, own, strict=True)
            ]
        vectors = self._encoded([of(c) for c in candidates])
        preselector = Preselector.of(self.settings, candidates, vectors)
        pool, everything, cases = tuple(candidates), np.arange(len(candidates)), []
        for question, vector in pairs:
            picks = preselector.choose(question, vector)
            if not len(picks):
                why = f"there is no candidate but {question.text[:40]!r} itself"
                raise InvalidInput(f"{why}; a question is never its own example")
            chosen, rows = pool, vectors  # without a preselection no case has a copy
            if not np.array_equal(picks, everything):
                chosen, rows = tuple(candidates[i] for i in picks), vectors[picks]
            cases.append(TrainingCase(question, vector, chosen, rows))
        return cases

    def _encoded(self, texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        return run(embed(*texts), World(encoder=self.encoder)).astype(float)

    def _choice(
        self, seen: _Cases, held_out: _Cases, trained: Head, start: Head, observers: _Observers
    ) -> _Choice:
        """What the trained head and the one before are worth, by the number of shots."""
        counter = CostCounter()
        watching = (*observers, counter)
        by_trained = self._by_shots([*seen, *held_out], trained, watching)
        unseen = by_trained[:, len(seen) :]
        pairs = (trained.weight, start.weight), (trained.bias, start.bias)
        same = all(np.array_equal(*pair) for pair in pairs)  # no batch has taught it anything
        by_start = unseen if same else self._by_shots(held_out, start, watching)
        best = [rows[1 + int(np.argmax(rows[1:].mean(axis=1)))] for rows in (unseen, by_start)]
        rows = (unseen, by_start, by_trained)
        own, old, everywhere = (tuple(row.mean(axis=1).tolist()) for row in rows)
        error = float(np.std(best[0] - best[1], ddof=1) / np.sqrt(len(held_out)))
        spent = counter.cost.calls, counter.cost.tokens
        return _Choice(len(held_out), own, old, error, everywhere, *spent)

    def _by_shots(
        self, cases: _Cases, head: Head, observers: _Observers
    ) -> Float[np.ndarray, "counts questions"]:
        """What the model's reply to each case is worth with the best 0, 1, ..., K shots."""
        settings = replace(self.settings, stop_at_turn=False)
        if settings.reward == "log_p_gold":
            # in a mean of logarithms a single hopeless question would outweigh many others
            settings = replace(settings, reward="p_gold")
        picks = [top(head.scores(case.vector, case.vectors), settings.shots) for case in cases]
        asked = [
            (case.question, case.ladder(best)) for case, best in zip(cases, picks, strict=True)
        ]
        found, values = read_feedback(asked, self.llm, settings, observers), []
        for j in range(max(map(len, found))):
            # where a question has fewer candidates, all of them are its best j
            rung = [row[min(j, len(row) - 1)] for row in found]
            if settings.option_calibration == "batch":
                rung = contextual_calibration(rung)
            values.append([reward(f, settings) for f in rung])
        return np.array(values)


def _check(validation: Sequence[Question], candidates: Sequence[Shot] | None) -> None:
    """Refuse what nothing can be learned from; `candidates` None: the questions' own passages."""
    for kind, items in (("validation questions", validation), ("candidates", candidates)):
        if items is not None and not items:
            raise InvalidInput(f"there are no {kind}; give at least one")
    for one in candidates or ():
        checked(one, Shot, "a candidate", "a Question(text, answers) or a Passage(text)")
    check_labelled([*validation, *(c for c in candidates or () if isinstance(c, Question))])
    ids = Counter(one.id for one in candidates or () if one.id)
    if ids and max(ids.values()) > 1:
        why = f"several candidates have the same id {ids.most_common(1)[0][0]!r}"
        raise InvalidInput(f"{why}; give each its own, or leave ids empty")
    for question in validation:
        name = repr(question.text[:40])
        if candidates is None and not question.passages:
            raise InvalidInput(f"{name} has no passages of its own; add some, or give candidates")
        if question.options and not set(question.options) & set(question.answers):
            both = f"{list(question.answers)} among its options {list(question.options)}"
            raise InvalidInput(f"{name} has none of the accepted answers {both}; write them alike")


def _spent(
    history: _History, max_calls: int | None, max_tokens: int | None, *, and_calls: int = 0
) -> str | None:
    """What was spent, if there is no room for more; with `and_calls`, if not for so many more."""
    calls = sum(batch.calls for batch in history)
    more = f"; up to {and_calls} more would choose the number of shots" if and_calls else ""
    if max_calls is not None and calls + and_calls >= max_calls + bool(and_calls):
        return f"{calls} calls of {max_calls} were made{more}"
    if max_tokens is not None:
        counts = [batch.tokens for batch in history]
        if None in counts:
            raise InvalidInput("the model does not count its tokens; bound the run by max_calls")
        tokens = sum(filter(None, counts))
        if tokens * (1 + and_calls / max(1, calls)) >= max_tokens:
            return f"{tokens} tokens of {max_tokens} were read and written{more}"
    return None


def _write(
    path: Path | None, run: str, adam: Adam, history: _History, choice: _Choice | None
) -> None:
    """Replace the checkpoint of the run with this `_identity`."""
    if path is None:
        return
    heads = {f"{part}.{n}": getattr(adam, part) for part in _PARTS for n in ("weight", "bias")}
    arrays = {k: np.ascontiguousarray(getattr(h, k.split(".")[1])) for k, h in heads.items()}
    body = {"format": _FORMAT, "run": run, "steps": adam.steps}
    body |= {"choice": choice and asdict(choice), "history": [asdict(one) for one in history]}
    with writing(path.parent):
        replace_file(path, save(arrays, metadata={"state": json.dumps(body)}))


def _read(path: Path | None, run: str) -> tuple[Adam, _History, _Choice | None] | None:
    """What was written; None where there is nothing yet."""
    if path is None or not path.exists():
        return None
    with reading(f"{path} is no readable checkpoint", "Move it away to begin again."):
        with safe_open(path, framework="numpy") as file:
            body = json.loads((file.metadata() or {})["state"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        heads = [Head(arrays[f"{part}.weight"], arrays[f"{part}.bias"]) for part in _PARTS]
        adam, known, choice = Adam(*heads, steps=body["steps"]), body["run"], body["choice"]
        history = tuple(Batch(**batch) for batch in body["history"])
        if choice is not None:
            lists = {k: tuple(v) for k, v in choice.items() if isinstance(v, list)}
            choice = _Choice(**choice | lists)
    if known != run:
        what = "candidates, questions, settings, encoder or model"
        remedy = "Train in another folder, or move it away to begin again."
        raise ArtifactMismatch(f"{path} belongs to a run with other {what}. {remedy}")
    return adam, history, choice


def _identity(cases: _Cases, settings: DURSettings, encoder: Encoder, llm: LLM) -> str:
    """A hash of all that a run's numbers depend on, save the answers themselves."""

    def plain(item: Shot) -> list[object]:
        if isinstance(item, Question):
            return [item.text, item.answers, item.options, item.context]
        return [item.title, item.text]

    values = asdict(replace(settings, reward="match")) | {"reward": identity_of(settings.reward)}
    del values["epochs"]
    lines = [[plain(case.question), [*map(plain, case.candidates)]] for case in cases]
    content = [_FORMAT, values, encoder.name, llm.name, *lines]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
