"""What the components share: how the question in their input is read, what shape an answer has, and
calls that are runs of their own.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, get_args, get_origin
from uuid import uuid4

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import get_executor_for_config, merge_configs
from langchain_core.runnables.passthrough import RunnableAssign
from langchain_core.runnables.utils import AddableDict
from pydantic import BaseModel, PydanticUserError, ValidationError

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, ModelFailed, checked
from ltrag_plugins.flow import Flow, World, arun, run
from ltrag_plugins.gece.decision import NOT_TEXT, shows
from ltrag_plugins.langchain.model import own_call, run_merged, unbound

_logger = logging.getLogger(__name__)
ANSWER_KEYS = ("answer", "output", "result", "response", "generation", "text")
"""Where chains and graphs leave the answer in a mapping, the likeliest first."""


_THREAD = {"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "session_id"}
_TALK = re.compile("thread|session|conversation|chat")  # in the name of a history's id


class Asked(NamedTuple):
    """A question, and the turns before it as (who, text)."""

    question: str
    history: tuple[tuple[str, str], ...] = ()
    failed: ModelFailed | None = None
    """Why the question does not stand alone, where `condense` should have made it."""

    @property
    def words(self) -> str:
        """The question as a text; of a picture the words alone."""
        return self.question.replace(NOT_TEXT, "").strip()


_UNREAD = (("", ""),)
"""Turns in a form of the application's own."""


def conversation_of(value: Any, key: str = "question", *, reads: bool = False) -> Asked:
    """The question in a string, a message, a prompt, or a mapping or state that holds one.

    A mapping or state gives its entry `key`, with `chat_history` (or a `history` of messages)
    before it, else its `messages`; of messages the last human one is the question. LangGraph's
    `Command` holds none. A history that holds no messages is refused where one `reads` it.
    """
    match value:
        case str():
            return Asked(value)
        case BaseMessage():
            return Asked(_text(value))
        case PromptValue():
            return _last_human(value.to_messages())
        case Sequence():
            return _last_human(value)
    if hasattr(value, "goto") and hasattr(value, "resume"):  # a Command to a graph that stopped
        return Asked(NOT_TEXT)
    entries = entries_of(value)
    # a state may have an empty entry for it, by default
    if key in entries and (entries[key] or "messages" not in entries):
        asked = conversation_of(entries[key], key, reads=reads)
        earlier = () if asked.history else _earlier(entries)
        if not earlier:
            return asked
        try:
            return Asked(asked.question, _turns(_spoken(earlier)))
        except InvalidInput as error:
            if not reads:
                return Asked(asked.question, _UNREAD)
            remedy = "condense=None leaves the turns out, a Runnable reads them itself"
            raise InvalidInput(f"{error}; {remedy}") from error
    if "messages" in entries:
        return _last_human(entries["messages"])
    raise InvalidInput(
        f"there is no {key!r} (and no 'messages') in {value!r:.80}. "
        "Pass a string, or name the key that holds the question with question_key."
    )


def _earlier(entries: Mapping[str, Any]) -> Any:
    """The turns before, under the names that LangChain's prompts and histories have for them."""
    if given := entries.get("chat_history"):
        return given
    kept = entries.get("history")  # anything may have that name
    with suppress(InvalidInput):
        if isinstance(kept, list) and not any(isinstance(turn, str) for turn in kept):
            return _messages(kept)
    return ()


def entries_of(value: Any) -> Mapping[str, Any]:
    """A mapping itself, or what an object holds; a prompt is no state."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, PromptValue):
        return {}
    if is_dataclass(value) and not hasattr(value, "__dict__"):  # it has slots
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return getattr(value, "__dict__", {})


def _messages(messages: Any) -> list[BaseMessage]:
    """Read as a graph's state reads them: a text, a mapping or a pair of texts is one message."""
    pair = isinstance(messages, tuple) and [*map(type, messages)] == [str, str]
    if pair or isinstance(messages, str | BaseMessage | Mapping):
        messages = [messages]
    try:
        return convert_to_messages(messages)
    except (ValueError, TypeError, NotImplementedError, KeyError) as error:
        raise InvalidInput(f"these are no messages: {messages!r:.80} ({error})") from error


def _spoken(history: Any) -> list[BaseMessage]:
    """As `_messages`, or pairs of what was asked and answered (`ConversationalRetrievalChain`)."""
    try:
        return _messages(history)
    except InvalidInput:
        said: list[BaseMessage] = []
        for pair in history if isinstance(history, list | tuple) else [None]:
            match pair:
                case (str() as asked, str() as answered):
                    said += [HumanMessage(asked), AIMessage(answered)]
                case _:
                    raise
        return said


