"""K samples: several sampled answers over the same passages; the least uncertain one wins.

After Chen et al. (SGIC), eq. 1, section 5.2, figure 3; the vote is Wang et al., ICLR 2023.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ltrag_plugins.flow import Flow, fetch, sample
from ltrag_plugins.methods.method import Method, ReadingSettings
from ltrag_plugins.metrics.answer import normalized
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.settings import Count, Range, Whole
from ltrag_plugins.types import Answer, Generation, Question
from ltrag_plugins.uncertainty import Reading, sampled_uncertainties


@dataclass(frozen=True, slots=True)
class KSamplesSettings(ReadingSettings):
    """How many answers, how they are sampled, and over what."""

    samples: Count = 5
    """K (paper: 1 to 5)."""
    temperature: Annotated[float, Range(above=0, most=10)] = 0.7
    """Of the sampling (paper: 0.7); at 0 every sample would be the same."""
    seed: Whole = 0
    """Of the first sample; the others count on from it."""
    reading: Reading = "drawn"
    """Rank by the drawn tokens' probabilities, which measured better, or, "maximal", by the largest
    at each step (paper, eq. 1; where a model tells alternatives)."""


def _answer(question: Question, settings: KSamplesSettings, _: None) -> Flow[Answer]:
    """At most one search, `samples` model calls, each with a seed of its own."""
    [shown] = yield from fetch(question.text, k=settings.k)
    read = reading_prompt(question.text, shown, settings.template) if shown else ""
    prompt = read or direct_prompt(question.text)
    [said] = yield from sample(
        prompt,
        samples=settings.samples,
        temperature=settings.temperature,
        seed=settings.seed * settings.samples,  # seeds draw nothing twice
        max_tokens=settings.max_tokens,
        stop=("\n",),
    )
    best, uncertainty = _surest(said, settings.reading)
    return Answer(best.text.strip(), uncertainty, tuple(shown), said)


def _surest(said: Sequence[Generation], reading: Reading) -> tuple[Generation, float | None]:
    """The least uncertain, or without token probabilities the most frequent, and how uncertain."""
    if all(one.tokens is not None for one in said):
        doubts = sampled_uncertainties(said, reading)
        return said[doubts.index(min(doubts))], min(doubts)
    if len(said) == 1:
        return said[0], None
    keys = [normalized(one.text) or one.text.strip() for one in said]
    votes = Counter(filter(None, keys))
    if not votes:
        return said[0], 1.0
    [(winner, count)] = votes.most_common(1)
    return said[keys.index(winner)], 1.0 - count / len(said)


METHOD = Method(
    name="k-samples",
    summary="several sampled answers over the passages; the least uncertain one wins",
    source="Chen et al. (SGIC), section 5.2",
    settings=KSamplesSettings,
    answer=_answer,
    most_calls=lambda settings: settings.samples,
)
