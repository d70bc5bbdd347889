"""GECERouter in LangChain: a gate before any chain."""

import asyncio
from threading import Barrier
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

from ltrag_plugins.errors import EmptyQuestion, InvalidInput, ModelFailed
from ltrag_plugins.flow import World
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.langchain import GECERetriever, GECERouter, LangChainLLM
from ltrag_plugins.langchain.fitting import streamed_text
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.gates import RuleGate, always, never
from tests.langchain_parts import FunctionChat, Runs, every_way, soon


def draft(question: str) -> str:
    if "broken" in question:
        raise ConnectionError("no route")
    return "who knows?" if "rare" in question else f"known: {question}"


def gate(function=draft, **rule) -> RuleGate:
    return RuleGate(World(llm=ScriptedLLM(function)), **rule)


def search(value) -> str:
    return f"found for {value}"


async def test_a_rare_question_goes_to_the_chain_and_another_gets_the_draft():
    router = GECERouter(gate(), search)
    for question, answer in {"rare": "found for rare", "hi": "known: hi"}.items():
        assert router.invoke(question) == answer
        assert await router.ainvoke(question) == answer
        assert list(router.stream(question)) == [answer]
        assert [chunk async for chunk in router.astream(question)] == [answer]
        assert router.batch([question]) == await router.abatch([question]) == [answer]


def test_the_direct_answer_costs_no_call_beyond_the_decision():
    judge = gate()
    assert GECERouter(judge, search).invoke("hi") == "known: hi"
    assert judge.world.llm.calls == [("hi",)]


def test_a_direct_chain_gets_the_original_input():
    router = GECERouter(gate(rule=never), search, lambda value: ("direct", value))
    given = {"question": "hi", "user": "me"}
    assert router.invoke(given) == ("direct", given)
    assert router.batch([given, given]) == [("direct", given)] * 2


def test_the_chain_gets_the_original_input_and_nobody_changes_it():
    given = {"question": "rare", "history": ["a"]}
    assert GECERouter(gate(), lambda value: value).invoke(given) is given
    assert given == {"question": "rare", "history": ["a"]}


