"""Methods with settings in one word, and the names that cells get from them."""

import json
from dataclasses import replace

import pytest
from evaluate_parts import many
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import Cell, cell_of, evaluate, summarize
from ltrag_plugins.evaluate.gating import RunGate
from ltrag_plugins.evaluate.spec import CellName
from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.listwise import ListwiseSettings
from ltrag_plugins.methods.method import ReadingSettings
from ltrag_plugins.methods.sgic import SGICMethodSettings
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.settings import described
from ltrag_plugins.types import Passage

LOOP = SGICMethodSettings().loop
NAMES = st.text("abcdefghij-", min_size=1, max_size=8)
PARTS = st.text("abcxyz019.=:_-", max_size=12)


@pytest.mark.parametrize(("word", "settings"), [
    ("single:k=5", ReadingSettings(k=5)),
    ("single:k=1:max_tokens=8", ReadingSettings(k=1, max_tokens=8)),
    ("sgic:k=8:loop.rounds=3", SGICMethodSettings(k=8, loop=replace(LOOP, rounds=3))),
    ("sgic:loop.choose=last", SGICMethodSettings(loop=replace(LOOP, choose="last"))),
    ("sgic:loop.cut_to=4", SGICMethodSettings(loop=replace(LOOP, cut_to=4))),
    ("sgic:loop.document_words=null", SGICMethodSettings(loop=replace(LOOP, document_words=None))),
    ("sgic:loop.certain_below=5", SGICMethodSettings(loop=replace(LOOP, certain_below=5.0))),
    ("listwise:window=5:step=3", ListwiseSettings(window=5, step=3)),
    ("listwise:step=3:window=5", ListwiseSettings(window=5, step=3)),
    ("sgic:loop.keep_prompts=true", SGICMethodSettings(loop=replace(LOOP, keep_prompts=True))),
])  # fmt: skip
def test_a_word_sets_what_python_sets(word, settings):
    cell = cell_of(word)
    assert cell.set == settings
    assert cell.name == word


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_setting_that_is_listed_can_be_given(method):
    listed = {row["setting"]: row["default"] for row in described(method.settings())}
    assert listed
    for name, value in listed.items():
        if ":" not in (text := json.dumps(value)):
            assert cell_of(f"{method.name}:{name}={text}").set == method.settings(), name


def test_a_method_alone_has_its_defaults_and_no_label():
    assert cell_of("single") == Cell(METHODS["single"])
    assert cell_of("sgic:loop.choose=least uncertain").name == "sgic:loop.choose=least_uncertain"


def test_long_words_that_begin_alike_are_told_apart_by_names_that_are_short():
    begin = "sgic:k=10:loop.rounds=1:loop.cut_to=1:loop.earlier=none:loop.documents=none"
    last, surest = cell_of(f"{begin}:loop.choose=last"), cell_of(begin)
    assert (last.set.loop.choose, surest.set.loop.choose) == ("last", "least uncertain")
    assert last.name != surest.name == cell_of(begin).name
    for cell in (last, surest):
        assert cell.name.startswith("sgic:k=10:loop.rounds=1:loop.cut_to=1:loop.earlier")
        assert len(cell.label) == 60
    word = "sgic:k=10:loop.rounds=1:loop.cut_to=1:loop.document_words=10000"
    assert cell_of(word).name == word, "a label of 58 stays as it is"


@pytest.mark.parametrize(("word", "said"), [
    ("sngle:k=5", ["did you mean single"]),
    ("single:kk=5", ["did you mean k"]),
    ("max_tokens=1", ["no method 'max_tokens=1'"]),
    ("zzz", ["; there are direct"]),
    ("single:k", ["NAME=VALUE", "'k'"]),
    ("single:k=", ["NAME=VALUE", "'k='"]),
    ("single:k=0", ["k must be a whole number", "at least 1"]),
    ("single:k=many", ["k must be a whole number", "'many'"]),
    ("single:k=2.5", ["k must be a whole number", "'2.5'"]),
    ("single:k=true", ["k must be a whole number", "'true'"]),
    ("single:k.more=1", ["k has no settings of its own"]),
    ("self-rag:threshold=high", ["threshold must be a number", "'high'"]),
    ("sgic:loop=3", ["loop has settings of its own: rounds,"]),
    ("sgic:loop.choose=best", ["choose", "least uncertain", "'best'"]),
    ("sgic:loop.cut_to=few", ["cut_to must be a whole number", "'few'"]),
    ("sgic:scale=3", ["scale is no number or text", "in Python only"]),
    ("dur:ranker=head/", ["ranker is no number or text"]),
])  # fmt: skip
def test_a_word_that_says_nothing_is_refused(word, said):
    with pytest.raises(InvalidInput) as error:
        cell_of(word)
    assert all(part in str(error.value) for part in said), error.value


@given(method=NAMES, label=PARTS, gate=NAMES, seed=st.integers(0, 99))
def test_a_name_is_taken_apart_as_it_was_put_together(method, label, gate, seed):
    for name in (
        CellName(method, label, gate, str(seed)),
        CellName(method, label),
        CellName(method, "", gate),
        CellName(method, "", "", str(seed)),
    ):
        assert CellName.parse(str(name)) == name
        assert name.alone == str(replace(name, gate=""))
        assert ":" not in name.file
        assert CellName.parse(name.file.replace("~", ":")) == name


@pytest.mark.parametrize("gate", ["gate", "eq2-new", "eq20", "", "eq2", "eq2:quality=chrf"])
def test_only_the_gate_of_the_formula_promises_no_probability(gate):
    formula = gate in ("eq2", RunGate("paper:quality=chrf").name)
    assert CellName("single", gate=gate).has_probability != formula


@pytest.mark.parametrize("part", ["a b", "a/b", "a+b", "a@b", "a~b", "a\\b"])
def test_what_would_split_a_name_is_refused(part):
    with pytest.raises(InvalidInput, match="in the label of a cell"):
        Cell(METHODS["single"], label=part)
    with pytest.raises(InvalidInput, match="in the gate of a cell"):
        CellName("single", gate=part)


def test_one_method_with_two_settings_shares_a_run(tmp_path):
    pool = BM25Retriever([Passage(f"Emma, by Jane Austen, part {i}") for i in range(5)])
    shown = World(llm=ScriptedLLM(lambda prompt: "Emma"), retriever=pool)
    cells = [cell_of("single:k=1"), cell_of("single:k=2"), Cell(METHODS["single"])]
    records = evaluate(many()[:3], cells, shown, out=tmp_path)
    assert {name: [len(one.passages) for one in rows] for name, rows in records.items()} == {
        "single:k=1": [1] * 3,
        "single:k=2": [2] * 3,
        "single": [ReadingSettings().k] * 3,
    }
    files = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert files == ["single.jsonl", "single~k=1.jsonl", "single~k=2.jsonl"]
    assert [row.name for row in summarize(records).rows] == [*records]
    again = evaluate(many()[:3], cells, shown, out=tmp_path)
    assert again == records
