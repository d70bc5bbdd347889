"""What a model makes of a prompt: its answer, and how likely it finds the right one.

`read_feedback` is a flow. It asks for log-probabilities of the options (multiple choice) or of the
reference text where the model scores given text, else for an answer. `reward` says what the
feedback is worth.

References:
    Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 2, 3 and section 8;
    Zhao et al., ICML 2021, "Calibrate Before Use" (a content-free question);
    Zhou et al., ICLR 2024, "Batch Calibration" (the mean over a batch).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax

from ltrag_plugins.dur.prompts import PromptFormat, Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import InvalidInput, MissingReferences, NoTokenProbabilities
from ltrag_plugins.flow import Flow, ask, score
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.metrics.answer import f1, is_right
from ltrag_plugins.metrics.text import bleu, rouge_l
from ltrag_plugins.prompts.replies import bare_reply, option_in
from ltrag_plugins.types import Generation, Question, Token

PROMPTS_AT_ONCE = 128
"""Most prompts of one call to the model."""
CONTENT_FREE = "N/A"
"""What stands in the question's place when options are calibrated against it."""
_LEAST = -30.0  # log-probability; below it a reward would be all noise
_TEXT_REWARDS = {"f1": f1, "rouge_l": rouge_l, "bleu": bleu}


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

    @classmethod
    def in_training(cls, settings: DURSettings, *, scores: bool) -> Self:
        """What a training run reads of a model that scores given text, or does not."""
        probabilities = settings.reward in ("p_gold", "log_p_gold")
        free = settings.option_calibration == "content-free"
        return cls(scores, gold=probabilities, text=not probabilities, content_free=free)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What was read after one prompt; None where it was not asked for."""

    question: Question
    options: tuple[float, ...] | None = None
    """Log-probability of each option, nats."""
    gold: float | None = None
    """Log-probability of the first accepted answer, nats."""
    greedy: bool | None = None
    """Whether the model, taking the likeliest token each time, writes that answer."""
    text: str | None = None

    @property
    def answer(self) -> str | None:
        """None where only the reference was scored and it is not greedy."""
        if self.options is not None:
            return self.question.options[int(np.argmax(self.options))]
        if self.text is None:
            return self.question.answers[0] if self.greedy else None
        return option_in(self.text, self.question.options)

    @property
    def right(self) -> bool:
        """Whether the answer is an accepted one (eq. 3): normalized exact match, or the option."""
        said, accepted = self.answer, _answers(self.question)
        if said in self.question.options:
            return said in accepted
        return said is not None and is_right(said, accepted)

    @property
    def log_p_gold(self) -> float:
        """Log-probability of the right answer (among options) or of the reference, in nats."""
        if self.options is not None:
            if max(self.options) == -math.inf:
                return _LEAST
            shares = log_softmax(np.array(self.options))
            right = [option in self.question.answers for option in self.question.options]
            return max(_LEAST, float(np.logaddexp.reduce(shares[right])))
        if self.gold is None:
            raise NoTokenProbabilities(
                "the probability of the right answer was not read; use a model that scores given "
                "text (TransformersLLM), or reward='match'"
            )
        return max(_LEAST, self.gold)


def read_feedback(
    question: Question, rungs: Sequence[Sequence[Shot]], form: PromptFormat, wanted: Wanted
) -> Flow[list[Feedback]]:
    """Ask one question after each of the sequences of shots, all in one request."""
    texts = [form.prompt(shots, question) for shots in rungs]
    if question.options and wanted.options:
        options = yield from _options(texts, question.options, form)
        if wanted.content_free:
            blank = replace(question, text=CONTENT_FREE, context="")
            texts = [form.prompt(shots, blank) for shots in rungs]
            options = options - (yield from _options(texts, question.options, form))
        return [Feedback(question, options=tuple(row)) for row in options.tolist()]
    found = [Feedback(question) for _ in texts]
    if wanted.gold:
        gold = form.said(_answers(question)[0])
        scored = yield from score(texts, [gold] * len(texts))
        known = [_after(form.lead, generation) for generation in scored]
        if not wanted.text and any(greedy is None for _, greedy in known):
            raise NoTokenProbabilities(
                "the model scored a text without telling the likeliest tokens, so nobody knows "
                "what it would have answered; use TransformersLLM, or reward='match'"
            )
        found = [replace(f, gold=s, greedy=g) for f, (s, g) in zip(found, known, strict=True)]
    if wanted.text:
        stop = (form.separator.strip(" ") or "\n",) if "\n" in form.separator else ()
        written = yield from ask(*texts, max_tokens=form.max_tokens, stop=(*stop, "\n"))
        said = [bare_reply(reply.text, form.lead) for reply in written]
        found = [replace(f, text=text) for f, text in zip(found, said, strict=True)]
    return found


def reward(found: Feedback, settings: DURSettings) -> float:
    """What the feedback is worth, by `settings.reward`."""
    kind = settings.reward
    if callable(kind):
        return _own(kind, found)
    if kind == "match":
        return 1.0 if found.right else -1.0
    if kind == "p_gold":
        return math.exp(found.log_p_gold)
    if kind == "log_p_gold":
        return found.log_p_gold
    value = _TEXT_REWARDS[kind](found.answer or "", _answers(found.question))
    return 1.0 if value > settings.threshold else -1.0


def option_prior(found: Sequence[Feedback]) -> Float[np.ndarray, " options"] | None:
    """The mean log-share of each option over this feedback; None where no options were read."""
    rows = [f.options for f in found if f.options is not None]
    if not rows:
        return None
    if len({f.question.options for f in found}) > 1:
        raise InvalidInput(
            "option_calibration='batch' needs questions that all offer the same options; use "
            "'content-free'"
        )
    return log_softmax(np.array(rows), axis=1).mean(axis=0)


def contextual_calibration(
    found: Sequence[Feedback], prior: Float[np.ndarray, " options"] | None
) -> list[Feedback]:
    """The feedback with log-shares of the options less their prior; without one, as it is."""
    if prior is None:
        return list(found)
    shares = log_softmax(np.array([f.options for f in found]), axis=1) - prior
    return [replace(f, options=tuple(row)) for f, row in zip(found, shares.tolist(), strict=True)]


def _options(
    texts: Sequence[str], options: Sequence[str], form: PromptFormat
) -> Flow[Float[np.ndarray, "prompts options"]]:
    prompts = [text for text in texts for _ in options]
    scored = yield from score(prompts, [form.said(o) for o in options] * len(texts))
    logprobs = [_after(form.lead, generation)[0] for generation in scored]
    return np.array(logprobs).reshape(len(texts), len(options))


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


def _own(function: Callable[[str, Question], float], found: Feedback) -> float:
    said = found.answer or ""
    about = f"for the answer {said[:40]!r} to {found.question.text[:40]!r}"
    try:
        value = float(function(said, found.question))
    except Exception as error:
        raise InvalidInput(
            f"the reward function raised {type(error).__name__}: {error}, {about}"
        ) from error
    if not math.isfinite(value):
        raise InvalidInput(
            f"the reward function returned {value} {about}; a reward is a finite number"
        )
    return value
