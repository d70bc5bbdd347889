"""A router from an application's own chain or engine and its questions, in both frameworks."""

import asyncio
from contextvars import ContextVar
from threading import Event, Thread

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.outputs import Generation as LangChainGeneration
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from llama_index.core.base.llms.generic_utils import chat_response_to_completion_response
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.base.response import schema
from llama_index.core.evaluation import CorrectnessEvaluator
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index_instrumentation import get_dispatcher
from pydantic import BaseModel

from ltrag_plugins import langchain, llama_index
from ltrag_plugins.errors import CalibrationError, InvalidInput, ModelFailed
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.langchain.fitting import Meter, _example_of
from ltrag_plugins.llama_index.fitting import _answers_of, question_of
from ltrag_plugins.llama_index.gate import answer_of
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, Question
from tests.langchain_parts import FunctionChat
from tests.llama_index_parts import FunctionLLM
from tests.router_parts import Engine, knows_the_odd, number

TEXTS = [f"Which city is number {i} of the list?" for i in range(40)]
SETTINGS = GECESettings(folds=2)


def chain(asked: list[str]):
    """A retrieving chain that ends in a message."""

    def work(text: str) -> AIMessage:
        asked.append(text)
        if "fails" in text:
            raise ConnectionError("no index")
        return FunctionChat(knows_the_odd).invoke(f"shown: {text}")

    return RunnablePassthrough() | RunnableLambda(work)


class LangChain:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.chain, self.llm = chain(self.asked), FunctionChat(knows_the_odd)

    def fit(self, questions, **how):
        how = {"settings": SETTINGS, **how}
        return langchain.GECERouter.fit(self.chain, llm=self.llm, questions=questions, **how)

    def ask(self, router, text: str) -> str:
        return router.invoke(text).text


class LlamaIndex:
    def __init__(self) -> None:
        self.llm = FunctionLLM(knows_the_odd)
        self.chain, self.asked = Engine(llm=self.llm, asked=[]), []

    def fit(self, questions, **how):
        how = {"settings": SETTINGS, **how}
        router = llama_index.GECERouter.fit(self.chain, llm=self.llm, questions=questions, **how)
        self.asked = self.chain.asked
        return router

    def ask(self, router, text: str) -> str:
        return str(router.query(text))


@pytest.fixture(params=[LangChain, LlamaIndex])
def room(request):
    return request.param()


def test_questions_alone_make_a_router_that_saves_what_it_says(room):
    router = room.fit(TEXTS)
    report = router.gate.report
    assert (report.agreement, report.direct_accuracy) == (1.0, 0.5)
    assert report.retrieval_cost.calls == 1
    assert min(report.retrieval_cost.seconds, report.gate_cost.seconds) > 0
    assert sorted(room.asked) == sorted(TEXTS)
    for i in range(40, 60):
        assert room.ask(router, f"Which city is number {i} of the list?") == f"City {i}"
    saved = router.savings(price=0.01)
    assert saved.questions == 20
    assert saved.retrieved == len(room.asked) - 40 < 20
    assert saved.net.calls == -saved.retrieved


async def test_a_chain_that_can_only_be_awaited_is_fitted_too():
    asked, loops = list[str](), set()

    async def work(text: str) -> AIMessage:
        asked.append(text)
        loops.add(asyncio.get_running_loop())
        return await FunctionChat(knows_the_odd).ainvoke(f"shown: {text}")

    fit = {"llm": FunctionChat(knows_the_odd), "questions": TEXTS, "settings": SETTINGS}
    router = langchain.GECERouter.fit(RunnableLambda(work), **fit)
    assert sorted(asked) == sorted(TEXTS)
    assert len(loops - {asyncio.get_running_loop()}) == 1  # as a client's connections have one
    [report, same] = [router.gate.report, LangChain().fit(TEXTS).gate.report]
    assert (report.retrieval_rate, report.auroc) == (same.retrieval_rate, same.auroc)
    assert "50.0% retrieve, 1.000 agree" in str(report)


class AwaitedEngine(Engine):
    loops: set

    def custom_query(self, query_str: str) -> str:
        raise NotImplementedError("await it")

    async def acustom_query(self, query_str: str) -> str:
        self.loops.add(asyncio.get_running_loop())
        return super().custom_query(query_str)


