import asyncio
from functools import partial

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import AsyncStreamingResponse, PydanticResponse, Response
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import (
    CustomQueryEngine,
    RouterQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool, ToolMetadata
from pydantic import BaseModel

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, LtragError, ModelFailed
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.savings import event_loop
from ltrag_plugins.llama_index import (
    GECERetriever,
    GECERouter,
    GECESelector,
    LlamaIndexLLM,
    PassageRetriever,
    SGICCalibrator,
)
from ltrag_plugins.llama_index.gate import asked
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Passage
from tests.framework_parts import Given
from tests.gates import RuleGate, always, never
from tests.llama_index_parts import (
    FACTS,
    AsyncFunctionLLM,
    AwaitedRetriever,
    FunctionLLM,
    engine,
    reader,
)
from tests.router_parts import knows_the_odd

KNOWN, UNKNOWN = "What is the capital of France?", "Who has played Raoul?"


def draft(prompt: str) -> str:
    return "Paris" if prompt == KNOWN else "Who knows?"


def gate(rule=None, llm=None) -> RuleGate:
    world = World(llm=llm or ScriptedLLM(draft))
    return RuleGate(world, rule) if rule else RuleGate(world)


async def test_the_engine_answers_where_the_gate_says_retrieve_and_the_draft_elsewhere():
    retriever, model = AwaitedRetriever(), FunctionLLM(reader)
    router = GECERouter(gate(), engine(model, retriever))
    known, unknown = router.query(KNOWN), router.query(UNKNOWN)
    assert (str(known), known.source_nodes) == ("Paris", [])
    assert str(unknown) == f"read: {FACTS['raoul']}"
    assert [node.node_id for node in unknown.source_nodes] == ["raoul"]
    assert known.metadata["gece"]["retrieve"] is False
    assert unknown.metadata["gece"]["retrieve"] is True
    assert unknown.metadata["raoul"] == {"title": "raoul"}  # the engine's own metadata
    assert (retriever.queries, len(model.seen)) == ([UNKNOWN], 1)  # nothing for the known one
    assert await router.aquery(KNOWN) == known
    assert await router.aquery(UNKNOWN) == unknown


async def test_the_direct_branch_never_says_empty_response():
    nothing_found = engine()
    assert str(nothing_found.query("zzz")) == "Empty Response"  # what the engine would say
    router = GECERouter(gate(never), nothing_found)
    assert str(router.query("zzz")) == "Who knows?"
    assert str(await router.aquery("zzz")) == "Who knows?"


async def test_a_direct_engine_or_model_answers_in_the_drafts_place():
    async def awaited(prompt):
        return f"alone: {prompt}"

    for direct in (
        FunctionLLM(lambda prompt: f"alone: {prompt}"),
        FunctionLLM(lambda prompt: f"alone: {prompt}", is_chat_model=True),
        GECERouter(gate(never, ScriptedLLM(lambda p: f"alone: {p}")), engine()),
    ):
        router = GECERouter(gate(), engine(), direct=direct)
        response = await asyncio.to_thread(router.query, KNOWN)
        assert response.response == f"alone: {KNOWN}"
        assert response.metadata["gece"]["retrieve"] is False
        assert await router.aquery(KNOWN) == response
        assert getattr(direct, "blocked_the_loop", []) == []
        assert "read" in str(router.query(UNKNOWN))
    router = GECERouter(gate(), engine(), direct=AsyncFunctionLLM(awaited))
    assert str(await router.aquery(KNOWN)) == f"alone: {KNOWN}"


class OneResponse(CustomQueryEngine):
    """Hands out one and the same response object."""

    response: object

    def custom_query(self, query_str: str):
        return self.response


class Author(BaseModel):
    name: str


@pytest.mark.parametrize(
    "response",
    [Response("kept", metadata={"a": 1}), Response("kept"), PydanticResponse(Author(name="kept"))],
    ids=["with metadata", "without", "pydantic"],
)
def test_the_engines_own_response_is_not_changed(response):
    before = None if response.metadata is None else dict(response.metadata)
    routed = GECERouter(gate(always), OneResponse(response=response)).query("x")
    assert response.metadata == before
    assert routed is not response
    assert type(routed) is type(response)
    assert routed.response is response.response
    assert routed.metadata.keys() == (before or {}).keys() | {"gece"}


def test_a_stream_passes_through_unread_and_whole():
    read = []

    def words(prompt):
        read.append(prompt)
        return reader(prompt)

    streaming = engine(FunctionLLM(words), streaming=True)
    response = GECERouter(gate(), streaming).query(UNKNOWN)
    assert response.metadata["gece"]["retrieve"] is True
    assert "".join(response.response_gen).strip() == f"read: {FACTS['raoul']}"
    assert len(read) == 1


class Streamed(BaseQueryEngine):
    """Streams words, counting those that were read."""

    def __init__(self) -> None:
        super().__init__(None)
        self.read = 0

    def _get_prompt_modules(self):
        return {}

    def _query(self, query_bundle):
        raise NotImplementedError

    async def _aquery(self, query_bundle):
        async def words():
            for word in ["one ", "two"]:
                self.read += 1
                yield word

        return AsyncStreamingResponse(words(), metadata={"own": 1})


async def test_an_async_stream_passes_through_unread_and_whole():
    streamed = Streamed()
    response = await GECERouter(gate(), streamed).aquery(UNKNOWN)
    assert streamed.read == 0
    assert response.metadata.keys() == {"own", "gece"}
    assert [word async for word in response.async_response_gen()] == ["one ", "two"]


async def test_before_an_engine_that_streams_or_where_asked_for_the_draft_is_a_stream():
    streaming = engine(streaming=True)
    for router in (
        GECERouter(gate(), streaming),
        GECERouter(gate(), TransformQueryEngine(streaming, IdentityQueryTransform())),
        GECERouter(gate(), GECERouter(gate(), streaming)),
        GECERouter(gate(), engine(), streaming=True),
    ):
        assert list(router.query(KNOWN).response_gen) == ["Paris"]
        response = await router.aquery(KNOWN)
        assert [piece async for piece in response.async_response_gen()] == ["Paris"]
        assert response.metadata["gece"]["retrieve"] is False
    chat = CondenseQuestionChatEngine.from_defaults(GECERouter(gate(), streaming), llm=MockLLM())
    assert "".join(chat.stream_chat(KNOWN).response_gen) == "Paris"
    for one in (GECERouter(gate(), engine()), GECERouter(gate(), streaming, streaming=False)):
        assert one.query(KNOWN).response == "Paris"


def test_a_query_bundle_reaches_the_engine_as_it_is():
    class Bundles(AwaitedRetriever):
        def _retrieve(self, query_bundle):
            bundles.append(query_bundle)
            return super()._retrieve(query_bundle)

    bundles = []
    bundle = QueryBundle(UNKNOWN, custom_embedding_strs=["raoul"])
    GECERouter(gate(), engine(retriever=Bundles())).query(bundle)
    assert bundles[0] is bundle


async def test_what_the_engine_finds_and_makes_of_nodes_is_to_be_had_without_the_gate():
    inner = engine()
    router, bundle = GECERouter(gate(never), inner), QueryBundle(UNKNOWN)
    nodes = router.retrieve(bundle)
    assert nodes == inner.retrieve(bundle) == await router.aretrieve(bundle) != []
    wrapped = TransformQueryEngine(inner, IdentityQueryTransform())  # which cannot await nodes
    assert await GECERouter(gate(never), wrapped).aretrieve(bundle) == nodes
    assert router.synthesize(bundle, nodes) == inner.synthesize(bundle, nodes)
    assert await router.asynthesize(bundle, nodes) == inner.synthesize(bundle, nodes)


async def test_a_query_about_an_image_goes_to_the_engine_that_sees_it():
    seen = QueryBundle(UNKNOWN, image_path="raoul.png")
    judge = gate(never)
    router = GECERouter(judge, engine(FunctionLLM(reader), AwaitedRetriever()))
    for response in (router.query(seen), await router.aquery(seen)):
        assert str(response).startswith("read: ")
        assert "image" in response.metadata["gece"]["reason"]
    found = GECERetriever(judge, AwaitedRetriever())
    assert found.retrieve(seen) == AwaitedRetriever().retrieve(seen) != []
    assert await found.aretrieve(seen) == AwaitedRetriever().retrieve(seen)
    tools = [ToolMetadata("looks it up"), ToolMetadata("knows it")]
    assert GECESelector(judge).select(tools, seen).ind == 0
    assert judge.world.llm.calls == []
    assert str(router.query(QueryBundle(KNOWN))) == "Paris"


def test_prompts_of_the_engines_are_seen_through_the_router():
    router = GECERouter(gate(), engine(), direct=engine())
    key = "query_engine:response_synthesizer:text_qa_template"
    assert key in router.get_prompts()
    assert "direct:response_synthesizer:text_qa_template" in router.get_prompts()


def written_json(prompt: str) -> str:
    return '{"name": "Austen"}'


@pytest.mark.parametrize("made", [
    {"llm": FunctionLLM(written_json), "output_cls": Author},
    {"llm": FunctionLLM(written_json).as_structured_llm(Author)},
])  # fmt: skip
def test_an_engine_that_answers_in_objects_wants_a_direct_engine_that_does(made):
    structured = engine(**made)
    wrapped = TransformQueryEngine(structured, IdentityQueryTransform())
    for inner, direct in ((structured, None), (wrapped, FunctionLLM(reader))):
        with pytest.raises(InvalidInput, match=r"answers in Author objects.*Give direct="):
            GECERouter(gate(), inner, direct=direct)
    for rule in (always, never):
        router = GECERouter(gate(rule), structured, direct=structured)
        assert router.query("Is Emma a novel?").name == "Austen"


def test_wrong_parts_are_refused_where_they_are_handed_in():
    with pytest.raises(InvalidInput, match=r"gate must be a gate .*got function"):
        GECERouter(always, engine())
    with pytest.raises(InvalidInput, match="query_engine must be a LlamaIndex BaseQueryEngine"):
        GECERouter(gate(), AwaitedRetriever())
    with pytest.raises(InvalidInput, match="direct must be a LlamaIndex query engine or LLM"):
        GECERouter(gate(), engine(), direct=ScriptedLLM(draft))
    index = VectorStoreIndex([], embed_model=MockEmbedding(embed_dim=4))
    for taking in (GECERouter, partial(GECERouter.fit, llm=MockLLM(), questions=[])):
        given = (gate(), index) if taking is GECERouter else (index,)
        with pytest.raises(InvalidInput, match=r"\(pass index.as_query_engine\(\)\), got Vec"):
            taking(*given)
    for known in ("none", "Nothing", None):  # which would be a draft, silently
        with pytest.raises(InvalidInput, match="known must be 'draft' or 'nothing', got"):
            GECERetriever(gate(), AwaitedRetriever(), known=known)
    with pytest.raises(InvalidInput, match="k must be at least 1, got '2'"):
        PassageRetriever(BM25Retriever([Passage("a")]), k="2")
    for places in ({"direct": "1"}, {"retrieving": "0"}, {"direct": -1}):
        with pytest.raises(InvalidInput, match="must be places of different tools"):
            GECESelector(gate(), **places)


@pytest.mark.parametrize(("wrong", "said"), [
    ({"audit_rate": 5}, "audit_rate"),
    ({"on_error": "x"}, "on_error"),
    ({"direct": "x"}, "direct"),
    ({"correct": 5}, "correct"),
    ({"max_concurrency": 0}, "max_concurrency"),
    ({"questions": None}, "questions"),
    ({"store": "/"}, "decision store"),
])  # fmt: skip
def test_what_no_router_takes_is_refused_before_a_fit_is_paid_for(wrong, said):
    retriever, model = AwaitedRetriever(), FunctionLLM(reader)
    given = {"questions": [f"Who is Raoul {i}?" for i in range(20)], **wrong}
    with pytest.raises(LtragError, match=said):
        GECERouter.fit(engine(retriever=retriever), llm=model, **given)
    assert (retriever.queries, model.seen) == ([], [])


async def test_a_failing_model_and_an_empty_question_keep_their_names():
    def fail(prompt):
        raise RuntimeError("server down")

    router = GECERouter(gate(llm=LlamaIndexLLM(FunctionLLM(fail))), engine(), on_error="raise")
    with pytest.raises(ModelFailed, match="server down"):
        router.query(KNOWN)
    with pytest.raises(ModelFailed, match="server down"):
        await router.aquery(KNOWN)
    with pytest.raises(EmptyQuestion):
        await router.aquery(" ")


async def test_two_hundred_queries_are_in_flight_together_in_gate_and_engine():
    barrier = asyncio.Barrier(200)  # lets nobody through before all 200 are there

    async def slow(prompt):
        await barrier.wait()
        return reader(prompt) if "raoul" in prompt.lower() else "?"

    slow_model = AsyncFunctionLLM(slow)
    router = GECERouter(
        gate(always, LlamaIndexLLM(slow_model, concurrency=200)), engine(slow_model)
    )
    async with asyncio.timeout(60):
        responses = await asyncio.gather(*(router.aquery(f"Raoul {i}?") for i in range(200)))
    assert {str(response) for response in responses} == {f"read: {FACTS['raoul']}"}
    assert slow_model.blocked_the_loop == []
    assert len(slow_model.seen) == 400


def tools():
    alone = GECERouter(gate(never, ScriptedLLM(lambda p: "alone")), engine())
    return [
        QueryEngineTool.from_defaults(engine(), name="look", description="looks it up"),
        QueryEngineTool.from_defaults(alone, name="alone", description="answers alone"),
    ]


async def test_the_selector_chooses_inside_a_router_query_engine_sync_and_async():
    for selector, order in [
        (GECESelector(gate()), tools()),
        (GECESelector(gate(), retrieving=1, direct=0), tools()[::-1]),
    ]:
        router = RouterQueryEngine(selector, order, llm=FunctionLLM(reader))
        for question, answer in [(KNOWN, "alone"), (UNKNOWN, f"read: {FACTS['raoul']}")]:
            response, awaited = router.query(question), await router.aquery(question)
            assert str(response) == str(awaited) == answer
            result = response.metadata["selector_result"]
            assert result == awaited.metadata["selector_result"]
            assert result.reason == "the rule says so"


class Awaited(CustomQueryEngine):
    """An engine that has no sync call."""

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError("await it")

    async def acustom_query(self, query_str: str) -> str:
        await asyncio.sleep(0.01)
        return "Paris"


def test_audits_are_made_where_each_call_has_a_loop_that_ends_with_it():
    router = GECERouter(gate(never), Awaited(), audit_rate=1.0)
    for _ in range(20):
        asyncio.run(router.aquery(KNOWN))
    assert router.settle(30)
    assert (router.monitor.audits, router.monitor.failed) == (20, 0)


class Connected(Streamed):
    """Its stream waits for what belongs to the loop that the query was made in."""

    async def _aquery(self, query_bundle):
        connection = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, connection.set_result, None)

        async def words():
            await connection
            yield "Paris"

        return AsyncStreamingResponse(words())


