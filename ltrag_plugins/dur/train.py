"""`DURTrainer`: from candidates, labelled questions and a model to a ranker.

After the last epoch it chooses whether to answer with the head as it was trained or as it began,
and with how many shots. A head can learn what is true of its training questions alone, and a small
model often does better with one or two shots than with five. The first is found out on questions
that training did not see, which are enough to notice a loss; the second, a smaller matter, takes
all questions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float

from ltrag_plugins.dur.batch import (
    Batch,
    Choice,
    State,
    TrainingCase,
    TrainingRun,
    climb,
    trained_batch,
)
from ltrag_plugins.dur.checkpoint import Checkpoint
from ltrag_plugins.dur.feedback import (
    PROMPTS_AT_ONCE,
    Feedback,
    Wanted,
    contextual_calibration,
    option_prior,
    reward,
)
from ltrag_plugins.dur.head import Adam, Head, initial_head
from ltrag_plugins.dur.policy import top
from ltrag_plugins.dur.prompts import Shot, checked_candidates, text_of
from ltrag_plugins.dur.ranker import DURRanker
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.dur.shots import Preselector
from ltrag_plugins.errors import (
    ArtifactMismatch,
    InvalidInput,
    MissingReferences,
    NoTokenProbabilities,
)
from ltrag_plugins.flow import Observer, World, run_many
from ltrag_plugins.llm.base import LLM, Encoder, ScoringLLM
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.types import Question


@dataclass(frozen=True, slots=True, eq=False)
class TrainingResult:
    """What a training run leaves."""

    ranker: DURRanker
    history: tuple[Batch, ...]
    stopped: str | None
    """Why it ended before its last epoch; None: it did not."""
    choice: Choice | None = None
    """How head and number of shots were chosen; None: nothing was held out, or the run was
    stopped."""

    @property
    def calls(self) -> int:
        """Prompts of all batches and of the choice, whether the model or its cache answered."""
        more = 0 if self.choice is None else self.choice.calls
        return more + sum(batch.calls for batch in self.history)


@final
class DURTrainer:
    """Trains a ranking head from a model's own feedback.

    The head's numbers depend on nothing but the arguments: equal candidates, questions,
    settings and answers give equal heads, to the last bit.

    Args:
        encoder: gives the vectors; it is not trained. Wrap it in a `CachedEncoder` to keep them.
        llm: the model whose answers are to get better. Wrap it in a `CachedLLM`, and no prompt
            is paid for twice, in this run or the next.

    Raises:
        NoTokenProbabilities: the reward needs them, and the model does not score given text.
    """

    def __init__(self, encoder: Encoder, llm: LLM, *, settings: DURSettings | None = None) -> None:
        self.encoder, self.llm = encoder, llm
        self._scores = isinstance(llm, ScoringLLM)
        self.settings = self._resolved(settings or DURSettings())

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
            validation: questions with their accepted answers. They must not be candidates: a
                question is never its own example.
            checkpoint: a folder that is written after every batch; where it holds a run with
                the same arguments, that run goes on.
            max_calls, max_tokens: no batch is begun once so many prompts were sent, or tokens
                read and written; what was learned is kept. Where they leave no room for
                choosing the number of shots, the trained head answers with K.
            on_batch: gets each batch when it ends.

        Raises:
            InvalidInput: nothing to train on, ids that come twice, or a reward that raised.
            MissingReferences: a question or example without an answer.
            ArtifactMismatch: the checkpoint belongs to another run.
            ModelFailed: the model raised; the batches before are in the checkpoint.
        """
        settings = self.settings
        cases = self._cases(candidates, validation)
        # each vector once, in order
        offered = {row.tobytes(): row for case in cases for row in case.vectors}
        start = initial_head(
            settings.initial,
            np.stack([*(case.vector for case in cases), *offered.values()]),
            dim=settings.dim,
            sharpness=settings.sharpness,
            random=np.random.default_rng([settings.seed, 0]),
        )
        state, saved = State(start, Adam.start(start)), None
        if checkpoint is not None:
            saved = Checkpoint.of(Path(checkpoint), cases, settings, self.encoder, self.llm)
            state = saved.read() or state
            if (state.epoch, state.batch) > (settings.epochs, 0):
                raise ArtifactMismatch(
                    f"{checkpoint} holds a run of {state.epoch} epochs, more than "
                    f"epochs={settings.epochs}; name another folder, or as many"
                )
        wanted = Wanted.in_training(settings, scores=self._scores)
        run = TrainingRun(World(llm=self.llm), settings, wanted, start, observers)
        order = list(range(len(cases)))
        count = settings.questions_learned(len(cases))
        if count < len(cases):
            order = np.random.default_rng([settings.seed, 4]).permutation(len(cases)).tolist()
        learned_from, held_out = (
            [cases[i] for i in part] for part in (order[:count], order[count:])
        )
        stopped = None
        while state.epoch < settings.epochs:
            stopped = _spent(state.history, max_calls, max_tokens)
            if stopped is not None:
                break
            state = trained_batch(state, self._members(learned_from, state), run)
            if state.batch == settings.batches(len(cases)):
                state = replace(state, epoch=state.epoch + 1, batch=0)
            if saved is not None:
                saved.write(state)
            if on_batch is not None:
                on_batch(state.history[-1])
        if held_out and stopped is None and state.choice is None:
            most = self._most_calls([*learned_from, *held_out, *held_out])
            stopped = _spent(state.history, max_calls, max_tokens, and_calls=most)
            if stopped is None:
                state = replace(state, choice=_choice(learned_from, held_out, state.head, run))
                if saved is not None:
                    saved.write(state)
        head, shots, found = state.head, settings.shots, state.choice
        if found is not None:
            head, shots = (start if found.head == "start" else head), found.shots
        ranker = DURRanker(head, self.encoder, settings, sigma=state.sigma, shots=shots)
        return TrainingResult(ranker, state.history, stopped, found)

    def _split(self, cases: list[TrainingCase]) -> tuple[list[TrainingCase], list[TrainingCase]]:
        """The cases to train on, and those that are held out; none of these where they are few."""
        count = self.settings.questions_learned(len(cases))
        if count == len(cases):
            return cases, []
        order = np.random.default_rng([self.settings.seed, 4]).permutation(len(cases))
        return [cases[i] for i in order[:count]], [cases[i] for i in order[count:]]

    def _most_calls(self, cases: Sequence[TrainingCase]) -> int:
        """Most calls that choosing head and shots on these may take."""
        free = 2 if self.settings.option_calibration == "content-free" else 1
        return sum(
            (1 + min(self.settings.shots, len(case.candidates)))
            * (max(1, len(case.question.options)) * free if self._scores else 1)
            for case in cases
        )

    def _members(self, cases: Sequence[TrainingCase], state: State) -> list[TrainingCase]:
        """The questions of the next batch."""
        shuffle = np.random.default_rng([self.settings.seed, 3, state.epoch])
        first = state.batch * self.settings.batch_size
        order = shuffle.permutation(len(cases))[first : first + self.settings.batch_size]
        return [cases[i] for i in order]

    def _resolved(self, settings: DURSettings) -> DURSettings:
        """The settings with `reward` decided, if the model can serve them."""
        if not self._scores and settings.reward in ("p_gold", "log_p_gold"):
            raise NoTokenProbabilities(
                f"reward={settings.reward!r} needs the log-probability of given text, and "
                f"{self.llm.name} does not tell it. Load local weights with TransformersLLM, or "
                "use reward='match'."
            )
        if not self._scores and settings.option_calibration != "none":
            raise NoTokenProbabilities(
                f"option_calibration needs the log-probability of each option, and "
                f"{self.llm.name} does not tell it. Use option_calibration='none'."
            )
        if settings.reward == "auto":
            return replace(settings, reward="log_p_gold" if self._scores else "match")
        return settings

    def _cases(
        self, candidates: Sequence[Shot] | None, validation: Sequence[Question]
    ) -> list[TrainingCase]:
        if not validation:
            raise InvalidInput("there are no validation questions to learn from")
        for i, question in enumerate(validation):
            _check_question(i, question)
        asked = self.encoder.encode([q.text for q in validation]).astype(float)
        if candidates is None:
            return self._own_passages(validation, asked)
        checked_candidates(candidates)
        vectors = self.encoder.encode([text_of(c) for c in candidates]).astype(float)
        how, size = self.settings.preselect, self.settings.preselected
        preselector = Preselector(candidates, vectors, how=how, size=size)
        cases = []
        for question, vector in zip(validation, asked, strict=True):
            picks = preselector.choose(question, vector)
            if not len(picks):
                raise InvalidInput(
                    f"every candidate is the question {question.text[:40]!r} itself; a question "
                    "is never its own example. Add others."
                )
            chosen = tuple(candidates[i] for i in picks)
            cases.append(TrainingCase(question, vector, chosen, vectors[picks]))
        return cases

    def _own_passages(
        self, validation: Sequence[Question], asked: Float[np.ndarray, "questions dim"]
    ) -> list[TrainingCase]:
        for question in validation:
            if not question.passages:
                raise InvalidInput(
                    f"{question.text[:40]!r} has no passages of its own; add some, or give "
                    "candidates that all questions share"
                )
        texts = dict.fromkeys(text_of(p) for question in validation for p in question.passages)
        rows = dict(zip(texts, self.encoder.encode(list(texts)).astype(float), strict=True))
        return [
            TrainingCase(q, v, q.passages, np.stack([rows[text_of(p)] for p in q.passages]))
            for q, v in zip(validation, asked, strict=True)
        ]


