"""The three lines that would else need scipy, against scipy."""

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins import calibration

NUMBERS = st.floats(-1e4, 1e4)
ROWS = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.lists(NUMBERS, min_size=size, max_size=size), min_size=1, max_size=4)
)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@given(rows=ROWS)
def test_shares_of_rows_are_scipys(name, rows):
    ours, theirs = getattr(calibration, name), getattr(scipy.special, name)
    table = np.array(rows)
    assert ours(table) == pytest.approx(theirs(table, axis=-1), rel=1e-12, abs=1e-12)
    assert ours(table[0]) == pytest.approx(theirs(table[0]), rel=1e-12, abs=1e-12)


@given(numbers=st.lists(NUMBERS, min_size=1))
def test_a_probability_of_log_odds_is_scipys_without_a_warning(numbers):
    table = np.array(numbers)
    assert calibration.expit(table) == pytest.approx(scipy.special.expit(table), rel=1e-12)


def test_what_cannot_happen_has_no_share():
    row = np.array([0.0, -np.inf, np.log(3)])
    assert calibration.softmax(row) == pytest.approx([0.25, 0, 0.75])
    assert np.exp(calibration.log_softmax(row)) == pytest.approx([0.25, 0, 0.75])
