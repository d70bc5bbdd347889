"""LlamaIndex's own engines and agents, each with one of our components dropped in."""

from dataclasses import replace

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
)
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.retrievers import RouterRetriever
from llama_index.core.schema import (
    ImageNode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool, RetrieverTool

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.flow import World
from ltrag_plugins.llama_index import (
    DURReranker,
    GECEDecisionEvent,
    GECERetriever,
    GECERouter,
    GECESelector,
    LlamaIndexLLM,
    LlamaIndexRetriever,
    LongTailRAG,
    PassageRetriever,
    SGICCalibrator,
    as_query_engine,
    node_of,
)
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import Generation, Token
from tests import pipeline_parts
from tests.framework_parts import Given, Letters, trained
from tests.gates import RuleGate
from tests.llama_index_parts import (
    FACTS,
    AsyncFunctionLLM,
    AwaitedRetriever,
    FunctionLLM,
    KeywordRetriever,
    engine,
    traced,
)
from tests.pipeline_parts import House, houses

KNOWN = ["What is the capital of France?", "Where is the Louvre?", "Where is Montmartre?"]
UNKNOWN = ["Who wrote Emma?", "Who has played Raoul?", "Is Emma a novel?"]
DRAFT = "It is Paris."


def draft(prompt: str) -> str:
    # RetrieverTool asks "input is ...", so the question is looked for in the prompt
    return DRAFT if any(question in prompt for question in KNOWN) else "Who knows?"


def gate(llm=None) -> RuleGate:
    return RuleGate(World(llm=llm or ScriptedLLM(draft)))


def gated(retriever=None, **settings) -> GECERetriever:
    return GECERetriever(gate(), retriever or KeywordRetriever(), **settings)


def wanted(question: str) -> str:
    """What an engine answers that was shown the draft, or the fact that was found."""
    fact = next((FACTS[key] for key in FACTS if key in question.lower()), DRAFT)
    return f"read: {fact}"


def read(prompt: str) -> str:
    """A model that reads what it is shown, and makes a follow-up the first known question."""
    if "standalone question" in prompt.lower():
        return KNOWN[0]
    shown = [text for text in (DRAFT, *FACTS.values()) if text in prompt]
    return f"read: {shown[-1]}" if shown else "no context"


WAYS = ["chat", "achat", "stream_chat", "astream_chat"]


async def said(chat_engine, way: str, message: str, **given):
    """The text and the source nodes of one turn of a chat."""
    response = getattr(chat_engine, way)(message, **given)
    response = await response if way.startswith("a") else response
    if way == "stream_chat":
        writing = response.write_response_to_history_thread
        text = "".join(response.response_gen)
        writing.join()
    elif way == "astream_chat":
        text = "".join([piece async for piece in response.async_response_gen()])
    else:
        text = response.response
    return text.strip(), response.source_nodes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [ContextChatEngine, CondensePlusContextChatEngine])
async def test_a_chat_engine_answers_whether_the_model_knows_or_not(kind, way):
    for question in KNOWN + UNKNOWN:
        chat_engine = kind.from_defaults(gated(), llm=FunctionLLM(read))
        text, sources = await said(chat_engine, way, question)
        assert text == wanted(question)
        [source] = sources
        assert source.metadata.get("gece", {"retrieve": True})["retrieve"] is (question in UNKNOWN)
        roles = [message.role for message in chat_engine.chat_history]
        assert roles == [MessageRole.USER, MessageRole.ASSISTANT]
        chat_engine.reset()
        assert chat_engine.chat_history == []


HISTORY = [ChatMessage("Tell me of France."), ChatMessage("Yes?", role="assistant")]


