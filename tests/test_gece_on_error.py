"""A gate whose model fails sends the question to retrieval, and says why."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ltrag_plugins.errors import (
    EmptyQuestion,
    ModelError,
    ModelFailed,
    NoTokenProbabilities,
    PromptTooLong,
)
from ltrag_plugins.flow import World, arun, embed, run, run_many
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.gece.decision import guarded
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, Question, Token
from tests.gates import RuleGate, never


def down(prompt: str) -> str:
    raise ConnectionError("no route to the model")


def test_a_model_that_is_down_means_retrieve_with_the_reason():
    gate = RuleGate(World(llm=ScriptedLLM(down)))
    decision = run(guarded("who wrote Emma?", gate), gate.world)
    assert (decision.retrieve, decision.probability, decision.answer) == (True, 1.0, "")
    assert "no route to the model" in decision.reason
    assert decision.question == "who wrote Emma?"
    plain = json.loads(json.dumps(decision.as_metadata(), allow_nan=False))
    assert plain["retrieve"] is True


def test_on_request_the_error_is_raised():
    gate = RuleGate(World(llm=ScriptedLLM(down)))
    with pytest.raises(ModelFailed, match="no route"):
        run(guarded("who?", gate, "raise"), gate.world)


@pytest.mark.parametrize("on_error", ["retrieve", "raise"])
def test_what_cannot_be_asked_is_an_error_either_way(on_error):
    gate = RuleGate(World(llm=ScriptedLLM(str)))
    with pytest.raises(EmptyQuestion):
        run(guarded(" ", gate, on_error), gate.world)


def test_a_draft_without_token_probabilities_retrieves_where_the_gate_reads_them():
    answers = {f"what is item {i}": f"thing{i}" for i in range(20)}

    def sure(prompt: str) -> Generation:
        i = int(prompt.split("item ")[1].split()[0])
        text = f"thing{i}" if i % 2 else "no idea"
        return Generation(text, (Token(text, math.log(0.9 if i % 2 else 0.3)),))

    asked = [Question(text, answers=(answer,)) for text, answer in answers.items()]
    gate = GECEGate.fit(asked, llm=ScriptedLLM(sure), target_rate=0.5)
    silent = replace(gate, world=World(llm=ScriptedLLM(lambda prompt: "thing3")))
    with pytest.raises(NoTokenProbabilities):
        silent.decide("what is item 3")
    decision = run(guarded("what is item 3", silent), silent.world)
    assert decision.retrieve
    assert "token probabilities" in decision.reason


@dataclass(frozen=True, slots=True)
class Filtered(Generation):
    finish_reason: str = "content_filter"


def test_a_filtered_draft_retrieves():
    gate = RuleGate(World(llm=ScriptedLLM(lambda prompt: Filtered("I"))), never)
    decision = run(guarded("who?", gate), gate.world)
    assert decision.retrieve
    assert "content filter" in decision.reason
    with pytest.raises(ModelError, match="content filter"):
        run(guarded("who?", gate, "raise"), gate.world)


def test_side_by_side_only_the_failed_question_retrieves():
    def picky(question: str) -> str:
        return down(question) if "broken" in question else "known"

    gate = RuleGate(World(llm=ScriptedLLM(picky)))
    flows = [guarded(question, gate) for question in ("a", "broken", "b")]
    assert [d.retrieve for d in run_many(flows, gate.world)] == [False, True, False]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "0.5", KeyError("table")])
def test_a_signal_of_ones_own_that_gives_no_number_retrieves(value):
    def odd(question: str) -> float:
        if "item" not in question and isinstance(value, Exception):
            raise value
        return float(question.split()[-1]) % 2 if "item" in question else value

    llm = ScriptedLLM(lambda prompt: "odd" if "1\n" in prompt else "no")
    asked = [Question(f"what is item {i}", ("odd" if i % 3 else "no",)) for i in range(20)]
    told = "raised KeyError: 'table'" if isinstance(value, Exception) else "gave"
    with pytest.raises(ModelError, match=f"your signal 'odd' {told}"):
        GECEGate.fit([replace(asked[0], text="who?"), *asked], llm=llm, signals={"odd": odd})
    gate = GECEGate.fit(asked, llm=llm, signals={"odd": odd})
    decision = run(guarded("who?", gate), gate.world)
    assert decision.retrieve
    assert "'odd'" in decision.reason


async def test_a_gates_encoder_is_awaited_where_it_can_be():
    class Waiting:
        name = "waiting"

        def encode(self, texts):
            return np.ones((len(texts), 2), dtype=np.float32)

        async def aencode(self, texts):
            awaited.append(texts)
            return self.encode(texts)

    awaited = []
    await arun(embed("a", "b"), World(encoder=Waiting()))
    assert awaited == [("a", "b")]


@pytest.mark.parametrize("turn", ["\N{THUMBS UP SIGN}", "word " * 3000])
def test_a_turn_that_is_no_question_retrieves_unless_errors_are_raised(turn):
    answers = {f"what is item {i}": f"thing{i}" for i in range(20)}
    llm = ScriptedLLM(lambda prompt: f"thing{len(prompt) % 20}")
    asked = [Question(text, answers=(answer,)) for text, answer in answers.items()]
    gate = GECEGate.fit(asked, llm=llm, target_rate=0.5)
    decision = run(guarded(turn, gate), gate.world)
    assert (decision.retrieve, decision.question) == (True, turn)
    assert decision.reason.startswith("this is no question for the gate")
    with pytest.raises((EmptyQuestion, PromptTooLong)):
        run(guarded(turn, gate, "raise"), gate.world)
    history, asked = [("human", "what is item 3?"), ("ai", "thing3")], len(llm.prompts)
    assert run(guarded(turn, gate, history=history), gate.world) == decision
    with pytest.raises((EmptyQuestion, PromptTooLong)):
        run(guarded(turn, gate, "raise", history=history), gate.world)
    assert len(llm.prompts) == asked  # none is spent on making it stand alone
