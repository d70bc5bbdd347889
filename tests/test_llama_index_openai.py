"""LlamaIndex's real OpenAI clients through `LlamaIndexLLM`, before a server on this machine."""

import math

import pytest
from llama_index.core import Settings
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from openai_server import completion, serving

from ltrag_plugins.errors import InvalidInput, NoTokenProbabilities
from ltrag_plugins.llama_index import DURReranker, LlamaIndexLLM, SGICCalibrator, as_query_engine
from ltrag_plugins.types import GenerationSettings
from tests.llama_index_parts import AwaitedRetriever, FunctionLLM


def as_llama_cpp(sent, text="Jane Austen", probability=0.75):
    """Log-probabilities only where likely tokens are asked for, at least one at each position."""
    body = completion(text, probability)
    [choice] = body["choices"]
    if "messages" not in sent:
        chosen = choice.pop("logprobs")["content"]
        choice["text"] = choice.pop("message")["content"]
        if sent.get("logprobs"):
            logprobs = [entry["logprob"] for entry in chosen]
            tokens = [entry["token"] for entry in chosen]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": logprobs}
    elif not (sent.get("logprobs") and sent.get("top_logprobs")):
        choice["logprobs"] = None
    return 200, body


@pytest.fixture
def server():
    """The address of a server like llama.cpp's, and the requests it was sent."""
    requests = []
    with serving(lambda sent: requests.append(sent) or as_llama_cpp(sent)) as (url, _):
        yield url, requests


def like(url: str, **fields):
    fields = {"is_chat_model": True, "max_retries": 0} | fields
    return OpenAILike(model="scripted", api_base=url, api_key="none", **fields)


def openai(url: str, **fields):
    return OpenAI(model="gpt-4o-mini", api_base=url, api_key="none", max_retries=0, **fields)


@pytest.mark.parametrize(
    "build",
    [
        like,
        openai,
        lambda url: like(url, logprobs=True),
        lambda url: like(url, is_chat_model=False),
        lambda url: openai(url, logprobs=False),
    ],
    ids=["like", "openai", "like that sends top_logprobs 0", "completions", "switched off"],
)
async def test_token_probabilities_come_without_a_word_of_the_callers(server, build):
    url, requests = server
    llm = LlamaIndexLLM(build(url))
    [sync], [awaited] = llm.generate(["Who wrote Emma?"]), await llm.agenerate(["Who wrote Emma?"])
    assert [token.text for token in sync.tokens] == ["Jane", " Austen"]
    assert awaited == sync
    assert requests[0] == requests[1]


def as_responses(sent):
    """The same reply as the Responses API gives it: what was thought, and a block of text."""
    [choice] = completion("Jane Austen", 0.75)["choices"]
    block = {"type": "output_text", "text": "Jane Austen", "annotations": []}
    if "message.output_text.logprobs" in (sent.get("include") or ()):
        block["logprobs"] = choice["logprobs"]["content"]
    said = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    thought = {"type": "reasoning", "id": "r", "summary": []}
    body = {"id": "1", "object": "response", "created_at": 0, "model": "m", "status": "completed"}
    used = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    used |= {f"{kind}_tokens_details": {} for kind in ("input", "output")}
    return body | {"output": [thought, said | {"content": [block]}], "usage": used, "tools": []}


async def test_log_probabilities_in_the_content_blocks_of_responses_are_read():
    with serving(as_responses) as (url, _):
        fields = {"model": "gpt-4o-mini", "api_base": url, "api_key": "none", "max_retries": 0}
        silent = LlamaIndexLLM(OpenAIResponses(**fields))
        assert silent.generate(["Who wrote Emma?"])[0].tokens is None
        fields["include"] = ["message.output_text.logprobs"]
        llm = LlamaIndexLLM(OpenAIResponses(**fields))
        [written] = llm.generate(["Who?"])
        assert await llm.agenerate(["Who?"]) == [written]
        assert [(t.text, t.logprob) for t in written.tokens] == [
            ("Jane", math.log(0.75)),
            (" Austen", math.log(0.75)),
        ]
        assert all(token.alternatives for token in written.tokens)
        assert (written.prompt_tokens, written.completion_tokens) == (9, 2)


def test_likely_tokens_are_asked_for_as_many_as_the_caller_says(server):
    url, requests = server
    LlamaIndexLLM(like(url)).generate(["x"])
    LlamaIndexLLM(like(url, logprobs=True, top_logprobs=3)).generate(["x"])
    LlamaIndexLLM(like(url), logprobs=2).generate(["x"])
    LlamaIndexLLM(like(url, is_chat_model=False), logprobs=2).generate(["x"])
    assert [sent.get("top_logprobs", sent["logprobs"]) for sent in requests] == [5, 3, 2, 2]
    [silent] = LlamaIndexLLM(like(url), logprobs=None).generate(["x"])
    assert silent.tokens is None
    assert "logprobs" not in requests[-1]


