"""Inside other people's graphs, chains and agents: what streams, what goes in, what comes out."""

import itertools
import operator
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage
from langchain_core.output_parsers import PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.runnables.utils import AddableDict
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel, SecretStr, create_model

from ltrag_plugins.errors import CalibrationError, InvalidInput, ModelFailed
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.learning import LearningGate
from ltrag_plugins.langchain import (
    GECEMiddleware,
    GECERetriever,
    GECERouter,
    LangChainLLM,
    SGICCalibrator,
    gece_edge,
)
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings
from tests.gates import RuleGate, always, never
from tests.langchain_parts import FunctionChat, every_way


def speaking(*texts: str) -> GenericFakeChatModel:
    """LangChain's own streaming fake: it says the texts in turn, again and again."""
    return GenericFakeChatModel(messages=itertools.cycle(map(AIMessage, texts)))


def gate(draft: str = "a draft", rule=never) -> RuleGate:
    return RuleGate(World(llm=LangChainLLM(speaking(draft))), rule)


FIND = RunnableLambda(lambda query: [Document(f"about {query}")])
CHAIN = ChatPromptTemplate([("placeholder", "{messages}")]) | speaking("from the chain")


def node_graph(node, state: Any = MessagesState, **options):
    building = StateGraph(state)
    building.add_node("node", node)
    building.add_edge(START, "node")
    return building.compile(**options)


def edge_graph(edge):
    building = StateGraph(MessagesState)
    building.add_node("retrieve", lambda state: {"messages": [speaking("looked up").invoke("q")]})
    building.add_node("direct", lambda state: {"messages": [speaking("from memory").invoke("q")]})
    building.add_conditional_edges(START, edge, ["retrieve", "direct"])
    return building.compile()


async def shown(compiled, value) -> set[str]:
    """The text of each way to stream it: LangGraph's messages, and the chat model's events."""
    texts = {"".join(m.text for m, _ in compiled.stream(value, stream_mode="messages"))}
    told = [m.text async for m, _ in compiled.astream(value, stream_mode="messages")]
    events = [
        event["data"]["chunk"].text
        async for event in compiled.astream_events(value, version="v2")
        if event["event"] == "on_chat_model_stream"
    ]
    return {*texts, "".join(told), "".join(events)}


ASKED = {"messages": [HumanMessage("who keeps the bees?")]}


@pytest.mark.parametrize("rule", [always, never])
async def test_of_a_router_in_a_graph_only_the_final_answer_streams_and_of_an_edge_nothing(rule):
    router = GECERouter(gate(rule=rule), CHAIN | (lambda message: {"messages": [message]}))
    expected = "from the chain" if rule is always else "a draft"
    assert await shown(node_graph(router), ASKED) == {expected}
    expected = "looked up" if rule is always else "from memory"
    assert await shown(edge_graph(gece_edge(gate(rule=rule))), ASKED) == {expected}


async def test_of_a_calibrator_no_round_streams():
    settings = SGICSettings(estimator="agreement", rounds=2)
    calibrator = SGICCalibrator(speaking("round"), FIND, settings=settings)
    compiled = node_graph(RunnablePassthrough() | calibrator.pick("answer") | (lambda text: {}))
    assert await shown(compiled, ASKED) == {""}


async def test_behind_a_chain_that_ends_in_a_message_the_draft_is_message_chunks():
    router = GECERouter(gate(), CHAIN)
    assert [type(chunk) for chunk in router.stream(ASKED)] == [AIMessageChunk]
    assert [chunk.text async for chunk in router.astream(ASKED)] == ["a draft"]
    message = router.invoke(ASKED)
    assert isinstance(message, AIMessage)
    assert message.response_metadata["gece"]["retrieve"] is False


def test_our_own_calls_are_tagged_for_filters():
    seen = []

    class Tagged(FunctionChat):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            seen.append(run_manager.tags)
            return super()._generate(messages, stop, run_manager, **kwargs)

    model = Tagged(str.upper)
    own = RuleGate(World(llm=LangChainLLM(model)), never)
    GECERouter(own, CHAIN).invoke("who?", {"tags": ["mine"]})
    [tags] = seen
    assert {"nostream", "ltrag", "mine"} <= set(tags)
    assert not model.tags


def retrieval_chain():
    """What `create_retrieval_chain` builds."""
    reading = ChatPromptTemplate([("human", "{context} {input}")]) | speaking("read")
    found = RunnablePassthrough.assign(context=FIND)
    building = found.assign(answer=reading | StrOutputParser())
    return building.with_config(run_name="retrieval_chain")


def untyped(value):
    return {"input": value["input"], "context": ["x"], "answer": "found"}


@pytest.mark.parametrize(
    ("chain", "value", "expected"),
    [
        (CHAIN | StrOutputParser(), ASKED, "a draft"),
        (CHAIN, ASKED, AIMessage("a draft")),
        (CHAIN.with_retry(), ASKED, AIMessage("a draft")),
        (retrieval_chain(), {"input": "?"}, {"input": "?", "context": [], "answer": "a draft"}),
        (
            node_graph(lambda state: {"messages": []}),
            ASKED,
            {"messages": [*ASKED["messages"], AIMessage("a draft")]},
        ),
        (lambda state: state, ASKED, {"messages": [AIMessage("a draft")]}),
        (lambda text: text, "who?", "a draft"),
    ],
    ids=["text", "message", "retry", "mapping", "graph", "state", "unknown"],
)
async def test_the_draft_has_the_shape_that_the_chain_has(chain, value, expected):
    key = "input" if "input" in value else "question"
    router = GECERouter(gate(), chain, question_key=key)
    for given in (*await every_way(router, value), *router.stream(value)):
        if isinstance(given, dict) and "GECEDraft" in given:  # a graph streams what nodes change
            given = {"messages": [*value["messages"], *given["GECEDraft"]["messages"]]}
        assert bare(given) == bare(expected)