def test_an_engine_that_streams_and_can_only_be_awaited_is_read_in_its_loop():
    with event_loop() as loop:
        assert asked(Connected(), KNOWN, loop) == "Paris"


def down(prompt: str) -> str:
    raise ConnectionError("no route to the model")


def test_a_model_that_fails_is_found_before_the_engine_has_answered_anything():
    retriever = AwaitedRetriever()
    questions = [f"Who is Raoul {i}?" for i in range(20)]
    with pytest.raises(ModelFailed, match="no route to the model"):
        GECERouter.fit(engine(retriever=retriever), llm=FunctionLLM(down), questions=questions)
    assert retriever.queries == []


def test_the_engines_own_model_drafts_where_none_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    own = FunctionLLM(knows_the_odd)
    reading = engine(own, Given([NodeWithScore(node=TextNode(text="shown"))]))
    questions = [f"Which city is number {i} of the list?" for i in range(20)]
    router = GECERouter.fit(reading, questions=questions, settings=GECESettings(folds=2))
    assert router.gate.world.llm.name == LlamaIndexLLM(own).name
    structured = engine(own.as_structured_llm(Author))
    for i, (inner, more, llm) in enumerate((
        (TransformQueryEngine(reading, IdentityQueryTransform()), {}, own),
        (structured, {"direct": structured}, own),  # whose drafts would be objects
        (SGICCalibrator(own).query_engine(Given([])), {}, own),
        (Awaited(), {}, MockLLM()),
        (reading, {"llm": MockLLM()}, MockLLM()),
    )):  # fmt: skip
        learning = GECERouter.learning(inner, store=tmp_path / f"{i}.sqlite", **more)
        assert learning.gate.world.llm.name == LlamaIndexLLM(llm).name
