"""What the model makes of a prompt: the answer it gives, how likely it finds the right one.

`reading` is a flow: it asks for log-probabilities of the options (multiple choice) or of the
reference text where the model scores given text, else for an answer. The functions after it
turn readings into predictions, probabilities and rewards.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 2, 3 and section 8;
    Zhao et al., ICML 2021, "Calibrate Before Use" (a content-free question);
    Zhou et al., ICLR 2024, "Batch Calibration" (the mean over a batch).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax

from ltrag_plugins.dur.prompts import PromptFormat, Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import InvalidInput, MissingReferences, NoTokenProbabilities
from ltrag_plugins.flow import Flow, ask, score
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.metrics.text import bleu, rouge_l
from ltrag_plugins.prompts.replies import bare_reply, option_in
from ltrag_plugins.types import Generation, Question, Token

CONTENT_FREE = "N/A"
"""What stands in the question's place when options are calibrated against it."""
_LEAST = -30.0  # log-probability; below it a reward would be all noise
_TEXT_REWARDS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "f1": f1,
    "rouge_l": rouge_l,
    "bleu": bleu,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be read."""

    options: bool
    """Log-probabilities of the options, for questions that have some."""
    gold: bool
    """Log-probability of the reference text, for questions without options."""
    text: bool
    """A written answer, for questions whose options are not read."""
    content_free: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read after one prompt; None where it was not asked for."""

    options: tuple[float, ...] | None = None
    """Log-probability of each option, nats."""
    gold: float | None = None
    """Log-probability of the first accepted answer, nats."""
    greedy: bool | None = None
    """Whether the model, taking the likeliest token each time, writes that answer."""
    text: str | None = None


def reading(
    prompts: Sequence[tuple[Sequence[Shot], Question]], form: PromptFormat, wanted: Wanted
) -> Flow[list[Reading]]:
    """Read the model's mind on one question, after each of the shots' sequences."""
    question = prompts[0][1]
    texts = [form.prompt(shots, question) for shots, question in prompts]
    if question.options and wanted.options:
        options = yield from _options(texts, question.options, form)
        if wanted.content_free:
            empty = [form.prompt(s, replace(q, text=CONTENT_FREE, context="")) for s, q in prompts]
            options = options - (yield from _options(empty, question.options, form))
        return [Reading(options=tuple(row)) for row in options.tolist()]
    found = [Reading() for _ in texts]
    if wanted.gold:
        gold = form.said(_answers(question)[0])
        scored = yield from score(texts, [gold] * len(texts))
        told = [_after(form.lead, generation) for generation in scored]
        if not wanted.text and any(greedy is None for _, greedy in told):
            raise NoTokenProbabilities(
                "the model scored a text without telling the likeliest tokens, so nobody knows "
                "what it would have answered; use TransformersLLM, or reward='match'"
            )
        found = [replace(r, gold=s, greedy=g) for r, (s, g) in zip(found, told, strict=True)]
    if wanted.text:
        stop = (form.separator.strip(" ") or "\n",) if "\n" in form.separator else ()
        said = yield from ask(*texts, max_tokens=form.max_tokens, stop=(*stop, "\n"))
        found = [
            replace(r, text=bare_reply(g.text, form.lead)) for r, g in zip(found, said, strict=True)
        ]
    return found


def prediction(reading: Reading, question: Question) -> str | None:
    """What the model answers; None where only the reference was scored and it is not greedy."""
    if reading.options is not None:
        return question.options[int(np.argmax(reading.options))]
    if reading.text is None:
        return question.answers[0] if reading.greedy else None
    if question.options:
        return option_in(reading.text, question.options)
    return reading.text


def is_right(reading: Reading, question: Question) -> bool:
    """Whether the answer is an accepted one (eq. 3): normalized exact match, or the option."""
    said = prediction(reading, question)
    if said in question.options:
        return said in _answers(question)
    return said is not None and normalized_exact_match(said, _answers(question)) == 1.0


def log_p_gold(reading: Reading, question: Question) -> float:
    """Log-probability of the right answer, nats: among the options, or of the reference text.

    Raises:
        NoTokenProbabilities: neither was read.
    """
    if reading.options is not None:
        if max(reading.options) == -math.inf:
            return _LEAST
        shares = log_softmax(np.array(reading.options))
        right = [o in question.answers for o in question.options]
        return max(_LEAST, float(np.logaddexp.reduce(shares[right])))
    if reading.gold is None:
        raise NoTokenProbabilities(
            "the probability of the right answer was not read; use a model that scores given "
            "text (TransformersLLM), or reward='match'"
        )
    return max(_LEAST, reading.gold)


