"""Settings out of range, presets, cutting, prompts: what is refused and what is laid out."""

import math
import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.sgic import PromptTemplates, SGICSettings
from ltrag_plugins.sgic.prompts import cut_to_words
from ltrag_plugins.types import Passage
from tests.sgic_parts import THREE, answered, model, said


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"rounds": -1}, "rounds must be a whole number, at least 0, got -1"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"rounds": True}, "rounds must be a whole number"),
        ({"keys": 0}, "keys must be a whole number, at least 1"),
        ({"max_calls": 0}, "max_calls must be a whole number, at least 1"),
        ({"max_tokens": 0}, "max_tokens must be a whole number, at least 1"),
        ({"answer_tokens": 0}, "answer_tokens must be"),
        ({"samples": 0}, "samples must be"),
        ({"cut_to": 0}, "cut_to must be"),
        ({"document_words": 0}, "document_words must be"),
        ({"certain_below": 101}, "certain_below must be a number, from 0 to 100, got 101"),
        ({"certain_below": math.nan}, "certain_below must be"),
        ({"least_gain": -1}, "least_gain must be a number, from 0 to 100 or None, got -1"),
        ({"temperature": 0}, "temperature must be a number, above 0"),
        ({"temperature": math.inf}, "temperature must be a number, above 0"),
        ({"estimator": "bert"}, "no estimator 'bert'; there are product, .*agreement"),
        ({"source": "bm25"}, "source must be one of .*encoder"),
        ({"documents": "marks"}, "documents must be one of"),
        ({"earlier": "all"}, "earlier must be one of"),
        ({"choose": "best"}, "choose must be one of"),
        ({"on_error": "ignore"}, "on_error must be one of"),
        ({"score_documents": "never"}, "score_documents must be one of"),
        ({"stop": "\n"}, "stop must be a tuple"),
        ({"stop": ("",)}, "stop must be a tuple"),
        ({"earlier": "none", "documents": "none"}, "asks what was asked before"),
        ({"earlier": "none", "rounds": 2}, "all 2 rounds ask the same"),
        ({"estimator": "agreement", "samples": 5, "max_calls": 5}, "takes more than max_calls=5"),
    ],
    ids=str,
)
def test_settings_out_of_range(values, match):
    with pytest.raises(InvalidInput, match=match):
        SGICSettings(**values)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"certain_below": None}, "certain_below must be .* got None"),
        ({"certain_below": "20"}, "certain_below must be .* got '20'"),
        ({"certain_below": True}, "certain_below must be .* got True"),
        ({"least_gain": "a"}, "least_gain must be .* or None, got 'a'"),
        ({"least_gain": 1j}, "least_gain must be .* or None, got 1j"),
        ({"temperature": "x"}, "temperature must be .* got 'x'"),
        ({"temperature": None}, "temperature must be .* got None"),
        ({"stop": None}, "stop must be a tuple of strings, none empty, got None"),
        ({"stop": 3}, "stop must be a tuple of strings, none empty, got 3"),
        ({"stop": b"x"}, "stop must be a tuple of strings, none empty, got b'x'"),
        ({"stop": ("\n", 3)}, "stop must be a tuple of strings, none empty"),
        ({"templates": None}, r"templates must be a PromptTemplates\(\.\.\.\), got None"),
        ({"templates": "{question}"}, "templates must be a PromptTemplates.* got '{question}'"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"seed": 0.5}, r"seed must be a whole number, got 0\.5"),
        ({"keep_prompts": "no"}, "keep_prompts must be true or false, got 'no'"),
        ({"keep_prompts": None}, "keep_prompts must be true or false, got None"),
        ({"rounds": None}, "rounds must be a whole number, at least 0, got None"),
        ({"estimator": None}, "estimator must be a text, got None"),
        ({"choose": None}, "choose must be one of .* got None"),
        ({"documents": ["keys"]}, r"documents must be one of .* got \['keys'\]"),
    ],
    ids=str,
)
def test_settings_of_another_type(values, match):
    with pytest.raises(InvalidInput, match=match):
        SGICSettings(**values)


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
        seed=np.int64(3), rounds=np.int32(2),
    )  # fmt: skip
    assert (taken.certain_below, taken.seed, taken.rounds) == (20, 3, 2)
    assert SGICSettings(seed=-1, stop=("\n", "Question:"), least_gain=None).seed == -1


def test_nothing_to_look_at_is_fine_where_nobody_looks_again():
    assert SGICSettings(rounds=0, earlier="none", documents="none").rounds == 0


