"""A selector that sends a query to the retrieving tool only where the model does not know."""

from collections.abc import Sequence

from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import ToolMetadata

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.route import DecidingGate
from ltrag_plugins.llama_index.checks import demand
from ltrag_plugins.llama_index.events import gece_adecide, gece_decide


class GECESelector(BaseSelector):
    """Chooses between two tools of a `RouterQueryEngine` by the gate's decision."""

    def __init__(self, gate: DecidingGate, *, retrieving: int = 0, direct: int = 1) -> None:
        """Let `gate` choose.

        Args:
            retrieving: place (0 or 1) of the tool that retrieves.
            direct: place of the tool that answers without retrieval.

        Raises:
            InvalidInput: `gate` is none, or the places are not 0 and 1.
        """
        demand(gate, DecidingGate, "gate", "a gate (GECEGate.fit or GECEGate.load gives one)")
        if {retrieving, direct} != {0, 1}:
            raise InvalidInput(
                f"retrieving and direct must be 0 and 1, got {retrieving}, {direct}."
            )
        self._gate = gate
        self._places = {True: retrieving, False: direct}

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        pass

    def _select(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        _demand_two(choices)
        return self._selection(gece_decide(self._gate, query.query_str))

    async def _aselect(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        _demand_two(choices)
        return self._selection(await gece_adecide(self._gate, query.query_str))

    def _selection(self, decision: Decision) -> SelectorResult:
        index = self._places[decision.retrieve]
        return SelectorResult(selections=[SingleSelection(index=index, reason=decision.reason)])


def _demand_two(choices: Sequence[ToolMetadata]) -> None:
    if len(choices) != 2:
        raise InvalidInput(
            f"GECESelector chooses between two tools, one that retrieves and one that answers "
            f"directly; it was given {len(choices)}. Nest routers where there are more."
        )
