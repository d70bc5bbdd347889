import math

import numpy as np
import pytest
from wordfreq import word_frequency

from ltrag_plugins.errors import CalibrationError, InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.probability_gates import (
    SIGNALS,
    GateSettings,
    GateThreshold,
    fit_threshold,
    gated,
    quantile_threshold,
    word_rarity,
)
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Generation, Passage, Question, Token
from ltrag_plugins.uncertainty import mean_entropy, mean_logprob, mean_margin

EMMA = Passage("Emma is a novel by Jane Austen.")


def said(text: str, *probabilities: float) -> Generation:
    """Tokens of these probabilities, each with one alternative that has half of the rest."""
    tokens = [
        Token("t", math.log(p), alternatives=(("t", math.log(p)), ("u", math.log((1 - p) / 2))))
        for p in probabilities
    ]
    return Generation(text, tuple(tokens))


class Shelf:
    def __init__(self, *passages: Passage) -> None:
        self.passages, self.asked = list(passages), []

    def search(self, queries, k):
        self.asked.append((tuple(queries), k))
        return [self.passages[:k] for _ in queries]


def model(**sure: float) -> ScriptedLLM:
    """Certain of each question's direct answer as told; always sure of what it reads."""

    def reply(prompt: str) -> Generation:
        if "novel" in prompt:
            return said(" Austen ", 0.9)
        return said("Eliot", next(p for word, p in sure.items() if word in prompt))

    return ScriptedLLM(reply)


def questions(*words: str) -> list[Question]:
    return [Question(f"{word}?") for word in words]


@pytest.mark.parametrize("signal", list(SIGNALS))
def test_a_threshold_is_learned_and_parts_two_questions_step_by_step(signal):
    llm, shelf = model(a1=0.6, b2=0.95, c3=0.7, d4=0.99), Shelf(EMMA)
    world = World(llm=llm, retriever=shelf)
    learned = run(fit_threshold(signal, questions("a1", "b2", "c3", "d4")), world)
    assert llm.calls == [tuple(direct_prompt(f"{w}?") for w in ("a1", "b2", "c3", "d4"))]
    # the unsure half, a1 and c3, lies beyond
    sure = run(gated("b2?", learned), world)
    assert (sure.text, sure.passages, len(sure.trace)) == ("Eliot", (), 1)
    assert shelf.asked == []
    unsure = run(gated("c3?", learned, GateSettings(k=2)), world)
    assert shelf.asked == [(("c3?",), 2)]
    assert llm.calls[-2:] == [(direct_prompt("c3?"),), (reading_prompt("c3?", [EMMA]),)]
    assert (unsure.text, unsure.passages) == ("Austen", (EMMA,))
    assert [draft.text for draft in unsure.trace] == ["Eliot", " Austen "]
    assert 0 < unsure.uncertainty < learned.value  # of the answer it gives: 0.9


def test_the_signals_are_the_figures_they_are_named_for():
    draft = said("x", 0.5, 0.8)
    llm = ScriptedLLM(lambda _: draft)

    def of(signal: str) -> float:
        never = GateThreshold(signal, math.inf)
        return run(gated("x?", never), World(llm=llm)).uncertainty

    assert of("logprob") == pytest.approx(mean_logprob(draft) / -20)
    assert of("product") == pytest.approx(1 - 0.4)
    assert of("least") == pytest.approx(0.5)
    assert of("entropy") == pytest.approx(1 - math.exp(-mean_entropy(draft)))
    assert of("margin") == pytest.approx(1 - mean_margin(draft))


def test_frequency_asks_nothing_to_learn_and_once_to_answer():
    llm, shelf = ScriptedLLM(lambda _: " x "), Shelf(EMMA)
    world = World(llm=llm, retriever=shelf)
    labelled = questions("the", "of the", "quokka wombat", "thylacine")
    learned = run(fit_threshold("frequency", labelled), world)
    assert llm.calls == []
    assert word_rarity("of the") < learned.value < word_rarity("quokka wombat")
    common, rare = run(gated("the of?", learned), world), run(gated("quokka?", learned), world)
    assert llm.prompts == [direct_prompt("the of?"), reading_prompt("quokka?", [EMMA])]
    assert (common.passages, rare.passages) == ((), (EMMA,))
    assert (common.uncertainty, rare.uncertainty) == (None, None)


def test_rarity_is_of_the_mean_frequency():
    mean = (word_frequency("the", "en") + word_frequency("quokka", "en")) / 2
    assert word_rarity("The quokka!") == pytest.approx(-math.log10(mean))
    assert word_rarity("") == pytest.approx(9.0)
    assert word_rarity("xqzzyv") == pytest.approx(9.0)
    with pytest.raises(InvalidInput, match="no word frequencies for the language 'xx'"):
        word_rarity("the", "xx")


