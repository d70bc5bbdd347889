"""LlamaIndex's models as ours: settings, likeliest tokens, names, threads; and our model as its."""

import asyncio
import pickle
import threading
import time

import pytest
from llama_index.core.base.llms.generic_utils import messages_to_prompt
from llama_index.core.base.llms.types import ChatResponse, CompletionResponse, LogProb, TextBlock
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import ChatMessage, LLMMetadata, MockLLM
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike

from ltrag_plugins.errors import InvalidInput, ModelFailed
from ltrag_plugins.llama_index import LlamaIndexLLM, LtragLLM
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings
from tests.llama_index_parts import AsyncFunctionLLM, FunctionLLM


def tokens_of(**response):
    fixed = CompletionResponse(**{"text": "Jane Austen"} | response)
    [generation] = LlamaIndexLLM(FunctionLLM(lambda prompt: fixed)).generate(["Who wrote Emma?"])
    return generation.tokens


def test_the_likeliest_tokens_count_only_where_they_spell_the_very_answer():
    jane, mary = LogProb(token="Jane", logprob=-0.1), LogProb(token="Mary", logprob=-0.05)
    austen, smith = LogProb(token=" Austen", logprob=-0.2), LogProb(token=" Smith", logprob=-3)
    spelled = tokens_of(logprobs=[[jane], [smith, austen]])
    assert [(t.text, t.logprob) for t in spelled] == [("Jane", -0.1), (" Austen", -0.2)]
    assert tokens_of(logprobs=[[jane, mary], [austen]]) is None
    assert tokens_of(logprobs=[[], []]) is None
    assert tokens_of(raw=object()) is None


def test_a_reply_in_several_blocks_is_one_text():
    class Blocks(FunctionLLM):
        @llm_chat_callback()
        def chat(self, messages, **kwargs):
            said = ChatMessage(blocks=[TextBlock(text=text) for text in self.function("")])
            return ChatResponse(message=said)

    for blocks, text in ((["Jane", " Austen"], "Jane Austen"), ([], "")):
        llm = LlamaIndexLLM(Blocks(lambda _, blocks=blocks: blocks, is_chat_model=True))
        assert llm.generate(["Who wrote Emma?"])[0].text == text


def test_settings_go_with_the_call_and_nothing_stays_on_the_callers_model():
    model = FunctionLLM(lambda prompt: "a b STOP c")
    before, attributes = model.model_dump(), set(vars(model))
    llm = LlamaIndexLLM(model, logprobs=True)
    asked = {"max_tokens": 5, "stop": [" STOP"], "temperature": 0.5, "seed": 3}
    [cut], [whole] = llm.generate(["x"], GenerationSettings(**asked)), llm.generate(["x"])
    assert (cut.text, whole.text) == ("a b", "a b STOP c")
    bare = {"max_tokens": 64, "temperature": 0.0, "logprobs": True}
    assert model.seen == [{**asked, "logprobs": True}, bare]
    assert (model.model_dump(), set(vars(model))) == (before, attributes)


class AllMessages(AsyncFunctionLLM):
    """Its function is given all of a chat's messages, as one text."""

    def chat(self, messages, **kwargs):
        return super().chat([ChatMessage(messages_to_prompt(messages))], **kwargs)

    async def achat(self, messages, **kwargs):
        return await super().achat([ChatMessage(messages_to_prompt(messages))], **kwargs)


@pytest.mark.parametrize("chat", [False, True])
async def test_a_prompt_stands_among_those_of_the_llm_as_in_an_engines_call(chat):
    sent, fields = [], {
        "system_prompt": "Answer in German.",
        "query_wrapper_prompt": PromptTemplate("<u>{query_str}</u>"),
        "completion_to_prompt": "[{}]".format,
    }  # fmt: skip
    model = AllMessages(lambda prompt: sent.append(prompt) or "ja", is_chat_model=chat, **fields)
    model.predict(PromptTemplate("Is it {thing}?"), thing="{Emma}")
    [first] = sent
    assert "Answer in German." in first
    LlamaIndexLLM(model).generate(["Is it {Emma}?"])
    await LlamaIndexLLM(model).agenerate(["Is it {Emma}?"])
    assert sent == [first] * 3


