"""Settings that declare themselves: what a field takes stands with it, and nowhere else."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.settings import (
    Count,
    Holds,
    Percent,
    Positive,
    Range,
    Settings,
    Share,
    Whole,
    described,
    with_values,
)
from ltrag_plugins.types import GenerationSettings


@dataclass(frozen=True, slots=True)
class Loop(Settings):
    rounds: Whole = 5
    """Most rounds
    after the first answer."""
    earlier: Literal["none", "text"] = "text"


@dataclass(frozen=True, slots=True)
class Everything(Settings):
    k: Count = 3
    """Passages shown."""
    rate: Share = 0.5
    below: Percent | None = None
    step: Positive = 0.1
    temperature: Annotated[float, Range(below=2)] = 1.0
    sorted: bool = True
    language: str = "en"
    template: Annotated[str, Holds("question", "passages")] = "{passages} {question}"
    right: Literal["em", "f1"] | Callable[[str], float] = "em"
    seed: Annotated[int, Range(0)] | Literal["random"] = 0
    vectors: tuple[float, ...] = ()
    loop: Loop = field(default_factory=Loop)

    def _check_together(self) -> None:
        if self.k == 99 and not self.sorted:
            raise InvalidInput("so many passages need an order: set sorted=True")


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("k", [1, 99], [0, -1, 1.5, True, "3", None, float("nan")]),
        ("rate", [0, 0.5, 1.0], [-0.01, 1.01, float("nan"), float("inf"), "half", True]),
        ("below", [None, 0, 100], [-1, 100.5, "low"]),
        ("step", [1e-9, 7], [0, -1.0, float("inf")]),
        ("temperature", [-5.0, 1.99], [2, float("-inf")]),
        ("sorted", [True, False], [1, "yes", None]),
        ("language", ["de", ""], [3, None]),
        ("template", ["{question}: {passages}"], ["{question}", "", 4]),
        ("right", ["em", "f1", len], ["bleu", 3, None, True]),
        ("seed", [0, 7, "random"], [-1, "other", 0.5]),
    ],
)
def test_a_value_is_checked_against_its_annotation(name, inside, outside):
    for value in inside:
        assert getattr(Everything(**{name: value}), name) == value
    for value in outside:
        with pytest.raises(InvalidInput, match=name):
            Everything(**{name: value})


def test_numbers_of_other_libraries_become_pythons_own():
    found = Everything(k=np.int64(3), rate=np.float32(0.5), step=np.int32(2), seed=np.uint8(7))
    assert json.dumps([found.k, found.rate, found.step, found.seed]) == "[3, 0.5, 2, 7]"
    assert found == Everything(k=3, rate=0.5, step=2, seed=7)
    with pytest.raises(InvalidInput, match="k must be a whole number"):
        Everything(k=np.float64(3))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number, at least 1, got 0"),
        ({"max_tokens": "8"}, "max_tokens must be a whole number, at least 1, got '8'"),
        ({"max_tokens": None}, "max_tokens must be a whole number, at least 1, got None"),
        ({"max_tokens": True}, "max_tokens must be a whole number, at least 1, got True"),
        ({"temperature": -1.0}, "temperature must be a number, at least 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be .* got nan"),
        ({"temperature": np.float32("inf")}, "temperature must be .*inf"),
        ({"temperature": None}, "temperature must be .* got None"),
        ({"seed": 1.5}, "seed must be a whole number or None, got 1.5"),
        ({"stop": None}, "stop must be a text, or a list of texts, got NoneType None"),
        ({"stop": ["end", 7]}, "stop must be a text, or a list of texts, got int 7"),
        ({"stop": [""]}, "stop string is empty"),
        ({"stop": ""}, "stop string is empty"),
    ],
)
def test_generation_settings_out_of_range_are_refused(settings, why):
    with pytest.raises(InvalidInput, match=why):
        GenerationSettings(**settings)


def test_a_single_text_is_one_stop_string():
    assert GenerationSettings(stop="end") == GenerationSettings(stop=["end"])  # type: ignore[arg-type]


def test_generation_settings_take_numbers_of_other_libraries():
    found = GenerationSettings(np.int64(8), ("a",), np.float32(0.5), np.uint8(3))
    assert found == GenerationSettings(8, ("a",), 0.5, 3)
    assert json.dumps([found.max_tokens, found.temperature, found.seed]) == "[8, 0.5, 3]"


def test_the_message_names_what_came_and_what_is_taken():
    with pytest.raises(InvalidInput, match=r"rate must be a number, from 0 to 1, got 7"):
        Everything(rate=7)
    with pytest.raises(InvalidInput, match=r"earlier must be one of none, text, got 'all'"):
        Loop(earlier="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"template must hold '\{passages\}'"):
        Everything(template="{question}")


def test_rules_between_fields_come_after_those_of_each():
    assert Everything(k=98, sorted=False).k == 98
    with pytest.raises(InvalidInput, match="sorted=True"):
        Everything(k=99, sorted=False)


def values_of(settings) -> dict[str, object]:
    return {row["setting"]: row["default"] for row in described(settings)}


@given(
    st.integers(1, 98),
    st.floats(0, 1),
    st.none() | st.floats(0, 100),
    st.booleans(),
    st.sampled_from(["none", "text"]),
)
def test_what_a_settings_value_says_is_read_back(k, rate, below, in_order, earlier):
    settings = Everything(k=k, rate=rate, below=below, sorted=in_order, loop=Loop(earlier=earlier))
    words = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values_of(settings).items()
    ]
    assert with_values(Everything(), words) == settings


def test_text_is_read_as_the_field_wants_it_and_all_values_change_at_once():
    read = with_values(Everything(), ["k=8", "rate=1", "language=8", "loop.rounds=0"])
    assert (read.k, read.rate, read.language, read.loop.rounds) == (8, 1.0, "8", 0)
    assert isinstance(read.rate, float)
    short = with_values(Everything(), ["rate=.5", "temperature=-.5", "language=.5"])
    assert (short.rate, short.temperature, short.language) == (0.5, -0.5, ".5")
    for nothing in ("null", "None"):
        assert with_values(Everything(below=3), [f"below={nothing}"]).below is None
    assert with_values(Everything(), ["language=None"]).language == "None"
    assert with_values(Everything(), ["seed=random"]).seed == "random"
    assert with_values(Everything(), ["sorted=False"]) == with_values(
        Everything(), ["sorted=false"]
    )
    assert with_values(Everything(), ["language=True"]).language == "True"
    template = "{passages}={question}"  # split at the first equals sign
    assert with_values(Everything(), [f"template={template}"]).template == template
    read = with_values(Everything(k=99), ["sorted=false", "k=1"])
    assert (read.k, read.sorted) == (1, False)


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("rates=1", "did you mean rate"),
        ("loop.round=1", "did you mean rounds"),
        ("loop=1", "rounds, earlier"),
        ("k.deep=1", "no settings of its own"),
        ("k=many", "a whole number, at least 1"),
        ("k=0", "at least 1"),
        ("loop.earlier=all", "one of none, text"),
        ("vectors=[1]", "Python"),  # what no word can say
        *((word, "NAME=VALUE") for word in ("k", "k=", "=8")),
    ],
)
def test_a_word_that_cannot_be_used_is_named_with_what_can(word, remedy):
    with pytest.raises(InvalidInput, match=remedy):
        with_values(Everything(), [word])


def test_what_a_field_means_and_takes_is_said_from_where_it_stands():
    assert values_of(Everything())["loop.earlier"] == "text"
    assert "vectors" not in values_of(Everything())
    assert values_of(Loop(rounds=2)) == {"rounds": 2, "earlier": "text"}
    rounds, earlier = described(Loop())
    assert rounds["meaning"] == "Most rounds after the first answer."
    assert earlier["meaning"] == ""
    takes = {row["setting"]: row["takes"] for row in described(Everything())}
    assert takes["right"] == "one of em, f1"
    assert takes["k"] == "a whole number, at least 1"
    assert takes["below"] == "a number, from 0 to 100 or None"
    assert takes["temperature"] == "a number, below 2"
