"""Two servers with one model name: what was saved over one is not taken for the other's."""

import pytest
from client_parts import CLIENTS, chat_openai, openai_like
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.embeddings import MockEmbedding
from openai_server import completion, serving

from ltrag_plugins.errors import ArtifactMismatch
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.langchain import LangChainEncoder, LangChainLLM
from ltrag_plugins.langchain.model import model_of
from ltrag_plugins.llama_index import LlamaIndexEncoder, LlamaIndexLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.sgic.calibrator import Calibration, ScoreScale
from ltrag_plugins.types import Question


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


SETTINGS = GECESettings(scorer="mean_logprob", folds=2)


@pytest.fixture(params=CLIENTS)
def make(request):
    return CLIENTS[request.param]


def test_a_gate_of_one_address_is_refused_for_the_other(make, servers, tmp_path):
    (url, _), (other, _) = servers
    gate = GECEGate.fit(QUESTIONS, llm=make(url), target_rate=0.5, settings=SETTINGS)
    gate.save(tmp_path)
    assert GECEGate.load(tmp_path, llm=make(url)).decide(QUESTIONS[0].text).retrieve
    with pytest.raises(ArtifactMismatch, match=r"fitted with the model .* that name: name="):
        GECEGate.load(tmp_path, llm=make(other))


def test_a_calibration_of_one_address_is_refused_for_the_other(make, servers, tmp_path):
    (url, _), (other, _) = servers
    Calibration(SGICSettings(), ScoreScale("product")).save(tmp_path, llm=make(url))
    Calibration.load(tmp_path, llm=make(url))
    with pytest.raises(ArtifactMismatch, match="fitted with the model"):
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
    chat, like = CLIENTS["langchain"], CLIENTS["llama_index"]
    for plain, streaming in (
        (chat(url), chat(url, streaming=True)),
        (chat(url, streaming=True), chat(url)),
        (chat(url), chat(url, disable_streaming=True)),
        (like(url), like(url, timeout=5, max_retries=2)),
    ):
        GECEGate.fit(QUESTIONS, llm=plain, settings=SETTINGS).save(tmp_path)
        again = GECEGate.load(tmp_path, llm=streaming)
        for question in QUESTIONS[:2]:
            decision = again.decide(question.text)
            assert decision.score == GECEGate.load(tmp_path, llm=plain).decide(question.text).score
            assert decision.draft.tokens


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_an_address_from_the_environment_is_part_of_a_models_name(variable, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    plain, names = model_of(ChatOpenAI(model="m")).name, set()
    for port in (9, 10):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}/v1")
        names.add(model_of(ChatOpenAI(model="m")).name)
    assert len({plain, *names}) == 3


class Embedding(MockEmbedding):
    """Declares what LlamaIndex's embedding models of servers do."""

    embed_dim: int = 3
    api_base: str = "https://api.openai.com/v1"


def embeddings(**fields):
    return LangChainEncoder(OpenAIEmbeddings(**{"model": "m", "api_key": "k"} | fields)).name


def embedding(**fields):
    return LlamaIndexEncoder(Embedding(**{"model_name": "m", "embed_dim": 3} | fields)).name


def test_one_name_is_one_model_at_any_address(servers, tmp_path):
    (url, _), (other, _) = servers
    for kind in (
        lambda url: OpenAICompatibleLLM("m", base_url=url, api_key="k", name="mine"),
        lambda url: LangChainLLM(chat_openai(url), name="mine"),
        lambda url: LlamaIndexLLM(openai_like(url), name="mine"),
    ):
        assert kind(url).name == kind(other).name == "mine"
        folder = tmp_path / type(kind(url)).__name__
        GECEGate.fit(QUESTIONS, llm=kind(url), target_rate=0.5, settings=SETTINGS).save(folder)
        gate = GECEGate.load(folder, llm=kind(other))
        assert gate.decide(QUESTIONS[1].text).answer == "Mary Shelley"
    for base in ("http://a/v1", "http://b/v1"):
        ours, theirs = (
            OpenAIEmbeddings(api_key="k", base_url=base),
            Embedding(embed_dim=3, api_base=base),
        )
        assert LangChainEncoder(ours, name="v").name == "v"
        assert LlamaIndexEncoder(theirs, name="v").name == "v"


@pytest.mark.parametrize(
    ("name", "address", "other", "same"),
    [
        (embeddings, "base_url", {"dimensions": 9}, {"timeout": 3, "chunk_size": 7}),
        (embedding, "api_base", {"embed_dim": 9}, {"num_workers": 3, "embed_batch_size": 7}),
    ],
)
def test_an_encoders_name_turns_on_the_address_and_on_no_connection(name, address, other, same):
    plain, url = name(), "http://a/v1"
    assert plain.endswith("s:m" if name is embeddings else "Embedding:m")
    assert (
        len({plain, name(**{address: url}), name(**{address: "http://b/v1"}), name(**other)}) == 4
    )
    assert name(**{address: url}, **same) == name(**{address: url})


def test_an_encoders_address_from_the_environment_counts_as_one_that_was_given(monkeypatch):
    given = embeddings(base_url="http://a/v1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a/v1/")
    assert embeddings() == given
