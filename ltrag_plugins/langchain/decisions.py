"""Decision models of langchain-core 1.8 (yes/no questions with a probability): the gate as one, and
any of them as a signal of the gate."""

from importlib import import_module
from typing import Any, final

from langchain_core.runnables import Runnable
from pydantic import Field

from ltrag_plugins.errors import InvalidInput, MissingExtra, checked
from ltrag_plugins.flow import arun, run
from ltrag_plugins.gece.decision import DecidingGate, Decision, guarded
from ltrag_plugins.langchain.component import conversation_of
from ltrag_plugins.prompts.templates import NEEDS_RETRIEVAL

try:
    from langchain_core import decisions  # type: ignore[attr-defined]
except ImportError as error:
    needs = "GECEDecisions and DecisionSignal need langchain-core 1.8 or newer"
    raise MissingExtra(f"{needs}. Install it with: pip install 'langchain-core>=1.8'") from error


class GECEDecisions(decisions.BaseDecisionModel):
    """Answers each yes/no question (`Noul`; what it says is not read) about a state with the
    probability, 0 to 1, that the state's question needs retrieval: that the model's answer fails.

    The state is a string, a message, messages (the last human one is the question), or a mapping
    with `question` or `messages`; else, and for other kinds of questions, `InvalidInput` is raised.
    `gate` is a fitted `ltrag_plugins.gece.GECEGate`.
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
        asked = guarded(_asked(state, questions), self.gate, "raise")
        return self._response(run(asked, self.gate.world), questions)

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> Any:
        asked = guarded(_asked(state, questions), self.gate, "raise")
        return self._response(await arun(asked, self.gate.world), questions)

    def _response(self, decision: Decision, questions: dict[str, Any]) -> Any:
        answer = {"type": "noul", "noul": decision.probability}
        answers = {"model": self.model, "answers": dict.fromkeys(questions, answer)}
        return decisions.ClassifierResponse.model_validate(answers)


def _asked(state: Any, questions: dict[str, Any]) -> str:
    for name, question in questions.items():
        if (kind := getattr(question, "type", None)) != "noul":
            wrong = f"GECEDecisions answers Noul questions, and {name!r} is a {kind or question!r}"
            raise InvalidInput(f"{wrong}. Ask Noul(instructions='Does this need retrieval?').")
    return conversation_of(state).question


@final
class DecisionSignal:
    """A decision model as a signal of the gate: `GECEGate.fit(..., signals={"decisions":
    DecisionSignal(model)})`, and again `GECEGate.load(..., signals=...)`. One call a question.

    Args:
        model: a `BaseDecisionModel`, or `OpenAIDecisions` of langchain-openai.
        instructions: the yes/no question about the user's; yes speaks for retrieval.
    """

    def __init__(self, model: Runnable[Any, Any], instructions: str = NEEDS_RETRIEVAL) -> None:
        if isinstance(model, decisions.BaseDecisionModel):
            asked, self._input = decisions.Noul(instructions=instructions), "state"
            self._read = lambda response: response.nouls["retrieve"].noul
        elif type(model).__name__ == "OpenAIDecisions":
            room = import_module(type(model).__module__.rpartition(".")[0])
            asked, self._input = room.Predicate(instructions=instructions), "input"
            self._read = lambda response: response.predicates["retrieve"].probability
        else:
            wanted = "a BaseDecisionModel, or OpenAIDecisions of langchain-openai"
            raise InvalidInput(f"model must be {wanted}, got {type(model).__name__}")
        self._model: Runnable[Any, Any] = model
        self._questions = {"retrieve": asked}

    def __call__(self, question: str) -> float:
        """The probability, 0 to 1, that the question needs retrieval."""
        return self._read(self._model.invoke(self._request(question)))

    async def acall(self, question: str) -> float:
        """As the call, by the model's own async call."""
        return self._read(await self._model.ainvoke(self._request(question)))

    def _request(self, question: str) -> dict[str, Any]:
        return {self._input: question, "questions": self._questions}
