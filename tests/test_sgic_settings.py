"""Settings of SGIC out of range, of another type, or that exclude each other."""

import math
from dataclasses import fields

import numpy as np
import pytest

from ltrag_plugins.dur import DURSettings
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import LongTailSettings
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.methods.shots import DURShotsSettings
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.training import FinetuneSettings


@pytest.mark.parametrize(("values", "match"), [
    ({"rounds": -1}, "rounds must be a whole number, at least 0, got -1"),
    ({"keys": 0}, "keys must be a whole number, at least 1"),
    ({"max_calls": 0}, "max_calls must be a whole number, at least 1"),
    ({"max_tokens": 0}, "max_tokens must be a whole number, at least 1"),
    ({"answer_tokens": 0}, "answer_tokens must be"),
    ({"samples": 0}, "samples must be"),
    ({"cut_to": 0}, "cut_to must be"),
    ({"document_words": 0}, "document_words must be"),
    ({"certain_below": 101}, "certain_below must be a number, from 0 to 100, got 101"),
    ({"certain_below": None}, "certain_below must be .* got None"),
    ({"least_gain": -1}, "least_gain must be a number, from 0 to 100 or None, got -1"),
    ({"temperature": 0}, "temperature must be a number, above 0"),
    ({"temperature": math.inf}, "temperature must be a number, above 0"),
    ({"seed": None}, "seed must be a whole number, at least 0, got None"),
    ({"seed": -1}, "seed must be a whole number, at least 0, got -1"),
    ({"keep_prompts": "no"}, "keep_prompts must be true or false, got 'no'"),
    ({"estimator": None}, "estimator must be a text, got None"),
    ({"estimator": "bert"}, "no estimator 'bert'; there are product, .*agreement"),
    ({"source": "bm25"}, "source must be one of .*encoder"),
    ({"documents": ["keys"]}, r"documents must be one of .* got \['keys'\]"),
    ({"earlier": "all"}, "earlier must be one of"),
    ({"choose": None}, "choose must be one of .* got None"),
    ({"on_error": "ignore"}, "on_error must be one of"),
    ({"score_documents": "never"}, "score_documents must be one of"),
    ({"stop": "\n"}, "stop must be a tuple"),
    ({"stop": ("",)}, "stop must be a tuple"),
    ({"stop": ("\n", 3)}, "stop must be a tuple of strings, none empty"),
    ({"stop": b"x"}, "stop must be a tuple of strings, none empty, got b'x'"),
    ({"stop": None}, "stop must be a tuple of strings, none empty, got None"),
    ({"templates": "{question}"}, "templates must be a PromptTemplates.* got '{question}'"),
    ({"rounds": 1, "earlier": "none", "documents": "none"}, "asks what was asked before"),
    ({"earlier": "none", "rounds": 2}, "all 2 rounds ask the same"),
    ({"estimator": "agreement", "samples": 5, "max_calls": 5}, "takes more than max_calls=5"),
], ids=str)  # fmt: skip
def test_settings_out_of_range_or_of_another_type(values, match):
    with pytest.raises(InvalidInput, match=match):
        SGICSettings(**values)


@pytest.mark.parametrize(
    "kind",
    [
        DURSettings,
        DURShotsSettings,
        FinetuneSettings,
        GECESettings,
        LongTailSettings,
        SGICSettings,
    ],
)
def test_a_seed_that_no_generator_takes_is_refused_as_the_settings_are_made(kind):
    assert np.random.default_rng(kind(seed=0).seed)
    with pytest.raises(InvalidInput, match="seed must be a whole number, at least 0, got -1"):
        kind(seed=-1)


@pytest.mark.parametrize(
    "wrong",
    [None, "x", b"x", object(), [], {}, 1j, math.nan, (None,)],
    ids=lambda value: type(value).__name__,  # the same in every process
)
@pytest.mark.parametrize("field", [field.name for field in fields(SGICSettings)])
def test_nothing_that_is_no_value_of_a_field_ends_in_another_error(field, wrong):
    try:
        SGICSettings(**{field: wrong})
        said = field  # taken: it is a value of this field
    except InvalidInput as error:
        said = str(error)
    assert field in said


def test_numbers_of_numpy_are_numbers():
    taken = SGICSettings(
        certain_below=np.float32(20), least_gain=np.int64(1), temperature=np.float64(1),
        seed=np.int64(3), rounds=np.int32(2), stop=("\n", "Question:"),
    )  # fmt: skip
    assert (taken.certain_below, taken.seed, taken.rounds) == (20, 3, 2)


def test_nothing_to_look_at_is_fine_where_nobody_looks_again():
    assert SGICSettings(rounds=0, earlier="none", documents="none").rounds == 0
