import asyncio
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from langchain_core.language_models import FakeListChatModel

from ltrag_plugins.errors import InvalidInput, ModelFailed, NoRetriever, RetrieverFailed
from ltrag_plugins.flow import Ask, Embed, World, ask, run
from ltrag_plugins.gece import DecidingGate, GECEGate, GECESettings, WordFrequencies, routed
from ltrag_plugins.gece.decision import guarded
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.direct import single_retrieval
from ltrag_plugins.metrics.answer import contains
from ltrag_plugins.prompts.templates import direct_prompt
from ltrag_plugins.types import Answer, Generation, GenerationSettings
from tests.gece_parts import Houses, Letters, answer, honest_llm, knows, questions, said

PRODUCT = GECESettings(scorer="product")
KNOWN, UNKNOWN = "What is the colour of house 100?", "What is the colour of house 101?"
NEW = [f"What is the colour of house {i}?" for i in range(100, 130)]


@pytest.fixture(scope="module")
def whole() -> GECEGate:
    """Fitted on everything there can be: encoder, retriever, token probabilities."""
    return GECEGate.fit(
        questions(40), llm=honest_llm(), encoder=Letters(), retriever=Houses(), target_rate=0.5
    )


@pytest.fixture(scope="module")
def gate() -> GECEGate:
    return GECEGate.fit(questions(), llm=honest_llm(), target_rate=0.5, settings=PRODUCT)


@pytest.mark.parametrize("which", ["whole", "gate"])
def test_the_gate_retrieves_what_the_model_does_not_know(which, request):
    for decision in request.getfixturevalue(which).decide_many(NEW):
        assert decision.retrieve == (not knows(decision.question))
        assert decision.retrieve == (decision.probability > 0.5)


def test_the_draft_is_what_the_model_says_to_the_zero_shot_prompt(gate):
    decision = gate.decide(KNOWN)
    assert decision.draft == answer(direct_prompt(KNOWN))
    assert decision.answer == "white"


def test_a_fit_asks_each_question_once_and_all_of_them_in_one_call():
    llm = honest_llm()
    GECEGate.fit(questions(), llm=llm, settings=PRODUCT)
    assert llm.calls == [tuple(direct_prompt(q.text) for q in questions())]


def test_a_fit_with_a_retriever_also_answers_with_retrieval(whole):
    assert whole.report.direct_accuracy == 0.5
    assert whole.report.retrieval_accuracy == 1.0
    assert whole.report.accuracy.value == 1.0
    assert whole.world.retriever is None


def test_answers_of_the_users_own_chain_stand_in_for_the_retriever():
    own = ["house red"] * 30 + ["no idea"] * 30
    gate = GECEGate.fit(questions(), llm=honest_llm(), settings=PRODUCT, retrieved_answers=own)
    right = [contains(text, q.answers) for text, q in zip(own, questions(), strict=True)]
    assert gate.report.retrieval_accuracy == np.mean(right)


def test_a_flow_of_the_users_own_needs_no_retriever_if_it_fetches_nothing():
    def thinking_twice(question):
        [reply] = yield from ask(f"Question: house 0 is {question}\nAnswer:")
        return Answer(reply.text)

    settings = {"llm": ScriptedLLM(lambda prompt: said("red", -0.1)), "settings": PRODUCT}
    calibration = [
        replace(q, answers=("red",) if i % 3 else ("x",)) for i, q in enumerate(questions())
    ]
    gate = GECEGate.fit(calibration, retrieving=thinking_twice, **settings)
    assert gate.report.retrieval_accuracy == pytest.approx(2 / 3)
    with pytest.raises(NoRetriever):
        GECEGate.fit(calibration, retrieving=single_retrieval, **settings)


def test_deciding_alone_together_and_on_an_event_loop_is_the_same(whole):
    alone = [whole.decide(question) for question in NEW]
    assert whole.decide_many(NEW) == alone

    async def together():
        return await asyncio.gather(*(whole.adecide(question) for question in NEW))

    assert asyncio.run(together()) == alone