def test_settings_are_sent_under_the_names_that_the_model_wants():
    model = FunctionLLM(str.upper)
    keywords = {"max_tokens": "max_new_tokens", "stop": "stop_sequences"}
    settings = GenerationSettings(stop=["."], temperature=1.0, seed=1)
    LlamaIndexLLM(model, keywords=keywords).generate(["x"], settings)
    assert model.seen == [{"max_new_tokens": 64, "stop_sequences": ["."]}]
    with pytest.raises(InvalidInput, match=r"\['top_k'\].*'max_tokens'"):
        LlamaIndexLLM(MockLLM(), keywords={"top_k": "top_k"})


def test_the_name_has_class_and_model_and_what_changes_the_replies():
    inner = FunctionLLM(str.upper, model_name="m1")
    assert LlamaIndexLLM(inner).name == "FunctionLLM:m1"
    changed = [{"logprobs": True}, {"logprobs": 5}, {"keywords": {"max_tokens": "max_tokens"}}]
    names = {LlamaIndexLLM(inner, **options).name for options in [*changed, {"keywords": {}}]}
    assert len({"FunctionLLM:m1", *names}) == 5
    assert LlamaIndexLLM(MockLLM(), name="mine").name == "mine"


def test_the_name_turns_on_the_address_and_fixed_arguments_and_on_no_connection():
    def name(**fields):
        like = {"model": "m", "api_key": "k", "api_base": "http://a/v1"} | fields
        return LlamaIndexLLM(OpenAILike(**like)).name

    other = [
        name(api_base="http://b/v1"),
        name(system_prompt="Be brief."),
        name(additional_kwargs={"top_k": 1}),
    ]
    assert len({name(), *other}) == 4
    assert name() == name(api_key="z", timeout=3, max_retries=9, context_window=99)
    assert LlamaIndexLLM(OpenAI(model="gpt-4o", api_key="k")).name == "OpenAI:gpt-4o"


def test_of_ollama_which_cuts_prompts_at_its_context_window_that_counts(tmp_path):
    class Ollama(FunctionLLM):
        """As llama_index.llms.ollama has it: it sends the window as `num_ctx`."""

        context_window: int = -1

        @classmethod
        def class_name(cls):
            return "Ollama_llm"

        @property
        def metadata(self):
            return LLMMetadata(context_window=self.context_window, model_name="m")

    def cached(window):
        llm = Ollama(lambda prompt: prompt[:window], context_window=window)
        return CachedLLM(LlamaIndexLLM(llm), tmp_path / "answers.sqlite")

    for window, hits in ((4, 0), (9, 0), (4, 1)):
        [said] = (kept := cached(window)).generate(["a long prompt"])
        assert (said.text, kept.hits) == ("a long prompt"[:window], hits)


@pytest.mark.parametrize("chat", [False, True])
async def test_a_model_without_async_of_its_own_is_asked_one_by_one_and_off_the_loop(chat):
    inside = threading.Lock()

    def alone(prompt: str) -> str:
        assert inside.acquire(blocking=False)
        time.sleep(0.01)  # long enough for a second caller to meet the first one here
        inside.release()
        return prompt.upper()

    model = FunctionLLM(alone, is_chat_model=chat)
    llm = LlamaIndexLLM(model)
    one, two = await asyncio.gather(llm.agenerate(["a", "b"]), llm.agenerate(["c"]))
    assert [g.text for g in one + two] == ["A", "B", "C"]
    assert model.blocked_the_loop == []


async def test_the_time_of_a_blocking_call_begins_when_its_turn_has_come():
    class Timed(FunctionLLM):
        timeout: float = 0.3
        max_retries: int = 0

    llm = LlamaIndexLLM(Timed(lambda prompt: time.sleep(float(prompt)) or "yes"))
    with llm._free:  # as a call in another thread has it
        asked = asyncio.create_task(llm.agenerate(["0"]))
        await asyncio.sleep(0.6)
        assert not asked.done()
    assert (await asked)[0].text == "yes"
    with pytest.raises(ModelFailed, match=r"within 0\.3 s"):
        await llm.agenerate(["0.8"])


