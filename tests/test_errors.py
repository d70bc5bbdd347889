"""The error tree, and the values that pass between rooms."""

import dataclasses
import pickle

import pytest

from ltrag_plugins import errors, types
from ltrag_plugins.errors import LtragError

ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, LtragError)]
VALUES = [t for t in vars(types).values() if dataclasses.is_dataclass(t)]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_travels_between_processes(error):
    twin = pickle.loads(pickle.dumps(error("what came, what was wanted, the next step")))
    assert type(twin) is error
    assert "the next step" in str(twin)


@pytest.mark.parametrize("value", VALUES)
def test_values_are_frozen_and_hold_nothing_but_their_fields(value):
    assert value.__dataclass_params__.frozen
    assert not hasattr(value, "__dict__") or "__slots__" in vars(value)
    methods = [n for n, m in vars(value).items() if callable(m) and not n.startswith("__")]
    assert [name for name in methods if not name.startswith("_dataclass")] == []
