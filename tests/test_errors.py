"""The error tree, and the values that pass between rooms."""

import dataclasses
import pickle
import re

import pytest

from ltrag_plugins import errors, types
from ltrag_plugins.errors import LtragError

ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, LtragError)]
VALUES = [t for t in vars(types).values() if dataclasses.is_dataclass(t)]


def drawn_tree() -> dict[str, tuple[str, str | None]]:
    """From each name drawn in the module's docstring to its parent and its second base."""
    tree, above = {}, [(-1, "Exception")]
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([\s│├└─]*)(\w+)\s+(?:\(also (\w+)\))?", line + " ")
        if found is None or not hasattr(errors, found[2]):
            continue
        depth = len(found[1])
        while above[-1][0] >= depth:
            above.pop()
        tree[found[2]] = (above[-1][1], found[3])
        above.append((depth, found[2]))
    return tree


def test_the_drawn_tree_is_the_real_one():
    real = {
        error.__name__: (
            error.__bases__[0].__name__,
            error.__bases__[1].__name__ if len(error.__bases__) > 1 else None,
        )
        for error in ERRORS
    }
    assert len(real) > 15
    assert drawn_tree() == real


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