async def test_after_a_failure_the_other_calls_are_cancelled():
    cancelled = []

    async def fail_or_wait(prompt: str) -> str:
        if prompt == "bad":
            raise ValueError("no")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(prompt)
            raise
        return prompt

    llm = LlamaIndexLLM(AsyncFunctionLLM(fail_or_wait))
    with pytest.raises(ModelFailed, match="ValueError: no"):
        await llm.agenerate(["good", "bad"])
    await asyncio.sleep(0)
    assert cancelled == ["good"]


class OnlySync:
    """An `LLM` and no `AsyncLLM`, that notes where it was called."""

    name = "only-sync"

    def __init__(self) -> None:
        self.threads = []

    def generate(self, prompts, settings=GenerationSettings()):
        self.threads.append(threading.current_thread())
        return [Generation(f"{prompt[-4:]} {settings.max_tokens}") for prompt in prompts]


async def test_our_model_answers_alike_through_all_eight_calls_of_an_llm():
    async def awaited(prompt):
        return f"{prompt[-4:]} 9"

    messages, only_sync = [ChatMessage(role="user", content="hi")], OnlySync()
    for ours in (only_sync, ScriptedLLM(awaited)):
        llm = LtragLLM(ours, num_output=9)
        wanted = f"{llm.messages_to_prompt(messages)[-4:]} 9"
        assert (await llm.acomplete("word")).text == "word 9"
        assert [r.delta async for r in await llm.astream_complete("word")] == ["word 9"]
        assert (await llm.achat(messages)).message.content == wanted
        assert [r.delta async for r in await llm.astream_chat(messages)] == [wanted]
    assert threading.current_thread() not in only_sync.threads  # which is the event loop's
    llm = LtragLLM(only_sync, num_output=9)
    assert llm.complete("word").text == "word 9"
    assert [r.text for r in llm.stream_complete("word")] == ["word 9"]
    assert llm.chat(messages).message.content == wanted
    assert [r.delta for r in llm.stream_chat(messages)] == [wanted]
    assert llm.complete("word", max_tokens=2).text == "word 2"
    left_out = {"max_tokens": None, "temperature": None, "stop": None, "seed": None}
    assert llm.complete("word", **left_out).text == "word 9"


def test_our_model_tells_llama_index_its_limits():
    metadata = LtragLLM(OnlySync(), context_window=512, num_output=8).metadata
    assert (metadata.context_window, metadata.num_output) == (512, 8)
    assert (metadata.model_name, metadata.is_chat_model) == ("only-sync", False)


def test_our_models_are_told_apart_by_llama_indexs_caches():
    cache = IngestionCache()
    for name in ("large", "small"):
        llm = LtragLLM(ScriptedLLM(lambda prompt, name=name: f"{name} wrote", name=name))
        pipeline = IngestionPipeline(transformations=[KeywordExtractor(llm=llm)], cache=cache)
        [node] = pipeline.run(nodes=[TextNode(id_="n", text="Emma")])
        assert node.metadata["excerpt_keywords"] == f"{name} wrote"
    again = LtragLLM.from_dict(llm.to_dict(), llm=llm.llm)
    assert (again.to_dict(), again.complete("Emma").text) == (llm.to_dict(), "small wrote")


def test_a_model_that_cannot_be_pickled_says_so_and_stays_whole():
    llm = LtragLLM(LlamaIndexLLM(FunctionLLM(str.upper)))
    with pytest.raises(InvalidInput, match=r"FunctionLLM.* cannot be pickled"):
        pickle.dumps(llm)
    assert llm.complete("emma").text == "EMMA"
    spoken = LtragLLM(ScriptedLLM(str.upper), completion_to_prompt=lambda text: text + "!")
    pickle.dumps(spoken)  # its copy does without
    assert spoken.complete("emma").text == "EMMA!"
    assert pickle.loads(pickle.dumps(LtragLLM(ScriptedLLM(str.upper)))).complete("a").text == "A"
