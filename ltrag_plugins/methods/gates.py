"""Gates by one plain signal: retrieve where the direct answer, or the question, looks doubtful.

Each is a gate of `gece` whose threshold is the quantile of the signal over labelled questions at
which a target share of them retrieves; their accepted answers are not read. Jiang et al., EMNLP
2023: least token probability; Mallen et al., ACL 2023: popularity, here word frequency.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, fetch, together
from ltrag_plugins.gece.models import FittedGate
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.signals import Evidence, WordFrequencies
from ltrag_plugins.methods.direct import RoutingSettings
from ltrag_plugins.methods.method import Method
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


def _row(name: str, signal: str, of: str, source: str = "-") -> Method:
    """A gate by a signal of the direct answer, which stands where nothing is found, or of words."""
    drafts = signal != "word_frequency"

    def evidence_of(question: Question, settings: GateSettings) -> Flow[Evidence]:
        if not drafts:
            return Evidence(question.text, Generation(""))
        reply = (yield from settings.directly(question)).trace[0]
        if not reply.text.strip():  # doubtful whether the model gives token probabilities or not
            reply = replace(reply, tokens=reply.tokens or ())
        return Evidence(question.text, reply)

    def learn(questions: Sequence[Question], settings: GateSettings) -> Flow[FittedGate]:
        evidence = yield from together([evidence_of(q, settings) for q in questions])
        own, words = GECESettings(scorer=signal), WordFrequencies(settings.language)
        rate = settings.target_rate
        return FittedGate.on_signal(evidence, own, target_rate=rate, frequencies=words)

    def answer(question: Question, settings: GateSettings, learned: FittedGate) -> Flow[Answer]:
        if (given := learned.settings.scorer) != signal:
            raise InvalidInput(f"{name} was given a gate on {given}; let it learn its own")
        evidence = yield from evidence_of(question, settings)
        if not drafts:
            rare = learned.judge(evidence).score >= learned.threshold
            return (yield from (settings.searching if rare else settings.directly)(question))
        reply, found = evidence.draft, []
        if learned.judge(evidence).retrieve:
            [found] = yield from fetch(question.text, k=settings.k)
        if not found:
            return Answer(reply.text.strip(), estimate(reply, signal), trace=(reply,))
        read = yield from settings.read(question, found, [reply])
        return replace(read, uncertainty=estimate(read.trace[1], signal))

    needs = frozenset[Any]({"retriever", "labelled questions", "probabilities"})
    needs, most = (needs, 2) if drafts else (needs - {"probabilities"}, 1)
    about = name, f"retrieves beyond a threshold on {of}", source
    return Method(*about, GateSettings, answer, lambda _: most, needs, learn, reads_answers=False)


_JIANG, _MALLEN = "Jiang et al., EMNLP 2023", "after Mallen et al., ACL 2023"
GATES = (
    _row("gate-logprob", "mean_logprob", "the direct answer's mean log-probability"),
    _row("gate-product", "product", "the product of the direct answer's token probabilities"),
    _row("gate-least", "least_probability", "the direct answer's least likely token", _JIANG),
    _row(
        "gate-entropy",
        "entropy",
        "the mean entropy of the direct answer's next-token distributions",
    ),
    _row("gate-margin", "margin", "the direct answer's mean lead over the next likeliest token"),
    _row("gate-frequency", "word_frequency", "how rare the question's words are", _MALLEN),
)
