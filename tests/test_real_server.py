"""The three clients over llama.cpp's own server, beside the same file read by transformers, and
each component over it in both frameworks."""

import json
import math
from dataclasses import replace
from statistics import median

import pytest
from cli_parts import lines_file, ltrag
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.dur.prompts import FORMATS
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.gece.decision import question_digest
from ltrag_plugins.gece.store import DecisionStore
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.types import GenerationSettings, Question
from ltrag_plugins.uncertainty import sampled_uncertainties
from tests.dur_parts import Nonsense
from tests.llama_index_parts import engine
from tests.village import CAPITALS as TAUGHT
from tests.village import VILLAGE

# LangChain's models of one address share their connections, which belong to one event loop
one_loop = pytest.mark.asyncio(loop_scope="module")

PROMPTS = [
    "What is the capital of France? Answer with the name only.",
    "Name a colour.",
    "Write the number seven as a digit.",
    "Say yes.",
]
ASKED = GenerationSettings(max_tokens=12)


def chat_openai(url: str) -> ChatOpenAI:
    return ChatOpenAI(model="smollm2", api_key="none", base_url=url)


def openai_like(url: str) -> OpenAILike:
    return OpenAILike(model="smollm2", api_key="none", api_base=url, is_chat_model=True)


CLIENTS = {
    "ours": lambda url: OpenAICompatibleLLM("smollm2", base_url=url),
    "langchain": lambda url: langchain.LangChainLLM(chat_openai(url)),
    "llama_index": lambda url: llama_index.LlamaIndexLLM(openai_like(url)),
}


@pytest.fixture(scope="module", params=CLIENTS)
def llm(request, real_server):
    return CLIENTS[request.param](real_server)


def assert_as_transformers_says(remote, smollm2):
    """Its tokens and log-probabilities are those of the same text in the same file.

    Scored, not written: of two words that are about as likely either engine may take the other.
    """
    local = smollm2.score(PROMPTS, [generation.text for generation in remote])
    pairs = [
        (theirs, ours)
        for one, other in zip(remote, local, strict=True)
        for theirs, ours in zip(one.tokens, other.tokens, strict=True)
    ]
    assert [theirs.text for theirs, _ in pairs] == [ours.text for _, ours in pairs]
    assert median(abs(theirs.logprob - ours.logprob) for theirs, ours in pairs) <= 0.05


def test_log_probabilities_are_those_of_the_same_file_read_by_transformers(llm, smollm2):
    remote = llm.generate(PROMPTS, ASKED)
    assert_as_transformers_says(remote, smollm2)
    assert all(token.alternatives for g in remote for token in g.tokens)
    assert {g.finish_reason for g in remote} <= {"stop", "length"}
    assert all(g.completion_tokens for g in remote)


@pytest.mark.parametrize("local", [True, False], ids=["local", "server"])
def test_a_sample_tells_the_likeliest_tokens_and_counts_no_end_of_text(local, llm, smollm2):
    drawing = GenerationSettings(max_tokens=24, temperature=0.7, seed=1)
    samples = (smollm2 if local else llm).generate(PROMPTS, drawing)
    ended = [one for one in samples if one.completion_tokens < 24]
    assert ended
    assert all(len(one.tokens) == one.completion_tokens - 1 for one in ended)  # the last one ends
    # second route: the same texts read, not written
    read = smollm2.score(PROMPTS, [one.text for one in samples])
    assert [[t.text for t in one.tokens] for one in samples] == [
        [t.text for t in one.tokens] for one in read
    ]
    best = [[max(p for _, p in t.alternatives) for t in one.tokens] for one in read]
    wanted = [1 - math.exp(sum(one)) for one in best]
    found = sampled_uncertainties(samples)
    assert found == pytest.approx(wanted, abs=0.05)
    assert all(x <= y for x, y in zip(found, sampled_uncertainties(samples, "drawn"), strict=True))
    assert found != sampled_uncertainties(samples, "drawn")


@one_loop
async def test_asynchronously_too(llm, smollm2):
    assert_as_transformers_says(await llm.agenerate(PROMPTS, ASKED), smollm2)


def test_kept_answers_are_those_of_the_server(llm, tmp_path):
    cached = CachedLLM(llm, tmp_path / "answers.sqlite")
    first = cached.generate(PROMPTS[:2], ASKED)
    assert cached.generate(PROMPTS[:2], ASKED) == first
    assert (cached.hits, cached.misses) == (2, 2)
    assert [g.finish_reason for g in cached.generate(PROMPTS[:2], ASKED)] == [
        g.finish_reason for g in first
    ]


