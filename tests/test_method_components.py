"""Each method as a component of both ecosystems, beside its flow run by itself."""

import pytest
from contracts.methods import LABELLED, PASSAGES, QUESTIONS, Letters, Scoring, likely, plausible
from gates import RuleGate
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_parts import FunctionChat, Runs
from llama_index.core import Settings
from llama_index_parts import FunctionLLM

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World, run
from ltrag_plugins.langchain import GECERouter, PassageRetriever, as_runnable
from ltrag_plugins.llama_index import GECERouter as EngineRouter
from ltrag_plugins.llama_index import LlamaIndexEncoder, as_query_engine
from ltrag_plugins.llama_index import PassageRetriever as NodeRetriever
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.direct import DirectSettings
from ltrag_plugins.methods.self_rag import SelfRAGSettings
from ltrag_plugins.methods.sgic import SGICMethodSettings
from ltrag_plugins.methods.shots import BM25ShotsSettings
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings
from tests.framework_parts import LlamaIndexLetters

BM25 = BM25Retriever(PASSAGES)
TEXTS = [question.text for question in QUESTIONS]


def by_source(source) -> SGICMethodSettings:
    return SGICMethodSettings(loop=SGICSettings(rounds=1, certain_below=0, source=source))


def alone(name: str) -> list:
    """What the flow answers, asked by hand."""
    world = World(llm=Scoring(plausible), retriever=BM25, encoder=Letters())
    method = METHODS[name]
    settings = method.settings()
    learned = method.taught(LABELLED, settings, world)
    return [run(method.flow(q, settings, learned), world) for q in QUESTIONS]


@pytest.mark.parametrize("name", METHODS)
async def test_one_line_makes_a_runnable_of_it(name):
    given = {"encoder": Letters(), "labelled": LABELLED, "return_answer": True}
    chain = as_runnable(name, Scoring(plausible), BM25, **given)
    assert [chain.invoke(text) for text in TEXTS] == alone(name)
    assert [await chain.ainvoke({"question": text}) for text in TEXTS] == alone(name)
    assert chain.batch(TEXTS) == alone(name)


@pytest.mark.parametrize("name", METHODS)
async def test_one_line_makes_a_query_engine_of_it(name):
    engine = as_query_engine(name, Scoring(plausible), BM25, encoder=Letters(), labelled=LABELLED)
    for text, answer in zip(TEXTS, alone(name), strict=True):
        for response in (engine.query(text), await engine.aquery(text)):
            assert response.response == answer.text
            assert [n.node_id for n in response.source_nodes] == [p.id for p in answer.passages]
            assert response.metadata["method"] == name
            assert response.metadata.get("uncertainty") == answer.uncertainty


def test_the_frameworks_own_models_and_retrievers_will_do():
    def reads(prompt: str) -> str:
        return "George Eliot" if "Middlemarch is a novel" in prompt else "no idea"

    chain = as_runnable("single", FunctionChat(reads), PassageRetriever(retriever=BM25, k=2))
    engine = as_query_engine("single", FunctionLLM(reads), NodeRetriever(BM25, k=2))
    assert chain.invoke("Who wrote Middlemarch?") == "George Eliot"
    assert str(engine.query("Who wrote Middlemarch?")) == "George Eliot"


def test_of_a_picture_a_method_reads_the_words():
    llm = ScriptedLLM(lambda _: "a car")
    picture = {"type": "image", "url": "http://localhost/a.png"}
    asked = [HumanMessage([picture, {"type": "text", "text": "Who wrote Middlemarch?"}])]
    assert as_runnable("direct", llm).invoke(asked) == "a car"
    assert as_runnable("direct", llm).invoke("Who wrote Middlemarch?") == "a car"
    assert llm.prompts[0] == llm.prompts[1]


REFLECTING, TOKENS = "reflection tokens", "[Retrieval][Relevant]yes[Utility:5]"


@pytest.mark.parametrize(
    ("reply", "mode"),
    [
        (lambda _: "yes", "yes-no texts"),
        (lambda prompt: likely(prompt, "yes"), "yes-no probabilities"),
        (lambda _: TOKENS, REFLECTING),
    ],
)
def test_both_say_what_self_rag_reads_its_critiques_from(reply, mode):
    llm, settings = ScriptedLLM(reply), SelfRAGSettings(reflection_tokens=mode == REFLECTING)
    chain = as_runnable("self-rag", llm, BM25, settings=settings, return_answer=True)
    engine = as_query_engine("self-rag", llm, BM25, settings=settings)
    assert chain.invoke(TEXTS[0]).mode == mode
    assert engine.query(TEXTS[0]).metadata == {"method": "self-rag", "mode": mode}


def test_it_stands_in_a_chain_and_its_calls_are_runs_of_it():
    runs = Runs()
    chain = as_runnable("direct", FunctionChat(lambda _: "Jane Austen")) | RunnableLambda(str.upper)
    config = {"callbacks": [runs]}
    assert chain.invoke("Who wrote Emma?", config=config) == "JANE AUSTEN"
    [asked] = runs.named("ltrag_call")
    assert runs.ancestry(asked)[1] == "direct"


