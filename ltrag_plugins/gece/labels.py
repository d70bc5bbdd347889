"""Whether an answer is right: by accepted answers, else by whether it agrees with the answer with
retrieval. So an application's log, without an answer key, is enough to fit a gate on: it learns
where retrieval changes the answer."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from statistics import median
from types import MappingProxyType
from typing import Any

from ltrag_plugins import errors
from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import (
    CalibrationError,
    InvalidInput,
    MissingReferences,
    ModelFailed,
    ModelUnavailable,
    checked,
    listed,
)
from ltrag_plugins.flow import Flow, Observer, World, check_world, fetch, gradient_llm, run_many
from ltrag_plugins.gece.savings import Usage
from ltrag_plugins.gece.score import mean_gradients, quality_of, references_like
from ltrag_plugins.gece.settings import GECESettings, Targets
from ltrag_plugins.gece.signals import (
    SIGNALS,
    Evidence,
    OwnSignals,
    askable_question,
    drafting,
    frequencies_for,
    with_gradient_term,
)
from ltrag_plugins.llm.base import LLM, Direction, GradientLLM
from ltrag_plugins.metrics.answer import Correct, contains, f1, is_right, normalized
from ltrag_plugins.prompts.replies import option_named
from ltrag_plugins.prompts.templates import answer_from, judging, render_question, searching_for
from ltrag_plugins.tokenize import length
from ltrag_plugins.types import Answer, Question

_Judge = Callable[[str, str, str], Any] | LLM
_LONG = 10  # words, beyond which an answer is a text, that no word-by-word rule can judge
_ALIKE = 0.667  # F1; a label is right on 77.8 % of recorded answers, at 0.5 on 74.8 %
FEWEST_QUESTIONS = 20  # calibration questions; at least two of them right, and two wrong
NO_RETRIEVAL = (
    "target_accuracy='always' compares with retrieval; give retriever=, retrieving= or "
    "retrieved_answers=, or a number"
)
NO_COST = (
    "a budget compares the gate's cost with retrieval's, which was not measured; fit with "
    "your chain (GECERouter.fit), or with retriever= or retrieving="
)
_NEAR = ("answer", "ground_truth", "expected_answer", "reference_answer", "gold_answers")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A calibration question: what was seen before retrieval, and what came of it."""

    evidence: Evidence
    right: bool
    """Whether the direct answer is right."""
    right_with_retrieval: bool | None = None
    """Whether the answer with retrieval is; None when nobody tried."""
    quality: float = 0.0
    """METEOR (or chrF, 1 - TER) of the direct answer; only the formula needs it."""
    agreement: bool = False
    """Whether "right" means that the direct answer agrees with the one with retrieval, as no
    answers are accepted."""


