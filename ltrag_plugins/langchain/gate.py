"""A gate's decision as a run of its own, which callbacks and traces can see."""

from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.langchain.questions import question_of
from ltrag_plugins.langchain.trace import merged


class Verdict(dict[str, Any]):
    """The decision as plain values, for traces, with the `Decision` itself at hand."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.as_metadata())
        self.decision = decision


class GateStep(Runnable[Any, Verdict]):
    """Question in, decision out; a run named GECEGate, the model's runs its children.

    Args:
        question_key: where the question is in an input that is a mapping; see `question_of`.
    """

    name = "GECEGate"

    def __init__(self, gate: DecidingGate, question_key: str = "question") -> None:
        self.gate = checked_gate(gate)
        self.question_key = question_key

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Verdict:
        """Decide about one question."""
        return self._call_with_config(self._decide, input, config)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Verdict:
        """As `invoke`, with the gate's own async call."""
        return await self._acall_with_config(self._adecide, input, config)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Verdict]:
        """Decide about all questions, their model calls merged."""
        return self._batch_with_config(
            self._decide_many, inputs, config, return_exceptions=return_exceptions
        )

    def _decide(self, value: Any) -> Verdict:
        return Verdict(self.gate.decide(question_of(value, self.question_key)))

    async def _adecide(self, value: Any) -> Verdict:
        return Verdict(await self.gate.adecide(question_of(value, self.question_key)))

    def _decide_many(
        self, values: list[Any], run_manager: Any, config: list[RunnableConfig]
    ) -> list[Exception | Verdict]:
        outcomes: dict[int, Exception | Verdict] = {}
        questions: dict[int, str] = {}
        for i, value in enumerate(values):
            try:
                questions[i] = question_of(value, self.question_key)
            except InvalidInput as error:
                outcomes[i] = error
        decided = merged(
            lambda observer: self.gate.decide_many(
                list(questions.values()), observers=[observer], return_exceptions=True
            ),
            [config[i] for i in questions],
        )
        for i, decision in zip(questions, decided, strict=True):
            outcomes[i] = decision if isinstance(decision, Exception) else Verdict(decision)
        return [outcomes[i] for i in range(len(values))]


def checked_gate(gate: Any) -> DecidingGate:
    """The gate itself, if it is one.

    Raises:
        InvalidInput: it cannot decide.
    """
    if not isinstance(gate, DecidingGate):
        raise InvalidInput(
            f"a gate must have decide, adecide, decide_many and world, got {gate!r:.60}. "
            "Fit or load one with ltrag_plugins.gece.GECEGate."
        )
    return gate


def told(config: RunnableConfig | None, decision: Decision) -> RunnableConfig:
    """The config for what follows a decision: its runs carry it as metadata 'gece'."""
    return merge_configs(config, {"metadata": {"gece": decision.as_metadata()}})