def test_many_decisions_cost_one_model_call_and_one_embedding():
    llm, requests = honest_llm(), []
    gate = GECEGate.fit(questions(), llm=llm, encoder=Letters(), settings=PRODUCT)
    llm.calls.clear()
    gate.decide_many(
        NEW, observers=[lambda s: requests.append(s.request) if s.kind == "request" else None]
    )
    assert [len(prompts) for prompts in llm.calls] == [len(NEW)]
    assert [type(request) for request in requests] == [Ask, Embed]


def test_threads_that_share_a_gate_decide_the_same(whole):
    alone = [whole.decide(question) for question in NEW]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(whole.decide, NEW)) == alone


def test_one_bad_question_among_many_can_be_had_as_its_error(gate):
    good, bad = gate.decide_many([KNOWN, " "], return_exceptions=True)
    assert good == gate.decide(KNOWN)
    assert type(bad).__name__ == "EmptyQuestion"


def test_a_gate_is_shown_without_what_it_learned(whole):
    assert "array(" not in repr(whole)
    assert len(repr(whole)) < 5000


def test_white_space_around_a_question_changes_nothing(gate):
    assert gate.decide(f"\n {KNOWN}  ") == gate.decide(KNOWN)


def test_a_gate_is_what_the_adapters_ask_for(gate):
    assert isinstance(gate, DecidingGate)


def test_what_is_known_is_answered_with_the_draft_and_nothing_is_fetched(gate):
    houses = Houses()
    world = World(llm=honest_llm(), retriever=houses)
    found = run(routed(KNOWN, gate, single_retrieval), world)
    assert found.text == "white"
    assert found.uncertainty == gate.decide(KNOWN).probability
    assert found.passages == ()
    assert houses.queries == []


def test_what_is_not_known_is_looked_up(gate):
    houses, llm = Houses(), honest_llm()
    found = run(routed(UNKNOWN, gate, single_retrieval), World(llm=llm, retriever=houses))
    assert contains(found.text, ["black"])
    assert houses.queries == [UNKNOWN]
    assert len(llm.calls) == 2


def test_a_retriever_that_raises_behind_the_gate_is_named_with_its_cause(gate):
    class Down:
        def search(self, queries, k):
            raise TimeoutError("index is down")

    world = World(llm=honest_llm(), retriever=Down())
    assert run(routed(KNOWN, gate, single_retrieval), world).text == "white"
    with pytest.raises(RetrieverFailed, match="index is down"):
        run(routed(UNKNOWN, gate, single_retrieval), world)


@pytest.mark.parametrize(("blank", "sure"), [("", False), ("  ", True), ("\n", False)])
def test_a_model_that_says_nothing_has_no_answer_to_give_so_it_is_looked_up(gate, blank, sure):
    def sure_of_nothing(generation: Generation) -> Generation:
        return said(blank, -1e-6)  # the surest draft there is

    silent = replace(gate, world=World(llm=honest_llm(change=sure_of_nothing)))
    decision = silent.decide(KNOWN)
    assert decision.retrieve
    assert (decision.score < gate.fitted.threshold) == sure
    assert "empty" in decision.reason
    never = replace(silent, fitted=replace(gate.fitted, threshold=math.inf))
    assert not never.decide(KNOWN).retrieve


def test_a_model_that_raises_is_named_with_its_cause(gate):
    def overloaded(prompt):
        raise ConnectionError("503")

    broken = replace(gate, world=World(llm=ScriptedLLM(overloaded)))
    with pytest.raises(ModelFailed, match="503") as caught:
        broken.decide(KNOWN)
    assert isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
@pytest.mark.parametrize("which", ["whole", "gate"])
def test_an_explanation_says_what_was_decided_why_and_from_what(which, question, request):
    gate = request.getfixturevalue(which)
    decision, scores = gate.decide(question), gate.fitted.scores
    first, draft, *signals = gate.explanation(decision).splitlines()
    assert first.startswith("retrieve: " if decision.retrieve else "answer directly: ")
    stands, rate = map(float, re.findall(r"([\d.]+)%", first))
    beyond = (s < decision.score if gate.fitted.gain else s > decision.score for s in scores)
    assert stands == pytest.approx(100 * sum(beyond) / len(scores), abs=0.5)
    assert rate == 50.0
    assert decision.answer in draft
    assert len(signals) == len(decision.ingredients)