@pytest.mark.parametrize("way", WAYS)
async def test_the_gate_is_asked_the_condensed_question_of_a_conversation(way):
    chat_engine = CondensePlusContextChatEngine.from_defaults(gated(), llm=FunctionLLM(read))
    with traced() as trace:
        text, _ = await said(chat_engine, way, "And its capital?", chat_history=HISTORY)
    assert text == wanted(KNOWN[0])
    assert [event.question for event in trace.heard(GECEDecisionEvent)] == [KNOWN[0]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dropped_in", ["router", "retriever"])
async def test_a_chat_over_a_query_engine_has_the_router_or_the_retriever_in_it(dropped_in, way):
    stream, llm = way.endswith("stream_chat"), FunctionLLM(read)
    if dropped_in == "router":
        asked = GECERouter(gate(), engine(llm, streaming=stream), streaming=stream)
    else:
        asked = engine(llm, gated())
    chat_engine = CondenseQuestionChatEngine.from_defaults(asked, llm=llm)
    for question in (KNOWN[1], UNKNOWN[0]):
        chat_engine.reset()
        told = DRAFT if dropped_in == "router" and question in KNOWN else wanted(question)
        assert (await said(chat_engine, way, question))[0] == told
        text, _ = await said(chat_engine, way, "And its capital?", chat_history=HISTORY)
        assert text == (DRAFT if dropped_in == "router" else wanted(KNOWN[0]))


async def test_a_query_engine_reads_the_draft_as_a_node_that_no_cutoff_drops():
    cutoff = SimilarityPostprocessor(similarity_cutoff=0.4)
    reading = engine(FunctionLLM(read), gated(), node_postprocessors=[cutoff])
    for question in KNOWN + UNKNOWN:
        response, awaited = reading.query(question), await reading.aquery(question)
        assert str(response) == str(awaited) == wanted(question)
    response = engine(FunctionLLM(read), gated(), streaming=True).query(KNOWN[0])
    assert isinstance(response, StreamingResponse)
    assert "".join(response.response_gen).strip() == wanted(KNOWN[0])


async def test_the_draft_is_marked_and_the_mark_is_shown_to_no_model():
    [found] = gated().retrieve(KNOWN[0])
    assert (found.text, found.score) == (f"Question: {KNOWN[0]}\nAnswer: {DRAFT}", 1.0)
    assert found.metadata["gece"]["retrieve"] is False
    assert found.metadata["gece"]["reason"] == "the rule says so"
    for mode in ("llm", "embed"):
        assert found.node.get_content(mode) == found.text
    assert await gated().aretrieve(KNOWN[0]) == [found]
    plain = gated(known="nothing")
    assert plain.retrieve(KNOWN[0]) == await plain.aretrieve(KNOWN[0]) == []
    assert [node.node_id for node in plain.retrieve(UNKNOWN[0])] == ["emma"]


async def test_a_retriever_that_leaves_out_its_base_class_is_gated_as_any():
    class Bare(BaseRetriever):
        def __init__(self) -> None:
            """As LlamaIndex allows, without that of `BaseRetriever`."""

        def _retrieve(self, query_bundle):
            return KeywordRetriever().found(query_bundle.query_str)

    for question in (KNOWN[0], UNKNOWN[0]):
        wanted = [node.text for node in gated().retrieve(question)]
        assert [node.text for node in gated(Bare()).retrieve(question)] == wanted != []
        assert [node.text for node in await gated(Bare()).aretrieve(question)] == wanted


async def test_nodes_that_were_read_as_passages_come_out_as_the_nodes_they_were():
    origin = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="emma.pdf")}
    told = {"metadata": {"title": "Emma", "page": 3}, "excluded_llm_metadata_keys": ["page"]}
    kept = {**told, "relationships": origin}
    made = [
        TextNode(id_="a", text=FACTS["emma"], start_char_idx=40, end_char_idx=99, **kept),
        ImageNode(id_="b", text="A portrait.", image="aGk=", **kept),
    ]
    given = [NodeWithScore(node=node, score=0.5) for node in made]
    before = [one.model_dump() for one in given]
    ours = LlamaIndexRetriever(Given(given))
    asked = as_query_engine("single", FunctionLLM(read), Given(given))
    there_and_back = PassageRetriever(ours)
    for found in (
        asked.query(UNKNOWN[0]).source_nodes,
        (await asked.aquery(UNKNOWN[0])).source_nodes,
        there_and_back.retrieve(UNKNOWN[0]),
        await there_and_back.aretrieve(UNKNOWN[0]),
    ):
        assert found == given
        assert [type(one.node) for one in found] == [TextNode, ImageNode]
        assert [one.node.ref_doc_id for one in found] == ["emma.pdf"] * 2
        found[0].metadata["page"] = 4  # the reader's own
    assert [one.model_dump() for one in given] == before
    [[passage, _]] = ours.search([UNKNOWN[0]], 2)
    other = node_of(replace(passage, text="Emma.", score=0.1))
    assert (other.text, other.score, other.node_id) == ("Emma.", 0.1, "a")