KNOWN = "France Paris, Italy Rome, Spain Madrid, Japan Tokyo, Egypt Cairo, Germany Berlin, "
KNOWN += "England London, Russia Moscow, Greece Athens, China Beijing"
RARE = "Bhutan Thimphu, Palau Ngerulmud, Tuvalu Funafuti, Malawi Lilongwe, Benin Porto-Novo, "
RARE += "Moldova Chisinau, Lesotho Maseru, Nauru Yaren, Vanuatu Port-Vila, Gabon Libreville"
NAMES = dict(pair.split() for pair in f"{KNOWN}, {RARE}".split(", "))


def capital(country: str) -> str:
    return f"What is the capital of {country}?"


CAPITALS = [Question(capital(country), (name,), country) for country, name in NAMES.items()]


@pytest.fixture(scope="module")
def gate(llm):
    """A gate that reads the probabilities of short drafts, and retrieves for half of them."""
    settings = GECESettings(scorer="mean_logprob", max_tokens=8, folds=2)
    return GECEGate.fit(CAPITALS, llm=llm, target_rate=0.5, settings=settings)


@one_loop
async def test_a_gate_learns_from_the_server_and_decides_after_it_was_saved(gate, llm, tmp_path):
    report = gate.report
    assert report.tier == "probabilities"
    assert (report.direct_accuracy, report.auroc.value > 0.8) == (0.5, True)
    gate.save(tmp_path)
    again = GECEGate.load(tmp_path, llm=llm)
    assert again.decide(capital("Nauru")).retrieve
    decision = await again.adecide(capital("Italy"))
    assert not decision.retrieve
    assert "Rome" in decision.answer


@one_loop
async def test_langchains_chain_and_llama_indexs_engine_stand_behind_the_gate(gate, real_server):
    prompt = ChatPromptTemplate([("human", "Say the word {question}")])
    chain = prompt | chat_openai(real_server).bind(max_tokens=4) | StrOutputParser()
    router = langchain.GECERouter(gate, {"question": RunnablePassthrough()} | chain)
    for out in (router.invoke(capital("Italy")), await router.ainvoke(capital("Italy"))):
        assert "Rome" in out
    found = langchain.GECERouter(gate, chain, return_decision=True)
    assert found.invoke({"question": capital("Nauru")})["decision"].retrieve
    reading = engine(openai_like(real_server).model_copy(update={"max_tokens": 4}))
    routed = llama_index.GECERouter(gate, reading)
    for response in (routed.query(capital("Italy")), await routed.aquery(capital("Italy"))):
        assert "Rome" in str(response)
    assert routed.query(f"{capital('Nauru')} Not Paris.").metadata["gece"]["retrieve"] is True


LOG = [question.text for question in CAPITALS]
"""Questions without any answers."""


def reading(question: str) -> str:
    country = question.removesuffix("?").split()[-1]
    return f"{NAMES[country]} is the capital of {country}.\nSay the capital of {country}."


def fitted_router(framework: str, url: str):
    settings = GECESettings(scorer="mean_logprob", max_tokens=8, folds=2)
    if framework == "langchain":
        chain = RunnableLambda(reading) | chat_openai(url).bind(max_tokens=8) | StrOutputParser()
        how = {"llm": chat_openai(url), "questions": LOG, "settings": settings}
        router = langchain.GECERouter.fit(chain, **how)
        return router, router.invoke
    like = openai_like(url)
    long = Reading(llm=like.model_copy(update={"max_tokens": 8}))
    router = llama_index.GECERouter.fit(long, llm=like, questions=LOG, settings=settings)
    return router, lambda text: str(router.query(text))


class Reading(CustomQueryEngine):
    llm: OpenAILike

    def custom_query(self, query_str: str) -> str:
        return self.llm.complete(reading(query_str)).text


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_a_router_starts_from_questions_alone(framework, real_server):
    router, ask = fitted_router(framework, real_server)
    report = router.gate.report
    assert (report.tier, report.agreement, report.questions) == ("probabilities", 1.0, 20)
    assert 0.1 < report.direct_accuracy < 0.9
    assert min(report.retrieval_cost.tokens, report.gate_cost.tokens) > 20
    assert all(ask(capital(country)) for country in ("Italy", "Tuvalu"))
    assert router.savings().questions == 2