def bare(out: Any) -> Any:
    """An output with its messages as (type, text): ids differ, and a chunk is a message."""
    if isinstance(out, dict):
        return {key: bare(value) for key, value in out.items()}
    if isinstance(out, list):
        return [bare(value) for value in out]
    return ("ai", out.text) if isinstance(out, AIMessage) else out


def test_what_the_chain_gave_at_an_earlier_call_is_the_shape_where_it_does_not_say():
    router = GECERouter(gate(rule=lambda q, _: "rare" in q), untyped, question_key="input")
    assert router.invoke({"input": "hi"}) == "a draft"
    router.invoke({"input": "rare"})
    assert router.invoke({"input": "hi"}) == {"input": "hi", "context": [], "answer": "a draft"}
    mixed = GECERouter(gate(rule=lambda q, _: "rare" in q), untyped, question_key="input")
    first, _ = mixed.batch([{"input": "hi"}, {"input": "rare"}])
    assert first["answer"] == "a draft"


@pytest.mark.parametrize(
    ("pieces", "draft"),
    [
        ([{"input": "rare", "context": ["x"], "answer": "known"}],
         {"input": "hi", "context": [], "answer": "a draft"}),
        ([AIMessageChunk("kno"), AIMessageChunk("wn")], ("ai", "a draft")),
        ([AddableDict(input="rare", context=["x"]), AddableDict(answer="kno"),
          AddableDict(answer="wn")], {"input": "hi", "context": [], "answer": "a draft"}),
        ([{"event": "begin"}, {"event": "end", "text": "known"}], "a draft"),
    ],
    ids=["whole", "to be added", "by entries", "events, which are no answer"],
)  # fmt: skip
async def test_what_the_chain_streamed_at_an_earlier_call_is_the_shape_too(pieces, draft):
    def said(value):
        yield from pieces

    async def asaid(value):
        for piece in pieces:
            yield piece

    chain, judge = RunnableLambda(said, asaid), gate(rule=lambda q, _: "rare" in q)
    sync, native = (GECERouter(judge, chain, question_key="input") for _ in range(2))
    assert [*sync.stream({"input": "rare"})] == pieces
    assert [piece async for piece in native.astream({"input": "rare"})] == pieces
    for router in (sync, native):
        assert bare(router.invoke({"input": "hi"})) == draft


def test_what_the_chain_gave_overrules_what_it_streamed():
    graph = node_graph(lambda state: {**state, "answer": "known"}, dict)
    router = GECERouter(gate(rule=lambda q, _: "rare" in q), RunnableLambda(lambda value: graph))
    [_] = router.stream({"question": "rare"})
    for _ in range(2):
        router.invoke({"question": "rare"})
        [*_] = router.stream({"question": "rare"})
        assert router.invoke({"question": "hi"}) == {"question": "hi", "answer": "a draft"}


def test_what_a_graph_streams_is_no_shape_of_its_answer():
    graph = node_graph(lambda state: {**state, "answer": "known"}, dict)  # its keys are undeclared
    for chain in (graph, RunnablePassthrough() | graph):
        router = GECERouter(gate(rule=lambda q, _: "rare" in q), chain)
        [piece] = router.stream({"question": "rare"})
        assert [*piece] == ["node"]
        assert router.invoke({"question": "hi"}) == "a draft"
        assert router.invoke({"question": "rare"}) == piece["node"]
        assert router.invoke({"question": "hi"}) == {"question": "hi", "answer": "a draft"}


def test_of_what_the_chain_counts_a_draft_has_none_and_of_its_lists_an_empty_one():
    def chain(value):
        return {**value, "score": 55.0, "refused": False, "context": ["found"], "answer": "known"}

    router = GECERouter(gate(rule=lambda q, _: "rare" in q), chain, question_key="input")
    router.invoke({"input": "rare"})
    nothing = {"score": None, "refused": None, "context": []}
    assert router.invoke({"input": "hi"}) == {"input": "hi", **nothing, "answer": "a draft"}


class Cited(BaseModel):
    answer: str
    citations: list[int]
    confidence: float = 0.5


class Rated(BaseModel):
    answer: str
    stars: int


@pytest.mark.parametrize("chain", [
    speaking('{"answer": "found", "citations": [1]}') | PydanticOutputParser(pydantic_object=Cited),
    RunnableLambda(lambda _: Cited(answer="found", citations=[1])).with_types(output_type=Cited),
])  # fmt: skip
async def test_the_draft_fills_the_model_that_the_chain_puts_out(chain):
    drafted = Cited(answer="a draft", citations=[])
    router = GECERouter(gate(), chain)
    assert [*await every_way(router, "who?"), *router.stream("who?")] == [drafted] * 5
    seen = GECERouter(gate(rule=lambda q, _: "rare" in q), chain | (lambda found: found))
    assert seen.invoke("rare") == Cited(answer="found", citations=[1])
    assert seen.invoke("who?") == drafted