def collect(
    questions: Sequence[Question],
    world: World,
    settings: GECESettings,
    *,
    retrieving: Callable[[str], Flow[Answer]] | None = None,
    retrieved_answers: Sequence[str] | None = None,
    judge: _Judge | None = None,
    own: OwnSignals = MappingProxyType({}),
    observers: Iterable[Observer] = (),
    batch: int | None = None,
) -> tuple[list[Outcome], Direction | None, Usage | None]:
    """Draft an answer to every question, and answer it with retrieval where that is possible.

    Searches are by the question's text alone. The mean gradient comes along if the gate may read
    it and the model has one, and what a question's answer with retrieval cost, where the model was
    asked here. What no gate can be fitted on is refused before any call.
    """
    tries = retrieved_answers is not None or retrieving is not None or world.retriever is not None
    check_labelled(questions, answers=False)
    if not tries:
        _with_references(questions, None)  # refuses those without accepted answers
    if retrieved_answers is not None:
        retrieved_answers = listed(retrieved_answers, "retrieved_answers")
        if len(retrieved_answers) != len(questions):
            found = f"{len(retrieved_answers)} retrieved_answers for {len(questions)} questions"
            raise InvalidInput(f"{found}; give one for each")
    if wrong := [answer for answer in retrieved_answers or () if not isinstance(answer, str)]:
        raise InvalidInput(
            f"retrieved_answers are texts, got {type(wrong[0]).__name__}; take .text of a "
            "LangChain message, str(...) of a LlamaIndex response"
        )
    check_world(world)
    whole = [render_question(question) for question in questions]
    check_askable(whole, settings.max_words)
    wanted = "a model, or a function of question, answer and reference"
    checked(judge, LLM | Callable | None, "correct", wanted)
    if taken := sorted(own.keys() & SIGNALS.keys()):
        raise InvalidInput(f"signals has {taken}, which are names of ours; rename yours")
    if settings.gradients == "always":
        gradient_llm(world.llm)
    together = partial(run_many, world=world, observers=tuple(observers), batch=batch)
    draft = partial(drafting, settings=settings, vectors=world.encoder is not None, own=own)
    seen, along, cost = together([*map(draft, whole)], return_exceptions=True), None, None
    if len(kept := _drafted(seen)) < len(whole):
        questions, whole = [questions[i] for i in kept], [whole[i] for i in kept]
        seen = [seen[i] for i in kept]
        if retrieved_answers is not None:
            retrieved_answers = [retrieved_answers[i] for i in kept]

    def reading(question: str) -> Flow[Answer]:
        [found] = yield from fetch(question, k=3)
        return (yield from answer_from(question, found))

    if retrieved_answers is None and tries:
        pairs = zip(questions, whole, strict=True)
        answers = together([searching_for([q], (retrieving or reading)(t)) for q, t in pairs])
        retrieved_answers = [answer.text for answer in answers]
        traces = [answer.trace for answer in answers]
        cost = Usage.of(traces) if any(traces) else None  # a flow of one's own may have none
    known, places = _with_references(questions, retrieved_answers)
    if judge is None and (long := sum(_is_long(question.answers) for question in known)):
        drafted = median(length(evidence.draft.text) for evidence in seen)
        _logger.warning(
            "%d of %d answers to compare with are longer than %d words, and the drafts have %d: "
            "one agrees where it stands in one of them (a judge knows more: correct=, a function "
            "or a model), and is all that is said where nothing is retrieved (a router's direct= "
            "says more)",
            *(long, len(known), _LONG, drafted),
        )
    seen = [seen[i] for i in places]
    stand_in = [not any(map(str.strip, questions[i].answers)) for i in places]
    wants_gradients = settings.gradients != "never" and settings.tier != "text"
    if wants_gradients and isinstance(world.llm, GradientLLM):
        prompts, references = references_like(known, [e.draft for e in seen], settings)
        along, without = mean_gradients(prompts, references, world.llm, settings)
        pairs = zip(seen, without, strict=True)
        seen = together([with_gradient_term(one, settings, mean) for one, mean in pairs])
    drafts = [evidence.draft.text for evidence in seen]
    right = labels_of([*zip(known, drafts, stand_in, strict=True)], settings.correct, judge)
    later: list[bool | None] = [None] * len(known)
    if retrieved_answers is not None:
        found = [retrieved_answers[i] for i in places]
        later[:] = labels_of([*zip(known, found, stand_in, strict=True)], settings.correct, judge)
    quality = [0.0] * len(known)
    if settings.scorer == "gece":
        said = map(option_named, drafts, [question.options for question in known])
        pairs = zip(said, known, strict=True)
        quality = [quality_of(draft, q.answers, settings.quality) for draft, q in pairs]
    columns = zip(seen, right, later, quality, stand_in, strict=True)
    return [Outcome(*row) for row in columns], along, cost


def _drafted(seen: Sequence[Any]) -> list[int]:
    """Places of the questions that the model answered.

    Raises:
        ModelFailed: the model failed on more than half; ModelUnavailable, and all other errors:
            at the first one.
    """
    failed = [one for one in seen if isinstance(one, Exception)]
    for error in failed:
        passes = isinstance(error, ModelFailed) and not isinstance(error, ModelUnavailable)
        if not passes or 2 * len(failed) > len(seen):
            raise error
    if failed:
        told = "the model failed on %d of %d questions (%r); these are left out"
        _logger.warning(told, len(failed), len(seen), failed[0])
    return [i for i, one in enumerate(seen) if not isinstance(one, Exception)]