async def test_in_a_batch_searches_and_calls_are_runs_of_their_own_question():
    search = PassageRetriever(retriever=BM25, name="search")
    chain = as_runnable("single", FunctionChat(lambda _: "Jane Austen"), search)
    runs = [Runs() for _ in TEXTS]
    configs = [{"callbacks": [one]} for one in runs]
    assert chain.batch(TEXTS, configs) == await chain.abatch(TEXTS, configs)
    for text, one in zip(TEXTS, runs, strict=True):
        assert [found["inputs"] for found in one.named("search")] == [text, text]
        for inner in (*one.named("search"), *one.named("ltrag_call")):
            assert one.by_id[inner["parent"]]["inputs"] == text


@pytest.mark.parametrize("name", ["ircot", "sure", "sgic"])
async def test_a_gate_stands_before_it_in_both_frameworks(name):
    """One question is the model's own to answer, the other goes to the method, as by hand."""
    asked, draft = TEXTS[:2], World(ScriptedLLM(lambda _: "a draft"))
    gate = RuleGate(draft, lambda question, _: question != asked[0])
    chain = GECERouter(gate, as_runnable(name, Scoring(plausible), BM25))
    engine = EngineRouter(gate, as_query_engine(name, Scoring(plausible), BM25))
    expected = ["a draft", alone(name)[1].text]
    assert chain.batch(asked) == [await chain.ainvoke(text) for text in asked] == expected
    assert [str(engine.query(text)) for text in asked] == expected
    assert [str(await engine.aquery(text)) for text in asked] == expected


def test_an_input_without_a_question_is_its_own_error_in_a_batch():
    chain = as_runnable("direct", Scoring(plausible))
    good, bad = chain.batch(["Who wrote Emma?", {"q": "?"}], return_exceptions=True)
    assert isinstance(good, str)
    assert isinstance(bad, InvalidInput)


@pytest.mark.parametrize("make", [as_runnable, as_query_engine])
@pytest.mark.parametrize("name", METHODS)
def test_settings_of_another_method_are_refused_before_a_prompt(make, name):
    llm = Scoring(plausible)
    wrong = DirectSettings() if name == "bm25-shots" else BM25ShotsSettings()
    parts = {"encoder": Letters(), "labelled": LABELLED}
    wanted = f"settings of {name} must be {METHODS[name].settings.__name__}"
    with pytest.raises(InvalidInput, match=wanted):
        make(name, llm, BM25, settings=wrong, **parts)
    assert llm.prompts == []


@pytest.mark.parametrize("name", ["skr", "adaptive", "bm25-shots", "dur-shots"])
def test_labelled_questions_may_come_one_by_one(name):
    more = {"encoder": Letters(), "labelled": iter(LABELLED), "return_answer": True}
    chain = as_runnable(name, Scoring(plausible), BM25, **more)
    assert [chain.invoke(text) for text in TEXTS] == alone(name)
    for wrong, match in ((iter(TEXTS), r"are Question\("), (TEXTS[0], "came as one string")):
        with pytest.raises(InvalidInput, match=match):
            as_runnable(name, Scoring(plausible), BM25, **more | {"labelled": wrong})


@pytest.mark.parametrize("make", [as_runnable, as_query_engine])
@pytest.mark.parametrize(("source", "match"), [
    ("encoder", r"needs encoder=\.\.\."),
    ("relevance", r"needs relevance=\.\.\."),
    ("oracle", r"needs truth=Truth"),
])  # fmt: skip
def test_a_source_of_document_scores_that_is_not_there_is_named_before_a_prompt(
    make, source, match
):
    llm, settings = Scoring(plausible), by_source(source)
    with pytest.raises(InvalidInput, match=match):
        make("sgic", llm, BM25, settings=settings)
    with pytest.raises(InvalidInput, match=match):
        METHODS["sgic"].check(World(llm=llm, retriever=BM25), (), settings)
    assert llm.prompts == []


@pytest.mark.parametrize("given", [{"encoder": LlamaIndexLetters()}, {}])
def test_documents_are_scored_by_the_encoder_of_llama_index_where_the_source_asks(
    given, monkeypatch
):
    encoder = LlamaIndexEncoder(LlamaIndexLetters())
    there = World(llm=Scoring(plausible), retriever=BM25, encoder=encoder)
    wanted = run(METHODS["sgic"].flow(QUESTIONS[0], by_source("encoder")), there).text
    if not given:
        monkeypatch.setattr(Settings, "_embed_model", LlamaIndexLetters())
    llm = Scoring(plausible)
    engine = as_query_engine("sgic", llm, BM25, settings=by_source("encoder"), **given)
    assert str(engine.query(TEXTS[0])) == wanted
    assert llm.prompts == there.llm.prompts


@pytest.mark.parametrize("make", [as_runnable, as_query_engine])
def test_what_is_missing_is_named(make):
    with pytest.raises(InvalidInput, match="did you mean single"):
        make("singel", Scoring(plausible))
    with pytest.raises(InvalidInput, match="single needs a retriever"):
        make("single", Scoring(plausible))
    with pytest.raises(InvalidInput, match=r"(skr|this) needs"):
        make("skr", Scoring(plausible), BM25)
