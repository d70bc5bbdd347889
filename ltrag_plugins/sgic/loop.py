"""The loop: answer, measure, look again with scores in view, keep the least uncertain answer.

Source: Chen et al. (SGIC), sections 3.1 and 3.2, eq. 1-3 and table 1; section 5.2 and figure 3 (1
to 5 samples at a temperature of 0.7).
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, final

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, LtragError
from ltrag_plugins.flow import Flow, compute, sample
from ltrag_plugins.metrics.answer import is_right
from ltrag_plugins.prompts.templates import render_question, searching_for
from ltrag_plugins.sgic import documents as sources
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, ScoredDocument, Stop, answer_key
from ltrag_plugins.sgic.documents import Relevance, Truth
from ltrag_plugins.sgic.prompts import Shown, cut_to_words, one_line
from ltrag_plugins.sgic.scale import ScoreScale, WrongnessCalibration, document_scores, rounding
from ltrag_plugins.sgic.settings import Budget, Choose, SGICSettings
from ltrag_plugins.types import Generation, Passage, Question
from ltrag_plugins.uncertainty import (
    AGREEMENT,
    Measured,
    calls_for,
    estimate,
    measured,
    sampled_uncertainties,
)


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
    """Answer a question from passages, and look again while the answer is uncertain. Without
    passages the model answers from what it knows, once.

    Args:
        passages: what was retrieved; with `SGICSettings.steps()`, reasoning steps.
        scale: None: 0.5 in every round.
        wrongness: gives the answer its probability of being wrong.
        relevance, truth: for `source="relevance"` and `source="oracle"`.
        on_round: is called with each answer as it comes, the first one too.

    Raises:
        EmptyQuestion: the question is blank.
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
    if not session.texts:
        stop = stop or "no documents"
        notes += ["answered without documents, for which no P(wrong) was fitted"] * bool(wrongness)
    if {sample.text for sample in first.samples} == {first.generation.text}:
        notes.append(
            "all samples are the answer word for word; with a model that does not heed the "
            "temperature that says nothing about how sure it is"
        )
    needed = settings.score_documents == "always" or (not stop and session.reads_scores)
    try:
        if session.texts and needed and (limit := (yield from session.score_documents())):
            passed = f"one prompt for each would pass {limit}={getattr(settings, limit)}"
            notes.append(f"the documents were not scored: {passed}")
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
    question: str, passages: Sequence[Passage], samples: int, settings: SGICSettings | None = None
) -> Flow[CalibratedAnswer]:
    """Sample answers to the first prompt of `calibrate`, and return the least uncertain: one call a
    sample, seeded `settings.seed`, + 1, ..., until a limit could be passed (see `stop`).
    "agreement" holds each sample against the others. The trace holds the samples in order; `round`
    is the place of the best. Raises as `calibrate`, and `InvalidInput` of `samples` below 1."""
    settings = replace(settings or SGICSettings(), source="uncertainty", choose="least uncertain")
    replace(settings, estimator="product", samples=samples)  # refuses what is no count
    session = Session(question, passages, settings)
    budget = session.budget = Budget(settings, 1)  # one call a sample, whatever the estimator
    prompt, drawn, error = session.prompt(), list[Generation](), None
    stop: Stop | None = None
    at_once = samples
    while len(drawn) < samples and not (stop := budget.exceeded([prompt])):
        # as many at once as could not pass a limit, whatever they cost
        most = range(min(at_once, samples - len(drawn)), 0, -1)
        sent = [prompt] * next(n for n in most if not budget.exceeded([prompt] * n))
        budget.sent(sent)
        how: dict[str, Any] = {"temperature": settings.temperature, "stop": settings.stop}
        how |= {"max_tokens": settings.answer_tokens, "seed": settings.seed + len(drawn)}
        how["may_repeat"] = partial(budget.repeats, sent)
        try:
            [said] = yield from sample(prompt, samples=len(sent), **how)
        except LtragError as failure:
            if settings.on_error == "raise" or (len(sent) == 1 and not drawn):
                raise
            if len(sent) == 1:
                stop, error = "error", f"{type(failure).__name__}: {failure}"
                break
            at_once = 1
            continue
        budget.received(sent, said)
        drawn += said
    session.trace = session.as_rounds(drawn)
    return session.result(stop or "rounds", error=error)


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
        self.texts, self.documents = sources.prepared(passages, settings)
        if settings.source == "oracle" and truth and len(truth.relevant) != len(self.texts):
            counts = f"{len(truth.relevant)} passages, and there are {len(self.texts)}"
            raise InvalidInput(f"the truth is about {counts}")
        self.trace: tuple[Round, ...] = ()
        self.document_answers: tuple[Measured, ...] = ()  # asked for to score the documents
        self.budget = Budget(settings, calls_for(1, settings.estimator, settings.samples))
        self._relevance, self._truth = relevance, truth
        self._first, self._next = "", ""  # prompts; "" where not rendered yet

    def branch(self, settings: SGICSettings) -> "Session":
        """A copy that goes on with other settings from here; their estimator is the same."""
        other = copy(self)
        other.settings, other.budget, other._next = settings, copy(self.budget), ""
        if scores := [one.score for one in self.documents if one.score is not None]:
            other._score(self.documents, scores)
        return other

    @property
    def reads_scores(self) -> bool:
        """Whether a round shows the scores of documents, or fewer documents by them."""
        settings, count = self.settings, len(self.texts)
        return settings.documents != "none" or (settings.cut_to or count) < count

    def prompt(self) -> str:
        """Of the next round, rendered once; the first one is refused if it may not be sent."""
        if not self._next:
            settings, earlier = self.settings, []
            for one in self.trace if settings.earlier != "none" else ():
                # a token is hardly ever more than a word: only what overran its limit is cut
                text = cut_to_words(one_line(one.text), settings.answer_tokens)
                earlier.append(Shown(text, one.score if settings.earlier == "scores" else None))
            shown = self._shown() if self.trace else [*map(Shown, self.texts)]
            self._next = settings.templates.render(self.question, shown, earlier)
            self._first = self._first or self._next
        if not self.trace and (limit := self.budget.exceeded([self._next])):
            passed = f"the first prompt alone could pass {limit}={getattr(self.settings, limit)}"
            raise InvalidInput(f"{passed}; raise it, or give fewer or shorter documents")
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
            name = f"{settings.seed}|{self.question}|round {number}"
            score = sources.drawn(is_right(text, self._truth.answers), name)
        kept = found.generation, found.samples, prompt if settings.keep_prompts else None
        answer = Round(number, text, uncertainty, score, *kept)
        self.trace, self._next = (*self.trace, answer), ""
        return answer

    def as_rounds(self, drawn: Sequence[Generation]) -> tuple[Round, ...]:
        """Sampled answers with their scores, on the scale of round 0: all saw the same prompt."""
        estimator, rounds = self.settings.estimator, list[Round]()
        letter = sampled_uncertainties(drawn) if estimator == "product" else []
        for i, one in enumerate(drawn):
            others = [*drawn[:i], *drawn[i + 1 :]]
            alone = estimator == AGREEMENT and not others  # nothing to agree with
            doubt = 1.0 if alone else letter[i] if letter else estimate(one, estimator, others)
            rounds.append(Round(i, one.text.strip(), doubt, self.scale.score(doubt), one))
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
        passages = [document.passage for document in documents]
        if settings.source == "encoder":
            scores = yield from sources.encoder_scores(self.question, passages)
        elif settings.source == "relevance" and self._relevance is not None:
            judge = partial(sources.relevance_scores, self._relevance, self.question, passages)
            scores = yield from compute(judge)
        elif settings.source == "oracle" and self._truth is not None:
            names = f"{settings.seed}|{self.question}|document "
            scores = [sources.drawn(x, f"{names}{i}") for i, x in enumerate(self._truth.relevant)]
        else:
            ask_about = partial(settings.templates.render, self.question)
            prompts = [ask_about([Shown(text)]) for text in self.texts]
            # the only document's answer is the first answer
            answers = {self._first: Measured(self.trace[0].generation, self.trace[0].uncertainty)}
            if once := [prompt for prompt in dict.fromkeys(prompts) if prompt != self._first]:
                if limit := self.budget.exceeded(once, and_calls=int(settings.rounds > 0)):
                    return limit
                self.document_answers = tuple((yield from self._ask(once)))
                answers |= zip(once, self.document_answers, strict=True)
            doubts = [answers[prompt].uncertainty for prompt in prompts]
            said = [answers[prompt].generation.text.strip() for prompt in prompts]
            given = zip(documents, doubts, said, strict=True)
            documents = [replace(one, uncertainty=u, answer=text) for one, u, text in given]
            scores = document_scores(doubts, noise=rounding(doubts, settings.estimator))
        self._score(documents, scores)
        return None

    def _score(self, documents: Sequence[ScoredDocument], scores: Sequence[float]) -> None:
        """Give each a score; a round will show no more than the `cut_to` lowest."""
        best = sorted(range(len(scores)), key=scores.__getitem__)[: self.settings.cut_to]
        pairs = enumerate(zip(documents, scores, strict=True))
        given = (replace(one, score=score, shown=i in best) for i, (one, score) in pairs)
        self.documents, self._next = tuple(given), ""

    def _shown(self) -> list[Shown]:
        """The documents that a round shows, with their scores or marks."""
        settings, documents = self.settings, self.documents
        rows = [i for i, document in enumerate(documents) if document.shown]
        scores = {i: score for i in rows if (score := documents[i].score) is not None}
        if settings.documents == "scores":
            return [Shown(self.texts[i], scores.get(i)) for i in rows]
        low = sorted((i for i, score in scores.items() if score < 50), key=scores.__getitem__)
        marked = low[: settings.keys] if settings.documents == "keys" else []
        return [Shown(self.texts[i], key=i in marked) for i in rows]

    def result(
        self,
        stop: Stop,
        notes: Iterable[str] = (),
        error: str | None = None,
        wrongness: WrongnessCalibration | None = None,
    ) -> CalibratedAnswer:
        """What came of it."""
        settings, scored, budget = self.settings, self.documents, self.budget
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
        about = best.text, best.uncertainty, best.score, best.number, stop, settings.estimator
        p_wrong = wrongness.probability(best.score) if wrongness and scored else None
        more = scored, self.trace, (*notes, *budget.notes()), error, budget.calls, budget.tokens
        return CalibratedAnswer(*about, p_wrong, *more)

    def _ask(self, prompts: Sequence[str]) -> Flow[list[Measured]]:
        settings = self.settings
        self.budget.sent(prompts)
        names = ("estimator", "stop", "samples", "temperature", "seed")
        how: dict[str, Any] = {name: getattr(settings, name) for name in names}
        how["may_repeat"] = partial(self.budget.repeats, prompts)
        found = yield from measured(*prompts, max_tokens=settings.answer_tokens, **how)
        self.budget.received(prompts, [r for one in found for r in (one.generation, *one.samples)])
        return found