@one_loop
async def test_a_reranker_learns_from_the_servers_answers(llm, tmp_path):
    short = replace(FORMATS["Q-A"], max_tokens=6)
    settings = DURSettings(format=short, shots=1, epochs=1, batch_size=4, budget=None)
    trained = DURTrainer(Nonsense(), llm, settings=settings).fit(CAPITALS[:4], CAPITALS[8:12])
    [batch] = trained.history
    assert batch.calls == 2 * batch.questions == 8
    assert batch.tokens
    assert batch.turned_hard  # some answers are right once a shot shows how to answer
    trained.ranker.save(tmp_path)
    texts = ["Paris", "Rome", "Oslo"]
    documents = langchain.DURReranker.from_pretrained(tmp_path, encoder=Nonsense())
    ordered = documents.compress_documents([Document(text) for text in texts], capital("Italy"))
    nodes = llama_index.DURReranker.from_pretrained(tmp_path, encoder=Nonsense())
    given = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    found = nodes.postprocess_nodes(given, query_str=capital("Italy"))
    assert [d.page_content for d in ordered] == [n.text for n in found]
    assert sorted(n.text for n in found) == sorted(texts)


ROUNDS = SGICSettings(rounds=1, certain_below=0, answer_tokens=6)
CALLS = 4  # the first answer, one for each document, and one round
FACTS = [Document("Rome is the capital of Italy."), Document("Oslo is in Norway.")]


@one_loop
async def test_langchains_calibrator_answers_from_the_server(real_server):
    calibrator = langchain.SGICCalibrator(chat_openai(real_server), settings=ROUNDS)
    given = {"question": capital("Italy"), "documents": FACTS}
    for out in (calibrator.invoke(given), await calibrator.ainvoke(given)):
        assert "Rome" in out["answer"]
        assert 0 < out["uncertainty"] < 1
        assert [len(out["trace"]), out["calibrated"].calls] == [2, CALLS]


@one_loop
async def test_llama_indexs_calibrator_answers_from_the_server(real_server):
    calibrator = llama_index.SGICCalibrator(openai_like(real_server), settings=ROUNDS)
    nodes = [NodeWithScore(node=TextNode(text=fact.page_content)) for fact in FACTS]
    for response in (
        calibrator.synthesize(capital("Italy"), nodes),
        await calibrator.asynthesize(capital("Italy"), nodes),
    ):
        assert "Rome" in str(response)
        told = response.metadata["sgic"]
        assert 0 < told["uncertainty"] < 1
        assert (len(told["trace"]), told["calls"]) == (2, CALLS)


def test_the_command_line_evaluates_methods_on_the_server(real_server, tmp_path):
    asked = [CAPITALS[0], CAPITALS[10]]
    lines = [{"id": q.id, "question": q.text, "answers": q.answers} for q in asked]
    pool = [{"text": f"{name} is the capital of {land}."} for land, name in NAMES.items()]
    arguments = ("--passages", lines_file(tmp_path / "pool.jsonl", *pool))
    arguments += ("--model", f"openai:smollm2@{real_server}", "--metrics", "contains")
    arguments += (
        "--methods",
        "direct:max_tokens=8,single:k=1",
        "--json",
        "--out",
        tmp_path / "run",
    )
    result = ltrag("evaluate", lines_file(tmp_path / "asked.jsonl", *lines), *arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["scores"]["contains"]["value"] for row in rows] == [0.5, 1.0]
    assert all(row["costs"]["tokens"] > 9 for row in rows)


def test_a_router_learns_over_the_server_and_then_retrieves_for_what_the_model_cannot_know(
    real_server, tmp_path
):
    facts, llm = VILLAGE | TAUGHT, chat_openai(real_server).bind(max_tokens=24, temperature=0)
    chain = (
        RunnableLambda(lambda question: f"{24 * facts[question]}\n\nIn a few words: {question}")
        | llm
        | StrOutputParser()
    )
    how = {"warm_up": 20, "target_rate": 0.5, "audit_rate": 1.0}
    router = langchain.GECERouter.learning(chain, llm=llm, store=tmp_path / "app.sqlite", **how)
    for question in facts:
        router.invoke(question)
    assert router.settle(300)
    report = router.gate.report
    assert report is not None, router.monitor
    assert report.retrieval_cost.tokens > report.gate_cost.tokens > 0
    for question in facts:
        router.invoke(question)
    assert router.settle(300)
    found = router.monitor
    assert found.decisions == 20
    assert found.audits == 20 - round(20 * found.retrieved) > 0
    assert found.agreement is not None
    saved = router.savings()  # audits of every direct answer cost what is avoided
    assert saved.gate.tokens > saved.avoided.tokens > 0
    with DecisionStore(tmp_path / "app.sqlite") as store:
        kept = {record.question: record.retrieve for record in store.records(store.newest, 100)}
    shares = [
        sum(kept[question_digest(question)] for question in some) / 10 for some in (VILLAGE, TAUGHT)
    ]
    assert shares[0] > shares[1]