def reward(reading: Reading, question: Question, settings: DURSettings) -> float:
    """What the reading is worth, by `settings.reward`.

    Raises:
        InvalidInput: the user's function raised, or returned what is no finite number.
    """
    kind = settings.reward
    if callable(kind):
        return _own(kind, reading, question)
    if kind == "match":
        return 1.0 if is_right(reading, question) else -1.0
    if kind == "p_gold":
        return math.exp(log_p_gold(reading, question))
    if kind == "log_p_gold":
        return log_p_gold(reading, question)
    said = prediction(reading, question) or ""
    return 1.0 if _TEXT_REWARDS[kind](said, _answers(question)) > settings.threshold else -1.0


def balanced(readings: Sequence[Reading], questions: Sequence[Question]) -> list[Reading]:
    """Options less their mean log-share over these readings, where all offer the same options.

    Raises:
        InvalidInput: the questions offer different options.
    """
    return levelled(readings, option_level(readings, questions))


def option_level(
    readings: Sequence[Reading], questions: Sequence[Question]
) -> Float[np.ndarray, " options"] | None:
    """The mean log-share of each option over these readings; None where no options were read.

    Raises:
        InvalidInput: the questions offer different options.
    """
    rows = [r.options for r in readings if r.options is not None]
    if not rows:
        return None
    if len({q.options for q in questions}) > 1:
        raise InvalidInput(
            "option_calibration='batch' needs questions that all offer the same options; use "
            "'content-free'"
        )
    return log_softmax(np.array(rows), axis=1).mean(axis=0)


def levelled(
    readings: Sequence[Reading], level: Float[np.ndarray, " options"] | None
) -> list[Reading]:
    """Log-shares of the options less `level`."""
    if level is None:
        return list(readings)
    shares = log_softmax(np.array([r.options for r in readings]), axis=1)
    return [Reading(options=tuple(row)) for row in (shares - level).tolist()]


def wanted_for(settings: DURSettings, *, scores: bool) -> Wanted:
    """What a training run reads."""
    probabilities = settings.reward in ("p_gold", "log_p_gold")
    return Wanted(
        options=scores,
        gold=probabilities,
        text=not probabilities,
        content_free=settings.option_calibration == "content-free",
    )


def _options(
    texts: Sequence[str], options: Sequence[str], form: PromptFormat
) -> Flow[Float[np.ndarray, "prompts options"]]:
    prompts = [text for text in texts for _ in options]
    scored = yield from score(prompts, [form.said(o) for o in options] * len(texts))
    told = [_after(form.lead, generation)[0] for generation in scored]
    return np.array(told).reshape(len(texts), len(options))


def _after(lead: str, scored: Generation) -> tuple[float, bool | None]:
    """Log-probability of what follows the lead-in, and whether each of its tokens is likeliest.

    None: the model does not tell which token is.
    """
    if not scored.tokens:
        raise NoTokenProbabilities(
            "the model scored a text and gave no token probabilities; use TransformersLLM, or "
            "reward='match'"
        )
    answer = _behind(scored.tokens, len(lead.rstrip()))
    total = sum(checked_token(token, "the model").logprob for token in answer)
    if not all(token.alternatives for token in answer):
        return total, None
    return total, all(t.logprob >= max(p for _, p in t.alternatives) for t in answer)


def _behind(tokens: Sequence[Token], length: int) -> list[Token]:
    """The tokens that reach beyond so many characters; without text, one goes with the next."""
    ends = np.cumsum([len(token.text) for token in tokens])
    inside = [i for i, end in enumerate(ends) if tokens[i].text and end <= length]
    return list(tokens[inside[-1] + 1 if inside else 0 :])


def _answers(question: Question) -> tuple[str, ...]:
    if not question.answers:
        raise MissingReferences(f"{question.text[:40]!r} has no accepted answer to learn from")
    return question.answers


def _own(function: Callable[[str, Question], float], reading: Reading, question: Question) -> float:
    said = prediction(reading, question) or ""
    try:
        value = float(function(said, question))
    except Exception as error:
        raise InvalidInput(
            f"the reward function raised {type(error).__name__}: {error}, for the answer "
            f"{said[:40]!r} to {question.text[:40]!r}"
        ) from error
    if not math.isfinite(value):
        raise InvalidInput(
            f"the reward function returned {value} for the answer {said[:40]!r} to "
            f"{question.text[:40]!r}; a reward is a finite number"
        )
    return value