def test_a_decision_after_a_failure_is_explained_by_it(whole):
    def overloaded(prompt):
        raise ConnectionError("503")

    broken = replace(whole, world=World(llm=ScriptedLLM(overloaded)))
    decision = run(guarded(KNOWN, broken), broken.world)
    said = whole.explanation(decision)
    assert said.startswith("retrieve: ")
    assert "503" in said


def test_signals_are_explained_in_values_that_a_person_knows(whole):
    """The second route: from the tokens of the draft, and from word frequencies."""
    row = re.compile(r"^  (\S.*?)  +(\S.*?)  \w+ than (\d+)%$", re.MULTILINE)
    known, decision = whole.decide_many([KNOWN, UNKNOWN])
    rows = {name: value for name, value, _ in row.findall(whole.explanation(decision))}
    stands = {name: int(share) for name, _, share in row.findall(whole.explanation(known))}
    assert stands["least likely token"] >= 50  # those that it knows are half of the questions
    chances = [math.exp(token.logprob) for token in decision.draft.tokens]
    values = {
        "least likely token": min(chances),
        "mean of the tokens": sum(chances) / len(chances),
        "whole answer": math.prod(chances),
        "typical token": math.prod(chances) ** (1 / len(chances)),
    }
    for name, value in values.items():
        assert float(rows[name].rstrip("%")) == pytest.approx(100 * value, abs=0.5)
    if "rarest word of the question" in rows:
        rarest = max(whole.fitted.frequencies.rarities(UNKNOWN.rstrip("?").split()))
        shown = rows["rarest word of the question"].removeprefix("1 in ").replace(",", "")
        assert float(shown) == pytest.approx(10**rarest, rel=0.01)


def test_the_reason_tells_a_score_from_a_threshold_it_nearly_meets(gate):
    score = gate.decide(KNOWN).score
    near = replace(gate, fitted=replace(gate.fitted, threshold=score + 1e-7))
    reason = near.decide(KNOWN).reason
    shown = [float(word) for word in reason.replace(";", " ").split() if word[0].isdigit()]
    assert "below the threshold" in reason
    assert shown[-2] < shown[-1]


def test_a_score_that_equals_the_threshold_retrieves(gate):
    score = gate.decide(KNOWN).score
    tied = replace(gate, fitted=replace(gate.fitted, threshold=score)).decide(KNOWN)
    assert tied.retrieve
    assert "at or above" in tied.reason
    above = replace(gate.fitted, threshold=math.nextafter(score, math.inf))
    assert not replace(gate, fitted=above).decide(KNOWN).retrieve


@pytest.mark.parametrize(("rate", "habit"), [(0.0, "never"), (1.0, "always")])
def test_a_gate_for_none_or_all_says_so(rate, habit):
    gate = GECEGate.fit(questions(), llm=honest_llm(), target_rate=rate, settings=PRODUCT)
    decision = gate.decide(UNKNOWN)
    assert decision.retrieve == (rate == 1.0)
    assert f"{habit} retrieve" in decision.reason
    assert "inf" not in gate.explanation(gate.decide(UNKNOWN))


def test_a_model_that_gives_text_only_is_gated_by_its_samples():
    counter = iter(range(10**6))

    def wavering(prompt):
        # sure of what it knows, else another colour at every sample
        known = answer(prompt).text
        return known if "perhaps" not in known else f"maybe {next(counter)}"

    settings = GECESettings(scorer="disagreement", samples=2, temperature=0.5)
    gate = GECEGate.fit(questions(), llm=ScriptedLLM(wavering), target_rate=0.5, settings=settings)
    assert gate.report.tier == "text"
    assert [gate.decide(q).retrieve for q in (KNOWN, UNKNOWN)] == [False, True]


def test_frequencies_of_the_users_corpus_are_used(gate):
    from ltrag_plugins.gece import WordFrequencies

    corpus = WordFrequencies.of_corpus(["What is the colour of house 100?"])
    own = GECEGate.fit(questions(), llm=honest_llm(), settings=PRODUCT, frequencies=corpus)
    assert own.decide(KNOWN).ingredients["rarest_word"] == pytest.approx(np.log10(7))
    assert "rarest_word" not in gate.decide(KNOWN).ingredients