def _last_human(messages: Any) -> Asked:
    read = _messages(messages)
    for i in reversed(range(len(read))):
        if isinstance(read[i], HumanMessage):
            return Asked(_text(read[i]), _turns(read[:i]))
    raise InvalidInput(f"there is no human message in {messages!r:.80} to take as the question.")


def _text(message: BaseMessage) -> str:
    """A message's text, with a mark for what else a person put in it."""
    asks = isinstance(message, HumanMessage) and isinstance(message.content, list)
    blocks = message.content if asks else []
    other = any(isinstance(block, dict) and block.get("type") != "text" for block in blocks)
    return str(message.text) + NOT_TEXT * other


def _turns(messages: Sequence[BaseMessage]) -> tuple[tuple[str, str], ...]:
    """What was said; nothing where no person spoke, as a greeting needs no second look."""
    said = [m for m in messages if isinstance(m, HumanMessage | AIMessage) and _text(m).strip()]
    spoken = any(isinstance(message, HumanMessage) for message in said)
    return tuple((message.type, _text(message)) for message in said) if spoken else ()


@dataclass(frozen=True)
class Asking:
    """Reads inputs; a question that others came before is made to stand alone by `condense`.

    True leaves the turns for our own prompt, a Runnable gets the input and gives the question, and
    None drops them.
    """

    key: str = "question"
    condense: Any = None
    on_error: str = "raise"
    """With "retrieve" a Runnable that fails, or gives no question, leaves the question as it is,
    and says so as `Asked.failed`."""

    def __post_init__(self) -> None:
        wanted = "True (ask the component's own model), a Runnable from the input, or None"
        checked(self.condense, Runnable | bool | None, "condense", wanted)

    def read(self, value: Any, config: RunnableConfig | None = None) -> Asked:
        """The question, and the turns that our prompt has to make it stand alone from."""
        asked = conversation_of(value, self.key, reads=self.condense is True)
        if not (asked.history and isinstance(self.condense, Runnable)):
            return asked if self.condense else _alone(asked.question, asked)
        try:
            return _condensed(self.condense.invoke(value, own_call(config)), asked)
        except Exception as error:
            return self._uncondensed(asked, error)

    async def aread(self, value: Any, config: RunnableConfig | None = None) -> Asked:
        """As `read`."""
        asked = conversation_of(value, self.key, reads=self.condense is True)
        if not (asked.history and isinstance(self.condense, Runnable)):
            return asked if self.condense else _alone(asked.question, asked)
        try:
            return _condensed(await self.condense.ainvoke(value, own_call(config)), asked)
        except Exception as error:
            return self._uncondensed(asked, error)

    def _uncondensed(self, asked: Asked, error: Exception) -> Asked:
        if self.on_error != "retrieve":
            raise error
        failed = ModelFailed(f"condense= raised {type(error).__name__}: {error}")
        failed.__cause__ = error
        return Asked(asked.question, failed=failed)

    def read_many(self, values: Sequence[Any], configs: Sequence[RunnableConfig]) -> list[Any]:
        """As `read` for each, errors in their places."""

        def read(value: Any, config: RunnableConfig) -> Any:
            try:
                return self.read(value, config)
            except Exception as error:
                return error

        if not (values and isinstance(self.condense, Runnable)):
            return [*map(read, values, configs)]
        with get_executor_for_config(configs[0]) as pool:  # as its own `batch`
            return [*pool.map(read, values, configs)]


def _alone(question: str, asked: Asked) -> Asked:
    """The question without its turns; the mark of a picture in it, or right before it, stays."""
    pictured = NOT_TEXT in asked.question or shows(asked.history)
    return Asked(question.replace(NOT_TEXT, "") + NOT_TEXT * pictured)


def _condensed(said: Any, asked: Asked) -> Asked:
    question = conversation_of(said).question
    if not question.strip():
        raise EmptyQuestion(f"condense= gave {said!r:.60}, which is no question; see its prompt")
    return _alone(question, asked)


def in_graph(config: RunnableConfig) -> bool:
    """Whether a node of LangGraph is running, so that what comes out may go into a checkpoint."""
    return "langgraph_node" in (config.get("metadata") or {})