def record(
    questions: Sequence[Question],
    drive: Callable[..., list[Any]],
    settings: SGICSettings,
    cuts: Sequence[SGICSettings] = (),
    *,
    relevance: Relevance | None = None,
) -> list[list[Session]]:
    """Ask every round of every question, to the end: those of the settings, then of each of `cuts`.
    All go through a round before any goes into the next, so that its mean (eq. 2) is known before
    a prompt shows it."""

    def attempt(session: Session) -> Flow[None]:
        try:
            yield from session.answer()
        except LtragError:
            if session.settings.on_error == "raise":
                raise

    asked = [(render_question(question), question.passages) for question in questions]
    first = [Session(*one, settings, relevance=relevance) for one in asked]
    drive(session.answer() for session in first)
    rescale(first)
    always = settings.score_documents == "always"
    rounds_score = always or (settings.rounds > 0 and scores_documents(settings))
    plain = [session.branch(settings) for session in first]
    scored = {settings.source: first} if rounds_score else {}
    for way in cuts:  # each source scores once, for all that read it
        own = first if way.source == settings.source else [one.branch(way) for one in plain]
        scored.setdefault(way.source, own)
    for line in scored.values():
        pairs = zip(questions, line, strict=True)
        drive(searching_for([question], one.score_documents()) for question, one in pairs)
    lines = [first if rounds_score else plain]
    lines += [[session.branch(way) for session in scored[way.source]] for way in cuts]
    for number in range(1, max(way.rounds for way in (settings, *cuts)) + 1):
        # the cuts come first, as they end here: a local model that remembers the beginnings of so
        # many prompts and no more then still has those that the next round begins with
        in_turn = [session for line in reversed(lines) for session in line]
        going = (one for one in in_turn if len(one.trace) == number <= one.settings.rounds)
        drive([attempt(session) for session in going if not session.limit()])
        for line in lines:
            rescale(line)
    return lines


