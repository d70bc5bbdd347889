"""The contract, held by every row; one line a method."""

import pytest
from contracts.methods import MethodContract

from ltrag_plugins.baselines import method
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import METHODS


class TestDirect(MethodContract):
    name = "direct"


class TestSingle(MethodContract):
    name = "single"


class TestIRCoT(MethodContract):
    name = "ircot"


class TestIterRetGen(MethodContract):
    name = "iter-retgen"


class TestSelfRAG(MethodContract):
    name = "self-rag"


class TestSuRe(MethodContract):
    name = "sure"


class TestListwise(MethodContract):
    name = "listwise"


class TestFilco(MethodContract):
    name = "filco"


class TestKSamples(MethodContract):
    name = "k-samples"


class TestRandomShots(MethodContract):
    name = "random-shots"


class TestBM25Shots(MethodContract):
    name = "bm25-shots"


class TestSKR(MethodContract):
    name = "skr"


class TestAdaptive(MethodContract):
    name = "adaptive"


class TestGateLogprob(MethodContract):
    name = "gate-logprob"


class TestGateProduct(MethodContract):
    name = "gate-product"


class TestGateLeast(MethodContract):
    name = "gate-least"


class TestGateEntropy(MethodContract):
    name = "gate-entropy"


class TestGateMargin(MethodContract):
    name = "gate-margin"


class TestGateFrequency(MethodContract):
    name = "gate-frequency"


class TestDUR(MethodContract):
    name = "dur"


class TestDURShots(MethodContract):
    name = "dur-shots"


class TestPromptPG(MethodContract):
    name = "promptpg"


class TestSGIC(MethodContract):
    name = "sgic"


def test_every_method_is_held_to_the_contract():
    held = {cls.name for cls in MethodContract.__subclasses__()}
    assert held == set(METHODS)


def test_an_unknown_method_is_refused_with_the_nearest_names():
    with pytest.raises(InvalidInput, match="did you mean direct"):
        method("dirct")