@pytest.mark.parametrize(
    "model", [Rated, create_model("Two", left=(str, ""), right=(str, "")), create_model("Empty")]
)
def test_a_model_that_no_draft_fills_is_refused_with_the_remedy(model):
    def chain(value):
        raise AssertionError

    typed = RunnableLambda(chain).with_types(output_type=model)
    with pytest.raises(InvalidInput, match="answer="):
        GECERouter(gate(), typed).invoke("who?")
    own = GECERouter(gate(), typed, answer=lambda d: Rated(answer=d.answer, stars=0))
    assert own.invoke("who?") == Rated(answer="a draft", stars=0)


@pytest.mark.parametrize("declares", [True, False])
def test_a_model_that_no_draft_fills_is_refused_before_a_fit_costs(declares):
    asked = list[str]()

    def chain(text):
        asked.append(text)
        return Rated(answer="found", stars=3)

    typed = RunnableLambda(chain).with_types(output_type=Rated if declares else Any)
    llm = ScriptedLLM(lambda prompt: "a draft")
    questions = [f"who keeps bee {i * 'b'}?" for i in range(20)]
    with pytest.raises(InvalidInput, match=r"does not fill the Rated.*answer=lambda"):
        GECERouter.fit(typed, llm=llm, questions=questions)
    assert len(asked) == (0 if declares else 1)
    assert llm.prompts == []
    direct = GECERouter(gate(), typed, RunnableLambda(chain))
    assert direct.invoke("who?") == Rated(answer="found", stars=3)


class Chosen(BaseModel):
    answer: Literal["yes", "no"]
    size: int = 0


def test_a_model_that_some_drafts_fill_is_no_reason_to_refuse_the_chain():
    typed = RunnableLambda(lambda text: Chosen(answer="no")).with_types(output_type=Chosen)
    assert GECERouter(gate("yes"), typed).invoke("is it?") == Chosen(answer="yes")


@pytest.mark.parametrize("answer", ["auto", "parsed"])
def test_before_a_chain_that_puts_out_the_raw_reply_too_a_function_gives_the_form(answer):
    model = ChatOpenAI(model="a", api_key=SecretStr("none"), base_url="http://localhost:1")
    chain = CHAIN | StrOutputParser() | model.with_structured_output(Cited, include_raw=True)
    with pytest.raises(InvalidInput, match=r"answer=lambda decision: .*'parsed': Cited\("):
        GECERouter(gate(), chain, answer=answer)
    parsed = {"raw": None, "parsed": Cited(answer="a draft", citations=[]), "parsing_error": None}
    assert GECERouter(gate(), chain, answer=lambda decision: parsed).invoke(ASKED) == parsed
    assert GECERouter(gate(), chain, answer="text").invoke(ASKED) == "a draft"


def test_the_shape_can_be_said():
    given = {"question": "who?", "user": "me"}
    asked = {
        "text": "a draft",
        "reply": {**given, "reply": "a draft"},
        "messages": {"messages": [("ai", "a draft")]},
        "message": ("ai", "a draft"),
    }
    for answer, expected in asked.items():
        router = GECERouter(gate(), lambda value: value, answer=answer)
        assert bare(router.invoke(given)) == expected
    own = GECERouter(gate(), lambda value: value, answer=lambda decision: [decision.answer])
    assert own.invoke(given) == ["a draft"]


FOLLOW_UP = [
    HumanMessage("who wrote Emma?"),
    AIMessage("Jane Austen."),
    HumanMessage("and where was she born?"),
]


def condensing() -> ScriptedLLM:
    """Makes follow-ups stand alone, and knows where Austen was born."""
    born = "where was Jane Austen born?"
    return ScriptedLLM(lambda prompt: born if "Rewritten" in prompt else "Steventon")


async def test_a_follow_up_stands_alone_before_the_gate_reads_it():
    model = condensing()
    router = GECERouter(RuleGate(World(llm=model), never), CHAIN, return_decision=True)
    chat = {"question": FOLLOW_UP[-1].text, "chat_history": FOLLOW_UP[:-1]}
    for given in (FOLLOW_UP, {"messages": FOLLOW_UP}, chat):
        for out in await every_way(router, given):
            assert out["decision"].question == "where was Jane Austen born?"
    rewritten, asked = model.prompts[:2]
    assert "Jane Austen." in rewritten
    assert asked == "where was Jane Austen born?"


def test_one_question_costs_no_further_call():
    model = condensing()
    router = GECERouter(RuleGate(World(llm=model), never), CHAIN)
    for alone in ("who?", [HumanMessage("who?")], [AIMessage("hello!"), HumanMessage("who?")]):
        router.invoke(alone)
    assert model.prompts == ["who?"] * 3


async def test_a_condenser_of_the_users_own_is_asked_and_none_reads_the_last_message():
    model = condensing()
    judge = RuleGate(World(llm=model), never)
    own = RunnableLambda(lambda messages: f"{messages[-1].text} ({messages[0].text})")
    router = GECERouter(judge, CHAIN, condense=own)
    await every_way(router, FOLLOW_UP)
    assert model.prompts == ["and where was she born? (who wrote Emma?)"] * 4
    GECERouter(judge, CHAIN, condense=None).invoke(FOLLOW_UP)
    assert model.prompts[4:] == ["and where was she born?"]
    with pytest.raises(InvalidInput, match="condense"):
        GECERouter(judge, CHAIN, condense="please")


