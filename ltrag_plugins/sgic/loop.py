"""The loop: answer, measure, look again with scores in view, keep the least uncertain answer.

The rival of the rounds is `sampled`: several answers to the first prompt, the surest wins.

References:
    Chen et al. (SGIC), sections 3.1 and 3.2, eq. 1-3 and table 1; section 5.2 and figure 3 (1 to 5
    samples at a temperature of 0.7).
"""

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import final

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, LtragError
from ltrag_plugins.flow import Flow, ask, compute
from ltrag_plugins.sgic import documents as sources
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, Stop, answer_key
from ltrag_plugins.sgic.budget import Budget
from ltrag_plugins.sgic.documents import Documents, Relevance, Truth
from ltrag_plugins.sgic.prompts import Shown, cut_to_words, one_line
from ltrag_plugins.sgic.scale import ScoreScale, WrongnessCalibration, document_scores, rounding
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.types import Generation, Passage
from ltrag_plugins.uncertainty import AGREEMENT, Measured, calls_for, estimate, measured


def calibrate(
    question: str,
    passages: Sequence[Passage],
    settings: SGICSettings | None = None,
    scale: ScoreScale | None = None,
    *,
    wrongness: WrongnessCalibration | None = None,
    relevance: Relevance | None = None,
    truth: Truth | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Flow[CalibratedAnswer]:
    """Answer a question from passages, and look again while the answer is uncertain.

    Without passages the model answers from what it knows, once. Passages that say the same are
    asked about once, and all scored.

    Args:
        passages: what was retrieved; with `SGICSettings.steps()`, reasoning steps.
        settings: None: the defaults.
        scale: None: 0.5 in every round.
        wrongness: gives the answer its probability of being wrong.
        relevance: scores the passages, for `source="relevance"`.
        truth: scores passages and answers, for `source="oracle"`.
        on_round: is called with each answer as it comes, the first one too.

    Raises:
        EmptyQuestion: the question has no words.
        InvalidInput: passages are not of the type `Passage`; the source of document scores was
            not handed in; the first prompt alone could pass `max_tokens`.
        ArtifactMismatch: scale or calibration belong to another estimator, or not together.
        NoTokenProbabilities: the model gives none; set `estimator="agreement"`.
        ModelError, PromptTooLong: the model failed; see `SGICSettings.on_error`.
    """
    session = Session(question, passages, settings, scale, relevance=relevance, truth=truth)
    if wrongness is not None:
        wrongness.check(session.scale)
    settings, notes, tell = session.settings, list[str](), on_round or (lambda _: None)
    tell(first := (yield from session.answer()))
    stop, error = reason_to_stop(session.trace, settings), None
    if not session.documents.texts:
        stop = stop or "no documents"
        notes += ["answered without documents, for which no P(wrong) was fitted"] * bool(wrongness)
    if {sample.text for sample in first.samples} == {first.generation.text}:
        notes.append(
            "all samples are the answer word for word; with a model that does not heed the "
            "temperature that says nothing about how sure it is"
        )
    needed = settings.score_documents == "always" or (not stop and session.reads_scores)
    try:
        if session.documents.texts and needed and (limit := (yield from session.score_documents())):
            notes.append(
                "the documents were not scored: one prompt for each would pass "
                f"{limit}={getattr(settings, limit)}"
            )
            if settings.earlier == "none" and session.reads_scores:
                stop = stop or limit  # a round would ask what round 0 asked
        while not stop and not (stop := session.limit()):
            tell((yield from session.answer()))
            stop = reason_to_stop(session.trace, settings)
    except LtragError as failure:
        if settings.on_error == "raise":
            raise
        stop, error = "error", f"{type(failure).__name__}: {failure}"
    return session.result(stop or "rounds", notes, error, wrongness)


def sampled(
    question: str,
    passages: Sequence[Passage],
    samples: int,
    settings: SGICSettings | None = None,
    scale: ScoreScale | None = None,
) -> Flow[CalibratedAnswer]:
    """Sample answers to the first prompt of `calibrate`, and return the least uncertain.

    One call a sample, seeded `settings.seed`, + 1, ..., until a limit could be passed (see `stop`).
    The estimator "agreement" holds each sample against the others.

    Args:
        samples: K, at least 1; with "agreement" at least 2.
        settings: documents, prompt, estimator, `temperature` (paper: 0.7), seed and limits.
        scale: the mean of its round 0 serves all samples.

    Returns:
        The trace holds the samples in their order; `round` is the place of the best.

    Raises:
        InvalidInput: there are too few samples; else as `calibrate`.
    """
    settings = replace(settings or SGICSettings(), source="uncertainty", choose="least uncertain")
    settings.check_samples(samples)
    session = Session(question, passages, settings, scale)
    budget = session.budget = Budget(settings, 1)  # one call a sample, whatever the estimator
    prompt, drawn, stop = session.prompt(), list[Generation](), None
    while len(drawn) < samples and not (stop := budget.exceeded([prompt])):
        budget.sent([prompt])
        [reply] = yield from ask(
            prompt,
            max_tokens=settings.answer_tokens,
            stop=settings.stop,
            temperature=settings.temperature,
            seed=settings.seed + len(drawn),
            may_repeat=partial(budget.repeats, [prompt]),
        )
        budget.received([prompt], [reply])
        drawn.append(reply)
    session.trace = session.as_rounds(drawn)
    return session.result(stop or "rounds")


@final
class Session:
    """One question on its way through the rounds; raises as `calibrate` says."""

    def __init__(
        self,
        question: str,
        passages: Sequence[Passage],
        settings: SGICSettings | None = None,
        scale: ScoreScale | None = None,
        *,
        relevance: Relevance | None = None,
        truth: Truth | None = None,
    ) -> None:
        self.settings = settings = settings or SGICSettings()
        self.scale = scale or ScoreScale(settings.estimator)
        self.question = checked_question(question)
        self.scale.check(settings.estimator)
        # of an encoder only the driver knows
        sources.check_source(settings.source, relevance=relevance, oracle=truth, encoder="")
        self.documents = Documents.of(passages, settings)
        known, count = () if truth is None else truth.relevant, len(self.documents.texts)
        if settings.source == "oracle" and len(known) != count:
            raise InvalidInput(f"the truth is about {len(known)} passages, and there are {count}")
        self.trace: tuple[Round, ...] = ()
        self.document_answers: tuple[Measured, ...] = ()
        """Those that were asked for to score the documents."""
        self.budget = Budget(settings, calls_for(1, settings.estimator, settings.samples))
        self._relevance, self._truth = relevance, truth
        self._first, self._next = "", ""  # prompts; "" where not rendered yet

    def branch(self, settings: SGICSettings) -> "Session":
        """A copy that goes on with other settings from here; their estimator is the same."""
        other = copy(self)
        other.settings, other.budget, other._next = settings, copy(self.budget), ""
        scores = [d.score for d in self.documents.scored if d.score is not None]
        if scores:
            other.documents = self.documents.with_scores(scores, settings.cut_to)
        return other

    def rescale(self, scale: ScoreScale) -> None:
        """Go on with another scale; the answers so far get their scores on it."""
        self.scale, self.trace, self._next = scale, scale.rescored(self.trace), ""

    @property
    def reads_scores(self) -> bool:
        """Whether a round reads the scores of documents, and can show else than the first did."""
        settings, count = self.settings, len(self.documents.texts)
        plain = settings.earlier == settings.documents == "none"
        return scores_documents(settings) and not (plain and (settings.cut_to or count) >= count)

    def prompt(self) -> str:
        """Of the next round, rendered once; the first one is refused if it may not be sent."""
        if not self._next:
            settings, earlier = self.settings, []
            for one in self.trace if settings.earlier != "none" else ():
                # a token is hardly ever more than a word: only what overran its limit is cut
                text = cut_to_words(one_line(one.text), settings.answer_tokens)
                earlier.append(Shown(text, one.score if settings.earlier == "scores" else None))
            shown = self.documents.shown(settings if self.trace else None)
            self._next = settings.templates.render(self.question, shown, earlier)
            self._first = self._first or self._next
        if not self.trace and (limit := self.budget.exceeded([self._next])):
            raise InvalidInput(
                f"the first prompt alone could pass {limit}={getattr(self.settings, limit)}. Raise "
                "it, or give fewer or shorter documents."
            )
        return self._next

    def limit(self) -> Stop | None:
        """The limit that a further round could pass; "rounds" where it would ask the same again."""
        # only without earlier answers can a prompt be an earlier one
        if self.settings.earlier == "none" and self.prompt() == self._first:
            return "rounds"
        return self.budget.exceeded([self.prompt()])

    def answer(self) -> Flow[Round]:
        """Ask for the answer of the next round, and add it to the trace."""
        settings, number = self.settings, len(self.trace)
        [found] = yield from self._ask([prompt := self.prompt()])
        text, uncertainty = self.own_words(number, found.generation, found.samples)
        score = self.scale.score(uncertainty, number)
        if settings.source == "oracle" and self._truth is not None:
            score = self._truth.answer_score(self.question, text, number, settings.seed)
        shown = prompt if settings.keep_prompts else None
        answer = Round(number, text, uncertainty, score, found.generation, found.samples, shown)
        self.trace, self._next = (*self.trace, answer), ""
        return answer

    def as_rounds(self, drawn: Sequence[Generation]) -> tuple[Round, ...]:
        """Sampled answers with their scores, on the scale of round 0: all saw the same prompt."""
        rounds = []
        for i, one in enumerate(drawn):
            others = [*drawn[:i], *drawn[i + 1 :]]
            alone = self.settings.estimator == AGREEMENT and not others  # nothing to agree with
            uncertainty = 1.0 if alone else estimate(one, self.settings.estimator, others)
            score = self.scale.score(uncertainty)
            rounds.append(Round(i, one.text.strip(), uncertainty, score, one))
        return tuple(rounds)

    def own_words(
        self, number: int, said: Generation, samples: Sequence[Generation]
    ) -> tuple[str, float]:
        """The text and the uncertainty of an answer, without what it repeats of the prompt."""
        settings = self.settings
        # the first prompt has no form to repeat, nor have those without scores and earlier answers
        if number and (settings.earlier != "none" or settings.documents == "scores"):
            without_echo = settings.templates.without_echo
            said, samples = without_echo(said), tuple(map(without_echo, samples))
        return said.text.strip(), estimate(said, settings.estimator, samples)

    def score_documents(self) -> Flow[Stop | None]:
        """Score the documents, or return the limit for which they are left without scores."""
        settings, documents = self.settings, self.documents
        passages = [document.passage for document in documents.scored]
        if settings.source == "encoder":
            scores = yield from sources.encoder_scores(self.question, passages)
        elif settings.source == "relevance" and self._relevance is not None:
            judge = partial(sources.relevance_scores, self._relevance, self.question, passages)
            scores = yield from compute(judge)
        elif settings.source == "oracle" and self._truth is not None:
            scores = self._truth.document_scores(self.question, settings.seed)
        else:
            ask_about = partial(settings.templates.render, self.question)
            prompts = [ask_about([Shown(text)]) for text in documents.texts]
            # the only document's answer is the first answer
            answers = {self._first: Measured(self.trace[0].generation, self.trace[0].uncertainty)}
            if once := [prompt for prompt in dict.fromkeys(prompts) if prompt != self._first]:
                if limit := self.budget.exceeded(once, and_calls=int(settings.rounds > 0)):
                    return limit
                self.document_answers = tuple((yield from self._ask(once)))
                answers |= zip(once, self.document_answers, strict=True)
            found = [answers[prompt] for prompt in prompts]
            documents = documents.with_answers(found)
            doubts = [answer.uncertainty for answer in found]
            scores = document_scores(doubts, noise=rounding(doubts, settings.estimator))
        self.documents, self._next = documents.with_scores(scores, settings.cut_to), ""
        return None

    def result(
        self,
        stop: Stop,
        notes: Sequence[str] = (),
        error: str | None = None,
        wrongness: WrongnessCalibration | None = None,
    ) -> CalibratedAnswer:
        """What came of it."""
        settings, scored, budget = self.settings, self.documents.scored, self.budget
        best, notes = best_round(self.trace, settings.choose), [*notes]
        if cut := sum(document.dropped > 0 for document in scored):
            words = f"{settings.document_words} words"
            notes.insert(0, f"{cut} of {len(scored)} documents were cut to {words}")
        answers = [(one.text, one.uncertainty) for one in self.trace]
        answers += [(d.answer, d.uncertainty) for d in scored if d.answer is not None]
        lost = sum(bool(text) and doubt == 1 for text, doubt in answers)
        if settings.estimator == "product" and lost:
            notes.append(
                f"{lost} of {len(answers)} answers are as uncertain as can be, as the product of "
                "the probabilities of a long answer is; estimator='length_normalized' tells such "
                "apart"
            )
        return CalibratedAnswer(
            *(best.text, best.uncertainty, best.score, best.number),
            stop,
            settings.estimator,
            p_wrong=wrongness.probability(best.score) if wrongness and scored else None,
            documents=scored,
            trace=self.trace,
            notes=(*notes, *budget.notes()),
            error=error,
            calls=budget.calls,
            tokens=budget.tokens,
        )

    def _ask(self, prompts: Sequence[str]) -> Flow[list[Measured]]:
        settings = self.settings
        self.budget.sent(prompts)
        found = yield from measured(
            *prompts,
            estimator=settings.estimator,
            max_tokens=settings.answer_tokens,
            stop=settings.stop,
            samples=settings.samples,
            temperature=settings.temperature,
            seed=settings.seed,
            may_repeat=partial(self.budget.repeats, prompts),
        )
        self.budget.received(prompts, [r for one in found for r in (one.generation, *one.samples)])
        return found


def scores_documents(settings: SGICSettings) -> bool:
    """Whether a round needs the scores of documents."""
    return settings.documents != "none" or settings.cut_to is not None


def reason_to_stop(trace: Sequence[Round], settings: SGICSettings) -> Stop | None:
    """Why the answers so far need no further round; None if they do."""
    last = trace[-1]
    if last.score < settings.certain_below:
        return "certain"
    if settings.choose == "repeated" and _repeated(trace):
        return "settled"
    if settings.least_gain is not None and len(trace) > 1:
        before = trace[-2]
        same = before.text == last.text or answer_key(before.text) == answer_key(last.text)
        if same and before.score - last.score <= settings.least_gain:
            return "settled"
    return "rounds" if last.number >= settings.rounds else None


def best_round(trace: Sequence[Round], choose: Choose) -> Round:
    """The round whose answer is returned; a blank one only where all are blank.

    "least uncertain" is by score, as uncertainties grow with the rounds; the first of equals.

    References:
        Chen et al. (SGIC), 4.1 (least uncertain) and 4.3 (repeated, after Huang et al., 2024).
    """
    spoken = [one for one in trace if one.text] or list(trace)
    if choose == "least uncertain":
        return min(spoken, key=lambda one: one.score)
    return (choose == "repeated" and _repeated(spoken)) or spoken[-1]


def checked_question(question: str) -> str:
    """The question without blanks around it."""
    if not isinstance(question, str):
        raise InvalidInput(f"a question is a string, got {type(question).__name__}")
    if not re.search(r"\w", question):
        raise EmptyQuestion(f"the question {question!r} has no words; ask something")
    return question.strip()


def _repeated(trace: Sequence[Round]) -> Round | None:
    """The first round whose answer says what an earlier one said; see `answer_key`."""
    keys = [answer_key(one.text) if one.text else None for one in trace]
    again = (one for i, one in enumerate(trace) if one.text and keys[i] in keys[:i])
    return next(again, None)