async def test_an_engine_that_can_only_be_awaited_is_fitted_and_audited_too():
    here = asyncio.get_running_loop()
    engine = AwaitedEngine(llm=FunctionLLM(knows_the_odd), asked=[], loops=set())
    how = {"llm": engine.llm, "questions": TEXTS, "settings": SETTINGS, "audit_rate": 1.0}
    router = llama_index.GECERouter.fit(engine, **how)
    assert sorted(engine.asked) == sorted(TEXTS)
    assert len(engine.loops - {here}) == 1  # as a client's connections have one
    [report, same] = [router.gate.report, LlamaIndex().fit(TEXTS).gate.report]
    assert (report.retrieval_rate, report.auroc) == (same.retrieval_rate, same.auroc)
    known = "Which city is number 41 of the list?"
    assert str(await router.aquery(known)) == "City 41"
    assert await asyncio.to_thread(router.settle)
    assert (router.monitor.audits, engine.asked[len(TEXTS) :]) == (1, [known])
    assert here in engine.loops


def test_accepted_answers_are_the_labels_where_they_are_given(room):
    labelled = [
        {"question": TEXTS[0], "answers": "no idea 0"},
        {"question": TEXTS[2], "answers": ["City 2", "no idea 2"]},
        Question(TEXTS[4], ("no idea 4",)),
    ]
    report = room.fit([*labelled, *TEXTS[5:]]).gate.report
    assert report.agreement == pytest.approx(35 / 38)
    odd = sum(i % 2 for i in range(5, 40))
    assert report.direct_accuracy == pytest.approx((3 + odd) / 38)