def conversation(chain: Any, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A call's `configurable` with a conversation of its own, for a graph or chain that keeps what
    was said in one. Of the ids of a history those stay whose name is not that of a conversation,
    as "user_id", where there is one that is."""
    ids = history_ids(chain)
    own = _THREAD | {*([name for name in ids if _TALK.search(name)] or ids)}
    kept = {k: v for k, v in (given or {}).items() if k not in own and k[:2] != "__"}
    return dict.fromkeys(("thread_id", "session_id", *ids), uuid4().hex) | kept


def history_ids(chain: Any) -> list[str]:
    """What a `RunnableWithMessageHistory` in a chain keeps its conversations by."""
    parts, own = list[Any](), list[str]()
    match chain:
        case RunnableSequence():
            parts = chain.steps
        case RunnableParallel():
            parts = [*chain.steps__.values()]
        case RunnableAssign():
            parts = [chain.mapper]
        case RunnableWithFallbacks():
            parts = [*chain.runnables]
        case RunnableBranch():
            parts = [chain.default, *(branch for _, branch in chain.branches)]
        case RunnableBindingBase():
            own = [spec.id for spec in getattr(chain, "history_factory_config", None) or ()]
            parts = [chain.bound]
        case _:
            pass
    return [*own, *(name for part in parts for name in history_ids(part))]


def plain(value: Any) -> Any:
    """Our values as dicts and lists, which checkpointers keep without knowing our classes."""
    if is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


_RAW = ("raw", "parsed", "parsing_error")  # of `with_structured_output(..., include_raw=True)`
_TRIED = "a draft"


@dataclass
class Shape:
    """Puts an answer out as the chain would; see `answer` of `GECERouter`."""

    answer: str | Callable[[Any], Any]
    chain: Runnable[Any, Any]
    _seen: Any = None
    """What the chain put out at an earlier call, as `_declared` has it."""
    _streamed: bool = False
    """Whether that is of a stream alone."""
    _lists: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Whether its entries were lists."""

    def __post_init__(self) -> None:
        wanted = "'auto', 'text', 'message', a key, or a function from the decision"
        checked(self.answer, str | Callable, "answer", wanted)

    @cached_property
    def _declared(self) -> Any:
        return _form_of(self.chain)  # 10 ms for a graph

    @cached_property
    def _arrays(self) -> Mapping[str, bool]:
        """Whether entries that the chain declares with a type are lists."""
        with suppress(Exception):  # of a user's types
            entries = properties_of(self.chain.get_output_jsonschema()).items()
            kinds = {"type", "anyOf", "$ref"}
            return {k: v.get("type") == "array" for k, v in entries if kinds & v.keys()}
        return {}

    def check(self, value: Any = None, output: Any = None) -> None:
        """Refuse what no draft fills, whatever its text: what the chain declares to put out, or
        else the form of an output of it."""
        if callable(self.answer) or self.answer in ("text", "message"):
            return
        if isinstance(self._declared, tuple) and {*self._declared} == {*_RAW}:
            raise InvalidInput(
                "the chain puts out the raw reply too (include_raw=True), which a draft has none "
                "of; say what it is there, as answer=lambda decision: {'raw': None, 'parsed': "
                "Cited(answer=decision.answer), 'parsing_error': None} for a model Cited"
            )
        tried = Shape(self.answer, self.chain)
        if "messages" not in entries_of(value):
            tried.note(output)
        if not isinstance(tried._declared or tried._seen, type):
            return
        try:
            tried.of(AIMessage(_TRIED), {}, SimpleNamespace(question=_TRIED))
        except InvalidInput as error:
            wrong = error.__cause__
            # a draft of other words may fit where this one does not, or for the model as a whole
            if isinstance(wrong, ValidationError) and not any(
                one["loc"] and one["input"] != _TRIED for one in wrong.errors()
            ):
                return
            raise

    def note(self, output: Any, *, streamed: bool = False) -> None:
        """Remember the form of the chain's output; what it streamed is overruled."""
        if self._seen is None or (self._streamed and not streamed):
            kind = type(output) if isinstance(output, BaseModel) else "text"
            kind = "message" if isinstance(output, BaseMessage) else kind
            self._seen = tuple(output) if isinstance(output, Mapping) else kind
            self._streamed = streamed
            if isinstance(output, Mapping):
                self._lists = {k: isinstance(v, list | tuple) for k, v in output.items()}

    def note_pieces(self, pieces: Sequence[Any]) -> None:
        """As `note`, of what the chain streamed; what graphs do, and events, are no such pieces."""
        if not pieces or hasattr(_steps(self.chain)[-1], "get_state"):
            return
        if all(isinstance(piece, AddableDict) for piece in pieces):
            self.note({k: v for piece in pieces for k, v in piece.items()}, streamed=True)
        elif len(pieces) == 1 or not isinstance(pieces[-1], Mapping):
            self.note(pieces[-1], streamed=True)

    def of(self, message: AIMessage, value: Any, decision: Any) -> Any:
        """The answer that a message carries, for the input `value`."""
        form: Any = self.answer
        if callable(form):
            return form(decision)
        if form == "auto":
            state = ("messages",) if "messages" in entries_of(value) else None
            form = self._declared or state or self._seen or "text"
        if form == "text":
            return str(message.text)
        if form == "message":
            return message
        found, chosen = self._declared if isinstance(form, str) else form, form
        fields = found.model_fields if isinstance(found, type) else None
        keys: list[str] = list(fields or (found if isinstance(found, tuple) else ()))
        if not isinstance(chosen, str):
            if not keys:
                remedy = "give a chain that answers (direct=...), or answer="
                raise InvalidInput(f"the chain's output has no field for a draft; {remedy}")
            told = fields or _channels(self.chain)
            new = keys if told else [key for key in keys if key not in entries_of(value)]
            assigned = isinstance(_steps(self.chain)[-1], RunnableAssign)
            last = keys[-1:] if assigned or len(keys) == 1 else new if len(new) == 1 else []
            named = [key for key in ("messages", *ANSWER_KEYS) if key in keys]
            if not (named or last):
                said = f"the chain's output, or state, has {keys}"
                if form is self._declared:
                    raise InvalidInput(f"{said}; name the key of the answer: answer='...'")
                self._seen = "text"
                _logger.warning("%s; a draft is text until answer= names that of the answer", said)
                return str(message.text)
            chosen = [*named, *last][0]
        if chosen == "messages":
            return {"messages": [message_chunk_to_message(message)]}
        given = value if isinstance(value, Mapping) else {}
        # a list as `create_retrieval_chain` puts it out where it found nothing; no number is None
        lists = {**self._arrays, **self._lists}
        empty: dict[str, Any] = {k: [] if lists.get(k, True) else None for k in keys}
        empty |= {"question": decision.question} if "question" in empty else {}
        if fields is None:
            last, spoken = _steps(self.chain)[-1], dict[str, Any]()
            if isinstance(last, Component) and last._speaks:  # a calibrator, which has scores
                sure = dict.fromkeys(("uncertainty", "p_wrong"), decision.probability)
                spoken = {"refused": False, **sure}
                if "messages" in entries_of(value):
                    spoken["messages"] = [message_chunk_to_message(message)]
            return {**empty, **given, **spoken, chosen: str(message.text)}
        wanted = {key: empty[key] for key in keys if fields[key].is_required()}
        return _made(found, {**wanted, chosen: str(message.text)})

    @property
    def is_graph(self) -> bool:
        """Whether the chain is a graph of LangGraph, here or on a server."""
        return hasattr(unbound(self.chain), "get_state")

    @property
    def in_state(self) -> bool:
        """Whether it is one with a state, and an answer an entry of that."""
        graph = unbound(self.chain)
        keys = _channels(graph) if hasattr(graph, "builder") else ()
        return bool(keys) and self.answer in ("auto", *keys)

    def as_graph(self, draft: Runnable[Any, Any], value: Any, decision: Any) -> Any:
        """What gives the draft in the ways in which the graph gives its answers: a graph with one
        node, and where the answer is `in_state`, with the graph's own state and threads."""
        bindings, graph = list[Any](), self.chain
        while isinstance(graph, RunnableBindingBase):
            bindings.append(graph)
            graph = graph.bound
        if self.in_state:
            made = self._twin(graph, draft, value, decision)
        else:

            def GECEDraft(given: Any, config: RunnableConfig) -> Any:
                return self.of(draft.invoke(given, config), value, decision)

            made = import_module("langgraph.func").entrypoint()(GECEDraft)  # there, as a graph is
        made.stream_mode = getattr(graph, "stream_mode", made.stream_mode)
        for binding in reversed(bindings):
            made = binding.model_copy(update={"bound": made})
        return made

    def _twin(self, graph: Any, draft: Runnable[Any, Any], value: Any, decision: Any) -> Any:
        builder, given = graph.builder, entries_of(value)

        def update(message: AIMessage) -> dict[str, Any]:
            written = self.of(message, {}, decision)
            kinds = {key: channel.ValueType for key, channel in builder.channels.items()}
            lists = {key for key, kind in kinds.items() if list in (kind, get_origin(kind))}
            found = lists - {*given}  # nothing, where the graph would have found something
            return {
                k: v
                for k, v in written.items()
                if k in found or (v not in ([], None) and k != "question")
            }

        async def awrite(state: Any, config: RunnableConfig) -> dict[str, Any]:
            return update(await draft.ainvoke(state, config))

        def write(state: Any, config: RunnableConfig) -> dict[str, Any]:
            return update(draft.invoke(state, config))

        schemas = {"input_schema": builder.input_schema, "output_schema": builder.output_schema}
        twin = type(builder)(builder.state_schema, builder.context_schema, **schemas)
        twin.add_node("GECEDraft", RunnableLambda(write, awrite, name="GECEDraft"))
        twin.set_entry_point("GECEDraft")
        made = twin.compile(graph.checkpointer, store=graph.store, name="GECEDraft")
        return made.copy({"config": graph.config})

    def with_thread(self, value: Any, config: RunnableConfig) -> Any:
        """A turn with what its thread holds before it, for the gate and for audits; no question,
        if the graph waits there for a person."""
        if in_graph(config) and self._node is not None:
            with suppress(ValueError):  # that graph keeps no threads
                return NOT_TEXT if self._node.get_state(config).next else value
        found = self._thread(config)
        return _joined(value, found[0].get_state(found[1]), found[0]) if found else value

    async def awith_thread(self, value: Any, config: RunnableConfig) -> Any:
        """As `with_thread`."""
        if in_graph(config) and self._node is not None:
            with suppress(ValueError):
                return NOT_TEXT if (await self._node.aget_state(config)).next else value
        found = self._thread(config)
        return _joined(value, await found[0].aget_state(found[1]), found[0]) if found else value

    @property
    def _node(self) -> Any:
        """The graph, where it can be a node of another one; else None."""
        graph = unbound(self.chain)
        return graph if self.is_graph and hasattr(graph, "channels") else None

    def _thread(self, config: RunnableConfig) -> tuple[Any, RunnableConfig] | None:
        """The graph, and the config that reads a thread of it; None: the call is in no thread."""
        graph = self.chain
        while isinstance(graph, RunnableBindingBase):
            config, graph = merge_configs(graph.config, config), graph.bound
        kept = merge_configs(getattr(graph, "config", None) or {}, config).get("configurable", {})
        if not getattr(graph, "checkpointer", None) or "thread_id" not in kept or in_graph(config):
            return None
        return graph, config


def _joined(value: Any, thread: Any, graph: Any) -> Any:
    if value is None or thread.next or hasattr(value, "goto"):  # the last: a Command
        return NOT_TEXT
    given, kept = entries_of(value), thread.values
    if not (given and isinstance(kept, Mapping)):  # a function as a graph keeps no state
        return value
    before = {k: kept[k] for k in ("chat_history", "history") if k in kept and k not in given}
    if "messages" in given and kept.get("messages"):
        # a graph on a server shows no channels; one without a reducer replaces its messages
        channel = getattr(graph, "channels", {}).get("messages")
        if channel is None or hasattr(channel, "operator") or hasattr(channel, "reducer"):
            before["messages"] = _added(kept["messages"], _messages(given["messages"]))
    return {**given, **before} if before else value


def _added(kept: Sequence[BaseMessage], new: Sequence[BaseMessage]) -> list[BaseMessage]:
    """A thread's messages and new ones after them; a new one may be an old one that is sent again,
    or may remove old ones."""
    ids = {one.id for one in new if one.id}
    # LangGraph's REMOVE_ALL_MESSAGES
    left = [] if "__remove_all__" in ids else [one for one in kept if one.id not in ids]
    return [*left, *(one for one in new if not isinstance(one, RemoveMessage))]


def _made(model: Any, entries: dict[str, Any]) -> Any:
    try:
        return model(**entries)
    except ValidationError as error:
        remedy = "say how (answer=lambda decision: ...), or give a chain that answers (direct=...)"
        said = f"a draft does not fill the {model.__name__} that the chain puts out"
        raise InvalidInput(f"{said}; {remedy}: {error}") from error


def _form_of(chain: Runnable[Any, Any]) -> str | tuple[str, ...] | type[BaseModel] | None:
    """What a chain says that it puts out: "text", "message", a mapping's keys, a model of pydantic;
    None: it does not say."""
    whole, chain, steps, keys = chain, unbound(chain), _steps(chain), list[str]()
    while steps and isinstance(steps[-1], RunnableAssign | RunnableParallel):
        last = steps.pop()
        parallel: Any = last.mapper if isinstance(last, RunnableAssign) else last
        keys[:0] = parallel.steps__
        if parallel is last:
            break
    if keys:
        return tuple(keys)
    if channels := _channels(steps[-1] if steps else chain):
        return channels
    try:
        kind: Any = whole.OutputType
    except TypeError:
        return None
    if kind is str:
        return "text"
    kinds = get_args(kind) or (kind,)
    if kind == AnyMessage or all(isinstance(k, type) and issubclass(k, BaseMessage) for k in kinds):
        return "message"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    try:
        entries = properties_of(chain.get_output_jsonschema())
        return tuple(key for key in entries if key != "root") or None  # as pydantic names a whole
    except PydanticUserError:  # it holds a type without a JSON schema
        return None


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a JSON schema says of a mapping's entries; it may name another one for the whole."""
    _, _, name = str(schema.get("$ref", "")).rpartition("/")
    return schema.get("$defs", {}).get(name, schema).get("properties", {})


def _steps(chain: Any) -> list[Any]:
    """A sequence's, else the one Runnable; without what is bound to it, or stands by for it."""
    while isinstance(chain, RunnableBindingBase | RunnableWithFallbacks):
        chain = chain.bound if isinstance(chain, RunnableBindingBase) else chain.runnable
    if isinstance(chain, RunnableSequence):
        return [*chain.steps[:-1], *_steps(chain.steps[-1])]
    return [chain]


def _channels(chain: Any) -> tuple[str, ...]:
    """The keys of a graph's state that come out; none of what is no graph, or has no keys."""
    channels = getattr(unbound(chain), "output_channels", None)
    return tuple(channels) if isinstance(channels, list | tuple) else ()


class Component(Runnable[Any, Any]):
    """Calls that are runs of their own: the methods below do the work."""

    _speaks: ClassVar[bool] = False
    """Whether of a state of messages the answer comes out among these too."""
    _invoke: ClassVar[Callable[..., Any]]
    _ainvoke: ClassVar[Callable[..., Any]]
    _batch: ClassVar[Callable[..., list[Any]]]
    _stream: ClassVar[Callable[..., Iterator[Any]]]
    _astream: ClassVar[Callable[..., AsyncIterator[Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for work in (cls._invoke, cls._ainvoke):  # LangChain looks at it twice in every call
            vars(work)["__signature__"] = signature(work)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """What the component puts out for one input."""
        return self._call_with_config(self._invoke, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """As `invoke`; a cancellation stops before the next model call."""
        return await self._acall_with_config(self._ainvoke, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """As `invoke` for each input, with the model calls of all of them merged."""
        together = partial(self._batch, keep_going=return_exceptions)
        return self._batch_with_config(
            together, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """The output in chunks, as they come."""
        yield from self._transform_stream_with_config(iter([input]), self._stream, config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """As `stream`."""

        async def inputs() -> AsyncIterator[Any]:
            yield input

        chunks: Any = self._atransform_stream_with_config(inputs(), self._astream, config, **kwargs)
        async with aclosing(chunks):  # at once, where it is left
            async for chunk in chunks:
                yield chunk


@dataclass(eq=False, repr=False)
class FlowRunnable(Component):
    """A flow from a question as a component; `shown` says how its answer is put out, for an input
    and the config of its call."""

    flow: Callable[[Asked], Flow[Any]]
    world: World
    asking: Asking
    shown: Callable[[Any, Any, RunnableConfig], Any]
    name: str | None = None

    stream, astream = Runnable.stream, Runnable.astream  # in one piece

    def _invoke(self, value: Any, config: RunnableConfig, **_: Any) -> Any:
        return run(self._running(self.asking.read(value, config), value, config), self.world)

    async def _ainvoke(self, value: Any, config: RunnableConfig, **_: Any) -> Any:
        asked = await self.asking.aread(value, config)
        return await arun(self._running(asked, value, config), self.world)

    def _batch(self, values: list[Any], config: list[RunnableConfig], **_: Any) -> list[Any]:
        flows = map(self._running, self.asking.read_many(values, config), values, config)
        return run_merged([*flows], self.world, config)

    def _running(self, asked: Asked | Exception, value: Any, config: RunnableConfig) -> Flow[Any]:
        if isinstance(asked, Exception):
            raise asked
        return self.shown((yield from self.flow(asked)), value, config)
