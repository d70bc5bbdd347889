"""The loop: answer, measure, look again with scores in view, keep the least uncertain answer.

Round 0 answers from all documents. If that answer is not certain enough, each document is asked
about alone (all in one request), and up to K rounds follow, each with the documents' scores and
all earlier answers with theirs.

References:
    Chen et al. (SGIC), sections 3.1 and 3.2, eq. 1-3 and table 1.

One question on its way through the loop: its prompts, requests, scores and limits.

Which round's answer to return, and when a further round is not worth asking for.

The rival of the rounds: several sampled answers over the same documents, the surest one wins.

References:
    Chen et al. (SGIC), section 5.2 and figure 3 (1 to 5 samples at a temperature of 0.7).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, LtragError
from ltrag_plugins.flow import Flow, ask, compute
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, Stop, answer_key
from ltrag_plugins.sgic.budget import Budget
from ltrag_plugins.sgic.documents import (
    Documents,
    Relevance,
    Truth,
    encoder_scores,
    prepared,
    relevance_scores,
    true_answer_score,
    true_document_scores,
)
from ltrag_plugins.sgic.prompts import Said, render
from ltrag_plugins.sgic.sanitize import cut_to_words, one_line
from ltrag_plugins.sgic.scale import ScoreScale, document_scores, rounding
from ltrag_plugins.sgic.settings import Choose, SGICSettings
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Generation, Passage
from ltrag_plugins.uncertainty import (
    AGREEMENT,
    Measured,
    disagreement,
    estimate,
    measured,
    reestimate,
)

if TYPE_CHECKING:
    from ltrag_plugins.sgic.scale import WrongnessCalibration


@dataclass(frozen=True, slots=True)
class Case:
    """One question with all that is needed to answer it."""

    question: str
    documents: Documents
    settings: SGICSettings
    scale: ScoreScale
    budget: Budget
    relevance: Relevance | None
    truth: Truth | None

    @classmethod
    def of(
        cls,
        question: str,
        passages: Sequence[Passage],
        settings: SGICSettings | None,
        scale: ScoreScale | None,
        wrongness: "WrongnessCalibration | None",
        relevance: Relevance | None,
        truth: Truth | None,
    ) -> "Case":
        """Check what came in before anything is asked; raises as `calibrate` says."""
        settings = settings or SGICSettings()
        scale = scale or ScoreScale.default(settings.estimator)
        scale.check(settings.estimator)
        if wrongness is not None:
            wrongness.check(scale)
        asked = checked_question(question)
        documents = prepared(passages, settings)
        _check_source(settings, relevance, truth, len(documents.texts))
        return cls(asked, documents, settings, scale, Budget(settings), relevance, truth)

    @property
    def notes(self) -> list[str]:
        """What preparing the documents left out."""
        cut = sum(document.dropped > 0 for document in self.documents.scored)
        return [f"{cut} of {len(self.documents.texts)} documents were cut to "
                f"{self.settings.document_words} words"] if cut else []  # fmt: skip

    @property
    def all_are_kept(self) -> bool:
        """Whether a round could show nothing else than the first prompt did."""
        settings = self.settings
        return (
            settings.earlier == "none"
            and settings.documents == "none"
            and settings.cut_to is not None
            and settings.cut_to >= len(self.documents.texts)
        )

    def wants_scores(self, stop: Stop | None) -> bool:
        """Whether documents are to be scored, now that the first answer is known."""
        return self.settings.score_documents == "always" or (
            stop is None and self.settings.scores_documents
        )

    def prompt(self, trace: Sequence[Round], documents: Documents) -> str:
        """Of the round after those of the trace."""
        if not trace:
            return render(self.settings.templates, self.question, documents.plain)
        shown = documents.shown(self.settings)
        return render(self.settings.templates, self.question, shown, self._said(trace))

    def limit(self, trace: Sequence[Round], documents: Documents) -> Stop | None:
        """The limit that a further round could pass; "rounds" where it would ask the same again."""
        prompt = self.prompt(trace, documents)
        # only without earlier answers can a prompt be an earlier one
        if self.settings.earlier == "none" and prompt == self.prompt((), self.documents):
            return "rounds"
        return self.budget.exceeded([prompt])

    def answered(self, trace: Sequence[Round], documents: Documents) -> Flow[Round]:
        """Ask for the answer of the next round."""
        settings, prompt, number = self.settings, self.prompt(trace, documents), len(trace)
        if not trace and self.budget.exceeded([prompt]):
            raise InvalidInput(
                f"the first prompt may cost {self.budget.bound([prompt])} tokens, more than "
                f"max_tokens={settings.max_tokens}. Raise it, or give fewer or shorter "
                "documents."
            )
        [found] = yield from self._asked([prompt])
        said, samples = found.generation, found.samples
        if number and settings.shows_a_form:
            found = _without_echo(found, settings)
        text = found.generation.text.strip()
        uncertainty = found.uncertainty if text else 1.0
        return Round(
            number,
            text,
            uncertainty,
            self._score(uncertainty, text, number),
            said,
            samples,
            prompt if settings.keep_prompts else None,
        )

    def scored(self, first: Round) -> Flow[tuple[Documents, Stop | None]]:
        """The documents with their scores, or the limit for which they were left without."""
        settings, documents = self.settings, self.documents
        passages = [document.passage for document in documents.scored]
        scores: Sequence[float] = ()
        if settings.source == "encoder":
            scores = yield from encoder_scores(self.question, passages)
        elif settings.source == "relevance" and self.relevance is not None:
            judge = partial(relevance_scores, self.relevance, self.question, passages)
            scores = yield from compute(judge)
        elif settings.source == "oracle" and self.truth is not None:
            scores = true_document_scores(self.truth, self.question, settings.seed)
        else:
            prompts = [render(settings.templates, self.question, [d]) for d in documents.plain]
            # the only document's answer is the first answer
            answers = {self.prompt((), documents): Measured(first.generation, first.uncertainty)}
            once = [prompt for prompt in dict.fromkeys(prompts) if prompt not in answers]
            if once:
                if left_out := self.budget.exceeded(once, and_calls=int(settings.rounds > 0)):
                    return documents, left_out
                answers |= zip(once, (yield from self._asked(once)), strict=True)
            documents = _with_answers(documents, [answers[prompt] for prompt in prompts])
            found = [answers[prompt].uncertainty for prompt in prompts]
            scores = document_scores(found, noise=rounding(found, settings.estimator))
        return documents.with_scores(scores, settings.cut_to), None

    def _asked(self, prompts: Sequence[str]) -> Flow[list[Measured]]:
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
        replies = [reply for one in found for reply in (one.generation, *one.samples)]
        self.budget.received(prompts, replies)
        return found

    def _score(self, uncertainty: float, text: str, number: int) -> float:
        if self.settings.source == "oracle" and self.truth is not None:
            seed = self.settings.seed
            return true_answer_score(self.truth, self.question, text, number, seed)
        return self.scale.score(uncertainty, number)

    def _said(self, trace: Sequence[Round]) -> list[Said]:
        if self.settings.earlier == "none":
            return []
        with_scores = self.settings.earlier == "scores"
        # a token is hardly ever more than a word: only what overran its limit is cut
        texts = [cut_to_words(one_line(r.text), self.settings.answer_tokens).text for r in trace]
        return [
            Said(text, one.score if with_scores else None)
            for text, one in zip(texts, trace, strict=True)
        ]


def _without_echo(found: Measured, settings: SGICSettings) -> Measured:
    """The answer, and its uncertainty, without what it repeats of the prompt's form."""
    said, samples = settings.templates.said(found.generation), found.samples
    if said is found.generation and not samples:
        return found
    samples = tuple(map(settings.templates.said, samples))
    return Measured(said, reestimate(said, samples, settings.estimator), samples)


