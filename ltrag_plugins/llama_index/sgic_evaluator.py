"""Whether a response is certain enough, read from what `SGICCalibrator` wrote into it."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.response.schema import Response
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.prompts.mixin import PromptDictType

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llama_index.sgic_metadata import calibration_in


class SGICEvaluator(BaseEvaluator):
    """Passing are responses whose uncertainty score is below a threshold, and not refused.

    For `RetryQueryEngine` and the like; asks no model. The result's score is the certainty,
    1 - score / 100, in [0, 1]: larger is better, as with LlamaIndex's own evaluators. The
    feedback has the figures in words.
    """

    def __init__(self, pass_below: float = 50.0) -> None:
        """Set the threshold.

        Args:
            pass_below: 0-100; on a fitted scale 50 is as uncertain as the mean answer.

        Raises:
            InvalidInput: it is out of range.
        """
        number = isinstance(pass_below, int | float) and not isinstance(pass_below, bool)
        if not number or not 0 <= pass_below <= 100:
            raise InvalidInput(f"pass_below must lie in [0, 100], got {pass_below!r}")
        self._pass_below = pass_below

    def evaluate_response(
        self, query: str | None = None, response: Response | None = None, **kwargs: Any
    ) -> EvaluationResult:
        """Judge a response by its metadata.

        Raises:
            InvalidInput: there is no response, or no `SGICCalibrator` made it.
        """
        if response is None:
            raise InvalidInput("there is no response to evaluate; pass response=...")
        told = calibration_in(response)
        passing = told["score"] < self._pass_below and not told["refused"]
        return EvaluationResult(
            query=query,
            contexts=[node.get_content() for node in response.source_nodes],
            response=str(response.response or ""),
            passing=passing,
            feedback=self._feedback(told, passing),
            score=1 - told["score"] / 100,
        )

    async def aevaluate_response(
        self, query: str | None = None, response: Response | None = None, **kwargs: Any
    ) -> EvaluationResult:
        """As `evaluate_response`; there is nothing to wait for."""
        return self.evaluate_response(query, response, **kwargs)

    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvaluationResult:
        """A text alone carries no uncertainty.

        Raises:
            InvalidInput: always; the message names `evaluate_response`.
        """
        raise InvalidInput(
            f"the text {(response or '')[:40]!r} carries no uncertainty. Pass the whole response "
            "of an SGICCalibrator to evaluate_response."
        )

    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvaluationResult:
        """As `evaluate`."""
        return self.evaluate(query, response, contexts, **kwargs)

    def _feedback(self, told: dict[str, Any], passing: bool) -> str:
        verdict = "certain enough" if passing else "too uncertain"
        refused = " and was refused" if told["refused"] else ""
        return (
            f"The answer is {verdict}: its uncertainty score is {told['score']:.0f} of 100"
            f"{refused}; below {self._pass_below:g} passes."
        )

    def _get_prompts(self) -> PromptDictType:
        return {}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        pass