async def test_where_the_gates_model_is_down_the_chain_still_answers():
    def down(prompt: str) -> str:
        raise ConnectionError("no route")

    broken = RuleGate(World(llm=ScriptedLLM(down)), never)
    router = GECERouter(broken, lambda value: "looked up", return_decision=True)
    both = router.batch(["who?", "what?"])
    for out in (*await every_way(router, "who?"), *await every_way(router, FOLLOW_UP), *both):
        assert out["output"] == "looked up"
        assert "no route" in out["decision"].reason
    assert edge_graph(gece_edge(broken)).invoke(ASKED)["messages"][-1].text == "looked up"
    found = GECERetriever(gate=broken, retriever=FIND).invoke("who?")
    assert found == [Document("about who?")]
    with pytest.raises(ModelFailed):
        GECERouter(broken, lambda value: value, on_error="raise").invoke("who?")


@pytest.mark.parametrize(("said", "why"), [("", "no question"), (None, "no route")])
async def test_where_what_makes_it_stand_alone_fails_the_chain_still_answers(said, why):
    def condense(value):
        if said is None:
            raise ConnectionError("no route")
        return said

    how: Any = {"condense": RunnableLambda(condense)}
    router = GECERouter(gate(), lambda value: "looked up", return_decision=True, **how)
    for out in await every_way(router, FOLLOW_UP):
        assert out["output"] == "looked up"
        assert out["decision"].question == "and where was she born?"
        assert "condense=" in out["decision"].reason
        assert why in out["decision"].reason
    looked = edge_graph(gece_edge(gate(), **how)).invoke({"messages": FOLLOW_UP})
    assert looked["messages"][-1].text == "looked up"
    finding = GECERetriever(gate=gate(), retriever=FIND, **how)
    assert finding.invoke(FOLLOW_UP) == [Document("about and where was she born?")]
    with pytest.raises((InvalidInput, ConnectionError), match=why):
        GECERouter(gate(), lambda value: value, on_error="raise", **how).invoke(FOLLOW_UP)
    answering = SGICCalibrator(ScriptedLLM(str), FIND, settings=SAYS, **how)
    with pytest.raises((InvalidInput, ConnectionError), match=why):
        answering.invoke(FOLLOW_UP)


SAYS = SGICSettings(estimator="agreement", rounds=0)


async def test_a_state_of_messages_goes_into_the_calibrator_and_comes_out():
    compiled = node_graph(SGICCalibrator(speaking("bees"), FIND, settings=SAYS))
    for out in (compiled.invoke(ASKED), await compiled.ainvoke(ASKED)):
        answer = out["messages"][-1]
        assert bare(answer) == ("ai", "bees")
        assert answer.response_metadata["sgic"]["refused"] is False
    assert {"".join(m.text for m, _ in compiled.stream(ASKED, stream_mode="messages"))} == {"bees"}


async def test_of_a_state_of_messages_the_draft_before_a_calibrator_comes_out_there_too():
    router = GECERouter(gate(), SGICCalibrator(speaking("bees"), FIND, settings=SAYS))
    compiled = node_graph(router)
    for out in (compiled.invoke(ASKED), await compiled.ainvoke(ASKED), *compiled.batch([ASKED])):
        assert [message.text for message in out["messages"]][1:] == ["a draft"]
    asked = router.invoke({"question": "who?"})
    assert (asked["answer"], asked["calibrated"]) == ("a draft", None)
    assert "messages" not in asked


async def test_a_draft_before_a_calibrator_is_as_sure_as_the_gate_is():
    sure = SGICCalibrator(ScriptedLLM(lambda prompt: "found"), FIND, settings=SAYS)
    for out in await every_way(GECERouter(gate(), RunnablePassthrough() | sure), "who?"):
        assert (out["answer"], out["documents"]) == ("a draft", [])
        assert (out["refused"], out["uncertainty"], out["p_wrong"]) == (False, 0.0, 0.0)
        assert out["score"] is None  # the gate has none on that scale


async def test_retriever_and_calibrator_search_for_the_question_that_stands_alone():
    retriever = GECERetriever(gate=RuleGate(World(llm=condensing()), always), retriever=FIND)
    found = [Document("about where was Jane Austen born?")]
    assert retriever.invoke(FOLLOW_UP) == await retriever.ainvoke(FOLLOW_UP) == found
    calibrator = SGICCalibrator(condensing(), FIND, settings=SAYS)
    *_, last = calibrator.stream(FOLLOW_UP)
    for out in (*await every_way(calibrator, {"messages": FOLLOW_UP}), last):
        assert out["question"] == "where was Jane Austen born?"
        assert out["documents"][0].page_content == found[0].page_content


@pytest.mark.parametrize(
    "node",
    [
        SGICCalibrator(speaking("bees"), FIND, settings=SAYS),
        GECERouter(gate(), lambda value: "", return_decision=True),
        GECERetriever(gate=gate(), retriever=FIND) | (lambda found: {"documents": found}),
    ],
    ids=["calibrator", "router", "retriever"],
)
def test_a_checkpointer_meets_only_plain_data(node, caplog):
    saver = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    asking = RunnableLambda(lambda state: state["question"]) | node
    compiled = node_graph(asking, dict, checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}
    out = compiled.invoke({"question": "who?"}, config)
    assert compiled.get_state(config).values == out
    assert "blocked" not in caplog.text
    assert "unregistered" not in caplog.text


