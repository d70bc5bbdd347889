"""The flows of a gate: ask for a draft, and gather evidence from it."""

from dataclasses import replace

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, PromptTooLong
from ltrag_plugins.flow import Ask, Flow, agree, embed
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence
from ltrag_plugins.llm.base import Direction
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import GradientAgreement


def askable_question(question: str, max_words: int) -> str:
    """The question without surrounding white space."""
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


def draft_prompt(question: str, settings: GECESettings) -> str:
    """The zero-shot prompt of the draft; the settings have checked that it holds the question."""
    return settings.prompt.replace("{question}", question)


def drafting(
    question: str, settings: GECESettings, *, vectors: bool = False, along: Direction | None = None
) -> Flow[Evidence]:
    """Ask for a zero-shot draft and gather evidence from it.

    Args:
        vectors: whether to embed question and draft.
        along: the mean gradient; None leaves the gradient term out.
    """
    question = askable_question(question, settings.max_words)
    prompt, writing = draft_prompt(question, settings), settings.writing
    [draft] = yield Ask((prompt,), writing)
    samples = []
    for i in range(settings.samples):
        sampling = replace(writing, temperature=settings.temperature, seed=settings.seed + i)
        samples += yield Ask((prompt,), sampling)
    rows = (yield from embed(question, draft.text.strip())) if vectors else None
    evidence = Evidence(question, draft, tuple(samples), rows)
    return evidence if along is None else (yield from with_gradient_term(evidence, settings, along))


def with_gradient_term(
    evidence: Evidence, settings: GECESettings, along: Direction
) -> Flow[Evidence]:
    """Add how the draft's gradient agrees with the mean gradient `along`."""
    if not evidence.draft.text:  # nothing was said, so no token has a gradient
        return replace(evidence, agreement=GradientAgreement(0.0, 0.0))
    [found] = yield from agree(
        [draft_prompt(evidence.question, settings)],
        [evidence.draft.text],
        along=along,
        cosine=settings.agreement == "cosine",
        layers=settings.layers,
    )
    return replace(evidence, agreement=found)
