"""Gate and calibrator around an agent of `langchain.agents.create_agent`."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from ltrag_plugins.errors import InvalidInput, checked, missing_extra
from ltrag_plugins.gece.decision import NOT_TEXT, DecidingGate, shows, warn_of_learning
from ltrag_plugins.langchain.calibrate import SGICCalibrator
from ltrag_plugins.langchain.component import Asking, conversation_of
from ltrag_plugins.langchain.gate import _gate_step, _OnError
from ltrag_plugins.tokenize import words

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as error:
    raise missing_extra("langchain>=1.0", "agents") from error


_logger = logging.getLogger(__name__)
_Tool = str | BaseTool | Callable[..., Any] | dict[str, Any]
_WANTED = "the tools that retrieve, or their names"


class GECEMiddleware(AgentMiddleware):
    """Where the model knows, the retrieval tools are not offered, or the draft is the answer; asked
    at the first model call after each human message. Once a tool has run, all are offered.

    Args:
        gate: decides; a fitted `ltrag_plugins.gece.GECEGate`.
        tools: the tools that retrieve (functions too), or their names; one or several.
        draft_answers: end with the draft, without a call of the agent's model.
        condense, on_error: as for `GECERouter`.
    """

    def __init__(
        self,
        gate: DecidingGate,
        tools: Collection[_Tool] | _Tool,
        *,
        draft_answers: bool = False,
        condense: bool | Runnable[Any, Any] | None = True,
        on_error: _OnError = "retrieve",
    ) -> None:
        super().__init__()
        self._step = _gate_step(gate, Asking("messages", condense), on_error)
        warn_of_learning(gate, "GECEMiddleware")
        one = isinstance(tools, str | BaseTool | Mapping) or callable(tools)
        given: Any = [tools] if one else checked(tools, Collection, "tools", _WANTED)
        named = (tool if isinstance(tool, str) else _name_of(tool) for tool in given)
        self._names, self._draft_answers = frozenset(named), draft_answers

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """The model's call, with the tools that it needs."""
        if not _asks(request):
            return handler(request)
        verdict = self._step.invoke(request.messages)
        if self._is_answer(request, verdict):
            return verdict.draft.invoke(request.messages)
        return handler(self._known(request, verdict))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `wrap_model_call`."""
        if not _asks(request):
            return await handler(request)
        verdict = await self._step.ainvoke(request.messages)
        if self._is_answer(request, verdict):
            return await verdict.draft.ainvoke(request.messages)
        return await handler(self._known(request, verdict))

    def _is_answer(self, request: Any, verdict: Any) -> bool:
        # a draft is in no response format
        return self._draft_answers and not (verdict.decision.retrieve or request.response_format)

    def _known(self, request: Any, verdict: Any) -> Any:
        if verdict.decision.retrieve:
            return request
        kept = [tool for tool in request.tools if _name_of(tool) not in self._names]
        if self._names and len(kept) == len(request.tools):
            offered = ", ".join(f"{_name_of(tool)}" for tool in kept) or "none"
            told = "no tool of the agent is named %s, so none is held back; its tools: %s"
            _logger.warning(told, " or ".join(sorted(map(str, self._names))), offered)
        choice = request.tool_choice  # a server refuses one that is not offered
        named = _name_of(choice) if isinstance(choice, dict) else choice
        return request.override(tools=kept, tool_choice=None if named in self._names else choice)


def _asks(request: Any) -> bool:
    return isinstance([None, *request.messages][-1], HumanMessage)


def _name_of(tool: Any) -> str | None:
    """A provider's own tool has its type alone."""
    if not isinstance(tool, dict):
        name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
        if not name:
            raise InvalidInput(f"tools must be {_WANTED}, got {tool!r:.60}, which has no name.")
        return name
    return tool.get("function", tool).get("name") or tool.get("type")


class SGICMiddleware(AgentMiddleware):
    """The agent's last message becomes the calibrated answer, or the refusal: from what the tools
    returned since the last human message (but its errors), with the scores as
    `response_metadata["sgic"]`. One that a tool returned, that calls tools, that is a structured
    response, or that answers a picture or no word is left alone."""

    def __init__(self, calibrator: SGICCalibrator) -> None:
        super().__init__()
        self._calibrator = checked(calibrator, SGICCalibrator, "calibrator", "an SGICCalibrator")

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """The last message, calibrated."""
        asked = self._asked(state)
        return asked and self._shown(state, self._calibrator.invoke(asked))

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_agent`."""
        asked = self._asked(state)
        return asked and self._shown(state, await self._calibrator.ainvoke(asked))

    def _asked(self, state: Any) -> dict[str, Any] | None:
        messages = state["messages"]
        start = max((i for i, m in enumerate(messages) if isinstance(m, HumanMessage)), default=-1)
        last = messages[-1] if start >= 0 and not state.get("structured_response") else None
        if not isinstance(last, AIMessage) or last.tool_calls:
            return None
        asked = conversation_of(messages[: start + 1])
        question = asked.question
        if NOT_TEXT in question or shows(asked.history) or not words(question):
            return None
        replies = [m for m in messages[start:] if isinstance(m, ToolMessage)]
        found = [message for message in replies if message.status != "error"]
        # no list, which where it is empty would be taken for the thread's turn before
        documents = tuple(Document(str(message.text)) for message in found)
        key = self._calibrator.documents_key
        return {"messages": messages[: start + 1], key: documents}

    def _shown(self, state: Any, out: dict[str, Any]) -> dict[str, Any]:
        last, [said] = state["messages"][-1], out["messages"]
        told = {**last.response_metadata, **said.response_metadata}
        update = {"content": said.text, "response_metadata": told}
        return {"messages": [last.model_copy(update=update)]}