@pytest.mark.parametrize(
    ("correct", "accuracy"), [("contains", 1.0), ("normalized_exact_match", 0.5), ("f1", 1.0)]
)
def test_what_counts_as_right_is_a_setting(correct, accuracy):
    settings = replace(PRODUCT, correct=correct)
    own = [("the " if i % 2 else "a very ") + q.answers[0] for i, q in enumerate(questions())]
    gate = GECEGate.fit(questions(), llm=honest_llm(), settings=settings, retrieved_answers=own)
    assert gate.report.retrieval_accuracy == accuracy


def test_the_report_reads_as_a_table(whole):
    text = str(whole.report)
    for part in (
        "AUROC, direct answer fails",
        "retrieval rate",
        "accuracy, gated",
        "product alone",
    ):
        assert part in text


def test_options_and_context_are_asked_and_never_searched_for():
    whole = [
        replace(q, options=("white", "grey"), context=f"There are houses. {q.id}")
        for q in questions(40)
    ]
    searched: list[str] = []

    def alone(prompt):
        """The colour of the house, whatever else is asked."""
        lines = prompt.splitlines()
        return answer("\n".join(x for x in lines if not x.startswith(("Text:", "Options:"))))

    llm = ScriptedLLM(alone)

    class Shelf(Houses):
        def search(self, queries, k):
            searched.extend(queries)
            return super().search(queries, k)

    GECEGate.fit(whole, llm=llm, retriever=Shelf(), target_rate=0.5, settings=PRODUCT)
    prompts = [prompt for call in llm.calls for prompt in call]
    assert all("Options: white; grey" in p and "There are houses" in p for p in prompts)
    assert searched == [question.text for question in whole]


def test_what_no_fit_can_use_is_refused_before_anything_is_asked():
    llm = honest_llm()
    for kind, given in (
        (InvalidInput, {"frequencies": WordFrequencies("xx")}),
        (InvalidInput, {"encoder": object()}),
    ):
        with pytest.raises(kind):
            GECEGate.fit(questions(), llm=llm, **given)
    with pytest.raises(InvalidInput, match="one string"):
        GECEGate.fit([replace(q, answers="white") for q in questions()], llm=llm)
    with pytest.raises(InvalidInput, match="LangChainLLM"):
        GECEGate.fit(questions(), llm=FakeListChatModel(responses=["x"]))
    assert llm.calls == []


def test_a_scorer_that_the_report_advises_can_be_fitted():
    bare = honest_llm(change=lambda g: Generation(g.text.replace("perhaps ", "")))
    how = {"llm": bare, "signals": {"mine": lambda q: float(not knows(q))}, "target_rate": 0.5}
    found = GECEGate.fit(questions(), settings=GECESettings(scorer="draft_words"), **how)
    assert "consider GECESettings(scorer='mine')" in str(found.report)
    gate = GECEGate.fit(questions(), settings=GECESettings(scorer="mine"), **how)
    assert gate.report.auroc.value == 1
    assert [one.retrieve for one in gate.decide_many(NEW)] == [not knows(text) for text in NEW]
    with pytest.raises(InvalidInput, match="no scorer 'mine'"):
        GECEGate.fit(questions(), llm=bare, settings=GECESettings(scorer="mine"))


def test_a_bad_question_takes_no_other_with_it(gate):
    class Strict:
        name = gate.world.llm.name

        def generate(self, prompts, settings=GenerationSettings()):
            if any("house 105?" in prompt for prompt in prompts):
                raise RuntimeError("filtered")
            return honest_llm().generate(prompts, settings)

    there = replace(gate, world=World(llm=Strict()))
    found = there.decide_many(NEW, return_exceptions=True)
    assert [i for i, one in enumerate(found) if isinstance(one, ModelFailed)] == [5]
    assert found[:5] + found[6:] == gate.decide_many(NEW[:5] + NEW[6:])


def test_a_gate_that_harms_says_so():
    """Retrieval is always wrong here, and half of the direct answers are right."""
    wrong = ["nonsense"] * 60
    gate = GECEGate.fit(
        questions(), llm=honest_llm(), retrieved_answers=wrong, target_rate=0.9, settings=PRODUCT
    )
    assert "never retrieving is right more often (0.500)" in str(gate.report)