def _choice(
    learned_from: Sequence[TrainingCase],
    held_out: Sequence[TrainingCase],
    trained: Head,
    run: TrainingRun,
) -> Choice:
    """What the trained head and the one before are worth, by the number of shots."""
    counter = CostCounter()
    watched = replace(run, observers=[*run.observers, counter])
    by_trained = _by_shots([*learned_from, *held_out], trained, watched)
    unseen = by_trained[:, len(learned_from) :]
    # where no batch was trained they are one and the same
    by_start = unseen if trained is run.start else _by_shots(held_out, run.start, watched)
    best = [rows[1 + int(np.argmax(rows[1:].mean(axis=1)))] for rows in (unseen, by_start)]
    return Choice(
        questions=len(held_out),
        trained=tuple(unseen.mean(axis=1).tolist()),
        start=tuple(by_start.mean(axis=1).tolist()),
        error=float(np.std(best[0] - best[1], ddof=1) / np.sqrt(len(held_out))),
        everywhere=tuple(by_trained.mean(axis=1).tolist()),
        calls=counter.cost.calls,
        tokens=counter.cost.tokens,
    )


def _by_shots(
    cases: Sequence[TrainingCase], head: Head, run: TrainingRun
) -> Float[np.ndarray, "counts questions"]:
    """What the model's reply to each case is worth with the best 0, 1, ..., K shots."""
    settings = run.settings
    whole = replace(settings, rungs="all", credit="outcome", stop_at_turn=False)
    ranked = [top(head.scores(c.vector, c.vectors), settings.shots) for c in cases]
    flows = [climb(c, picks, whole, run.wanted) for c, picks in zip(cases, ranked, strict=True)]
    found = run_many(flows, run.world, observers=run.observers, batch=PROMPTS_AT_ONCE)
    values = []
    for j in range(max(map(len, found))):
        # where a question has fewer candidates, all of them are its best j
        rung = [row[min(j, len(row) - 1)] for row in found]
        if settings.option_calibration == "batch":
            rung = contextual_calibration(rung, option_prior(rung))
        values.append([_worth(f, settings) for f in rung])
    return np.array(values)


def _worth(found: Feedback, settings: DURSettings) -> float:
    """The reward; "log_p_gold" counts as the probability itself.

    In a mean of logarithms a single hopeless question would outweigh many others.
    """
    if settings.reward == "log_p_gold":
        return math.exp(found.log_p_gold)
    return reward(found, settings)


def _check_question(i: int, question: Question) -> None:
    if not isinstance(question, Question):
        raise InvalidInput(
            f"validation question {i + 1} is a {type(question).__name__}; give "
            "Question(text, answers)"
        )
    if not question.answers:
        raise MissingReferences(
            f"{question.text[:40]!r} has no accepted answer to learn from; add one, or leave the "
            "question out"
        )
    if question.options and not set(question.options) & set(question.answers):
        raise InvalidInput(
            f"{question.text[:40]!r} has none of the accepted answers {list(question.answers)} "
            f"among its options {list(question.options)}; write them alike"
        )


def _spent(
    history: Sequence[Batch],
    max_calls: int | None,
    max_tokens: int | None,
    *,
    and_calls: int = 0,
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