def tools(deciding: RuleGate) -> list[QueryEngineTool]:
    """One that answers directly, between two that retrieve."""

    def tool(name: str) -> QueryEngineTool:
        reading = engine(FunctionLLM(lambda prompt: f"{name} {read(prompt)}"), AwaitedRetriever())
        return QueryEngineTool.from_defaults(reading, name=name, description=f"the {name}")

    library, archive = tool("library"), tool("archive")
    direct = GECERouter(deciding, library.query_engine)
    return [library, QueryEngineTool.from_defaults(direct, description="direct"), archive]


def choosing(prompt: str) -> str:
    """An LLM selector's model: the archive, wherever it stands among those it is offered."""
    assert "direct" not in prompt  # that tool is not on offer
    place = 2 if "(2) the archive" in prompt else 1
    return f'[{{"choice": {place}, "reason": "old papers"}}]'


@pytest.mark.parametrize(
    ("settings", "chosen", "reason"),
    [
        ({}, "library", "the rule says so"),
        ({"retrieving": 2}, "archive", "the rule says so"),
        ({"retrieving": [2, 0]}, "archive", "the rule says so"),
        ({"among": True}, "archive", "the rule says so old papers"),
        ({"among": True, "retrieving": [2, 0]}, "archive", "the rule says so old papers"),
    ],
)
async def test_of_several_retrieving_tools_one_is_chosen(settings, chosen, reason):
    if settings.get("among"):
        settings = settings | {"among": LLMSingleSelector.from_defaults(FunctionLLM(choosing))}
    deciding = gate()
    selector, offered = GECESelector(deciding, **settings), tools(deciding)
    router = RouterQueryEngine(selector, offered, llm=FunctionLLM(read))
    for response in (router.query(UNKNOWN[0]), await router.aquery(UNKNOWN[0])):
        assert str(response) == f"{chosen} {wanted(UNKNOWN[0])}"
        result = response.metadata["selector_result"]
        assert offered[result.ind].metadata.name == chosen
        assert result.reason == reason
        assert result.decision.answer == "Who knows?"


async def test_a_router_as_the_direct_tool_answers_with_the_draft_and_asks_nothing_more():
    model = ScriptedLLM(draft)
    deciding = gate(model)
    offered = tools(deciding)
    router = RouterQueryEngine(GECESelector(deciding), offered, llm=FunctionLLM(read))
    with traced() as trace:
        response, awaited = router.query(KNOWN[0]), await router.aquery(KNOWN[1])
    assert len(trace.heard(GECEDecisionEvent)) == 2
    assert str(response) == str(awaited) == DRAFT
    assert model.prompts == [KNOWN[0], KNOWN[1]]
    result = response.metadata["selector_result"]
    assert (result.ind, result.decision.answer, result.decision.question) == (1, DRAFT, KNOWN[0])
    assert response.metadata["gece"]["retrieve"] is False
    assert result.model_dump() == {"selections": [{"index": 1, "reason": "the rule says so"}]}
    assert str(offered[1](KNOWN[1])) == DRAFT  # alone it decides, each time
    assert str(await offered[1].acall(KNOWN[1])) == DRAFT
    assert model.prompts == [KNOWN[0], KNOWN[1], KNOWN[1], KNOWN[1]]