def test_the_settings_of_a_call_win_over_what_stands_in_the_callers_model(server):
    url, requests = server
    own = {"seed": 7, "stop": ["\n"], "top_p": 0.5, "logprobs": False, "temperature": 2}
    model = like(url, max_tokens=16, temperature=1.5, additional_kwargs=own)
    before = model.model_dump()
    llm = LlamaIndexLLM(model)
    for seed in (1, 2):
        asked = GenerationSettings(max_tokens=12, temperature=0.5, seed=seed, stop=["!"])
        llm.generate(["x"], asked)
    settings = ("max_tokens", "temperature", "seed", "stop", "top_p", "logprobs")
    assert [[sent[name] for name in settings] for sent in requests] == [
        [12, 0.5, 1, ["!"], 0.5, True],
        [12, 0.5, 2, ["!"], 0.5, True],
    ]
    assert model.model_dump() == before
    model.chat([ChatMessage("x")])  # the model itself asks as its owner set it
    assert [requests[-1][name] for name in settings] == [16, 2, 7, ["\n"], 0.5, False]


def test_four_samples_have_four_seeds_though_the_model_has_one_of_its_own(server):
    url, requests = server
    model = like(url, additional_kwargs={"seed": 7})
    as_query_engine("k-samples", model, AwaitedRetriever()).query("Who wrote Emma?")
    seeds = [sent["seed"] for sent in requests]
    assert len(seeds) > 1
    assert len(set(seeds)) == len(seeds)


def test_what_a_setting_leaves_out_stays_as_the_model_has_it(server):
    url, requests = server
    model = like(url, max_tokens=16, additional_kwargs={"seed": 7})
    LlamaIndexLLM(model, keywords={"temperature": "temperature"}).generate(["x"])
    assert [requests[0][name] for name in ("max_tokens", "seed", "temperature")] == [16, 7, 0.0]


def test_one_client_serves_all_settings(server):
    opened = []

    class Counting(OpenAILike):
        def _get_credential_kwargs(self, is_async=False):
            opened.append(is_async)
            return super()._get_credential_kwargs(is_async)

    url, requests = server
    model = Counting(model="scripted", api_base=url, api_key="none", is_chat_model=True)
    llm = LlamaIndexLLM(model)
    for most in (1, 2, 3):
        llm.generate(["x"], GenerationSettings(max_tokens=most))
    assert ([sent["max_tokens"] for sent in requests], opened) == ([1, 2, 3], [False])


@pytest.mark.parametrize("refused", [{"logprobs"}, {"logprobs", "temperature"}])
async def test_what_the_server_refuses_is_left_out_from_then_on_and_said_once(refused, caplog):
    requests = []

    def reasoning(sent):
        requests.append(sent)
        for word in sorted(refused & {word for word in sent if sent[word] is not None}):
            return 400, {"error": {"message": f"Unsupported parameter: '{word}'", "param": word}}
        body = completion("42", 0.5)
        body["choices"][0]["logprobs"] = None
        return body

    with serving(reasoning) as (url, _):
        llm = LlamaIndexLLM(openai(url, temperature=1.0), concurrency=1)
        assert [g.text for g in llm.generate(["a", "b"])] == ["42", "42"]
        assert len(requests) == 2 + len(refused)
        assert [g.tokens for g in await llm.agenerate(["c"])] == [None]
        assert len(requests) == 3 + len(refused)
    # a client that another test left behind may be collected here, and its loop says so
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("ltrag_plugins")]
    said = [message.split(" refuses ")[1].split(";")[0] for message in ours]
    assert sorted(said) == sorted(refused)


async def test_any_other_refusal_is_the_callers_to_see():
    error = {"error": {"message": "the prompt about logprobs is too long"}}
    for status in (400, 500):
        with serving(lambda sent, status=status: (status, error)) as (url, _):
            llm = LlamaIndexLLM(like(url))
            with pytest.raises(Exception, match="too long"):
                llm.generate(["x"])
            with pytest.raises(Exception, match="too long"):
                await llm.agenerate(["x"])


def test_llama_indexs_own_settings_are_the_defaults(monkeypatch, tmp_path):
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    monkeypatch.setattr(Settings, "_embed_model", MockEmbedding(embed_dim=4, model_name="mock"))
    assert LlamaIndexLLM().name == "MockLLM:unknown"
    assert SGICCalibrator()._calibrator.llm.name == LlamaIndexLLM().name
    assert str(as_query_engine("direct").query("Emma?")).startswith("text text")
    plain = DURReranker(untrained="encoder", top_n=1)
    assert plain.ranker.encoder.name.startswith("MockEmbedding:mock")
    plain.save(tmp_path)
    again = DURReranker.from_pretrained(tmp_path)
    assert again.ranker.encoder.name == plain.ranker.encoder.name


def test_messages_say_what_a_llama_index_user_does(monkeypatch):
    silent = SGICCalibrator(FunctionLLM(lambda prompt: "Austen"))
    with pytest.raises(NoTokenProbabilities, match=r"LlamaIndexLLM\(llm, logprobs=True\)"):
        silent.get_response("Who wrote Emma?", ["Emma is a novel."])
    with pytest.raises(InvalidInput, match=r"Settings\.embed_model"):
        DURReranker(untrained="encoder")
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match=r"needs llm=\.\.\., or Settings\.llm: "):
        SGICCalibrator()


def test_a_model_that_openais_client_does_not_know_is_refused_with_the_class_that_does(server):
    unknown = OpenAI(model="smollm2", api_base=server[0], api_key="none")
    said = r"Unknown model 'smollm2'; .*OpenAILike\(model=.*is_chat_model=True\)"
    for take in (LlamaIndexLLM, SGICCalibrator, lambda llm: as_query_engine("direct", llm)):
        with pytest.raises(InvalidInput, match=said):
            take(unknown)