@pytest.mark.parametrize(
    ("variant", "documents", "answers"),
    [("documents", True, True), ("scores", False, True), ("answers", False, False)],
)
def test_the_rows_of_table_5(variant, documents, answers):
    llm = model([said("a", 0.3), said("b", 0.3)])
    settings = SGICSettings.paper(variant)
    assert (settings.rounds, settings.estimator) == (5, "product")
    answered(llm, settings=settings)
    last = llm.prompts[-1].splitlines()
    scored = [line.endswith(")") and "(Uncertainty Score: " in line for line in last]
    assert [any(s for s, line in zip(scored, last, strict=True) if line.startswith(start))
            for start in ("Document", "Round")] == [documents, answers]  # fmt: skip


def test_each_setting_says_what_it_is():
    import inspect

    source = inspect.getsource(SGICSettings)
    for field in fields(SGICSettings):
        assert re.search(rf'\n    {field.name}: .*\n    """', source), field.name


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"layout": "{documents} {question}"}, "layout must hold '{instruction}'"),
        ({"document": "{text}"}, "document must hold '{key}'"),
        ({"document": "{key}{text}{score}{title}"}, "a field that it has not .*title"),
        ({"score": "certain"}, "score must hold '{score}'"),
        ({"answer": "{text}{score}{"}, "a template is malformed"),
        ({"about_keys": "{key}"}, "a field that it has not .*key"),
        ({"bare": "Answer:"}, "bare must hold '{question}'"),
    ],
)
def test_templates_that_lack_a_field(values, match):
    with pytest.raises(InvalidInput, match=match):
        PromptTemplates(**values)


def test_the_whole_prompt_of_table_1():
    llm = model([said("Lord High", 0.27), said("United States", 0.49), said("Yellowcraig", 0.9)])
    answered(llm, settings=SGICSettings(rounds=2))
    t = PromptTemplates()
    assert llm.prompts[-1] == (
        f"{t.instruction}{t.about_scores}\n\n"
        "Document [1]: Castle: Dirleton Castle is a fortress in East Lothian. "
        "(Uncertainty Score: 50)\n"
        "Document [2]: Bay: Yellowcraig is a coastal area. (Uncertainty Score: 50)\n"
        "Document [3]: North Berwick is a seaside town. (Uncertainty Score: 50)\n\n"
        f"Question: Where is Dirleton Castle?\n{t.about_answers}\n"
        "Previous Generated Answer:\n"
        "Round 1: Lord High (Uncertainty Score: 73)\n"
        "Round 2: United States (Uncertainty Score: 51)\n"
        "Answer:"
    )


@pytest.mark.parametrize(
    ("text", "words", "kept"),
    [
        ("One two. Three four. Five", None, "One two. Three four. Five"),
        ("One two. Three four. Five", 5, "One two. Three four. Five"),
        ("One two. Three four. Five", 4, "One two. Three four."),
        ("One two. Three four. Five", 3, "One two."),
        ("One two. Three four. Five", 1, "One"),
        ('He said "no." Then left', 3, 'He said "no."'),
        ("About 3.14 and more", 3, "About 3.14 and"),
        ("x" * 50, 3, "x" * 30),
        ("ab " + "x" * 50, 3, "ab"),
        ("一二三四五六。七八九十一二三四五六", 1, "一二三四五六。"),
        ("", 3, ""),
        ("Dr. Who is on air again tonight", 5, "Dr. Who is on air"),
        ("One. Two three four five six. Seven", 5, "One. Two three four five"),
    ],
)
def test_a_cut_ends_with_a_sentence_where_one_ends_late_enough(text, words, kept):
    assert cut_to_words(text, words) == kept


@given(st.text(alphabet="ab. !\"。", max_size=80).map(lambda t: " ".join(t.split())),
       st.integers(1, 8))  # fmt: skip
def test_a_cut_is_a_beginning_within_its_budget(text, words):
    cut = cut_to_words(text, words)
    assert text.startswith(cut)
    assert len(cut.split()) <= words
    assert len(cut) <= 10 * words
    if cut != text:
        fits = [i for i in range(1, 10 * words + 1) if len(text[:i].split()) <= words]
        whole = [i for i in fits if text[i : i + 1] in ("", " ") and text[i - 1] != " "]
        assert 2 * len(cut) >= max(whole, default=0)
    assert bool(cut) == bool(text)
    if len(text.split()) <= words and len(text) <= 10 * words:
        assert cut == text


def test_what_was_cut_is_said():
    long = Passage("A sentence of words. " * 100, title="Long")
    llm = model([said("a", 0.9)])
    answer = answered(llm, (long, *THREE), settings=SGICSettings(document_words=50))
    assert answer.notes == ("1 of 4 documents were cut to 50 words",)
    whole = "Long: " + " ".join(("A sentence of words. " * 100).split())
    line = llm.prompts[0].splitlines()[2]
    assert line.startswith("Document [1]: Long: A sentence of words. A")
    assert line.endswith(" of words.")
    assert len(line.split()) <= 52
    assert answer.documents[0].dropped == len(whole) - len(line.removeprefix("Document [1]: "))
    assert [d.dropped for d in answer.documents[1:]] == [0, 0, 0]