async def test_a_decision_goes_to_no_other_question_and_to_no_other_gate():
    deciding = gate()
    mine = GECERouter(deciding, engine())
    theirs = GECERouter(gate(ScriptedLLM(lambda prompt: "Another gate's.")), engine())
    GECESelector(deciding).select(["look", "alone"], KNOWN[0])
    assert str(theirs.query(KNOWN[0])) == "Another gate's."
    assert mine.query(UNKNOWN[0]).metadata["gece"]["retrieve"] is True
    await GECESelector(deciding).aselect(["look", "alone"], UNKNOWN[0])
    assert str(await mine.aquery(KNOWN[0])) == DRAFT


@pytest.mark.parametrize("question", [KNOWN[0], UNKNOWN[0]])
async def test_a_decision_that_no_router_took_is_not_kept_for_a_later_query(question):
    model = ScriptedLLM(draft)
    deciding = gate(model)
    plain = [QueryEngineTool.from_defaults(engine(), description=name) for name in ("a", "b")]
    router = RouterQueryEngine(GECESelector(deciding), plain, llm=FunctionLLM(read))
    later = GECERouter(deciding, engine())
    router.query(question)
    later.query(question)
    assert model.prompts == [question] * 2
    await router.aquery(question)
    await later.aquery(question)
    assert model.prompts == [question] * 4


async def test_a_router_of_retrievers_chooses_by_the_gate():
    looking, other = KeywordRetriever(), KeywordRetriever()
    offered = [
        RetrieverTool.from_defaults(other, description="direct"),
        RetrieverTool.from_defaults(looking, description="looks it up"),
    ]
    router = RouterRetriever(GECESelector(gate(), direct=0), offered, llm=FunctionLLM(read))
    assert [node.node_id for node in router.retrieve(UNKNOWN[0])] == ["emma"]
    assert [node.node_id for node in await router.aretrieve(UNKNOWN[1])] == ["raoul"]
    router.retrieve(KNOWN[0])
    assert (looking.queries, other.queries) == ([UNKNOWN[0], UNKNOWN[1]], [KNOWN[0]])


async def test_a_selector_wants_a_direct_tool_and_one_that_retrieves():
    for settings, count in [({}, 1), ({"direct": 3}, 3), ({"retrieving": [0, 3]}, 3)]:
        selector = GECESelector(gate(), **settings)
        choices = [str(i) for i in range(count)]
        with pytest.raises(InvalidInput, match=f"given {count} tools"):
            selector.select(choices, UNKNOWN[0])
        with pytest.raises(InvalidInput, match=f"given {count} tools"):
            await selector.aselect(choices, UNKNOWN[0])
    for settings in ({"retrieving": 1}, {"retrieving": [0, 2], "direct": 2}, {"retrieving": -1}):
        with pytest.raises(InvalidInput, match="places of different tools"):
            GECESelector(gate(), **settings)
    with pytest.raises(InvalidInput, match="among must be a LlamaIndex selector"):
        GECESelector(gate(), among=FunctionLLM(read))
    theirs = LLMSingleSelector.from_defaults(FunctionLLM(choosing))
    assert [*GECESelector(gate(), among=theirs).get_prompts()] == ["among:prompt"]
    assert GECESelector(gate()).get_prompts() == {}


def deciding_to_look(messages, **given) -> ChatMessage:
    """An agent's model: looks the question up with its tool once, then says what it got."""
    if messages[-1].role == MessageRole.TOOL:
        return ChatMessage(f"I found: {messages[-1].content}", role="assistant")
    name, asked = given["tools"][0].metadata.name, {"input": messages[-1].content}
    call = ToolCallBlock(tool_call_id="1", tool_name=name, tool_kwargs=asked)
    return ChatMessage(role="assistant", blocks=[call])


