"""Every bad input is a named error that says what to do, seen where users meet it: at the gate."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.errors import (
    CalibrationError,
    EmptyQuestion,
    InvalidInput,
    InvalidLogProbability,
    MissingReferences,
    ModelError,
    ModelFailed,
    NeedsGradients,
    NoTokenProbabilities,
    PromptTooLong,
    RetrieverFailed,
)
from ltrag_plugins.flow import World, run
from ltrag_plugins.gece import Evidence, GECEGate, GECESettings
from ltrag_plugins.gece.signals import drafting
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GenerationSettings, Question, Token
from tests.gece_parts import Letters, answer, honest_llm, questions, said

PRODUCT = GECESettings(scorer="product")
KNOWN = "What is the colour of house 100?"


class Unchecked:
    """A provider whose numbers nobody looked at; `change` spoils a generation."""

    name = "honest"

    def __init__(self, change: Callable[[Generation], Generation]) -> None:
        self.change = change

    def generate(self, prompts, settings=GenerationSettings()) -> list[Generation]:
        return [self.change(answer(prompt)) for prompt in prompts]


def with_logprob(logprob: float) -> Callable[[Generation], Generation]:
    return lambda g: replace(g, tokens=tuple(Token(t.text, logprob) for t in g.tokens or ()))


def without_tokens(generation: Generation) -> Generation:
    return replace(generation, tokens=None)


@pytest.fixture(scope="module")
def gate() -> GECEGate:
    return GECEGate.fit(questions(), llm=honest_llm(), target_rate=0.5, settings=PRODUCT)


def refused(error, match, **fit):
    """`fit` raises, and the model was not asked for nothing."""
    llm = honest_llm()
    with pytest.raises(error, match=match):
        GECEGate.fit(**{"questions": questions(), "llm": llm, "settings": PRODUCT} | fit)
    assert llm.calls == []


@pytest.mark.parametrize("question", ["", "  \n\t", "?!", "...", "🙂"])
def test_a_question_without_words(gate, question):
    calls = len(gate.world.llm.calls)
    with pytest.raises(EmptyQuestion, match="ask something"):
        gate.decide(question)
    assert len(gate.world.llm.calls) == calls
    blank = [*questions(), Question(question, ("x",))]
    refused(EmptyQuestion, r"questions\[60\].*ask something, or leave it out", questions=blank)


@pytest.mark.parametrize("question", [None, 7, ["Who?"]])
def test_a_question_that_is_no_string(gate, question):
    with pytest.raises(InvalidInput, match="a question is a string"):
        gate.decide(question)


def test_a_question_of_twenty_thousand_words(gate):
    long = "why " * 20_000
    with pytest.raises(PromptTooLong, match=r"20000 words, the gate takes 2000\. Shorten it"):
        gate.decide(long)
    asked = [questions(1)[0], Question(long, ("x",)), *questions()]
    refused(PromptTooLong, r"questions\[1\].*max_words, or leave it out", questions=asked)


def test_a_longer_question_where_the_model_reads_it():
    settings = replace(PRODUCT, max_words=3000)
    gate = GECEGate.fit(questions(), llm=honest_llm(), settings=settings)
    assert gate.decide("why " * 2500 + KNOWN).draft.text == "white"


def test_no_calibration_questions():
    refused(CalibrationError, "no calibration questions; a gate needs at least 20", questions=[])


def test_fewer_than_twenty_calibration_questions():
    refused(CalibrationError, "19 calibration questions.*better 200", questions=questions(19))


def test_calibration_questions_that_are_no_questions():
    refused(InvalidInput, r"Question\(text, answers\)", questions=[7] * 20)
    answers = {question.text: question.answers[0] for question in questions()}
    refused(InvalidInput, r"mapping.*Question\(text, answers\)", questions=answers)


@pytest.mark.parametrize(
    "given", [{"text": 7}, {"answers": (1984,)}, {"answers": None}, {"id": 0}, {"id": None}]
)
def test_a_question_an_answer_or_an_id_that_is_no_text(given):
    with pytest.raises(InvalidInput, match=r"are texts, got (7|1984|None|0); write a number as"):
        Question(**{"text": "Which year?"} | given)


def test_parts_of_a_fit_that_are_something_else():
    refused(InvalidInput, "signals must be functions by name, got list", signals=[len])
    refused(InvalidInput, r"signals\['a'\] must be a function.*got str 'len'", signals={"a": "len"})
    refused(InvalidInput, r"settings must be GECESettings.*got dict", settings={"samples": 3})
    refused(InvalidInput, "frequencies must be WordFrequencies.*got str 'de'", frequencies="de")
    refused(InvalidInput, r"retrieval_cost must be a .*Usage\(calls.*got int 5", retrieval_cost=5)
    refused(InvalidInput, "correct must be a model, or a function.*'contains'", correct="contains")


def test_a_signal_that_gives_a_number_of_numpys():
    own = {"theirs": lambda text: np.int64(len(text)), "ours": len}
    found = run(drafting(KNOWN, PRODUCT, own=own), World(llm=honest_llm())).extra
    assert found == {"theirs": len(KNOWN), "ours": len(KNOWN)}


def test_a_calibration_question_without_accepted_answers():
    bare = [*questions(), Question("Who wrote Emma?", id="q-61")]
    refused(MissingReferences, "'q-61' has no accepted answers", questions=bare)
    bare[-1] = replace(bare[-1], id="")
    refused(MissingReferences, "Who wrote Emma", questions=bare)


@pytest.mark.parametrize(
    ("text", "kind", "remedy"),
    [("red", "right", "harder questions"), ("none", "wrong", "Always retrieve")],
)
@pytest.mark.parametrize("exceptions", [0, 1])
def test_a_model_that_is_right_or_wrong_on_all_of_them(text, kind, remedy, exceptions):
    other = {"right": "none", "wrong": "red"}[kind]
    calibration = [Question(f"What colour is house {i}?", ("red",)) for i in range(30)]

    def always(prompt):
        return said(other if exceptions and "house 3?" in prompt else text, -0.1)

    with pytest.raises(CalibrationError, match=f"{kind} on .nearly. all 30.*{remedy}"):
        GECEGate.fit(calibration, llm=ScriptedLLM(always))


@pytest.mark.parametrize("logprob", [math.nan, 0.7])
def test_log_probabilities_that_are_none(gate, logprob):
    broken = Unchecked(with_logprob(logprob))
    with pytest.raises(InvalidLogProbability, match="natural logarithms"):
        GECEGate.fit(questions(), llm=broken, settings=PRODUCT)
    with pytest.raises(InvalidLogProbability, match="natural logarithms"):
        replace(gate, world=World(llm=broken)).decide(KNOWN)


def test_the_remedy_of_a_gate_on_text_works_on_such_a_model():
    broken = Unchecked(with_logprob(math.nan))
    settings = GECESettings(scorer="word_frequency", tier="text")
    assert GECEGate.fit(questions(), llm=broken, settings=settings).decide(KNOWN).tier == "text"


def test_minus_infinity_is_very_uncertain_and_no_error(gate):
    hopeless = replace(gate, world=World(llm=Unchecked(with_logprob(-math.inf))))
    with pytest.raises(NoTokenProbabilities, match="alternatives"):
        hopeless.decide(KNOWN)  # the gate was fitted on alternatives too
    sure = GECEGate.fit(
        questions(),
        llm=Unchecked(lambda g: with_logprob(g.tokens[0].logprob)(g)),
        settings=PRODUCT,
        target_rate=0.5,
    )
    assert replace(sure, world=hopeless.world).decide(KNOWN).retrieve


def test_missing_token_probabilities(gate):
    silent = Unchecked(without_tokens)
    with pytest.raises(NoTokenProbabilities, match="logprobs=True"):
        replace(gate, world=World(llm=silent)).decide(KNOWN)
    with pytest.raises(NoTokenProbabilities, match="tier='text'"):
        GECEGate.fit(questions(), llm=silent, settings=replace(PRODUCT, tier="probabilities"))
    with pytest.raises(CalibrationError, match=r"'product'.*gives token probabilities"):
        GECEGate.fit(questions(), llm=silent, settings=PRODUCT)


def test_a_retriever_that_raises_during_the_fit():
    class Down:
        def search(self, queries, k):
            raise OSError("disk gone")

    with pytest.raises(RetrieverFailed, match="disk gone") as caught:
        GECEGate.fit(questions(), llm=honest_llm(), retriever=Down(), settings=PRODUCT)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_model_that_raises_during_the_fit():
    def refuse(prompt):
        raise PermissionError("no key")

    with pytest.raises(ModelFailed, match="no key") as caught:
        GECEGate.fit(questions(), llm=ScriptedLLM(refuse))
    assert isinstance(caught.value.__cause__, PermissionError)


def test_an_encoder_that_gives_nan():
    class Broken(Letters):
        def encode(self, texts):
            return super().encode(texts) * np.nan

    with pytest.raises(ModelError, match="encoder"):
        GECEGate.fit(questions(), llm=honest_llm(), encoder=Broken(), settings=PRODUCT)


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        ({"target_rate": 1.2}, "target_rate must be a number, from 0 to 1 or None, got 1.2"),
        ({"target_accuracy": -1.0}, "target_accuracy must be always or a number"),
        ({"target_rate": math.nan}, "target_rate must be a number"),
        ({"target_rate": 0.2, "target_accuracy": 0.9}, "not both"),
        ({"target_accuracy": "always"}, "'always' compares with retrieval; give retriever="),
        ({"budget": 0.5}, "which was not measured; fit with your chain"),
        ({"budget": 0.5, "retrieved_answers": ["red"] * 60}, "which was not measured"),
    ],
    ids=str,
)
def test_targets_that_cannot_be(targets, match):
    refused(InvalidInput, match, **targets)


def test_an_accuracy_that_cannot_be_reached():
    with pytest.raises(CalibrationError, match=r"out of reach.*Ask for less"):
        GECEGate.fit(
            questions(),
            llm=honest_llm(),
            settings=PRODUCT,
            target_accuracy=0.99,
            retrieved_answers=["no idea"] * 60,
        )


@pytest.mark.parametrize("count", [0, 59, 61])
def test_retrieved_answers_of_another_length(count):
    refused(
        InvalidInput, f"{count} retrieved_answers for 60 questions", retrieved_answers=["x"] * count
    )


@pytest.mark.parametrize("scorer", ["fitted", "gece", "gradient_dot"])
def test_gradients_from_a_model_without_weights(scorer):
    settings = GECESettings(scorer=scorer, gradients="always")
    refused(NeedsGradients, r"honest has no gradients.*TransformersLLM", settings=settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (GECESettings(scorer="perplexity"), "no scorer 'perplexity'.*fitted, gece, mean"),
        (GECESettings(scorer="disagreement"), "samples=3"),
        (GECESettings(scorer="gece"), "gradients='always'.*semantics=False"),
        (GECESettings(scorer="gradient_dot"), "gradients='always'"),
        (GECESettings(scorer="gradient_cosine", gradients="always"), "agreement='cosine'"),
    ],
    ids=lambda value: getattr(value, "scorer", ""),
)
def test_a_scorer_that_these_settings_cannot_feed_is_refused_before_the_model_is_asked(
    settings, match
):
    refused(InvalidInput, match, settings=settings)


def test_gradients_if_they_pay_do_without_them_on_a_model_that_has_none():
    gate = GECEGate.fit(questions(), llm=honest_llm(), settings=replace(PRODUCT, gradients="auto"))
    assert (gate.along, gate.report.tier) == (None, "probabilities")


def test_evidence_without_the_embeddings_of_the_fit():
    gate = GECEGate.fit(questions(20), llm=honest_llm(), encoder=Letters())
    item = Evidence(KNOWN, answer(f"Question: {KNOWN}\nAnswer:"))
    with pytest.raises(InvalidInput, match=r"20 columns and got 0.*Evidence\.vectors"):
        gate.judge(item)


def test_a_retriever_of_a_framework_that_is_not_wrapped():
    class Theirs:
        def invoke(self, query):
            return []

    refused(InvalidInput, "retriever=Theirs .* LangChainRetriever", retriever=Theirs())
    refused(InvalidInput, "retriever=object .* LlamaIndexRetriever", retriever=object())


def test_answers_with_retrieval_that_are_no_texts():
    class Message:
        content = "red"

    replies = [*["red"] * 59, Message()]
    refused(InvalidInput, r"got Message.*\.text", retrieved_answers=replies)


@pytest.mark.parametrize("scorer", ["product", "gece", "gradient_dot"])
def test_a_scorer_that_reads_what_the_tier_does_not(scorer):
    settings = GECESettings(scorer=scorer, tier="text", semantics=False)
    refused(CalibrationError, "needs the gradient|more than text", settings=settings)


def test_gradients_on_a_tier_that_reads_none():
    with pytest.raises(InvalidInput, match="reads no gradients"):
        GECESettings(tier="text", gradients="always")


def test_an_error_of_the_model_or_the_retriever_says_what_to_try():
    def broken(*_, **__):
        raise TimeoutError("no answer in 60 s")

    down = Unchecked(broken)
    with pytest.raises(ModelFailed, match=r"no answer in 60 s\..*__cause__.*retries"):
        GECEGate.fit(questions(), llm=down, settings=PRODUCT)

    class Gone:
        def search(self, queries, k):
            raise LookupError("index gone")

    with pytest.raises(RetrieverFailed, match=r"index gone\..*__cause__.*the store"):
        GECEGate.fit(questions(), llm=honest_llm(), settings=PRODUCT, retriever=Gone())
