"""The flows of a gate: draft an answer, gather what it gives away."""

from dataclasses import replace

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, PromptTooLong
from ltrag_plugins.flow import Flow, agree, ask, embed
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.prompts.templates import direct_prompt
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Generation, GradientAgreement


def checked_question(question: str, max_words: int) -> str:
    """The question without surrounding white space.

    Raises:
        EmptyQuestion: it has no words.
        PromptTooLong: it has more than `max_words`.
        InvalidInput: it is not a string.
    """
    if not isinstance(question, str):
        raise InvalidInput(f"a question is a string, got {type(question).__name__}")
    count = len(words(question))
    if not count:
        raise EmptyQuestion(f"the question {question!r} has no words; ask something")
    if count > max_words:
        raise PromptTooLong(
            f"the question has {count} words, the gate takes {max_words}. Shorten it, or raise "
            "GECESettings.max_words if your model reads that much."
        )
    return question.strip()


def drafting(
    question: str, settings: GECESettings, *, vectors: bool, along: Direction | None = None
) -> Flow[Evidence]:
    """Ask for a zero-shot draft and gather evidence from it.

    Args:
        vectors: whether to embed question and draft.
        along: the mean gradient; None leaves the gradient term out.
    """
    question = checked_question(question, settings.max_words)
    prompt = direct_prompt(question, settings.prompt)
    [draft] = yield from ask(prompt, max_tokens=settings.max_tokens, stop=settings.stop)
    samples = yield from _sampled(prompt, settings)
    rows = (yield from embed(question, draft.text.strip())) if vectors else None
    evidence = Evidence(question, draft, samples, rows)
    return evidence if along is None else (yield from holding(evidence, settings, along))


def holding(evidence: Evidence, settings: GECESettings, along: Direction) -> Flow[Evidence]:
    """Add the gradient term, with the draft in the reference's place."""
    if not evidence.draft.text:  # nothing was said, so no token has a gradient
        return replace(evidence, agreement=GradientAgreement(0.0, 0.0))
    [found] = yield from agree(
        [direct_prompt(evidence.question, settings.prompt)],
        [evidence.draft.text],
        along=along,
        cosine=settings.agreement == "cosine",
        layers=settings.layers,
    )
    return replace(evidence, agreement=found)


def _sampled(prompt: str, settings: GECESettings) -> Flow[tuple[Generation, ...]]:
    samples = []
    for i in range(settings.samples):
        [sample] = yield from ask(
            prompt,
            max_tokens=settings.max_tokens,
            stop=settings.stop,
            temperature=settings.temperature,
            seed=settings.seed + i,
        )
        samples.append(sample)
    return tuple(samples)