AGENT_TOOLS = {
    "router": lambda: QueryEngineTool.from_defaults(
        GECERouter(gate(), engine(FunctionLLM(read))), name="look", description="answers"
    ),
    "retriever": lambda: RetrieverTool.from_defaults(gated(), name="look", description="finds"),
    "query engine": lambda: QueryEngineTool.from_defaults(
        engine(FunctionLLM(read), gated()), name="look", description="answers"
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs
@pytest.mark.parametrize("name", AGENT_TOOLS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_function_agent_answers_with_a_gated_tool(name, streaming):
    model = MockFunctionCallingLLM(response_generator=deciding_to_look, is_chat_model=True)
    agent = FunctionAgent(tools=[AGENT_TOOLS[name]()], llm=model, streaming=streaming)
    for question in (KNOWN[0], UNKNOWN[0]):
        run = agent.run(question)
        results = [e async for e in run.stream_events() if isinstance(e, ToolCallResult)]
        answer = str(await run)
        assert len(results) == 1
        told = DRAFT if question in KNOWN else FACTS["emma"]
        assert answer.startswith("I found: ")
        assert told in answer


def down(prompt: str) -> str:
    raise ConnectionError("no route to the model")


PARTS = {
    "query": lambda failing, **on: GECERouter(failing, engine(FunctionLLM(read)), **on),
    "retrieve": lambda failing, **on: GECERetriever(failing, KeywordRetriever(), **on),
    "select": lambda failing, **on: GECESelector(failing, **on),
}


@pytest.mark.parametrize("way", PARTS)
@pytest.mark.parametrize("kind", [FunctionLLM, AsyncFunctionLLM])
async def test_where_the_gates_model_fails_the_users_parts_still_answer(way, kind):
    failing = gate(LlamaIndexLLM(kind(down)))
    given = [["look", "alone"]] if way == "select" else []
    part, raising = PARTS[way](failing), PARTS[way](failing, on_error="raise")
    for question in (KNOWN[0], UNKNOWN[0]):
        called = getattr(part, way)(*given, question)
        awaited = await getattr(part, f"a{way}")(*given, question)
        if way == "query":
            assert str(called) == str(awaited)
            assert awaited.metadata["gece"]["retrieve"] is True
            assert "no route to the model" in awaited.metadata["gece"]["reason"]
            assert str(called) == (wanted(question) if question in UNKNOWN else "Empty Response")
        elif way == "retrieve":
            assert called == awaited == AwaitedRetriever().retrieve(question)
        else:
            assert (called.ind, awaited.ind, "no route" in awaited.reason) == (0, 0, True)
    with pytest.raises(ModelFailed, match="no route to the model"):
        getattr(raising, way)(*given, KNOWN[0])
    with pytest.raises(ModelFailed, match="no route to the model"):
        await getattr(raising, f"a{way}")(*given, KNOWN[0])
    with pytest.raises(InvalidInput, match="on_error must be 'retrieve' or 'raise'"):
        PARTS[way](failing, on_error="ignore")


def an_index() -> VectorStoreIndex:
    facts = [TextNode(id_=key, text=text) for key, text in FACTS.items()]
    return VectorStoreIndex(facts, embed_model=MockEmbedding(embed_dim=4))


LLM = FunctionLLM(read)
TAKING = {
    "wrapper": lambda found: LlamaIndexRetriever(found),
    "gated": lambda found: GECERetriever(gate(), found),
    "calibrator": lambda found: SGICCalibrator(LLM).query_engine(found),
    "method": lambda found: as_query_engine("single", LLM, found),
    "pipeline": lambda found: LongTailRAG.fit(["Who wrote Emma?"] * 40, llm=LLM, retriever=found),
    "loaded": lambda found: LongTailRAG.load("nowhere", llm=LLM, retriever=found),
}


@pytest.mark.parametrize("name", TAKING)
def test_an_index_or_engine_in_a_retrievers_place_is_told_what_to_pass(name):
    with pytest.raises(InvalidInput, match=r"\(pass index.as_retriever\(\)\), got VectorStoreI"):
        TAKING[name](an_index())
    with pytest.raises(InvalidInput, match=r"must be a LlamaIndex [^(]*, got RetrieverQ"):
        TAKING[name](engine())


def test_a_gate_that_learns_is_said_to_learn_in_a_router_alone(tmp_path, caplog):
    learning = GECERouter.learning(engine(), llm=LLM, store=tmp_path / "store").gate
    GECERetriever(gate(), KeywordRetriever())
    GECESelector(gate())
    assert caplog.messages == []
    GECERetriever(learning, KeywordRetriever())
    GECESelector(learning)
    assert caplog.messages == [
        f"a gate learns in a GECERouter; a {name} only asks it"
        for name in ("GECERetriever", "GECESelector")
    ]


async def test_one_string_is_no_list_of_queries():
    retriever = KeywordRetriever()
    ours = LlamaIndexRetriever(retriever)
    with pytest.raises(InvalidInput, match="queries came as one string, 'Who wrote Emma"):
        ours.search(UNKNOWN[0], 3)
    with pytest.raises(InvalidInput, match="queries came as one string, 'Who wrote Emma"):
        await ours.asearch(UNKNOWN[0], 3)
    assert retriever.queries == []


async def test_fewer_nodes_than_are_asked_for_are_spoken_of_once(caplog):
    enough = LlamaIndexRetriever(an_index().as_retriever(similarity_top_k=3))
    unknown = LlamaIndexRetriever(KeywordRetriever())
    assert [len(one) for one in enough.search(["x", "y"], 3)] == [3, 3]
    unknown.search(["x"], 3)
    assert caplog.messages == []
    few = LlamaIndexRetriever(an_index().as_retriever())
    assert [len(one) for one in few.search(["x", "y"], 3)] == [2, 2]
    assert [len(one) for one in await few.asearch(["x"], 3)] == [2]
    [message] = caplog.messages
    assert "VectorIndexRetriever looks for 2 nodes" in message
    assert "similarity_top_k=3" in message


async def test_a_fit_reads_nodes_as_the_part_at_work_will():
    told = {"file_path": "/emma.txt", "page": 3}
    hidden = {"excluded_embed_metadata_keys": ["file_path"], "excluded_llm_metadata_keys": ["page"]}
    found = [NodeWithScore(node=TextNode(text=FACTS["emma"], metadata=told, **hidden))]
    llm, encoder = ScriptedLLM(lambda prompt: Generation("x", (Token("x", -0.1),))), Letters()
    calibrator = SGICCalibrator(llm, settings=SGICSettings(rounds=0))
    calibrator.query_engine(Given(found)).query(UNKNOWN[0])
    DURReranker(trained(encoder)).postprocess_nodes(found, query_str=UNKNOWN[0])
    for shown, text, read in (
        ("llm", f"file_path: /emma.txt\n\n{FACTS['emma']}", llm.prompts[0]),
        ("embed", f"page: 3\n\n{FACTS['emma']}", "\n".join(encoder.encoded[0])),
        (None, FACTS["emma"], FACTS["emma"]),
    ):
        ours = LlamaIndexRetriever(Given(found), shown=shown)
        [[passage]] = ours.search([UNKNOWN[0]], 3)
        assert passage.text == text
        assert " ".join(text.split()) in " ".join(read.split())
        assert await ours.asearch([UNKNOWN[0]], 3) == [[passage]]
        assert ours.name == ("Given" if shown is None else f"Given:{shown}")
    with pytest.raises(InvalidInput, match="shown must be 'llm', 'embed' or None, got 'all'"):
        LlamaIndexRetriever(Given(found), shown="all")


async def test_a_pipeline_streams_where_it_is_asked_to(tmp_path):
    house, question = House(), "What is the colour of house 7?"
    parts = {"llm": house.llm(), "retriever": house}
    plain = LongTailRAG.fit(houses(), **parts, settings=pipeline_parts.settings())
    plain.save(tmp_path)
    wanted = plain.query(question)
    for made in (
        LongTailRAG.fit(houses(), **parts, settings=pipeline_parts.settings(), streaming=True),
        LongTailRAG.load(tmp_path, **parts, streaming=True),
        LongTailRAG(plain.rag, streaming=True),
    ):
        stream, awaited = made.query(question), await made.aquery(question)
        assert [piece async for piece in awaited.async_response_gen()] == [str(wanted)]
        for one in (stream, awaited):
            assert (one.metadata, one.source_nodes) == (wanted.metadata, wanted.source_nodes)
        assert list(stream.response_gen) == [str(wanted)]
        chat = CondenseQuestionChatEngine.from_defaults(made, llm=LLM)
        assert "".join(chat.stream_chat(question).response_gen) == str(wanted)