def _with_answers(documents: Documents, answers: Sequence[Measured]) -> Documents:
    scored = [
        replace(document, uncertainty=one.uncertainty, answer=one.generation.text.strip())
        for document, one in zip(documents.scored, answers, strict=True)
    ]
    return replace(documents, scored=tuple(scored))


def checked_question(question: str) -> str:
    """The question without blanks around it.

    Raises:
        EmptyQuestion: it has no words.
        InvalidInput: it is no string.
    """
    if not isinstance(question, str):
        raise InvalidInput(f"a question is a string, got {type(question).__name__}")
    if not words(question):
        raise EmptyQuestion(f"the question {question!r} has no words; ask something")
    return question.strip()


def _check_source(
    settings: SGICSettings, relevance: Relevance | None, truth: Truth | None, documents: int
) -> None:
    if settings.source == "relevance" and relevance is None:
        raise InvalidInput("source='relevance' needs relevance=..., a function of the passages")
    if settings.source == "oracle":
        if truth is None:
            raise InvalidInput("source='oracle' needs truth=Truth(relevant, answers)")
        if len(truth.relevant) != documents:
            raise InvalidInput(
                f"the truth is about {len(truth.relevant)} passages, and there are {documents}"
            )


def chosen(trace: Sequence[Round], how: Choose) -> Round:
    """The round whose answer is returned; a blank one only where all are blank.

    "least uncertain" compares scores, not raw uncertainties: those grow with the rounds, and the
    scale has a mean for each. Of equal scores the earliest counts.

    References:
        Chen et al. (SGIC), 4.1 (least uncertain) and 4.3 (repeated, after Huang et al., 2024).
    """
    spoken = [one for one in trace if one.text] or list(trace)
    if how == "least uncertain":
        return min(spoken, key=lambda one: one.score)
    return (repeated(spoken) if how == "repeated" else None) or spoken[-1]


