"""Two servers with one model name: what was saved over one is not taken for the other's."""

import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike
from openai_server import completion, serving

from ltrag_plugins.errors import ArtifactMismatch
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.langchain import LangChainLLM
from ltrag_plugins.llama_index import LlamaIndexLLM
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.sgic.calibrator import Calibration, ScoreScale
from ltrag_plugins.types import Question


def chat_openai(url: str, **fields) -> LLM:
    return LangChainLLM(ChatOpenAI(model="m", base_url=url, api_key="k", max_retries=0, **fields))


def openai_like(url: str, **fields) -> LLM:
    like = {"model": "m", "api_base": url, "api_key": "k", "is_chat_model": True, "max_retries": 0}
    return LlamaIndexLLM(OpenAILike(**like | fields))


CLIENTS = {
    "ours": lambda url: OpenAICompatibleLLM("m", base_url=url, api_key="k", max_retries=0),
    "langchain": chat_openai,
    "llama_index": openai_like,
}


def writing(author: str):
    """A server that knows who wrote every other book."""

    def reply(sent):
        number = int(sent["messages"][-1]["content"].split("book ")[1].split("?")[0])
        return completion(author, 0.9) if number % 2 else completion("nobody", 0.4)

    return serving(reply)


@pytest.fixture(scope="module")
def servers():
    """The addresses of two, and what each was asked."""
    with writing("Jane Austen") as first, writing("Mary Shelley") as second:
        yield first, second


QUESTIONS = [Question(f"Who wrote book {i}?", ("Jane Austen",), str(i)) for i in range(20)]


@pytest.fixture(params=CLIENTS)
def make(request):
    return CLIENTS[request.param]


def test_a_gate_of_one_address_is_refused_for_the_other(make, servers, tmp_path):
    (url, _), (other, _) = servers
    settings = GECESettings(scorer="mean_logprob", folds=2)
    gate = GECEGate.fit(QUESTIONS, llm=make(url), target_rate=0.5, settings=settings)
    gate.save(tmp_path)
    assert GECEGate.load(tmp_path, llm=make(url)).decide(QUESTIONS[0].text).retrieve
    with pytest.raises(ArtifactMismatch, match="fitted with llm"):
        GECEGate.load(tmp_path, llm=make(other))


def test_a_calibration_of_one_address_is_refused_for_the_other(make, servers, tmp_path):
    (url, _), (other, _) = servers
    Calibration(SGICSettings(), ScoreScale("product")).save(tmp_path, llm=make(url))
    Calibration.load(tmp_path, llm=make(url))
    with pytest.raises(ArtifactMismatch, match="fitted on the model"):
        Calibration.load(tmp_path, llm=make(other))


def test_a_run_over_one_address_does_not_go_on_over_the_other(make, servers, tmp_path):
    (url, asked), (other, others) = servers
    cells, some = [Cell(METHODS["direct"])], QUESTIONS[:4]

    def run(address: str, folder):
        return evaluate(some, cells, World(llm=make(address)), out=folder)["direct"]

    first = run(url, tmp_path / "run")
    sent = len(asked), len(others)
    assert run(url, tmp_path / "run") == first
    with pytest.raises(ArtifactMismatch, match=r"model was .* and is now"):
        run(other, tmp_path / "run")
    assert (len(asked), len(others)) == sent
    there = run(other, tmp_path / "other")
    assert {record.prediction for record in there} == {"Mary Shelley", "nobody"}


def test_whether_a_model_streams_or_how_long_it_is_waited_for_changes_no_gate(servers, tmp_path):
    (url, _), _ = servers
    settings = GECESettings(scorer="mean_logprob", folds=2)
    for plain, streaming in (
        (chat_openai(url), chat_openai(url, streaming=True)),
        (chat_openai(url, streaming=True), chat_openai(url)),
        (chat_openai(url), chat_openai(url, disable_streaming=True)),
        (openai_like(url), openai_like(url, timeout=5, max_retries=2)),
    ):
        GECEGate.fit(QUESTIONS, llm=plain, settings=settings).save(tmp_path)
        again = GECEGate.load(tmp_path, llm=streaming)
        for question in QUESTIONS[:2]:
            decision = again.decide(question.text)
            assert decision.score == GECEGate.load(tmp_path, llm=plain).decide(question.text).score
            assert decision.draft.tokens
