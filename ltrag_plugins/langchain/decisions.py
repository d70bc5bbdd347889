"""The gate as a decision model of langchain-core 1.8: yes/no questions with a probability."""

from typing import Any

from pydantic import Field

from ltrag_plugins.errors import InvalidInput, MissingExtra, checked
from ltrag_plugins.gece.decision import DecidingGate, Decision
from ltrag_plugins.langchain.component import conversation_of

try:
    from langchain_core import decisions  # type: ignore[attr-defined]
except ImportError as error:
    raise MissingExtra(
        "GECEDecisions needs langchain-core 1.8 or newer. Install it with: pip install "
        "'langchain-core>=1.8'"
    ) from error


class GECEDecisions(decisions.BaseDecisionModel):
    """Answers each yes/no question (`Noul`) about a state with the probability, 0 to 1, that the
    state's question needs retrieval: that the model's own answer fails.

    The state is a string, a message, messages (the last human one is the question), or a mapping
    with `question` or `messages`. What a `Noul` says is not read: write there what the application
    calls it, such as "Does this need retrieval?".

    Args:
        gate: a fitted `ltrag_plugins.gece.GECEGate`.

    Raises:
        InvalidInput: a question is of another kind, or there is no question in the state.
    """

    model: str = "gece"
    gate: Any = Field(exclude=True)

    def __init__(self, gate: DecidingGate, **fields: Any) -> None:
        wanted = "a gate (GECEGate.fit or GECEGate.load gives one)"
        fields["gate"] = checked(gate, DecidingGate, "gate", wanted)
        super().__init__(**fields)

    @property
    def _provider(self) -> str:
        return "ltrag_plugins"

    def _classify(self, state: Any, questions: dict[str, Any]) -> Any:
        return self._response(self.gate.decide(_asked(state, questions)), questions)

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> Any:
        return self._response(await self.gate.adecide(_asked(state, questions)), questions)

    def _response(self, decision: Decision, questions: dict[str, Any]) -> Any:
        answer = {"type": "noul", "noul": decision.probability}
        answers = {"model": self.model, "answers": dict.fromkeys(questions, answer)}
        return decisions.ClassifierResponse.model_validate(answers)


def _asked(state: Any, questions: dict[str, Any]) -> str:
    for name, question in questions.items():
        if (kind := getattr(question, "type", None)) != "noul":
            raise InvalidInput(
                f"GECEDecisions answers Noul questions, and {name!r} is a {kind or question!r}. "
                "Ask Noul(instructions='Does this need retrieval?')."
            )
    return conversation_of(state).question