def repeated(trace: Sequence[Round]) -> Round | None:
    """The first round whose answer says what an earlier one said; see `answer_key`."""
    seen: set[str] = set()
    for one in trace:
        if one.text:
            if (said := answer_key(one.text)) in seen:
                return one
            seen.add(said)
    return None


def reason_to_stop(trace: Sequence[Round], settings: SGICSettings) -> Stop | None:
    """Why the answers so far need no further round; None if they do."""
    last = trace[-1]
    if last.score < settings.certain_below:
        return "certain"
    if _settled(trace, settings):
        return "settled"
    return "rounds" if last.number >= settings.rounds else None


def _settled(trace: Sequence[Round], settings: SGICSettings) -> bool:
    if settings.choose == "repeated" and repeated(trace):
        return True
    if settings.least_gain is None or len(trace) < 2:
        return False
    before, last = trace[-2:]
    same = answer_key(before.text) == answer_key(last.text)
    return same and before.score - last.score <= settings.least_gain


def calibrate(
    question: str,
    passages: Sequence[Passage],
    settings: SGICSettings | None = None,
    scale: ScoreScale | None = None,
    *,
    wrongness: "WrongnessCalibration | None" = None,
    relevance: Relevance | None = None,
    truth: Truth | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Flow[CalibratedAnswer]:
    """Answer a question from passages, and look again while the answer is uncertain.

    Without passages (a gate found none needed, a search found none) the model answers from what
    it knows, once. Passages that say the same are asked about once, and all scored.

    Args:
        passages: what was retrieved; with `SGICSettings.steps()`, reasoning steps.
        settings: None: the defaults.
        scale: None: `ScoreScale.default`.
        wrongness: gives the answer its probability of being wrong.
        relevance: scores the passages, for `source="relevance"`.
        truth: scores passages and answers, for `source="oracle"`.
        on_round: is told each answer as it comes, the first one too.

    Raises:
        EmptyQuestion: the question has no words.
        InvalidInput: passages are not of the type `Passage`; the source of document scores was
            not handed in; the first prompt alone could pass `max_tokens`.
        ArtifactMismatch: scale or calibration belong to another estimator, or not together.
        NoTokenProbabilities: the model gives none; set `estimator="agreement"`.
        ModelError, PromptTooLong: the model failed; see `SGICSettings.on_error`.
    """
    case = Case.of(question, passages, settings, scale, wrongness, relevance, truth)
    settings, documents, notes = case.settings, case.documents, [*case.notes]
    tell = on_round or _nobody
    trace = [(yield from case.answered((), documents))]
    tell(trace[0])
    stop, error = reason_to_stop(trace, settings), None
    if not documents.texts:
        stop = stop or "no documents"
        notes += ["answered without documents, for which no P(wrong) was fitted"] * bool(wrongness)
    elif case.all_are_kept:
        stop = stop or "rounds"  # another would ask the same
    if _says_one_thing(trace[0], settings):
        notes.append(
            "all samples are the answer word for word; with a model that does not heed the "
            "temperature that says nothing about how sure it is"
        )
    try:
        if documents.texts and case.wants_scores(stop):
            documents, left_out = yield from case.scored(trace[0])
            if left_out and stop is None and settings.earlier == "none":
                stop = left_out  # a round would ask what round 0 asked
            notes += _left_out(left_out, settings)
        while not stop and not (stop := case.limit(trace, documents)):
            trace.append((yield from case.answered(trace, documents)))
            tell(trace[-1])
            stop = reason_to_stop(trace, settings)
    except LtragError as failure:
        if settings.on_error == "raise":
            raise
        stop, error = "error", f"{type(failure).__name__}: {failure}"
    notes += [*_saturated(trace, documents, settings), *case.budget.remarks()]
    best = chosen(trace, settings.choose)
    return CalibratedAnswer(
        best.text,
        best.uncertainty,
        best.score,
        best.number,
        stop or "rounds",
        settings.estimator,
        p_wrong=wrongness.probability(best.score) if wrongness and documents.texts else None,
        documents=documents.scored,
        trace=tuple(trace),
        notes=tuple(notes),
        error=error,
        calls=case.budget.calls,
        tokens=case.budget.tokens,
    )


def _says_one_thing(first: Round, settings: SGICSettings) -> bool:
    said = {sample.text for sample in first.samples}
    return settings.estimator == AGREEMENT and said == {first.generation.text}


def _saturated(trace: Sequence[Round], documents: Documents, settings: SGICSettings) -> list[str]:
    """A remark on answers whose product of probabilities is below what one minus it can show."""
    answers = [(one.text, one.uncertainty) for one in trace]
    answers += [(one.answer, one.uncertainty) for one in documents.scored if one.answer is not None]
    lost = sum(bool(text) and uncertainty == 1 for text, uncertainty in answers)
    if settings.estimator != "product" or not lost:
        return []
    return [
        f"{lost} of {len(answers)} answers are as uncertain as can be, as the product of the "
        "probabilities of a long answer is; estimator='length_normalized' tells such apart"
    ]


def _nobody(_: Round) -> None:
    """Hear nothing."""


def _left_out(limit: Stop | None, settings: SGICSettings) -> list[str]:
    if limit is None:
        return []
    return [
        f"the documents were not scored: one prompt for each would pass "
        f"{limit}={getattr(settings, limit)}"
    ]


def sampled(
    question: str,
    passages: Sequence[Passage],
    samples: int,
    settings: SGICSettings | None = None,
    scale: ScoreScale | None = None,
) -> Flow[CalibratedAnswer]:
    """Sample answers to the first prompt of `calibrate`, and return the least uncertain.

    One call a sample, with the seeds `settings.seed`, + 1, ...; no further one is asked for once
    it could pass `max_calls` or `max_tokens` (then `stop` names the limit). The estimator
    "agreement" holds each sample against the others, and asks for no more.

    Args:
        samples: K, at least 1; with "agreement" at least 2.
        settings: documents, prompt, estimator, `temperature` (paper: 0.7), seed and limits; what
            it says of rounds is not read.
        scale: the mean of its round 0 serves all samples.

    Returns:
        The trace holds the samples in their order; `round` is the place of the best among them.

    Raises:
        EmptyQuestion, InvalidInput, ArtifactMismatch, NoTokenProbabilities, ModelError: as
            `calibrate`.
    """
    settings = replace(settings or SGICSettings(), source="uncertainty")
    check_samples(samples, settings)
    case = Case.of(question, passages, settings, scale, None, None, None)
    prompt, said, stop = case.prompt((), case.documents), list[Generation](), "rounds"
    # one call a sample, whatever the estimator
    budget = Budget(replace(settings, estimator="product"))
    while len(said) < samples:
        if limit := budget.exceeded([prompt]):
            stop = _limited(limit, said)
            break
        budget.sent([prompt])
        [reply] = yield from ask(
            prompt,
            max_tokens=settings.answer_tokens,
            stop=settings.stop,
            temperature=settings.temperature,
            seed=settings.seed + len(said),
            may_repeat=partial(budget.repeats, [prompt]),
        )
        budget.received([prompt], [reply])
        said.append(reply)
    trace = as_rounds(said, settings, case.scale)
    best = chosen(trace, "least uncertain")
    return CalibratedAnswer(
        best.text,
        best.uncertainty,
        best.score,
        best.number,
        stop,
        settings.estimator,
        documents=case.documents.scored,
        trace=trace,
        notes=(*case.notes, *budget.remarks()),
        calls=budget.calls,
        tokens=budget.tokens,
    )


def as_rounds(
    said: Sequence[Generation], settings: SGICSettings, scale: ScoreScale
) -> tuple[Round, ...]:
    """Sampled answers with what each is worth, on the scale of round 0: all saw the same prompt."""
    rounds = []
    for i, one in enumerate(said):
        text = one.text.strip()
        if not text:
            uncertainty = 1.0
        elif settings.estimator == AGREEMENT and len(said) > 1:
            uncertainty = disagreement(one, [*said[:i], *said[i + 1 :]])
        elif settings.estimator == AGREEMENT:
            uncertainty = 1.0  # nothing to agree with
        else:
            uncertainty = estimate(one, settings.estimator)
        rounds.append(Round(i, text, uncertainty, scale.score(uncertainty), one))
    return tuple(rounds)


def _limited(limit: Stop, said: Sequence[Generation]) -> Stop:
    if not said:
        raise InvalidInput(
            f"the first prompt alone could pass {limit}. Raise it, or give fewer or shorter "
            "documents."
        )
    return limit


def check_samples(samples: object, settings: SGICSettings) -> None:
    """Whether that many samples make sense.

    Raises:
        InvalidInput: they do not.
    """
    least = 2 if settings.estimator == AGREEMENT else 1
    if not isinstance(samples, Integral) or isinstance(samples, bool) or int(samples) < least:
        raise InvalidInput(
            f"samples must be a whole number, at least {least} with the estimator "
            f"{settings.estimator!r}, got {samples!r}"
        )