def test_the_graph_of_a_router_shows_gate_and_branches():
    router = GECERouter(gate(), ChatPromptTemplate([("human", "{input}")]) | speaking("x"))
    graph = router.get_graph()
    names = {node.name for node in graph.nodes.values()}
    assert {"GECEGate", "ChatPromptTemplate", "GenericFakeChatModel", "GECEDraft"} <= names
    assert {edge.data for edge in graph.edges if edge.conditional} == {"retrieve", "direct"}
    assert graph.draw_mermaid()
    assert node_graph(router).get_graph(xray=True).draw_mermaid()


def test_the_schemas_of_a_router_are_its_chains():
    chain = ChatPromptTemplate([("human", "{input}")]) | speaking("x") | StrOutputParser()
    router = GECERouter(gate(), chain)
    assert router.get_input_jsonschema()["properties"].keys() == {"input"}
    assert router.get_output_jsonschema()["type"] == "string"
    assert (router.InputType, router.OutputType) == (chain.InputType, str)
    telling = GECERouter(gate(), chain, return_decision=True)
    assert telling.get_output_jsonschema()["properties"].keys() == {"output", "decision"}
    assert telling.OutputType == dict[str, Any]
    assert GECERouter(gate(), lambda x: x).get_output_jsonschema()


def test_the_schemas_of_a_calibrator_name_what_goes_in_and_out():
    calibrator = SGICCalibrator(speaking("x"), FIND, question_key="q", settings=SAYS)
    assert "q" in str(calibrator.get_input_jsonschema())
    out = calibrator.get_output_jsonschema()["$defs"]["_Output"]["properties"]
    assert out.keys() == calibrator.invoke("who?").keys()


