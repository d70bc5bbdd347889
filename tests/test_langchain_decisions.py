"""GECEDecisions: the gate behind langchain-core's decision models."""

from typing import Any

import langchain_core
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from pydantic import Field

from ltrag_plugins import langchain as room
from ltrag_plugins.errors import InvalidInput, MissingExtra
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Question
from tests.gates import RuleGate, always, never

HAS = tuple(map(int, langchain_core.__version__.split(".")[:2])) >= (1, 8)
if HAS:
    from langchain_core.decisions import BaseDecisionModel, Choice, ClassifierResponse, Noul

    from ltrag_plugins.langchain import DecisionSignal, GECEDecisions
needs_1_8 = pytest.mark.skipif(not HAS, reason="decision models came with langchain-core 1.8")


GATE = RuleGate(World(llm=ScriptedLLM(lambda prompt: "Jane Austen")), always)


@pytest.mark.skipif(HAS, reason="langchain-core has decision models")
def test_before_1_8_the_refusal_names_what_is_needed():
    with pytest.raises(MissingExtra, match=r"langchain-core>=1\.8"):
        room.GECEDecisions  # noqa: B018


@needs_1_8
async def test_a_noul_is_the_probability_that_the_direct_answer_fails():
    model = GECEDecisions(GATE)
    assert isinstance(model, BaseDecisionModel)
    wanted = GATE.decide("Who wrote Emma?").probability
    said = [HumanMessage("Hello"), AIMessage("Hi"), HumanMessage("Who wrote Emma?")]
    for state in ("Who wrote Emma?", said, {"messages": said}, {"question": "Who wrote Emma?"}):
        request: Any = {"state": state, "questions": {"retrieve": Noul(instructions="Retrieval?")}}
        for response in (model.invoke(request), await model.ainvoke(request)):
            assert response.nouls["retrieve"].noul == wanted
            assert response.model == "gece"


@needs_1_8
async def test_what_asks_about_a_picture_needs_retrieval_and_no_draft():
    llm = ScriptedLLM(lambda prompt: "a dog")
    picture = {"type": "image", "url": "http://localhost/a.png"}
    asked = [HumanMessage([{"type": "text", "text": "What is this?"}, picture])]
    model = GECEDecisions(RuleGate(World(llm=llm), never))
    request: Any = {"state": asked, "questions": {"retrieve": Noul(instructions="Retrieval?")}}
    for response in (model.invoke(request), await model.ainvoke(request)):
        assert response.nouls["retrieve"].noul == 1.0
    assert llm.prompts == []


@needs_1_8
def test_other_questions_and_parts_are_refused():
    choice = Choice(instructions="Which?", criteria={"a": None, "b": None})
    with pytest.raises(InvalidInput, match="'which' is a 'choice'"):
        GECEDecisions(GATE).invoke({"state": "Who?", "questions": {"which": choice}})
    with pytest.raises(InvalidInput, match="gate must be a gate"):
        GECEDecisions("gate/")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="got RunnableLambda"):
        DecisionSignal(RunnableLambda(lambda question: 0.5))
    with pytest.raises(InvalidInput, match=r"'product'.*rename"):
        GECEGate.fit(QUESTIONS, llm=LLM, signals={"product": lambda question: 0.5})


def knowing():
    """A decision model that knows: even questions are answered wrongly."""

    class Knowing(BaseDecisionModel):
        model: str = "knowing"
        asked: list[str] = Field(default_factory=list)

        @property
        def _provider(self):
            return "tests"

        def _classify(self, state: Any, questions):
            if "down" in state:
                raise ConnectionError("no route")
            [name] = questions
            self.asked.append(questions[name].instructions)
            noul = 0.9 if int(state.split()[1]) % 2 == 0 else 0.2
            answers = {name: {"type": "noul", "noul": noul}}
            return ClassifierResponse.model_validate({"model": self.model, "answers": answers})

        async def _aclassify(self, state, questions):
            self.asked.append("async")
            return self._classify(state, questions)

    return Knowing()


QUESTIONS = [Question(f"question {i} of many", ("odd",)) for i in range(40)]
LLM = ScriptedLLM(lambda p: "odd" if int(p.split("question ")[-1].split()[0]) % 2 else "nothing")


@needs_1_8
async def test_a_decision_model_is_a_signal_of_the_gate_and_is_handed_in_again(tmp_path):
    model = knowing()
    signals = {"decisions": DecisionSignal(model, "Hard?")}
    gate = GECEGate.fit(QUESTIONS, llm=LLM, signals=signals, target_rate=0.5)
    assert gate.report.signal_aurocs["decisions"] == 1.0  # the drafts themselves tell as much
    assert model.asked == ["Hard?"] * 40
    gate.save(tmp_path)
    loaded = GECEGate.load(tmp_path, llm=LLM, signals=signals)
    for i, wanted in ((41, 0.2), (42, 0.9)):
        decision = loaded.decide(f"question {i} of many")
        assert decision.ingredients["decisions"] == wanted
        assert decision == gate.decide(f"question {i} of many")
    assert (await loaded.adecide("question 42 of many")).ingredients["decisions"] == 0.9
    assert model.asked[-2:] == ["async", "Hard?"]
    chain = RunnableLambda(lambda question: "(retrieves)")
    assert room.GECERouter(loaded, chain).invoke("question 42 of many, down") == "(retrieves)"
    with pytest.raises(InvalidInput, match=r"'decisions'.*signals="):
        GECEGate.load(tmp_path, llm=LLM)


@needs_1_8
@pytest.mark.filterwarnings("ignore:The class .OpenAIDecisions. is in beta")
def test_openais_decisions_are_asked_in_their_own_words_over_http():
    httpx = pytest.importorskip("httpx")
    openai = pytest.importorskip("langchain_openai.decisions")

    seen = []

    def handle(request):
        seen.append(request.read().decode())
        answer = {"name": "retrieve", "type": "predicate", "probability": 0.75}
        usage = {"input_tokens": 1, "output_tokens": 1}
        return httpx.Response(200, json={"model": "m", "answers": [answer], "usage": usage})

    client = httpx.Client(transport=httpx.MockTransport(handle))
    model = openai.OpenAIDecisions(
        model="m", api_key="none", base_url="http://127.0.0.1/v1", http_client=client
    )
    assert DecisionSignal(model, "Hard?")("Who wrote Emma?") == 0.75
    assert '"Who wrote Emma?"' in seen[0]
    assert '"Hard?"' in seen[0]