@pytest.mark.parametrize(
    "given",
    [
        {"question": "rare"},
        HumanMessage("rare"),
        [AIMessage("how can I help?"), HumanMessage("rare")],
        {"messages": [HumanMessage("rare")]},
        {"question": [HumanMessage("rare")]},
        {"messages": HumanMessage("rare")},  # one message, in all forms that a graph's state takes
        {"messages": "rare"},
        {"messages": ("user", "rare")},
        {"messages": {"role": "user", "content": "rare"}},
        PromptTemplate.from_template("{x}").invoke({"x": "rare"}),
        ChatPromptTemplate([("system", "hi"), ("human", "rare")]).invoke({}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_question_is_found_in_what_chains_pass_along(given):
    judge = gate()
    GECERouter(judge, search).invoke(given)
    assert judge.world.llm.prompts == ["rare"]


def test_a_history_in_one_text_is_one_turn():
    judge = gate()
    given = {"question": "rare", "chat_history": "Human: Who is Ada? AI: A mathematician."}
    GECERouter(judge, search).invoke(given)
    assert "Human: Who is Ada? AI: A mathematician." in judge.world.llm.prompts[0]


@pytest.mark.parametrize("pair", [tuple, list])
def test_a_history_of_pairs_is_read_as_one_of_messages(pair):
    said = ["Who is Ada?", "A mathematician.", "Born when?", "1815."]
    forms = [HumanMessage, AIMessage] * 2
    prompts = []
    for history in (
        [pair(said[:2]), pair(said[2:])],
        [form(text) for form, text in zip(forms, said, strict=True)],
    ):
        judge = gate()
        GECERouter(judge, search).invoke({"question": "rare", "chat_history": history})
        prompts.append(judge.world.llm.prompts)
    assert prompts[0] == prompts[1]
    assert "mathematician" in prompts[0][0]


@pytest.mark.parametrize("history", [[("a", "b", "c")], [("a", None)], [3], 3])
def test_a_history_that_is_none_is_refused(history):
    remedy = "(?s)these are no messages.*condense=None leaves the turns out, a Runnable reads them"
    with pytest.raises(InvalidInput, match=remedy):
        GECERouter(gate(), search).invoke({"question": "rare", "chat_history": history})


def test_a_history_of_the_applications_own_form_is_for_those_who_read_it():
    value = {"question": "and it", "chat_history": [{"question": "Who?", "answer": "Paris"}]}
    for condense, read in (
        (None, "and it"),
        (RunnableLambda(lambda given: given["chat_history"][0]["answer"]), "Paris"),
    ):
        judge = gate()
        assert GECERouter(judge, search, condense=condense).invoke(value) == f"known: {read}"
    asked = [{**value, "question": f"a {i}"} for i in range(20)]
    chain = RunnableLambda(lambda given: "one" if int(given["question"][2:]) % 2 else "two")
    how: Any = {"llm": ScriptedLLM(lambda prompt: "one"), "target_rate": 0.5, "condense": None}
    assert GECERouter.fit(chain, questions=asked, **how).gate.report.questions == 20


@pytest.mark.parametrize("turn", [dict, tuple, list])
def test_a_history_of_roles_is_read_under_both_names(turn):
    said = [("user", "Who is Ada?"), ("assistant", "A mathematician.")]
    roles = [{"role": who, "content": text} for who, text in said]
    turns = roles if turn is dict else [*map(turn, said)]
    for name in ("history", "chat_history"):
        judge = gate()
        GECERouter(judge, search).invoke({"question": "and then?", name: turns})
        assert "A mathematician." in judge.world.llm.prompts[0]


@pytest.mark.parametrize("entry", [["a file", "a file"], [{"visited": "home"}], "all of it", [3]])
def test_a_history_that_is_none_may_have_that_name(entry):
    judge = gate()
    GECERouter(judge, search).invoke({"question": "who?", "history": entry})
    assert judge.world.llm.prompts == ["who?"]


def test_a_follow_up_to_a_picture_goes_to_the_chain():
    judge, asked = gate(lambda prompt: "What colour is the car?", rule=never), list[str]()
    router = GECERouter(judge, lambda value: "the chain sees it")
    picture = {"type": "image", "url": "http://localhost/a.png"}
    talk = [HumanMessage([{"type": "text", "text": "What is this?"}, picture]), AIMessage("A car.")]
    assert router.invoke([*talk, HumanMessage("What colour is it?")]) == "the chain sees it"
    [rewriting] = judge.world.llm.prompts  # and no draft
    assert "human: What is this?\n" in rewriting
    finding = RunnableLambda(lambda query: asked.append(query) or [])
    gated = GECERetriever(gate=judge, retriever=finding)
    gated.invoke(talk[:1])
    gated.invoke([*talk, HumanMessage("What colour is it?")])
    assert asked == ["What is this?", "What colour is the car?"]
    talk += [HumanMessage("What colour is it?"), AIMessage("Red.")]
    assert router.invoke([*talk, HumanMessage("hi")]) != "the chain sees it"


SEEING = HumanMessage([{"type": "text", "text": "What?"}, {"type": "image", "url": "http://a/b"}])


@pytest.mark.parametrize("condense", [True, None, RunnableLambda(lambda value: "What colour?")])
@pytest.mark.parametrize("talk", [
    [SEEING, AIMessage("A car."), HumanMessage("Its colour?")],
    [HumanMessage("hi"), AIMessage("hi"), SEEING],
])  # fmt: skip
async def test_a_picture_goes_to_the_chain_however_a_follow_up_is_read(condense, talk):
    router = GECERouter(gate(rule=never), lambda value: "it sees", condense=condense)
    assert await every_way(router, talk) == ["it sees"] * 4


def test_in_a_batch_follow_ups_are_rewritten_side_by_side():
    meeting = Barrier(4, timeout=5)
    condense = RunnableLambda(lambda value: f"rare {meeting.wait()}")
    router = GECERouter(gate(), search, condense=condense, return_decision=True, on_error="raise")
    talk = [HumanMessage("who?"), AIMessage("Austen"), HumanMessage("and when?")]
    found = router.batch([talk] * 4, {"max_concurrency": 4})
    assert sorted(one["decision"].question for one in found) == [f"rare {i}" for i in range(4)]


class Wanted(TypedDict):
    question: str


class Given(TypedDict):
    answer: str
    score: float
    found: list[str]


def test_a_mapping_that_a_function_declares_is_read_and_given():
    def chain(value: Wanted) -> Given:
        return {"answer": f"found for {value['question']}", "score": 1.0, "found": ["x"]}

    router = GECERouter(gate(rule=never), chain)
    draft = {"question": "hi", "answer": "known: hi", "score": None, "found": []}
    assert router.invoke({"question": "hi"}) == draft
    known = [f"rare {i}" if i % 2 else f"hi {i}" for i in range(20)]
    llm = ScriptedLLM(lambda q: "who knows?" if "rare" in q else f"found for hi {q[-1]}")
    fitted = GECERouter.fit(RunnableLambda(chain), llm=llm, questions=known, target_rate=0.5)
    assert fitted.gate.report.questions == 20


def test_a_declared_mapping_without_a_known_key_for_the_answer_asks_which_it_is():
    chain = RunnableParallel(reply=lambda value: "from the chain", sources=lambda value: ["x"])
    with pytest.raises(InvalidInput, match=r"'reply', 'sources'.*answer='\.\.\.'"):
        GECERouter(gate(), chain).invoke("hi")
    assert GECERouter(gate(), chain, answer="reply").invoke("hi")["reply"] == "known: hi"


def test_before_a_mapping_that_no_chain_declared_the_draft_stays_text(caplog):
    router = GECERouter(gate(), lambda value: {"reply": "from the chain", "sources": ["x"]})
    for _ in range(2):
        assert router.invoke("hi") == "known: hi"
        assert router.invoke("rare")["reply"] == "from the chain"
    assert caplog.text.count("a draft is text until answer= names") == 1
    echoing = GECERouter(gate(), lambda value: {**value, "reply": "from the chain"})
    for question, reply in {"rare": "from the chain", "hi": "known: hi"}.items():
        assert echoing.invoke({"question": question}) == {"question": question, "reply": reply}


def test_an_answer_that_is_assigned_last_needs_no_name():
    chain = RunnablePassthrough.assign(sources=search) | RunnablePassthrough.assign(reply=search)
    steps = RunnablePassthrough.assign(sources=search), RunnablePassthrough.assign(reply=search)
    for whole in (
        chain, chain.with_retry(), chain.with_config(tags=[]), chain.with_types(output_type=dict),
        chain.with_fallbacks([chain]), steps[0] | steps[1].with_config(run_name="last"),
        steps[0] | steps[1].with_retry(), steps[0] | steps[1].with_fallbacks([steps[1]]),
    ):  # fmt: skip
        out = GECERouter(gate(), whole).invoke({"question": "hi"})
        assert out == {"question": "hi", "sources": [], "reply": "known: hi"}


def test_a_failing_step_before_the_gate_fails_its_own_question_alone():
    def condense(value):
        if "broken" in str(value):
            raise ConnectionError("no route")
        return "rare"

    router = GECERouter(gate(), search, condense=RunnableLambda(condense), on_error="raise")
    talks = [[("ai", "hi"), ("human", "a"), ("human", text)] for text in ("broken", "b")]
    failed, found = router.batch(talks, return_exceptions=True)
    assert isinstance(failed, ConnectionError)
    assert found == f"found for {talks[1]}"
    with pytest.raises(ConnectionError):
        router.batch(talks)


def of_form(value):
    """The form of a stream's piece: messages by their kind, the rest by keys and places."""
    if isinstance(value, dict):
        nodes = dict.fromkeys(("n", "GECEDraft"), "node")
        known = (*nodes, "messages", "type", "ns", "data", "interrupts")
        return {nodes.get(k, k): of_form(v) for k, v in value.items() if k in known}
    if isinstance(value, tuple | list):
        return type(value), [of_form(one) for one in value if not isinstance(one, HumanMessage)]
    return value if isinstance(value, str) else isinstance(value, AIMessage)


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", [
    None, "values", "updates", "messages", ["messages"], ["updates", "values", "messages"]
])  # fmt: skip
async def test_before_a_graph_the_draft_is_streamed_as_the_graph_streams(mode, subgraphs):
    def node(state):
        return {"messages": [AIMessage("from the graph", id="1")]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    router = GECERouter(gate(), graph)
    how = ({"stream_mode": mode} if mode else {}) | ({"subgraphs": True} if subgraphs else {})
    given = [{"messages": [HumanMessage(text)]} for text in ("rare", "hi")]
    through, draft = ([*router.stream(one, **how)] for one in given)
    forms, own = ([str(of_form(piece)) for piece in some] for some in (draft, through))
    assert forms == own == [str(of_form(piece)) for piece in graph.stream(given[0], **how)]
    assert "known: hi" in str(draft)
    awaited = [piece async for piece in router.astream(given[1], **how)]
    assert [str(of_form(piece)) for piece in awaited] == own


@pytest.mark.parametrize("mode", [None, "values", "updates", "messages", ["values", "messages"]])
async def test_before_a_graph_the_draft_has_the_version_that_was_asked_for(mode):
    def node(state):
        return {"messages": [AIMessage("from the graph", id="1")]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    router = GECERouter(gate(), graph, audit_rate=1.0)
    how = {"version": "v2"} | ({"stream_mode": mode} if mode else {})
    given = [{"messages": [HumanMessage(text)]} for text in ("rare", "hi")]
    draft = [*router.stream(given[1], **how)]
    forms, own = ([str(of_form(piece)) for piece in some]
                  for some in (draft, graph.stream(given[0], **how)))  # fmt: skip
    assert forms == own
    assert [str(of_form(piece)) async for piece in router.astream(given[1], **how)] == forms
    bound = GECERouter(gate(), graph.bind(version="v2"))
    for one in (router.invoke(given[1], version="v2"), await bound.ainvoke(given[1]),
                *router.batch(given[1:], version="v2")):  # fmt: skip
        assert type(one) is type(graph.invoke(given[0], version="v2"))
        assert [m.text for m in one.value["messages"]] == ["hi", "known: hi"]
    assert router.settle()
    assert (router.monitor.audits, router.monitor.failed) == (4, 0)


class Placed(MessagesState):
    at: str


@pytest.mark.parametrize("more", [
    {}, {"output_keys": "messages"}, {"output_keys": ["messages"]}, {"output_keys": ["at"]},
    {"output_keys": "messages", "version": "v2"},
], ids=str)  # fmt: skip
async def test_the_draft_comes_with_what_a_graph_gives_of_its_state(more):
    def node(state):
        return {"messages": [AIMessage("from the graph", id="1")]}

    graph = StateGraph(Placed).add_node("n", node).add_edge(START, "n").compile()
    router, bound = GECERouter(gate(), graph), GECERouter(gate(), graph.bind(**more))
    rare, given = ({"messages": [HumanMessage(text)], "at": "home"} for text in ("rare", "hi"))
    whole = graph.invoke(rare, **more)
    own = getattr(whole, "value", whole)
    for draft in (router.invoke(given, **more), await bound.ainvoke(given),
                  *router.batch([given], **more)):  # fmt: skip
        assert type(draft) is type(whole)
        state = getattr(draft, "value", draft)
        assert str(of_form(state)) == str(of_form(own))
        assert isinstance(own, list) or {**own, "messages": []} == {**state, "messages": []}
    for mode in ("values", "updates"):
        forms, own = ([str(of_form(piece)) for piece in some.stream(one, stream_mode=mode, **more)]
                      for some, one in ((router, given), (graph, rare)))  # fmt: skip
        assert forms == own
    [update] = router.stream(given, stream_mode="updates")
    assert [*update["GECEDraft"]] == ["messages"]


@pytest.mark.parametrize("mode", ["updates", "messages", ["values", "messages"]])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_graph_that_is_asked_at_once_for_another_mode_gives_its_stream(mode, version):
    def node(state):
        return {"messages": [AIMessage("from the graph", id="1")]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    how = {"stream_mode": mode, "version": version}
    router, bound = GECERouter(gate(), graph), GECERouter(gate(), graph.bind(**how))
    rare, given = ({"messages": [HumanMessage(text)]} for text in ("rare", "hi"))
    own = [str(of_form(piece)) for piece in graph.invoke(rare, **how)]
    for draft in (router.invoke(given, **how), await bound.ainvoke(given),
                  *router.batch([given], **how)):  # fmt: skip
        assert [str(of_form(piece)) for piece in draft] == own


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["values", "updates", "messages", ["messages", "values"]])
def test_the_answer_in_what_a_graph_gives_is_found_in_both_versions(mode, version):
    def node(state):
        return {"messages": [AIMessage("from the graph", id="1")]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    given = {"messages": [HumanMessage("rare")]}
    pieces = [*graph.stream(given, stream_mode=mode, version=version)]
    for chunks in (pieces, [graph.invoke(given, version=version)]):
        assert streamed_text(chunks) == "from the graph"
    assert streamed_text([]) == ""


def test_the_question_may_lie_under_another_key():
    assert GECERouter(gate(), search, question_key="q").invoke({"q": "hi"}) == "known: hi"


@pytest.mark.parametrize("given", [{"q": "hi"}, 7, None, [], {"messages": []}], ids=str)
def test_an_input_without_a_question_is_a_named_error(given):
    with pytest.raises(InvalidInput, match="question"):
        GECERouter(gate(), search).invoke(given)


def test_it_stands_in_the_middle_of_a_pipe():
    model = FunctionChat(lambda prompt: f"<{prompt}>")
    answering = ChatPromptTemplate([("human", "Read: {question}")]) | model | StrOutputParser()
    chain = (
        RunnableLambda(lambda question: {"question": question})
        | GECERouter(gate(), answering)
        | StrOutputParser()
        | RunnableLambda(str.upper)
    )
    assert chain.invoke("rare") == "<READ: RARE>"
    assert chain.batch(["hi", "rare"]) == ["KNOWN: HI", "<READ: RARE>"]
    assert "".join(chain.stream("hi")) == "KNOWN: HI"


def test_it_stands_behind_a_prompt_and_inside_assign():
    prompt = PromptTemplate.from_template("about {topic}")
    assert (prompt | GECERouter(gate(), search)).invoke({"topic": "tea"}) == "known: about tea"
    chat = ChatPromptTemplate([("human", "about {topic}")])
    untyped = GECERouter(gate(), lambda value: "found")
    assert (chat | untyped).invoke({"topic": "tea"}) == "known: about tea"
    chain = RunnablePassthrough.assign(answer=GECERouter(gate(), search))
    assert chain.invoke({"question": "hi"}) == {"question": "hi", "answer": "known: hi"}


async def test_the_decision_comes_out_on_request():
    router = GECERouter(gate(), search, return_decision=True)
    for question, retrieve in {"rare": True, "hi": False}.items():
        plain = GECERouter(gate(), search).invoke(question)
        for result in (
            router.invoke(question),
            await router.ainvoke(question),
            router.batch([question])[0],
            (await router.abatch([question]))[0],
        ):
            assert result["output"] == plain
            assert isinstance(result["decision"], Decision)
            assert result["decision"].retrieve is retrieve
            assert result["decision"].question == question
        first, second = router.stream(question)
        assert first + second == result
        assert [chunk async for chunk in router.astream(question)] == [first, second]


async def test_a_streaming_chain_is_streamed_through():
    sent = []

    def words(values):
        for value in values:
            for word in value.split():
                sent.append(word)
                yield word

    async def awords(values):
        async for value in values:
            for word in value.split():
                yield word

    router = GECERouter(gate(), RunnableGenerator(words, awords))
    stream = router.stream("rare old words")
    assert next(stream) == "rare"
    assert sent == ["rare"]  # the rest has not been written yet
    assert list(stream) == ["old", "words"]
    assert [word async for word in router.astream("rare old")] == ["rare", "old"]


async def test_a_stream_that_is_left_closes_the_chains():
    closed = []

    async def pieces(values):
        try:
            async for _ in values:
                yield "a"
                yield "b"
        finally:
            await asyncio.sleep(0)
            closed.append("chain")

    stream = GECERouter(gate(rule=always), RunnableGenerator(pieces)).astream("q")
    assert await anext(stream) == "a"
    await stream.aclose()
    assert closed == ["chain"]


async def test_a_chains_stream_need_not_be_a_generator():
    class Pieces:
        def __init__(self) -> None:
            self.left = ["a", "b"]

        def __aiter__(self):
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    class Iterated(RunnablePassthrough):
        def astream(self, *given: Any, **more: Any) -> Any:
            return Pieces()

    router = GECERouter(gate(rule=always), Iterated())
    assert [piece async for piece in router.astream("q")] == ["a", "b"]


def test_a_batch_asks_the_gates_model_once_and_keeps_the_order():
    judge = gate()
    questions = ["rare a", "b", "rare c", "d", "rare a"]
    batches = []
    chain = RunnableLambda(lambda value: batches.append(value) or search(value))
    router = GECERouter(judge, chain)
    alone = [GECERouter(gate(), search).invoke(question) for question in questions]
    assert router.batch(questions) == alone
    assert judge.world.llm.calls == [tuple(questions)]
    assert sorted(batches) == ["rare a", "rare a", "rare c"]
    assert router.batch([]) == []


def test_a_failing_question_keeps_its_place_in_the_batch():
    def picky(value):
        if "worst" in value:
            raise KeyError("index")
        return search(value)

    router = GECERouter(gate(), picky)
    inputs = ["hi", "", "rare worst", {"q": 1}, "rare"]
    known, empty, missing, unasked, found = router.batch(inputs, return_exceptions=True)
    assert (known, found) == ("known: hi", "found for rare")
    assert isinstance(empty, EmptyQuestion)
    assert isinstance(missing, KeyError)
    assert isinstance(unasked, InvalidInput)
    told = GECERouter(gate(), picky, return_decision=True)
    explained = told.batch(inputs, return_exceptions=True)
    assert [type(e) for e in explained] == [dict, EmptyQuestion, KeyError, InvalidInput, dict]
    for wrong, error in {"": EmptyQuestion, "rare worst": KeyError}.items():
        with pytest.raises(error):
            router.batch(["hi", wrong])


async def test_errors_of_gate_and_chain_pass_through_as_they_are():
    def fail(value):
        raise LookupError("nothing")

    for question, error in {"": EmptyQuestion, "broken": ModelFailed, "rare": LookupError}.items():
        router = GECERouter(gate(), fail, on_error="raise")
        for call in (router.invoke, lambda q, r=router: list(r.stream(q))):
            with pytest.raises(error) as caught:
                call(question)
        with pytest.raises(error):
            await router.ainvoke(question)
        if error is ModelFailed:
            assert isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.parametrize("bound", [8, 200])
async def test_two_hundred_calls_are_in_flight_at_once_up_to_the_bound(bound):
    model = FunctionChat(lambda question: soon(draft(question)))
    llm = LangChainLLM(model, max_concurrency=bound)
    router = GECERouter(RuleGate(World(llm=llm)), search)
    questions = [f"{'rare' if i % 2 else 'hi'} {i}" for i in range(200)]
    answers = await asyncio.gather(*(router.ainvoke(question) for question in questions))
    assert model.flying == [0, bound]
    assert answers == [search(q) if "rare" in q else draft(q) for q in questions]


async def test_abatch_honours_the_callers_limit():
    model = FunctionChat(lambda question: soon(draft(question)))
    router = GECERouter(RuleGate(World(llm=LangChainLLM(model))), search)
    await router.abatch([str(i) for i in range(20)], {"max_concurrency": 4})
    assert 1 < model.flying[1] <= 4


def traced(judge=None) -> tuple[GECERouter, Runs]:
    """A router whose gate and chain both ask a chat model, and a recorder."""
    model = FunctionChat(draft)
    answering = RunnableLambda(str).with_config(run_name="reading") | FunctionChat(str.upper)
    return GECERouter(judge or RuleGate(World(llm=LangChainLLM(model))), answering), Runs()


def lineages(runs: Runs) -> list[list[str]]:
    calls = (run for run in runs.by_id.values() if run["name"] in ("FunctionChat", "ltrag_call"))
    return [runs.ancestry(run) for run in calls]


RETRIEVED = [
    ["ltrag_call", "GECEGate", "GECERouter"],
    ["FunctionChat", "RunnableSequence", "GECERouter"],
]


async def test_every_model_call_is_a_child_run_of_its_step():
    async def drain(chunks):
        return [chunk async for chunk in chunks]

    for call in (
        lambda r, c: r.invoke("rare", c),
        lambda r, c: r.ainvoke("rare", c),
        lambda r, c: list(r.stream("rare", c)),
        lambda r, c: drain(r.astream("rare", c)),
        lambda r, c: r.batch(["rare"], c),
        lambda r, c: r.abatch(["rare"], c),
    ):
        router, runs = traced()
        result = call(router, {"callbacks": [runs]})
        if asyncio.iscoroutine(result):
            await result
        assert lineages(runs) == RETRIEVED
        assert [run["parent"] for run in runs.named("GECERouter")] == [None]


async def test_a_model_that_only_blocks_is_still_traced_when_it_runs_in_a_thread():
    class Blocking:
        """Our LLM without an async call of its own, over a LangChain model."""

        def __init__(self) -> None:
            self.inner = LangChainLLM(FunctionChat(draft))
            self.name = self.inner.name
            self.generate = self.inner.generate

    router, runs = traced(RuleGate(World(llm=Blocking())))
    await router.ainvoke("rare", {"callbacks": [runs]})
    assert lineages(runs) == RETRIEVED


def test_in_a_batch_every_prompt_of_the_merged_call_belongs_to_its_own_question():
    router, runs = traced()
    questions = ["rare a", "b", "rare c", "b"]
    router.batch(questions, {"callbacks": [runs]})
    drafts = runs.named("ltrag_call")
    pairs = [
        (run["inputs"][0][0].text, runs.by_id[runs.by_id[run["parent"]]["parent"]]["inputs"])
        for run in drafts
    ]
    assert len({run["parent"] for run in drafts}) == 4
    assert sorted(pairs) == sorted((question, question) for question in questions)


def test_in_a_batch_a_bound_model_reports_each_prompt_to_its_own_questions_callbacks():
    runs = [Runs(), Runs()]
    judge = RuleGate(World(llm=LangChainLLM(FunctionChat(draft).bind(user="me"))))
    GECERouter(judge, search).batch(["rare", "hi"], [{"callbacks": [one]} for one in runs])
    for question, one in zip(["rare", "hi"], runs, strict=True):
        [call] = one.named("ltrag_call")
        assert call["inputs"][0][0].text == question
        assert one.ancestry(call) == ["ltrag_call", "GECEGate", "GECERouter"]


def test_each_input_of_a_batch_keeps_its_own_callbacks():
    router, first = traced()
    second = Runs()
    router.batch(["rare", "hi"], [{"callbacks": [first]}, {"callbacks": [second]}])
    assert lineages(first) == RETRIEVED
    assert lineages(second) == RETRIEVED[:1]


async def test_the_decision_is_a_runs_output_and_the_metadata_of_what_follows():
    for question, follower in {"rare": "RunnableSequence", "hi": "GECEDraft"}.items():
        for call in ("invoke", "ainvoke", "batch"):
            router, runs = traced()
            decision = router.gate.decide(question).as_metadata()
            given = [question] if call == "batch" else question
            result = getattr(router, call)(given, {"callbacks": [runs], "metadata": {"user": 7}})
            if asyncio.iscoroutine(result):
                await result
            [gate_run], [after] = runs.named("GECEGate"), runs.named(follower)
            assert gate_run["output"] == decision
            assert "gece" not in gate_run["metadata"]
            assert after["metadata"]["gece"] == decision
            assert after["metadata"]["user"] == 7


def test_config_and_arguments_reach_the_chosen_chain():
    seen = {}

    def chain(value, config, **kwargs):
        seen.update(tags=config["tags"], configurable=config["configurable"], kwargs=kwargs)
        return value

    config = {"tags": ["t"], "configurable": {"tenant": "a"}}
    GECERouter(gate(rule=always), chain).invoke("x", config, k=3)
    assert seen == {"tags": ["t"], "configurable": {"tenant": "a"}, "kwargs": {"k": 3}}
    GECERouter(gate(rule=always), chain).batch(["x"], config, k=4)
    assert seen["kwargs"] == {"k": 4}
    assert GECERouter(gate(rule=never), chain).invoke("x", k=3) == "known: x"


def test_what_is_configurable_in_the_chain_is_configurable_behind_the_router():
    prompt = PromptTemplate.from_template("say {question}").configurable_fields(
        template=ConfigurableField(id="template")
    )
    router = GECERouter(gate(rule=always), prompt | (lambda prompt: prompt.text))
    config = {"configurable": {"template": "sing {question}"}}
    assert router.invoke({"question": "x"}, config) == "sing x"


def test_the_callers_gate_and_chains_are_held_as_they_are():
    judge, model = gate(), FunctionChat(str.upper, temperature=0.3)
    before = model.model_dump()
    router = GECERouter(judge, model)
    router.invoke("rare")
    assert router.gate is judge
    assert router.retrieving is model
    assert model.model_dump() == before
    assert model.sent == [{"temperature": 0.3}]


def test_what_is_no_gate_is_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match="GECEGate"):
        GECERouter(lambda question: True, search)


async def test_events_of_the_stream_name_gate_and_chain():
    names = [
        event["name"]
        async for event in GECERouter(gate(), search).astream_events("rare", version="v2")
        if event["event"] == "on_chain_start"
    ]
    assert names == ["GECERouter", "GECEGate", "search"]


class LoopsOfRuns(AsyncCallbackHandler):
    """The event loop in which each run's beginning is told."""

    def __init__(self) -> None:
        self.seen: dict[str, object] = {}

    async def on_chain_start(self, serialized, inputs, **more):
        self.seen[more["name"]] = asyncio.get_running_loop()

    on_chat_model_start = on_chain_start


async def test_async_callbacks_are_told_of_the_draft_in_the_callers_event_loop():
    told = LoopsOfRuns()
    await GECERouter(gate(rule=never), search).ainvoke("q", {"callbacks": [told]})
    loop = asyncio.get_running_loop()
    assert told.seen == {"GECERouter": loop, "GECEGate": loop, "GECEDraft": loop}