def agentic_graph(retriever):
    """The agentic RAG of LangGraph's tutorial, by rule: search, grade, rewrite, answer."""

    @tool
    def retrieve(query: str) -> str:
        """Search."""
        return "\n\n".join(document.page_content for document in retriever.invoke(query))

    def agent(state):
        call = {"name": "retrieve", "args": {"query": state["messages"][0].text}, "id": "1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def grade(state):
        return "generate" if state["messages"][-1].text.strip() else "rewrite"

    def rewrite(state):
        return {"messages": state["messages"][0].text}

    def generate(state):
        return {"messages": [AIMessage(state["messages"][-1].text.split("Answer: ")[-1])]}

    building = StateGraph(MessagesState)
    for node in (agent, rewrite, generate):
        building.add_node(node.__name__, node)
    building.add_node("retrieve", ToolNode([retrieve]))
    building.add_edge(START, "agent")
    building.add_edge("agent", "retrieve")
    building.add_conditional_edges("retrieve", grade, ["generate", "rewrite"])
    building.add_edge("generate", END)
    building.add_edge("rewrite", "agent")
    return building.compile().with_config(recursion_limit=8)


async def test_the_agentic_graph_ends_where_the_model_knows():
    for rule, expected in {never: "a draft", always: "about who keeps the bees?"}.items():
        retriever = GECERetriever(gate=gate(rule=rule), retriever=FIND)
        assert agentic_graph(retriever).invoke(ASKED)["messages"][-1].text == expected
    empty = GECERetriever(gate=gate(), retriever=FIND, known="nothing")
    with pytest.raises(GraphRecursionError):
        agentic_graph(empty).invoke(ASKED)


async def test_a_document_that_carries_the_draft_is_marked():
    knowing = GECERetriever(gate=gate(), retriever=FIND)
    [document] = knowing.invoke("who?")
    assert await knowing.ainvoke("who?") == [document]
    assert "a draft" in document.page_content
    assert document.metadata["gece"]["retrieve"] is False
    assert GECERetriever(gate=gate(), retriever=FIND, k=0).invoke("who?") == []


class Answered(TypedDict):
    question: str
    generation: str
    documents: list[str]


class Unnamed(TypedDict):
    question: str
    reply: str
    sources: list[str]


def test_the_draft_goes_where_a_state_of_typing_keeps_the_answer():
    node = RunnableLambda(lambda state: {"generation": "from the chain"})
    router = GECERouter(gate(), node_graph(node, Answered))
    assert router.invoke({"question": "who?"})["generation"] == "a draft"
    unnamed = node_graph(RunnableLambda(lambda state: {"reply": "from the chain"}), Unnamed)
    with pytest.raises(InvalidInput, match="name the key of the answer"):
        GECERouter(gate(), unnamed).invoke({"question": "who?"})
    named = GECERouter(gate(), unnamed, answer="reply")
    assert named.invoke({"question": "who?"})["reply"] == "a draft"


@pytest.mark.parametrize(
    ("chain", "questions", "given"),
    [
        (RunnableLambda(lambda value: value) | retrieval_chain(),
         [f"who is {i}?" for i in range(20)], "'who is 0[?]'"),
        (RunnableLambda(lambda text: text.lower()),
         [{"id": i, "question": f"who is {i}?", "answers": ["a"]} for i in range(20)],
         "{'id': 0, 'question': 'who is 0[?]'}"),
    ],
)  # fmt: skip
def test_where_a_chain_does_not_take_the_questions_the_error_shows_what_it_got(
    chain, questions, given
):
    with pytest.raises(CalibrationError, match=f"given {given}.*question_key=") as refused:
        GECERouter.fit(chain, llm=ScriptedLLM(str), questions=questions)
    assert isinstance(refused.value.__cause__, ValueError | AttributeError)


def test_a_graph_whose_state_is_of_typing_is_fitted_from_texts():
    def node(state):
        return {"generation": "a draft" if len(state["question"]) % 2 else "known"}

    llm = ScriptedLLM(lambda prompt: "a draft")
    asked = [f"who keeps bee {i * 'b'}?" for i in range(20)]
    how: Any = {"llm": llm, "settings": GECESettings(folds=2), "target_rate": 0.5}
    for chain in (node_graph(node, Answered), node_graph(node, Answered).with_config(tags=["a"])):
        fitted = GECERouter.fit(chain, questions=asked, **how)
        same = GECERouter.fit(chain, questions=[{"question": one} for one in asked], **how)
        assert fitted.gate.report.questions == 20
        assert fitted.gate.report.direct_accuracy == same.gate.report.direct_accuracy == 0.5


def test_a_graph_that_keeps_threads_is_fitted_and_audited_each_time_in_a_thread_of_its_own():
    read: list[int] = []

    def node(state):
        read.append(len(state["messages"]))
        return {"messages": [AIMessage("a draft")]}

    compiled = node_graph(node, checkpointer=InMemorySaver())
    llm = ScriptedLLM(lambda prompt: "a draft" if len(prompt) % 2 else "another")
    asked = [f"who keeps bee {i * 'b'}?" for i in range(20)]
    kept = compiled.with_config(configurable={"thread_id": "mine"})
    for chain in (compiled, kept):
        settings = GECESettings(folds=2)
        router = GECERouter.fit(chain, llm=llm, questions=asked, settings=settings, target_rate=0.5)
    assert read == [1] * 40
    router = GECERouter(gate(), compiled, audit_rate=1.0)
    for _ in range(3):
        turn = {"messages": [HumanMessage("who keeps the bees?")]}
        router.invoke(turn, {"configurable": {"thread_id": "mine"}})
        assert router.settle()
    assert (router.monitor.audits, router.monitor.failed) == (3, 0)
    assert read == [1] * 40 + [1, 3, 5]  # an audit is told what was said before
    told = compiled.get_state({"configurable": {"thread_id": "mine"}}).values["messages"]
    assert [m.type for m in told] == ["human", "ai"] * 3


async def conversation(bot, config):
    """What a person and a bot said in one thread, in every way to call it."""
    turns = iter(["who keeps the bees?", "and since when?", "and why?", "rare: who?", "and where?"])
    given = ({"messages": [HumanMessage(turn)]} for turn in turns)
    bot.invoke(next(given), config)
    await bot.ainvoke(next(given), config)
    bot.batch([next(given)], config)
    [*bot.stream(next(given), config)]
    [piece async for piece in bot.astream(next(given), config)]
    return [
        (m.type, m.text) for m in bot.invoke({"messages": [("human", "bye")]}, config)["messages"]
    ]


@pytest.mark.parametrize("bound", ["graph", "config", "bind"])
async def test_a_draft_is_in_the_thread_of_the_graph_and_a_follow_up_is_read_with_it(bound, caplog):
    """Held against a graph whose one node answers as the gate's model does."""
    saver, other, config = InMemorySaver(), InMemorySaver(), {"configurable": {"thread_id": "mine"}}
    asked = dict[str, list[int]](chain=[])

    def node(state):
        asked["chain"].append(len(state["messages"]))
        return {"messages": [AIMessage("a draft")]}

    compiled = node_graph(node, checkpointer=saver)
    drafting = ScriptedLLM(lambda prompt: "a draft")
    rule = RuleGate(World(llm=drafting), lambda question, draft: "rare" in question)
    chain = {"graph": compiled, "config": compiled.with_config(config), "bind": compiled.bind()}
    told = RunnableLambda(lambda value: f"{len(value['messages'])} {value['messages'][-1].text}")
    router = GECERouter(rule, chain[bound], condense=told)
    said = await conversation(router, {} if bound == "config" else config)
    plain = node_graph(lambda state: {"messages": [AIMessage("a draft")]}, checkpointer=other)
    assert said == await conversation(plain, config)
    assert len(said) == 12
    assert asked["chain"] == [7]  # all that the drafts had said
    assert drafting.prompts[-1] == "11 bye"
    assert compiled.get_state(config).next == ()
    assert not caplog.text


async def test_a_thread_that_waits_for_a_person_goes_to_its_graph():
    def node(state):
        return {"messages": [AIMessage(f"you said {interrupt('sure?')}")]}

    compiled = node_graph(node, checkpointer=InMemorySaver())
    router = GECERouter(gate(), compiled)
    for name, resume in {"one": Command(resume="yes"), "two": None}.items():
        kept: Any = {"configurable": {"thread_id": name}}
        compiled.invoke(ASKED, kept)
        assert "__interrupt__" in router.invoke(resume, kept) or resume
        assert "__interrupt__" in await router.ainvoke(ASKED, kept) or resume
    assert router.invoke(ASKED, {"configurable": {"thread_id": "one"}})["messages"][-1].text == (
        "a draft"
    )


async def test_a_router_that_is_a_node_goes_on_where_its_graph_waits_for_a_person():
    def pay(state):
        return {"messages": [AIMessage(f"the order is {interrupt('approve?')}")]}

    verdicts: list[bool] = []
    judge = RuleGate(World(ScriptedLLM(str)), lambda question, draft: verdicts.pop(0))
    router = GECERouter(judge, node_graph(pay))
    parent = node_graph(router, checkpointer=InMemorySaver())
    for way in ("sync", "async"):
        kept: Any = {"configurable": {"thread_id": way}}
        verdicts[:] = [True, False]
        assert "__interrupt__" in parent.invoke(ASKED, kept)
        go_on = Command(resume="approved")
        out = parent.invoke(go_on, kept) if way == "sync" else await parent.ainvoke(go_on, kept)
        assert out["messages"][-1].text == "the order is approved"
        assert verdicts == [False]  # the gate was not asked again


class Reading(TypedDict, total=False):
    question: str
    chat_history: Annotated[list[str], operator.add]
    context: list[str]
    places: str
    answer: str


def test_a_draft_in_a_state_of_other_entries_is_kept_and_finds_nothing():
    def node(state):
        told = [state["question"], "from the graph"]
        return {"context": ["x"], "places": "x", "answer": told[1], "chat_history": told}

    compiled = node_graph(node, Reading, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "mine"}}
    llm = ScriptedLLM(lambda prompt: "" if prompt.startswith("mute") else "a draft")
    rule = RuleGate(World(llm=llm), lambda question, draft: question.startswith("rare"))
    told = RunnableLambda(lambda value: f"{value['question']} after {value['chat_history']}")
    router = GECERouter(rule, compiled, condense=told)
    first = router.invoke({"question": "rare?"}, config)
    kept = router.invoke({"question": "who?"}, config)
    assert (first["answer"], first["context"]) == ("from the graph", ["x"])
    assert kept == {**first, "question": "who?", "context": [], "answer": "a draft"}
    assert kept == compiled.get_state(config).values
    assert llm.prompts[-1] == "who? after ['rare?', 'from the graph']"
    router.invoke({"question": "why?", "chat_history": ["who?"]}, config)
    assert llm.prompts[-1] == "why? after ['who?']"  # what a call says itself comes first
    moved = Command(update={"question": "where?"}, goto="node")
    assert router.invoke(moved, config)["answer"] == "from the graph"
    assert router.invoke({"question": "mute?"}, config)["answer"] == ""  # not the last one's


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", [None, "values", "updates", ["values", "updates"]])
async def test_before_a_graph_without_a_state_the_draft_streams_as_its_answer_does(mode, version):
    @entrypoint()
    def GECEDraft(value: Any) -> str:
        return "a draft"

    given = {"question": "who?"}
    how = {"version": version} | ({"stream_mode": mode} if mode else {})
    mine = lambda decision: decision.answer  # noqa: E731
    graph = node_graph(lambda state: {"answer": "a draft"}, Reading)
    for router in (GECERouter(gate(), GECEDraft), GECERouter(gate(), graph, answer=mine)):
        assert [*router.stream(given, **how)] == [*GECEDraft.stream(given, **how)]
        assert [p async for p in router.astream(given, **how)] == [*GECEDraft.stream(given, **how)]
        assert router.invoke(given, **how) == GECEDraft.invoke(given, **how)
        assert await router.ainvoke(given, **how) == GECEDraft.invoke(given, **how)