@pytest.mark.parametrize(
    ("signals", "rate", "threshold"),
    [
        ([4, 1, 3, 2], 0.5, 2.5),
        ([4, 1, 3, 2], 0.25, 3.5),
        ([4, 1, 3, 2], 0.0, math.inf),
        ([4, 1, 3, 2], 1.0, -math.inf),
        ([5, 1, 2, 3, 4], 0.5, 3.5),  # 2 or 3 of 5: the lower share
        ([1, 2, 2, 2, 2], 0.5, 1.5),  # 4 of 5 is nearer than none
        ([1, 1, 1, 2, 2], 0.2, math.inf),  # 2 of 5 or none: none
        ([1, 1, 1, 2, 2], 0.3, 1.5),
        ([7, 7, 7, 7], 0.5, math.inf),  # all or none: none
        ([7], 0.9, -math.inf),
    ],
)
def test_thresholds_counted_by_hand(signals, rate, threshold):
    assert quantile_threshold(signals, rate) == threshold


def test_without_ties_the_share_is_the_rate():
    signals = np.random.default_rng(0).normal(size=200)
    for rate in (0.1, 0.37, 0.5, 0.8):
        beyond = signals > quantile_threshold(signals.tolist(), rate)
        assert beyond.mean() == pytest.approx(rate, abs=0.5 / 200)
        low, high = np.quantile(signals, [1 - rate - 0.01, 1 - rate + 0.01])
        assert low < quantile_threshold(signals.tolist(), rate) < high


def test_numbers_with_nothing_between_them_are_parted_all_the_same():
    low = 1.0
    high = math.nextafter(low, 2)
    threshold = quantile_threshold([low, high], 0.5)
    assert (low > threshold, high > threshold) == (False, True)


def test_where_nothing_is_found_the_direct_answer_stands():
    llm = model(a1=0.6)
    counter = CostCounter()
    answer = run(
        gated("a1?", GateThreshold("product", 0.1)),
        World(llm=llm, retriever=Shelf()),
        observers=[counter],
    )
    assert (answer.text, answer.passages, counter.cost.calls) == ("Eliot", (), 1)
    assert answer.uncertainty == pytest.approx(0.4)


def test_a_blank_draft_retrieves():
    llm = ScriptedLLM(lambda p: said("Austen", 0.9) if "novel" in p else Generation("", ()))
    answer = run(gated("a?", GateThreshold("margin", 0.9)), World(llm=llm, retriever=Shelf(EMMA)))
    assert answer.text == "Austen"


def test_texts_alone_are_refused_with_what_to_do():
    world = World(llm=ScriptedLLM(lambda _: "x"), retriever=Shelf(EMMA))
    with pytest.raises(NoTokenProbabilities, match="logprobs=True"):
        run(fit_threshold("logprob", questions("a1")), world)
    bare = Generation("x", (Token("x", -0.1),))
    with pytest.raises(NoTokenProbabilities, match="top_logprobs"):
        run(gated("a?", GateThreshold("margin", 0.5)), World(llm=ScriptedLLM(lambda _: bare)))


def test_no_questions_unknown_signals_and_foreign_thresholds_are_named():
    with pytest.raises(CalibrationError, match="gate-margin learns"):
        run(fit_threshold("margin", []), World())
    with pytest.raises(InvalidInput, match="no gate by 'mood'"):
        run(fit_threshold("mood", questions("a")), World())
    with pytest.raises(InvalidInput, match="gate-margin was given the threshold of gate-entropy"):
        METHODS["gate-margin"].flow(Question("a?"), learned=GateThreshold("entropy", 0.5))
    with pytest.raises(InvalidInput, match="a quantile needs numbers"):
        quantile_threshold([0.1, math.nan], 0.5)


@pytest.mark.parametrize(
    "wrong",
    [{"target_rate": 1.1}, {"target_rate": math.nan}, {"k": 0}, {"max_tokens": 0},
     {"direct_template": "x"}],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidInput, match=r"template|" + next(iter(wrong))):
        GateSettings(**wrong)


def test_the_rows_tell_what_they_need_and_cost():
    assert "probabilities" in METHODS["gate-entropy"].needs
    assert "probabilities" not in METHODS["gate-frequency"].needs
    assert [METHODS[f"gate-{s}"].most_calls(None) for s in ("margin", "frequency")] == [2, 1]