def test_a_fit_within_a_fit_takes_away_no_meter_but_its_own():
    class Outer(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            inner = Engine(llm=FunctionLLM(knows_the_odd), asked=[])
            assert _answers_of(inner, TEXTS[:2], 1)[1].calls == 1
            return FunctionLLM(knows_the_odd).complete(query_str).text

    before = [*get_dispatcher().event_handlers]
    assert _answers_of(Outer(), TEXTS[:2], 1)[1].calls == 3
    assert get_dispatcher().event_handlers == before


tenant = ContextVar("tenant")


class Chatting(FunctionLLM):
    """Its `complete` asks its own `chat`, as many do, so two events tell of one reply."""

    @llm_chat_callback()
    def chat(self, messages, **kwargs):
        message = ChatMessage(role="assistant", content=self.function(messages[-1].content))
        return ChatResponse(message=message, raw={"usage": {"total_tokens": 100}})

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        asked = [ChatMessage(role="user", content=prompt)]
        return chat_response_to_completion_response(self.chat(asked, **kwargs))


def test_a_fit_counts_its_own_calls_once_and_asks_in_the_callers_context():
    class Tenants(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return Chatting(knows_the_odd).complete(query_str).text + tenant.get()

    def serve():
        while not ended.is_set():
            Chatting(str).complete("another user's question")

    tenant.set(" of acme")
    ended, asked = Event(), [TEXTS[i] for i in range(1, 20, 2)]
    other = Thread(target=serve)
    other.start()
    try:
        found, cost = _answers_of(Tenants(), asked, 2)
    finally:
        ended.set()
        other.join()
    assert found == [f"City {i} of acme" for i in range(1, 20, 2)]
    assert (cost.calls, cost.tokens) == (1, 100)


@pytest.mark.parametrize("answers", ["1815", 1815, [1815], ["1815"], None, []])
def test_an_answer_may_be_a_number_or_missing(answers):
    question = question_of({"question": "When was Emma published?", "answers": answers})
    assert question.answers == (("1815",) if answers else ())


def test_what_are_no_answers_is_refused_and_not_taken_for_their_text():
    squad = {"text": ["1815"], "answer_start": [3]}
    for answers in (squad, [None], float("nan"), [float("nan")], [["1815"]], object()):
        asked = {"question": "When was Emma published?", "answers": answers}
        for read in (question_of, lambda one: _example_of(one, (), "question")):
            with pytest.raises(InvalidInput, match="'answers' are a text or a list of texts, got"):
                read(asked)
            with pytest.raises(InvalidInput, match="go under 'answers'; this mapping has 'answer'"):
                read({"question": "When was Emma published?", "answer": "1815"})


def test_what_the_chain_cannot_answer_is_left_out(room, caplog):
    failing = [f"{text} It fails." for text in TEXTS]
    assert room.fit([*failing[:3], *TEXTS[3:]]).gate.report.questions == 37
    assert "the chain failed on 3 of 40 questions (ConnectionError('no index'" in caplog.text
    with pytest.raises(CalibrationError, match="failed on 40 of 40") as caught:
        room.fit(failing)
    assert isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.parametrize("failing", [1, 23])
def test_a_draft_that_fails_costs_its_own_question_alone(room, failing, caplog):
    def flaky(prompt: str) -> str:
        if number(prompt) == failing:
            raise TimeoutError("read timed out")
        return knows_the_odd(prompt)

    room.llm = type(room.llm)(flaky)
    assert room.fit(TEXTS).gate.report.questions == 39
    assert "the model failed on 1 of 40 questions" in caplog.text


def test_a_model_that_fails_is_found_after_one_run_of_the_chain():
    def down(prompt: str) -> str:
        raise ConnectionError("no route to the model")

    house = LangChain()
    house.llm = FunctionChat(down)
    with pytest.raises(ModelFailed, match="no route"):
        house.fit(TEXTS)
    assert len(house.asked) == 1


def test_what_cannot_be_fitted_is_refused_before_the_chain_is_asked(room):
    for questions, how, said in (
        (TEXTS, {"target_rate": 0.3, "budget": 0.5}, "not both"),
        (TEXTS[:19], {}, "at least 20"),
        (TEXTS[0], {}, "one string"),
        ([*TEXTS, " "], {}, "no words"),
        ([7] * 20, {}, "7"),
        (TEXTS, {"on_eror": "raise"}, "on_eror"),
    ):
        with pytest.raises((InvalidInput, CalibrationError, TypeError), match=said):
            room.fit(questions, **how)
    assert room.asked == []


def test_an_output_without_an_answers_text_costs_one_question():
    seen = []
    strange = RunnableLambda(lambda text: seen.append(text) or {"documents": [text]})
    with pytest.raises(InvalidInput, match="no answer's text in what the chain puts out"):
        langchain.GECERouter.fit(strange, llm=FunctionChat(knows_the_odd), questions=TEXTS)
    assert len(seen) == 1
    house = LangChain()
    house.chain = RunnableLambda(
        lambda text: {"answer": None if number(text) == 37 else f"City {number(text)}"}
    )
    assert house.fit(TEXTS).gate.report.questions == 39


class Dated(BaseModel):
    answer: str
    year: int


def test_the_shape_of_the_first_answer_is_checked_also_after_a_failure():
    house = LangChain()

    def work(text):
        house.asked.append(text)
        if len(house.asked) == 1:
            raise ConnectionError("once")
        return Dated(answer=f"City {number(text)}", year=1815)

    house.chain = RunnableLambda(work)
    with pytest.raises(InvalidInput, match="does not fill the Dated"):
        house.fit(TEXTS)
    assert len(house.asked) == 2


def test_a_shape_of_your_own_leaves_the_chains_answer_where_it_is():
    reads = RunnableLambda(lambda text: {"answer": f"City {number(text)}", "sources": [text]})
    shape = {"answer": lambda decision: {"answer": decision.answer, "sources": []}}
    how = {"llm": FunctionChat(knows_the_odd), "settings": SETTINGS, "target_rate": 0.5}
    router = langchain.GECERouter.fit(reads, questions=TEXTS, audit_rate=1.0, **shape, **how)
    assert router.gate.report.direct_accuracy == 0.5
    assert router.invoke(TEXTS[3]) == {"answer": "City 3", "sources": []}
    assert router.settle()
    assert (router.monitor.audits, router.monitor.failed) == (1, 0)


def at_length(text: str) -> str:
    """A chain's answer in more words than can be compared one by one."""
    found = knows_the_odd(f"shown {text}")
    return f"The gazetteer of the old kingdom, which lists them all, has: {found}"


def test_a_runnable_or_a_model_judges_long_answers():
    seen = []

    def even(given: dict[str, str]) -> dict[str, str]:
        seen.append(given)
        return {"score": "Yes." if number(given["question"]) % 2 == 0 else "no"}

    def quarter(prompt: str) -> str:
        return "no" if number(prompt.split("Reference")[0]) % 4 else "yes"

    def fitted(correct):
        fit = {"llm": FunctionChat(knows_the_odd), "questions": TEXTS, "settings": SETTINGS}
        chain = RunnableLambda(at_length)
        return langchain.GECERouter.fit(chain, correct=correct, **fit).gate.report.direct_accuracy

    def saying(yes, no):
        return RunnableLambda(lambda given: no if number(given["question"]) % 4 else yes)

    assert fitted(saying(Verdict(correct=True), Verdict(correct=False))) == 0.25
    assert fitted(saying("Yes, they agree.", "**No**, it is another one.")) == 0.25
    assert fitted(RunnableLambda(even)) == 0.5
    assert {*seen[0]} == {"question", "answer", "reference"}
    assert seen[0]["reference"].startswith("The gazetteer")
    assert fitted(FunctionChat(quarter)) == 0.25
    for unclear in ("perhaps", "No doubt, they agree.", "Correct: no"):
        with pytest.raises(InvalidInput, match=f"correct= gave '{unclear}'"):
            fitted(RunnableLambda(lambda _: unclear))  # noqa: B023


class Verdict(BaseModel):
    correct: bool


@pytest.mark.parametrize("odd", [None, "5.0", "very good\nindeed", ""])
def test_llama_indexs_correctness_evaluator_judges_long_answers(odd, caplog):
    graded = list[str]()

    def grade(prompt: str) -> str:
        graded.append("5.0\nsame" if number(prompt) % 4 == 0 else "1.0\nother")
        return graded[-1] if odd is None or len(graded) != 18 else odd

    router = llama_index.GECERouter.fit(
        Engine(llm=FunctionLLM(lambda prompt: at_length(prompt.removeprefix("shown: "))), asked=[]),
        llm=FunctionLLM(knows_the_odd),
        questions=[QueryBundle(text) for text in TEXTS],
        correct=CorrectnessEvaluator(llm=FunctionLLM(grade)),
        settings=SETTINGS,
    )
    assert router.gate.report.questions == 40
    # the 18th draft, "City 17", is compared word by word: right
    assert router.gate.report.direct_accuracy == (0.25 if odd is None else 0.275)
    assert ("correct= failed on 1 of 40" in caplog.text) is (odd is not None)


def test_inputs_go_to_a_langchain_chain_in_the_form_that_it_takes():
    seen = []

    def work(given: dict) -> dict:
        seen.append(given)
        return {**given, "answer": knows_the_odd(f"shown {given['input']}")}

    mapping = RunnableLambda(work).with_types(input_type=dict[str, str])
    inputs = [{"input": text, "lang": "en"} for text in TEXTS]
    fit = {"llm": FunctionChat(knows_the_odd), "settings": SETTINGS, "question_key": "input"}
    router = langchain.GECERouter.fit(mapping, questions=inputs, **fit)
    assert sorted(seen, key=str) == sorted(inputs, key=str)
    direct = router.invoke({"input": TEXTS[1], "lang": "en"})
    assert direct == {"input": TEXTS[1], "lang": "en", "answer": "City 1"}


def test_options_and_context_stand_in_the_prompts_of_a_fit_as_at_work(room):
    more = {"options": ("City 1", "City 3"), "context": "A list."}
    room.llm = llm = ScriptedLLM(knows_the_odd, name="odd")
    router = room.fit([Question(text, **more) for text in TEXTS], target_rate=0.5)
    drafted = {*llm.prompts}
    llm.calls.clear()
    for given in dict.fromkeys(room.asked):
        room.ask(router, given)
    assert drafted == {*llm.prompts}
    assert all(said.count("Options:") == said.count("A list.") == 1 for said in drafted)


def test_what_an_engine_does_not_answer_is_no_answer():
    def stream(*pieces):
        return schema.StreamingResponse(piece for piece in pieces)

    empty = [schema.Response(""), schema.Response(None), stream(), stream("")]
    assert {answer_of(response) for response in empty} == {""}
    assert {answer_of(one) for one in (schema.Response("None"), stream("No", "ne"))} == {"None"}
    llm = FunctionLLM(lambda prompt: "None known" if number(prompt) % 2 else "blue")
    silent = Engine(llm=FunctionLLM(lambda prompt: ""), asked=[])
    with pytest.raises(CalibrationError, match="empty"):
        llama_index.GECERouter.fit(silent, llm=llm, questions=TEXTS, settings=SETTINGS)


def test_a_conversation_is_made_to_stand_alone_for_the_gate_alone():
    prompts = []

    def model(prompt: str) -> str:
        prompts.append(prompt)
        return TEXTS[number(prompt)] if "Rewritten question" in prompt else knows_the_odd(prompt)

    asked = []
    talks = [
        [HumanMessage(f"I think of number {i}"), AIMessage("Go on."), HumanMessage("Which city?")]
        for i in range(40)
    ]

    def work(messages):
        asked.append(messages)
        return AIMessage(knows_the_odd(f"shown {messages[0].text}"))

    router = langchain.GECERouter.fit(
        RunnableLambda(work), llm=FunctionChat(model), questions=talks, settings=SETTINGS
    )
    assert len(asked) == 40
    assert all(len(messages) == 3 for messages in asked)
    assert sum("Rewritten question" in prompt for prompt in prompts) == 40
    assert router.gate.report.direct_accuracy == 0.5
    assert router.invoke(talks[1]).text == "City 1"
    prompts.clear()
    own = RunnableLambda(lambda messages: TEXTS[number(messages[0].text)])
    router = langchain.GECERouter.fit(
        RunnableLambda(work), llm=FunctionChat(model), questions=talks, settings=SETTINGS,
        condense=own,
    )  # fmt: skip
    assert router.gate.report.direct_accuracy == 0.5
    assert all(any(text in prompt for text in TEXTS) for prompt in prompts)


class Ours(CustomQueryEngine):
    llm: llama_index.LtragLLM

    def custom_query(self, query_str: str) -> str:
        return self.llm.complete(f"shown: {query_str}").text


@pytest.mark.parametrize("inside", [langchain, llama_index])
def test_what_our_own_model_in_the_chain_reads_and_writes_is_counted(inside):
    def counted(prompt: str) -> Generation:
        return Generation(knows_the_odd(prompt), None, len(prompt), 3)

    model = ScriptedLLM(counted)
    wrapped = inside.LtragLLM(llm=model)
    shown = RunnableLambda(lambda text: f"shown: {text}")
    own = shown | wrapped if inside is langchain else Ours(llm=wrapped)
    router = inside.GECERouter.fit(own, llm=model, questions=TEXTS, settings=SETTINGS)
    read = [len(f"shown: {text}") + 3 for text in TEXTS]
    assert router.gate.report.retrieval_cost.tokens == sum(read) / len(read)


def test_a_chat_model_that_tells_no_counts_leaves_the_tokens_unknown():
    told = {"input_tokens": 6, "output_tokens": 3, "total_tokens": 9}
    said = ChatGeneration(message=AIMessage("Rome", usage_metadata=told))
    none: dict = {"token_usage": {}}
    meter = Meter()
    meter.on_llm_end(LLMResult(generations=[[said]]))
    meter.on_llm_end(LLMResult(generations=[[LangChainGeneration(text="Oslo")]], llm_output=none))
    assert meter.usage().tokens == 9  # a completion model's batch, counted with its first
    silent = ChatGeneration(message=AIMessage("Bern"))
    meter.on_llm_end(LLMResult(generations=[[silent]], llm_output=none))
    assert (meter.usage().calls, meter.usage().tokens) == (3, None)


def test_a_budget_counts_the_tokens_of_the_engine_and_of_the_draft():
    def counted(prompt: str) -> CompletionResponse:
        usage = {"total_tokens": 300 if "shown" in prompt else 60}
        return CompletionResponse(
            text=knows_the_odd(prompt), raw={"usage": {**usage, **usage_parts}}
        )

    usage_parts = {"prompt_tokens": 50, "completion_tokens": 10}
    llm = FunctionLLM(counted)
    router = llama_index.GECERouter.fit(
        Engine(llm=llm, asked=[]), llm=llm, questions=TEXTS, settings=SETTINGS, budget=0.5
    )
    report = router.gate.report
    assert (report.gate_cost.tokens, report.retrieval_cost.tokens) == (60, 300)
    assert report.retrieval_rate.value == pytest.approx(0.5 - 60 / 300, abs=0.05)


@pytest.mark.parametrize("wrong", [
    {"audit_rate": 5},
    {"on_error": "x"},
    {"max_concurrency": 0},
    {"correct": "x"},
    {"settings": {"folds": 2}},
    {"questions": None},
    {"answer": 5},
])  # fmt: skip
def test_what_is_wrong_with_a_fit_is_said_before_anything_is_asked(wrong):
    house = LangChain()
    with pytest.raises(InvalidInput):
        house.fit(**{"questions": TEXTS, **wrong})
    assert house.asked == []
