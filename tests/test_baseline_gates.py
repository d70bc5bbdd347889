import math

import pytest
from method_parts import Shelf

from ltrag_plugins.errors import InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.gates import GateSettings
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Generation, Passage, Question, Token
from ltrag_plugins.uncertainty import _mean_entropy, _mean_margin, mean_logprob

EMMA = Passage("Emma is a novel by Jane Austen.")


def said(text: str, *probabilities: float) -> Generation:
    """Tokens of these probabilities, each with one alternative that has half of the rest."""
    tokens = [
        Token("t", math.log(p), alternatives=(("t", math.log(p)), ("u", math.log((1 - p) / 2))))
        for p in probabilities
    ]
    return Generation(text, tuple(tokens))


def model(**sure: float) -> ScriptedLLM:
    """Certain of each question's direct answer as told; always sure of what it reads."""

    def reply(prompt: str) -> Generation:
        if "novel" in prompt:
            return said(" Austen ", 0.9)
        return said("Eliot", next(p for word, p in sure.items() if word in prompt))

    return ScriptedLLM(reply)


def learned(name: str, world: World, *words: str, **settings: object):
    asked = [Question(f"{word}?") for word in words]
    return METHODS[name].taught(asked, GateSettings(**settings), world)


def asked(name: str, question: str, learned: object, world: World, **settings: object):
    return run(METHODS[name].flow(Question(question), GateSettings(**settings), learned), world)


SIGNALS = ["logprob", "product", "least", "entropy", "margin"]


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_threshold_is_learned_and_parts_two_questions_step_by_step(signal):
    llm, shelf = model(a1=0.6, b2=0.95, c3=0.7, d4=0.99), Shelf(EMMA)
    world, name = World(llm=llm, retriever=shelf), f"gate-{signal}"
    gate = learned(name, world, "a1", "b2", "c3", "d4")
    assert llm.calls == [tuple(direct_prompt(f"{w}?") for w in ("a1", "b2", "c3", "d4"))]
    # the unsure half, a1 and c3, lies beyond
    sure = asked(name, "b2?", gate, world)
    assert (sure.text, sure.passages, len(sure.trace)) == ("Eliot", (), 1)
    assert shelf.asked == []
    unsure = asked(name, "c3?", gate, world, k=2)
    assert shelf.asked == [(("c3?",), 2)]
    assert llm.calls[-2:] == [(direct_prompt("c3?"),), (reading_prompt("c3?", [EMMA]),)]
    assert (unsure.text, unsure.passages) == ("Austen", (EMMA,))
    assert [draft.text for draft in unsure.trace] == ["Eliot", " Austen "]
    assert 0 < unsure.uncertainty < 0.5  # of the answer it gives: 0.9


def test_the_uncertainty_is_the_figure_that_the_gate_is_named_for():
    draft = said("x", 0.5, 0.8)
    world = World(llm=ScriptedLLM(lambda _: draft), retriever=Shelf(EMMA))

    def of(signal: str) -> float:
        always = learned(f"gate-{signal}", world, "a", target_rate=1.0)
        assert asked(f"gate-{signal}", "x?", always, world).passages == (EMMA,)
        never = learned(f"gate-{signal}", world, "a", target_rate=0.0)
        draft_alone = asked(f"gate-{signal}", "x?", never, world)
        assert draft_alone.passages == ()
        return draft_alone.uncertainty

    assert of("logprob") == pytest.approx(mean_logprob(draft) / -20)
    assert of("product") == pytest.approx(1 - 0.4)
    assert of("least") == pytest.approx(0.5)
    assert of("entropy") == pytest.approx(1 - math.exp(-_mean_entropy(draft)))
    assert of("margin") == pytest.approx(1 - _mean_margin(draft))


def test_frequency_asks_nothing_to_learn_and_once_to_answer():
    llm, shelf = ScriptedLLM(lambda _: " x "), Shelf(EMMA)
    world = World(llm=llm, retriever=shelf)
    gate = learned("gate-frequency", world, "the", "of the", "quokka wombat", "thylacine")
    assert llm.calls == []
    common = asked("gate-frequency", "the of?", gate, world)
    rare = asked("gate-frequency", "quokka?", gate, world)
    assert llm.prompts == [direct_prompt("the of?"), reading_prompt("quokka?", [EMMA])]
    assert (common.passages, rare.passages) == ((), (EMMA,))
    assert (common.uncertainty, rare.uncertainty) == (None, None)
    with pytest.raises(InvalidInput, match="no word frequencies for the language 'xx'"):
        learned("gate-frequency", world, "the", language="xx")


def test_where_nothing_is_found_the_direct_answer_stands():
    world = World(llm=model(a1=0.6, b2=0.9), retriever=Shelf())
    answer = asked("gate-product", "a1?", learned("gate-product", world, "a1", "b2"), world)
    assert (answer.text, answer.passages) == ("Eliot", ())
    assert (len(world.llm.prompts), len(world.retriever.asked)) == (2 + 1, 1)
    assert answer.uncertainty == pytest.approx(0.4)


@pytest.mark.parametrize("tokens", [(), None])
def test_a_blank_draft_retrieves(tokens):
    def reply(prompt: str) -> Generation:
        if "novel" in prompt:
            return said("Austen", 0.9)
        return Generation("", tokens) if "z9" in prompt else said("Eliot", 0.6)

    world = World(llm=ScriptedLLM(reply), retriever=Shelf(EMMA))
    gate = learned("gate-margin", world, "a1", "z9")
    assert asked("gate-margin", "z9?", gate, world).text == "Austen"
    assert asked("gate-margin", "a1?", gate, world).text == "Eliot"


def test_texts_alone_and_the_gate_of_another_row_are_refused_with_what_to_do():
    needs = [METHODS[f"gate-{signal}"].needs for signal in ("margin", "frequency")]
    assert ["probabilities" in one for one in needs] == [True, False]
    world = World(llm=ScriptedLLM(lambda _: "x"), retriever=Shelf(EMMA))
    with pytest.raises(NoTokenProbabilities, match="logprobs=True"):
        learned("gate-logprob", world, "a1")
    entropy = learned("gate-entropy", World(llm=model(a1=0.6)), "a1")
    with pytest.raises(InvalidInput, match="gate-margin was given a gate on entropy"):
        asked("gate-margin", "a1?", entropy, world)
    bare = Generation("x", (Token("x", -0.1),))
    with pytest.raises(NoTokenProbabilities, match="top_logprobs"):
        learned("gate-margin", World(llm=ScriptedLLM(lambda _: bare)), "a")
