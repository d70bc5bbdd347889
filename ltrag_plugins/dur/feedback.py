"""What a model makes of a prompt: its answer, and how likely it finds the right one.

A model that scores given text is asked for log-probabilities of the options (multiple choice) or
of the reference text, any other for an answer. `reward` says what that is worth.

Source: Yu et al., NAACL 2025, "Dynamic Uncertainty Ranking", eq. 2, 3, sections 6.1 and 8; Zhao et
al., ICML 2021, "Calibrate Before Use" (a content-free question); Zhou et al., ICLR 2024, "Batch
Calibration" (the mean over a batch).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from ltrag_plugins.calibration import log_softmax
from ltrag_plugins.dur.prompts import PromptFormat, Shot
from ltrag_plugins.dur.settings import DURSettings
from ltrag_plugins.errors import InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import Flow, Observer, World, ask, run_many, score
from ltrag_plugins.llm.base import LLM, ScoringLLM, checked_token
from ltrag_plugins.metrics.answer import checked, f1, is_right
from ltrag_plugins.metrics.text import bleu, rouge_l
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.types import Generation, Question

_Rungs = Sequence[Sequence[Shot]]
_PROMPTS_AT_ONCE = 128  # in one call to the model
_CONTENT_FREE = "N/A"  # stands in the question's place when options are calibrated against it
_LEAST = -30.0  # log-probability; below it a reward would be all noise
_TEXT_REWARDS = {"f1": f1, "rouge_l": rouge_l, "bleu": bleu}
_REMEDY = "use TransformersLLM, or reward='match'"


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
    contained: bool = False
    """Whether an accepted answer anywhere in the text is right."""

    @property
    def answer(self) -> str | None:
        """None where only the reference was scored and it is not greedy."""
        if self.options is not None:
            return self.question.options[int(np.argmax(self.options))]
        if self.text is None:
            return self.question.answers[0] if self.greedy else None
        return read_reply(self.text, self.question.options, lead=None)

    @property
    def right(self) -> bool:
        """Whether the answer is an accepted one (eq. 3): normalized exact match, or the option."""
        said, accepted = self.answer, checked(self.question.answers)
        if self.contained and self.text is not None:
            return is_right(self.text, accepted, "contains")
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
            raise NoTokenProbabilities(f"no probability of the answer was read; {_REMEDY}")
        return max(_LEAST, self.gold)


def read_feedback(
    asked: Sequence[tuple[Question, _Rungs]],
    llm: LLM,
    settings: DURSettings,
    observers: Sequence[Observer] = (),
) -> list[list[Feedback]]:
    """Ask each question after each sequence of shots of its ladder."""
    scores = isinstance(llm, ScoringLLM)

    def climb(question: Question, rungs: _Rungs) -> Flow[list[Feedback]]:
        found: list[Feedback] = []
        for part in [[shots] for shots in rungs] if settings.stop_at_turn else [rungs]:
            found += yield from reading(question, part, settings, scores=scores)
            if [f.right for f in found[-2:]] == [True, False]:
                break
        return found

    flows = [climb(question, rungs) for question, rungs in asked]
    return run_many(flows, World(llm=llm), observers=observers, batch=_PROMPTS_AT_ONCE)


def reading(
    question: Question, rungs: _Rungs, settings: DURSettings, *, scores: bool, both: bool = False
) -> Flow[list[Feedback]]:
    """Ask a question after each of these sequences of shots. If the model `scores` given text, that
    is used; `both`: not only for what the reward needs."""
    form = settings.prompt_format
    gold = scores if both else settings.reward in ("p_gold", "log_p_gold")
    if question.options and scores:
        options = yield from _options(question, rungs, form)
        if settings.option_calibration == "content-free":
            empty = replace(question, text=_CONTENT_FREE, context="")
            options = options - (yield from _options(empty, rungs, form))
        return [Feedback(question, options=tuple(row)) for row in options.tolist()]
    prompts = [form.prompt(shots, question) for shots in rungs]
    found = [Feedback(question, contained=settings.reward == "contains")] * len(prompts)
    if gold:
        scored = yield from score(prompts, [form.said(checked(question.answers)[0])] * len(prompts))
        known = [_after(form.lead, generation) for generation in scored]
        found = [Feedback(question, gold=gold, greedy=greedy) for gold, greedy in known]
    if both or not gold:
        stop = (form.separator.strip(" ") or "\n",) if "\n" in form.separator else ()
        written = yield from ask(*prompts, max_tokens=form.max_tokens, stop=(*stop, "\n"))
        said = [read_reply(reply.text, lead=form.lead) for reply in written]
        found = [replace(f, text=text) for f, text in zip(found, said, strict=True)]
    elif any(f.greedy is None for f in found):
        raise NoTokenProbabilities(f"the model does not tell the likeliest tokens; {_REMEDY}")
    return found


def _options(
    question: Question, rungs: _Rungs, form: PromptFormat
) -> Flow[Float[np.ndarray, "rungs options"]]:
    """The log-probability of each option after each rung."""
    texts = [form.said(option) for option in question.options]
    prompts = [prompt for shots in rungs for prompt in [form.prompt(shots, question)] * len(texts)]
    scored = yield from score(prompts, texts * len(rungs))
    logprobs = [_after(form.lead, generation)[0] for generation in scored]
    return np.array(logprobs).reshape(len(rungs), len(texts))


def _after(lead: str, scored: Generation) -> tuple[float, bool | None]:
    """Log-probability of what follows the lead-in; whether its tokens are likeliest, if told."""
    if not scored.tokens:
        raise NoTokenProbabilities(f"a scored text has no token probabilities; {_REMEDY}")
    # the answer begins with the token that reaches beyond the lead-in; one without text goes
    # with the next
    ends, length = np.cumsum([len(token.text) for token in scored.tokens]), len(lead.rstrip())
    inside = [i for i, end in enumerate(ends) if scored.tokens[i].text and end <= length]
    answer = scored.tokens[inside[-1] + 1 if inside else 0 :]
    total = sum(checked_token(token, "the model").logprob for token in answer)
    if not all(token.alternatives for token in answer):
        return total, None
    return total, all(t.logprob >= max(p for _, p in t.alternatives) for t in answer)


def reward(found: Feedback, settings: DURSettings) -> float:
    """What the feedback is worth, by `settings.reward`."""
    kind = settings.reward
    if kind in ("match", "contains"):
        return 1.0 if found.right else -1.0
    if kind in ("p_gold", "log_p_gold"):
        return math.exp(found.log_p_gold) if kind == "p_gold" else found.log_p_gold
    said = found.answer or ""
    if isinstance(kind, str):
        value = _TEXT_REWARDS[kind](said, checked(found.question.answers))
        return 1.0 if value > settings.threshold else -1.0
    about = f"for the answer {said[:40]!r} to {found.question.text[:40]!r}"
    try:
        value = float(kind(said, found.question))
    except Exception as error:
        raise InvalidInput(f"the reward raised {type(error).__name__}: {error}, {about}") from error
    if not math.isfinite(value):
        raise InvalidInput(f"the reward function returned {value}, no finite number, {about}")
    return value


def check_same_options(questions: Iterable[Question]) -> None:
    """Refuse questions whose options a batch cannot calibrate; those without any do not count."""
    if len({q.options for q in questions if q.options}) > 1:
        why = "needs questions that all offer the same options; use 'content-free'"
        raise InvalidInput(f"option_calibration='batch' {why}")


def contextual_calibration(
    found: Sequence[Feedback], over: Sequence[Feedback] | None = None
) -> list[Feedback]:
    """The feedback with log-shares of the options less their mean, of `over` if that is given."""
    known = [f for f in over or found if f.options is not None]
    if not known:
        return list(found)
    check_same_options(f.question for f in known)
    prior = log_softmax(np.array([f.options for f in known])).mean(axis=0)

    def moved(options: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return options and tuple((log_softmax(np.array(options)) - prior).tolist())

    return [replace(f, options=moved(f.options)) for f in found]