def rescale(line: Sequence[Session]) -> None:
    """Go on with the scale of the means so far (eq. 2), these answers included."""
    traces = [session.trace for session in line]
    settings = line[0].settings
    fitted = ScoreScale.of_rounds(settings.estimator, traces, settings.means)
    for one in line:
        one.scale, one.trace, one._next = fitted, fitted.rescored(one.trace), ""


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
        gained = trace[-2].score - last.score
        if gained <= settings.least_gain and answer_key(trace[-2].text) == answer_key(last.text):
            return "settled"
    return "rounds" if last.number >= settings.rounds else None


def best_round(trace: Sequence[Round], choose: Choose) -> Round:
    """The round whose answer is returned; a blank one only where all are blank. "least uncertain"
    (4.1) is by score, as uncertainties grow with the rounds; the first of equals. "repeated" is
    4.3, after Huang et al., 2024."""
    spoken = [one for one in trace if one.text] or list(trace)
    if choose == "least uncertain":
        return min(spoken, key=lambda one: one.score)
    return (choose == "repeated" and _repeated(spoken)) or spoken[-1]


def checked_question(question: str) -> str:
    """The question without blanks around it."""
    if not isinstance(question, str):
        raise InvalidInput(f"a question is a string, got {type(question).__name__}")
    if not question.strip():
        raise EmptyQuestion("the question is empty; ask something")
    return question.strip()


def _repeated(trace: Sequence[Round]) -> Round | None:
    """The first round whose answer says what an earlier one said; see `answer_key`."""
    keys = [answer_key(one.text) if one.text else None for one in trace]
    again = (one for i, one in enumerate(trace) if one.text and keys[i] in keys[:i])
    return next(again, None)
