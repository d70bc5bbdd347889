"""GECEDecisions: the gate behind langchain-core's decision models."""

import langchain_core
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from ltrag_plugins.errors import InvalidInput, MissingExtra
from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.gates import RuleGate, always

HAS = tuple(map(int, langchain_core.__version__.split(".")[:2])) >= (1, 8)
needs_1_8 = pytest.mark.skipif(not HAS, reason="decision models came with langchain-core 1.8")


def a_gate():
    return RuleGate(World(llm=ScriptedLLM(lambda prompt: "Jane Austen")), always)


@pytest.mark.skipif(HAS, reason="langchain-core has decision models")
def test_before_1_8_the_refusal_names_what_is_needed():
    from ltrag_plugins import langchain as room

    with pytest.raises(MissingExtra, match=r"langchain-core>=1\.8"):
        room.GECEDecisions  # noqa: B018


@needs_1_8
async def test_a_noul_is_the_probability_that_the_direct_answer_fails():
    from langchain_core.decisions import BaseDecisionModel, Noul

    from ltrag_plugins.langchain import GECEDecisions

    gate = a_gate()
    model = GECEDecisions(gate)
    assert isinstance(model, BaseDecisionModel)
    wanted = gate.decide("Who wrote Emma?").probability
    said = [HumanMessage("Hello"), AIMessage("Hi"), HumanMessage("Who wrote Emma?")]
    for state in ("Who wrote Emma?", said, {"messages": said}, {"question": "Who wrote Emma?"}):
        request = {"state": state, "questions": {"retrieve": Noul(instructions="Retrieval?")}}
        for response in (model.invoke(request), await model.ainvoke(request)):
            assert response.nouls["retrieve"].noul == wanted
            assert response.model == "gece"


@needs_1_8
def test_other_kinds_of_questions_and_what_is_no_gate_are_refused():
    from langchain_core.decisions import Choice

    from ltrag_plugins.langchain import GECEDecisions

    choice = Choice(instructions="Which?", criteria={"a": None, "b": None})
    with pytest.raises(InvalidInput, match="'which' is a 'choice'"):
        GECEDecisions(a_gate()).invoke({"state": "Who?", "questions": {"which": choice}})
    with pytest.raises(InvalidInput, match="gate must be a gate"):
        GECEDecisions("gate/")
