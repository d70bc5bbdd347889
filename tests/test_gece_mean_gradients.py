"""No draft of a fit is held against a mean gradient that its own reference is part of."""

import numpy as np
import pytest

from ltrag_plugins.errors import ModelFailed, NeedsGradients
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.labels import collect
from ltrag_plugins.gece.score import mean_gradients
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import GenerationSettings, GradientAgreement, Question
from tests.gece_letters import Local, gradient


class OneHot(Local):
    """Each reference has a gradient in a direction of its own: its number."""

    def mean_gradient(self, prompts, continuations, *, layers=4):
        rows = np.eye(60, dtype=np.float32)[[int(c) for c in continuations]]
        return {"w": rows.mean(axis=0), "v": 2 * rows.mean(axis=0)}


@pytest.mark.parametrize(("count", "folds"), [(60, 5), (23, 5), (20, 2), (20, 60)])
def test_each_question_has_the_mean_over_the_folds_that_it_is_not_in(count, folds):
    texts = [str(i) for i in range(count)]
    overall, without = mean_gradients(texts, texts, OneHot(), GECESettings(folds=folds, seed=1))
    everyone = np.eye(60)[:count].mean(axis=0)
    np.testing.assert_allclose(overall["w"], everyone, atol=1e-6)
    np.testing.assert_allclose(overall["v"], 2 * everyone, atol=1e-6)
    for i, along in enumerate(without):
        others = np.flatnonzero(along["w"] > 1e-5)
        assert i not in others
        assert count - len(others) in (count // folds, count // folds + 1)
        np.testing.assert_allclose(along["w"][others], 1 / len(others), rtol=1e-4)
        np.testing.assert_allclose(along["v"], 2 * along["w"], atol=1e-6)
    # every question is left out for as many as are in its fold
    left_out = sum(np.abs(along["w"][:count]) < 1e-5 for along in without)
    assert sorted(left_out) == sorted(np.repeat(*np.unique(left_out, return_counts=True)))


def test_one_question_has_no_others_to_take_a_mean_of():
    overall, without = mean_gradients(["0"], ["0"], OneHot(), GECESettings())
    assert without == [overall]


def test_a_fit_reads_the_agreement_of_a_right_draft_without_its_own_reference():
    questions = [Question(f"say {i}", (str(i),), str(i)) for i in range(40)]

    class Echo(OneHot):
        """Right for the even ones; a draft's gradient is its reference's."""

        def generate(self, prompts, settings=GenerationSettings()):
            numbers = [int(p.split("say ")[1].split()[0].strip("\n?")) for p in prompts]
            return ScriptedLLM(str).generate(
                [str(n) if n % 2 == 0 else str(n - 1) for n in numbers], settings
            )

        def gradient_agreement(self, prompts, continuations, *, along, cosine=False, layers=4):
            rows = np.eye(60, dtype=np.float32)[[int(c) for c in continuations]]
            return [GradientAgreement(float(dot), None) for dot in rows @ along["w"]]

    settings = GECESettings(gradients="always", correct="exact_match")
    outcomes, along, _ = collect(questions, World(llm=Echo()), settings)
    dots = [outcome.evidence.agreement.dot for outcome in outcomes]
    right = [outcome.right for outcome in outcomes]
    assert right == [i % 2 == 0 for i in range(40)]
    # the mean over all would give every one of the right ones 1/40
    assert max(abs(dot) for dot, good in zip(dots, right, strict=True) if good) < 1e-6
    assert along["w"][:40] == pytest.approx(1 / 40)


def test_what_a_model_raises_is_an_error_of_ours():
    class Full(Local):
        def mean_gradient(self, prompts, continuations, *, layers=4):
            raise RuntimeError("out of memory")

    with pytest.raises(ModelFailed, match="RuntimeError: out of memory"):
        mean_gradients(["a"], ["b"], Full(), GECESettings())
    with pytest.raises(NeedsGradients, match="gradients='never'"):
        mean_gradients(["a"], ["b"], ScriptedLLM(str), GECESettings())


def test_of_letters():
    overall, _ = mean_gradients(["a", "b"], ["eel", "lee"], Local(), GECESettings())
    assert overall["w"] == pytest.approx((gradient("eel") + gradient("lee")) / 2)
