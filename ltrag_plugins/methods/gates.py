"""Gates by one plain signal: retrieve where the direct answer, or the question, looks doubtful.

Each is a gate of `gece` on that signal. Its threshold is the quantile of the signal over labelled
questions at which a target share of them retrieves; what their accepted answers are is not read.

References:
    Jiang et al., EMNLP 2023, "Active Retrieval Augmented Generation" (least token probability);
    Mallen et al., ACL 2023, "When Not to Trust Language Models" (a threshold on popularity; here
    the frequency of the question's words). The other signals: see `uncertainty.TOKEN_SIGNALS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import Flow, fetch, together
from ltrag_plugins.gece.models import FittedGate, fit_signal
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence, WordFrequencies
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.single import RoutingSettings
from ltrag_plugins.prompts.templates import answer_from
from ltrag_plugins.settings import Share
from ltrag_plugins.types import Answer, Generation, Question
from ltrag_plugins.uncertainty import estimate


@dataclass(frozen=True, slots=True)
class GateSettings(RoutingSettings):
    """How many questions retrieve, and how the two ways of answering ask."""

    target_rate: Share = 0.5
    """Share of the labelled questions that retrieve; 0 never does, 1 always."""
    language: str = "en"
    """Whose word frequencies the gate by frequency reads; a code such as "en"."""


def _row(name: str, signal: str, of: str, source: str) -> Method:
    """A gate by a signal of the direct answer.

    Where nothing is found, the direct answer stands. `Answer.uncertainty` is the signal of the
    answer that is given.
    """

    def draft(question: Question, settings: GateSettings) -> Flow[Evidence]:
        reply = (yield from settings.directly(question.text)).trace[0]
        if not reply.text.strip():  # doubtful whether the model gives token probabilities or not
            reply = replace(reply, tokens=reply.tokens or ())
        return Evidence(question.text, reply)

    def learn(questions: Sequence[Question], settings: GateSettings) -> Flow[FittedGate]:
        evidence = yield from together([draft(question, settings) for question in questions])
        return _fitted(name, signal, evidence, settings)

    def answer(question: Question, settings: GateSettings, learned: FittedGate) -> Flow[Answer]:
        _check(name, signal, learned)
        evidence = yield from draft(question, settings)
        reply, found = evidence.draft, []
        if learned.judge(evidence).retrieve:
            [found] = yield from fetch(question.text, k=settings.k)
        if not found:
            return Answer(reply.text.strip(), estimate(reply, signal), trace=(reply,))
        read = yield from answer_from(
            question.text, found, template=settings.template, max_tokens=settings.max_tokens
        )
        doubt = estimate(read.trace[0], signal)
        return Answer(read.text, doubt, read.passages, (reply, *read.trace))

    return Method(
        name=name,
        summary=f"retrieves beyond a threshold on {of}",
        source=source,
        settings=GateSettings,
        answer=answer,
        most_calls=lambda _: 2,
        needs=frozenset({"retriever", "labelled questions", "probabilities"}),
        learn=learn,
    )


def _by_frequency(question: Question) -> Evidence:
    return Evidence(question.text, Generation(""))  # of the question alone: nothing is drafted


def _learn_frequency(questions: Sequence[Question], settings: GateSettings) -> Flow[FittedGate]:
    yield from ()
    return _fitted("gate-frequency", "word_frequency", [*map(_by_frequency, questions)], settings)


def _answer_by_frequency(
    question: Question, settings: GateSettings, learned: FittedGate
) -> Flow[Answer]:
    _check("gate-frequency", "word_frequency", learned)
    rare = learned.score(_by_frequency(question)) >= learned.threshold
    return (
        yield from settings.reading(question.text) if rare else settings.directly(question.text)
    )


def _fitted(
    name: str, signal: str, evidence: Sequence[Evidence], settings: GateSettings
) -> FittedGate:
    if not evidence:
        raise CalibrationError(
            f"{name} learns from labelled questions and got none; give it some that are not those "
            "it is judged on"
        )
    frequencies = WordFrequencies(settings.language)
    one = GECESettings(scorer=signal)
    return fit_signal(evidence, one, target_rate=settings.target_rate, frequencies=frequencies)


def _check(name: str, signal: str, learned: FittedGate) -> None:
    if learned.settings.scorer != signal:
        raise InvalidInput(
            f"{name} was given a gate on {learned.settings.scorer}; let it learn its own"
        )


GATES = (
    _row("gate-logprob", "mean_logprob", "the direct answer's mean log-probability", "-"),
    _row("gate-product", "product", "the product of the direct answer's token probabilities", "-"),
    _row(
        "gate-least",
        "least_probability",
        "the direct answer's least likely token",
        "Jiang et al., EMNLP 2023",
    ),
    _row(
        "gate-entropy",
        "entropy",
        "the mean entropy of the direct answer's next-token distributions",
        "-",
    ),
    _row(
        "gate-margin",
        "margin",
        "the direct answer's mean lead over the next likeliest token",
        "-",
    ),
    Method(
        name="gate-frequency",
        summary="retrieves beyond a threshold on how rare the question's words are",
        source="after Mallen et al., ACL 2023",
        settings=GateSettings,
        answer=_answer_by_frequency,
        most_calls=lambda _: 1,
        needs=frozenset({"retriever", "labelled questions"}),
        learn=_learn_frequency,
    ),
)
