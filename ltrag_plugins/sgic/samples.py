"""The rival of the rounds: several sampled answers over the same documents, the surest one wins.

References:
    Chen et al. (SGIC), section 5.2 and figure 3 (1 to 5 samples at a temperature of 0.7).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.sgic.answer import CalibratedAnswer, Round, Stop
from ltrag_plugins.sgic.budget import Budget
from ltrag_plugins.sgic.case import Case
from ltrag_plugins.sgic.choosing import chosen
from ltrag_plugins.sgic.scale import ScoreScale
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Generation, Passage
from ltrag_plugins.uncertainty import AGREEMENT, disagreement, estimate


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