def answers_agree(answer: str, other: str) -> bool:
    """Whether two short answers say the same: one holds the other as whole words after SQuAD's
    normalization, or their F1 is above 2/3 (two names may share a word, and be two people's); an
    empty one agrees with nothing."""
    if not (normalized(answer) and normalized(other)):
        return bool(answer.strip()) and answer.strip() == other.strip()
    held = contains(answer, [other]) or contains(other, [answer])
    return bool(held) or f1(answer, [other]) > _ALIKE


def agreeing(question: str, draft: str, answer: str, judge: _Judge | None = None) -> bool:
    """Whether a draft agrees with the answer with retrieval, as in `collect`."""
    return labels_of([(Question(question, (answer,)), draft, True)], "contains", judge)[0]


def _is_long(references: Sequence[str]) -> bool:
    """Whether all of them are longer than ten words."""
    return all(length(reference) > _LONG for reference in references)


def _with_references(
    questions: Sequence[Question], retrieved: Sequence[str] | None
) -> tuple[list[Question], list[int]]:
    """The questions, the answer with retrieval in the place of missing accepted ones, and the
    places of those that have one or the other.

    Raises:
        MissingReferences: a question has no accepted answers, and there are none with retrieval.
        CalibrationError: the chain answered (nearly) nothing.
    """
    known, places = list[Question](), list[int]()
    for i, question in enumerate(questions):
        if any(answer.strip() for answer in question.answers):
            known.append(question)
        elif retrieved is None:
            raise MissingReferences(
                f"question {question.id or question.text[:60]!r} has no accepted answers. Add "
                "some, or let answers with retrieval stand in: retriever=, retrieving= or "
                "retrieved_answers=."
            )
        elif retrieved[i].strip():
            known.append(replace(question, answers=(retrieved[i].strip(),)))
        else:
            continue
        places.append(i)
    if len(places) < len(questions):
        found = f"{len(questions) - len(places)} of {len(questions)} questions"
        if 2 * len(places) < len(questions):
            raise CalibrationError(
                f"the answer with retrieval is empty on {found}; see that the chain answers"
            )
        _logger.warning("%s are left out: their answer with retrieval is empty", found)
    return known, places


def labels_of(
    answered: Sequence[tuple[Question, str, bool]], rule: Correct, judge: _Judge | None = None
) -> list[bool]:
    """Whether each answer is right.

    Accepted answers are compared by `rule`, see `reply_is_right`; answers with retrieval (True
    beside them), and those longer than ten words, by the judge if they are as long and there is
    one, else `answers_agree`.
    """
    found, asked = list[bool](), dict[int, tuple[str, str, str]]()
    for question, answer, stands_in in answered:
        if stands_in and question.options:
            answers = (option_named(one, question.options) for one in question.answers)
            question = replace(question, answers=tuple(answers))
        references, options = question.answers, question.options
        if {*references} & {*options} or not (_is_long(references) or stands_in):
            found.append(reply_is_right(answer, question, rule))
            continue
        same = any(normalized(answer) == normalized(r) != "" for r in references)
        if judge is not None and _is_long(references) and not same and answer.strip():
            asked[len(found)] = (question.text, answer.strip(), "\n".join(references))
        found.append(same or any(answers_agree(answer, reference) for reference in references))
    if judge is not None:
        for i, right in zip(asked, _judged([*asked.values()], judge), strict=True):
            found[i] = found[i] if right is None else right
    return found


def reply_is_right(reply: str, question: Question, rule: Correct) -> bool:
    """Whether a reply is right by the rule; one that names an option, if it is an accepted one."""
    options, answers = question.options, question.answers
    said, accepted = option_named(reply, options), {*options} & {*answers}
    if accepted and said in options:
        return said in accepted
    return is_right(said, answers, rule)


def _judged(cases: Sequence[tuple[str, str, str]], judge: _Judge) -> list[bool | None]:
    """What it says of each, None where it fails; as soon as it has failed on more than half, as
    on the first, that is raised."""
    if isinstance(judge, LLM):
        return [p >= 0.5 for p in run_many([judging(*case) for case in cases], World(llm=judge))]
    found, failed = list[bool | None](), list[Exception]()
    for case in cases:
        try:
            found.append(_is_yes(judge(*case)))
        except Exception as error:
            found.append(None)
            failed.append(error)
            if isinstance(error, ModelUnavailable) or 2 * len(failed) > len(found):
                raise
    if failed:
        told = "correct= failed on %d of %d answers (%r); these are compared word by word"
        _logger.warning(told, len(failed), len(cases), failed[0])
    return found