def test_a_router_says_which_of_its_answers_are_in_no_thread(caplog):
    def node(state):
        return {"messages": [AIMessage("a draft")]}

    saver = InMemorySaver()
    graph = node_graph(node, checkpointer=saver)

    @entrypoint(checkpointer=saver)
    def function(value):
        return "from the function"

    for chain, more, said in (
        (graph, {}, 0), (graph.with_config(tags=["mine"]), {"answer": "messages"}, 0),
        (node_graph(node), {"answer": "text"}, 0), (graph, {"answer": "text"}, 1),
        (graph, {"answer": lambda decision: {}}, 2), (graph, {"direct": CHAIN}, 3),
        (function, {}, 4), (RemoteGraph("agent", url="http://127.0.0.1:9"), {}, 5),
    ):  # fmt: skip
        GECERouter(gate(), chain, **more)
        assert caplog.text.count("is in none of its threads") == said


@pytest.mark.parametrize("said", ["Of the history", {"answer": "x", "history": ["q"]}, 42, None])
async def test_a_function_that_is_a_graph_with_threads_is_asked_again(said):
    @entrypoint(checkpointer=InMemorySaver())
    def function(value, *, previous=None):
        return said

    router, kept = GECERouter(gate(rule=always), function), {"configurable": {"thread_id": "mine"}}
    for _ in range(2):
        assert router.invoke("who?", kept) == said
        assert await router.ainvoke("who?", kept) == said


def test_in_a_batch_before_a_function_that_is_a_graph_the_chain_answers_first():
    @entrypoint()
    def function(value):
        return {"answer": "found", "documents": ["d"]}

    router = GECERouter(gate(rule=lambda question, _: "rare" in question), function)
    drafted = {"answer": "a draft", "documents": []}  # in the form of what the chain gave
    assert router.batch(["hi", "rare"]) == [drafted, {"answer": "found", "documents": ["d"]}]


def test_turns_that_are_sent_again_or_removed_are_no_history():
    answering = lambda state: {"messages": [AIMessage("Austen")]}  # noqa: E731
    graph = node_graph(answering, checkpointer=InMemorySaver())
    model, kept = condensing(), {"configurable": {"thread_id": "mine"}}
    router = GECERouter(RuleGate(World(llm=model), always), graph)
    said = router.invoke({"messages": [HumanMessage("who wrote Emma?")]}, kept)["messages"]
    router.invoke({"messages": [*said, HumanMessage("where was she born?")]}, kept)
    rewriting = model.prompts[1]
    assert rewriting.count("who wrote Emma?") == 1
    router.invoke({"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("who?")]}, kept)
    assert model.prompts[3:] == ["who?"]


def test_messages_that_a_turn_replaces_are_no_history():
    class Replaced(TypedDict):
        messages: list

    answering = lambda state: {"messages": [*state["messages"], AIMessage("Austen")]}  # noqa: E731
    graph = node_graph(answering, Replaced, checkpointer=InMemorySaver())
    model, kept = condensing(), {"configurable": {"thread_id": "mine"}}
    router = GECERouter(RuleGate(World(llm=model), always), graph)
    for question in ("who wrote Emma?", "who?"):
        router.invoke({"messages": [HumanMessage(question)]}, kept)
    assert model.prompts == ["who wrote Emma?", "who?"]


@pytest.mark.parametrize("part", [
    gece_edge,
    lambda gate: GECEMiddleware(gate, "search"),
    lambda gate: GECERetriever(gate=gate, retriever=FIND),
])  # fmt: skip
def test_a_gate_that_learns_is_said_to_learn_in_a_router_alone(part, tmp_path, caplog):
    part(gate())
    assert caplog.messages == []
    part(LearningGate(ScriptedLLM(str), tmp_path / "store.sqlite"))
    [said] = caplog.messages
    assert said.startswith("a gate learns in a GECERouter; a ")


async def test_a_command_goes_on_where_the_graph_behind_the_router_stopped():
    def node(state):
        return {"messages": [AIMessage(f"you said {interrupt('sure?')}")]}

    compiled = node_graph(node, checkpointer=InMemorySaver())
    router, asked = GECERouter(gate(), compiled), GECERouter(gate(rule=always), compiled)
    kept: Any = {"configurable": {"thread_id": "mine"}}
    for calls in (0, 1):
        assert "__interrupt__" in asked.invoke(ASKED, kept)
        command = Command(resume="yes")
        out = await router.ainvoke(command, kept) if calls else router.invoke(command, kept)
        assert out["messages"][-1].text == "you said yes"
    assert router.monitor.retrieved == 1.0


def test_a_program_that_keeps_what_a_graph_gives_back_keeps_the_conversation():
    compiled = node_graph(lambda state: {"messages": [AIMessage("a draft")]})
    told = []
    for bot in (compiled, GECERouter(gate(), compiled, condense=None)):
        state: Any = {"messages": []}
        for turn in ("who keeps the bees?", "and since when?"):
            state = bot.invoke({"messages": [*state["messages"], HumanMessage(turn)]})
        told.append([(m.type, m.text) for m in state["messages"]])
    assert told[0] == told[1]
    assert len(told[0]) == 4
    [update] = GECERouter(gate(), compiled).stream(ASKED, stream_mode="updates")
    assert [m.text for m in update["GECEDraft"]["messages"]] == ["a draft"]


def test_a_misspelled_setting_of_a_retriever_is_refused():
    with pytest.raises(ValueError, match="on_eror"):
        GECERetriever(gate=gate(), retriever=FIND, on_eror="raise")


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_before_a_chain_with_a_history_the_draft_comes_out_and_is_not_kept(caplog):
    histories: dict[str, InMemoryChatMessageHistory] = {}
    reading = ChatPromptTemplate([("placeholder", "{chat_history}"), ("human", "{question}")])
    chain = RunnableWithMessageHistory(
        reading | speaking("from the chain"),
        lambda session_id: histories.setdefault(session_id, InMemoryChatMessageHistory()),
        input_messages_key="question",
        history_messages_key="chat_history",
    )
    how: Any = {"configurable": {"session_id": "mine"}}
    for rule, said in ((always, "from the chain"), (never, "a draft")):
        out = GECERouter(gate(rule=rule), chain).invoke({"question": "who?"}, how)
        assert said in str(out)
    assert [m.text for m in histories["mine"].messages] == ["who?", "from the chain"]
    assert caplog.text.count("put the RunnableWithMessageHistory around the router") == 2
    caplog.clear()
    around = RunnableWithMessageHistory(
        GECERouter(gate(), reading | speaking("from the chain")),
        lambda session_id: histories.setdefault(session_id, InMemoryChatMessageHistory()),
        input_messages_key="question",
        history_messages_key="chat_history",
    )
    around.invoke({"question": "and now?"}, how)
    assert [m.text for m in histories["mine"].messages[2:]] == ["and now?", "a draft"]
    assert "RunnableWithMessageHistory" not in caplog.text


@pytest.mark.parametrize("on_error", ["retrieve", "raise"])
async def test_a_question_with_an_image_goes_to_the_chain_that_sees_it(on_error):
    seeing = [{"type": "text", "text": "what is this?"}, {"type": "image", "url": "http://a/b.png"}]
    blind = gate()
    router = GECERouter(blind, CHAIN, on_error=on_error)
    for turns in ([HumanMessage(seeing)], [HumanMessage("hi"), HumanMessage(seeing)]):
        for out in await every_way(router, {"messages": turns}):
            assert out.text == "from the chain"
    words = HumanMessage([{"type": "text", "text": "what is this?"}])
    assert router.invoke({"messages": [words]}).text == "a draft"


def test_a_question_that_a_reasoning_model_made_to_stand_alone_is_read():
    thought = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "who?"}]
    alone = RunnableLambda(lambda value: AIMessage(thought))
    router = GECERouter(gate(), CHAIN, condense=alone)
    told = [HumanMessage("hi"), AIMessage("hello"), HumanMessage("and then?")]
    assert router.invoke({"messages": told}).text == "a draft"