def _is_yes(verdict: Any) -> bool:
    try:
        share = float(verdict)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share <= 1:
        raise InvalidInput(
            f"correct= gave {verdict!r:.80}; it gives True or False, or a number from 0 to 1, of "
            "which 0.5 and more means right"
        )
    return share >= 0.5


def check_count(questions: Collection[object]) -> None:
    """Refuse too few calibration questions, and what is no list of them."""
    if isinstance(questions, str):
        listed(questions, "questions")
    if isinstance(questions, Mapping):
        raise InvalidInput(
            "questions came as a mapping; give a list, each with its accepted answers: "
            'Question(text, answers), in a router also {"question": ..., "answers": ...}'
        )
    checked(questions, Collection, "questions", "a list of questions")
    if len(questions) < FEWEST_QUESTIONS:
        found = f"{len(questions) or 'no'} calibration questions"
        raise CalibrationError(f"{found}; a gate needs at least {FEWEST_QUESTIONS}, better 200")


def check_fit(questions: Collection[object], most: int, how: Mapping[str, Any]) -> GECESettings:
    """Refuse what no gate can be fitted on before a chain runs, `most` times at once; the settings
    in the fit's arguments."""
    check_scorer(settings := how["settings"] or GECESettings())
    frequencies_for(settings, None)  # a missing package is named
    check_count(questions)
    if not isinstance(most, int) or most < 1:
        raise InvalidInput(f"max_concurrency must be a whole number, at least 1, got {most!r}")
    Targets(*(how[name] for name in ("target_rate", "target_accuracy", "budget")))
    return settings


def check_askable(texts: Iterable[str], max_words: int) -> None:
    """Refuse calibration questions that cannot be asked, by their place."""
    for i, text in enumerate(texts):
        try:
            askable_question(text, max_words)
        except (errors.EmptyQuestion, errors.PromptTooLong) as error:
            raise type(error)(f"questions[{i}]: {error}, or leave it out") from error


def accepted_in(entries: Mapping[str, Any]) -> tuple[str, ...]:
    """The accepted answers of a calibration question: a text or a number, or several."""
    answers: Any = entries.get("answers")
    if answers is None and (near := next((n for n in _NEAR if entries.get(n)), None)):
        raise InvalidInput(f"accepted answers go under 'answers'; this mapping has {near!r}")
    if answers is None or isinstance(answers, str | Real):
        answers = () if answers is None else (answers,)
    known = isinstance(answers, Collection) and not isinstance(answers, Mapping)
    if known and all(isinstance(a, str | Real) and a == a for a in answers):  # no NaN
        return tuple(map(str, answers))
    raise InvalidInput(f"'answers' are a text or a list of texts, got {answers!r:.80}")


def check_scorer(settings: GECESettings, own: Collection[str] = ()) -> None:
    """Refuse what cannot be fitted, by its settings or as a package is missing."""
    checked(settings, GECESettings, "settings", "GECESettings(...)")
    errors.require("fit")
    scorer, formula = settings.scorer, settings.scorer == "gece"
    if formula:
        errors.require("evaluate")
    if scorer not in (known := ["fitted", "gece", *SIGNALS, *own]):
        raise errors.unknown_name("scorer", scorer, known)
    tier = SIGNALS[scorer].tier if scorer in SIGNALS else "probabilities" if formula else "text"
    for lacks, needs in (
        (scorer == "disagreement" and not settings.samples, "samples=3 or more"),
        (scorer == "gradient_cosine" and settings.agreement != "cosine", "agreement='cosine'"),
        (
            settings.gradients != "always"
            and (tier == "gradients" or formula * settings.semantics),
            "the gradient term: gradients='always', or, as the formula, semantics=False",
        ),
        (tier != "text" and settings.tier == "text", "more than text: leave tier as it is"),
    ):
        if lacks:
            raise CalibrationError(f"the scorer {scorer!r} needs {needs}; or take another scorer")
