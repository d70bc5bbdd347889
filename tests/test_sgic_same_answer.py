"""When two answers say the same: numbers as numbers, everything else as SQuAD compares it."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ltrag_plugins.metrics.answer import normalized, normalized_exact_match
from ltrag_plugins.sgic import SGICSettings
from ltrag_plugins.sgic.answer import answer_key
from ltrag_plugins.training import CorpusSettings, build
from ltrag_plugins.types import Question
from tests.sgic_parts import THREE, model, said

SAME = [
    ("1,000", "1000"), ("5.0", "5"), ("5.", "5"), ("+5", "5"), ("-0.0", "0"), (".5", "0.50"),
    ("$4", "4"), ("4%", "4"), ("4 %", "4"), ("€1,234.50", "1234.5"), ("4 €", "4"), ("-$4", "$-4"),
    ("−5", "-5"), ("**-5**", "-5"), ("(-5)", "-5"), ('"-5".', "-5"), ("-1,000,000", "-1000000"),
    ("the 5", "5"), ("５", "5"), ("$ 5", "5"), ("－５", "-5"),
]  # fmt: skip
OTHER = [
    ("-5", "5"), ("1.5", "15"), ("-1.5", "1.5"), ("0.05", "5"), ("-$4", "$4"), ("-5%", "5%"),
    ("1,000.5", "10005"), (".5", "5"), ("1" + "0" * 40, "1" + "0" * 39 + "1"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME + OTHER)
def test_a_number_is_the_same_however_written_but_for_sign_and_decimal_point(one, other):
    assert (answer_key(one) == answer_key(other)) == ((one, other) in SAME)


@pytest.mark.parametrize("text", [
    "U.S.", "C++", "C#", "1914–18", "2001-02-03", "1.2.3", "12:30", "- 5", "007", "1,5", "1,0000",
    "5 + 3", "-", ".", "$", "%", "", "!!!", "The The", "5 apples", "1e5", "1/2", "192.168.0.1", "(",
    "--5", "-$-5", "+-5",
])  # fmt: skip
def test_what_is_no_number_is_compared_as_before(text):
    assert answer_key(text) == normalized(text)


amounts = st.integers(-30, 30) | st.integers(-(10**9), 10**9)


@st.composite
def written(draw):
    """A number, and one way of writing it; the second route is the fraction itself."""
    whole, places = draw(amounts), draw(st.integers(0, 4))
    value = Fraction(whole, 10**places)
    text = f"{abs(whole) // 10**places:,}" if draw(st.booleans()) else f"{abs(whole) // 10**places}"
    if places:
        text += f".{abs(whole) % 10**places:0{places}d}"
    sign = "-" if whole < 0 else ""
    money = draw(st.sampled_from(["", "$", "£", "$ "]))
    told = draw(st.sampled_from([f"{sign}{money}{text}", f"{money}{sign}{text}"]))
    return value, told + draw(
        st.sampled_from(["", ".", "%", " %", " "] if not money else ["", "."])
    )


@given(written(), written())
@example((Fraction(-5), "-5"), (Fraction(5), "5"))
def test_two_numbers_say_the_same_exactly_where_they_are_equal(one, other):
    assert (answer_key(one[1]) == answer_key(other[1])) == (one[0] == other[0])


@given(st.text(max_size=12), st.text(max_size=12))
def test_texts_without_digits_are_the_same_where_they_were(one, other):
    one, other = ("".join(c for c in t if not c.isnumeric()) for t in (one, other))
    assert (answer_key(one) == answer_key(other)) == (normalized(one) == normalized(other))


def learned(tmp_path, texts, answers, **corpus):
    """The example of the rounds of one question, and the first round that was right."""
    llm = model([said(text, 0.95) for text in texts])
    settings = SGICSettings(rounds=len(texts) - 1)
    how = CorpusSettings(include_direct="none", keep_wrong=1.0, **corpus)
    question = Question("How many?", answers, "q", THREE)
    data = build([question], llm, out=tmp_path, settings=settings, corpus=how)
    right_in = data.manifest["first_right_in_round"]
    return data.examples[0], right_in.index(1) if 1 in right_in else None


def test_the_target_is_the_accepted_number_where_the_answer_is_another(tmp_path):
    # EM strips the sign, so the answer counts as right, and would be learned as it stands
    assert normalized_exact_match("-5", ["5"]) == 1
    example, right_in = learned(tmp_path / "a", ["-5", "5"], ("5",), certain_below=100)
    assert (example.target, example.kind, right_in) == ("5", "mended", 0)
    _, right_in = learned(tmp_path / "b", ["x", "$5.0", "y"], ("-5", "5"))
    assert right_in is None  # "50" to EM
    example, right_in = learned(tmp_path / "c", ["x", "$5", "y"], ("-5", "5"))
    assert (right_in, example.target) == (1, "5")


@pytest.mark.parametrize(("answer", "accepted", "right"), [
    ("$5", "5", "em"),
    ("Fife!", "fife", "em"),
    ("a castle in the old north of Fife", "castle in old north of Fife", "f1"),
    ("5.01", "5", lambda said, known: abs(float(said) - float(known[0])) < 0.1),
])  # fmt: skip
def test_a_right_answer_that_says_the_same_is_still_preserved(answer, accepted, right, tmp_path):
    how = {"right": right, "certain_below": 100}
    example, _ = learned(tmp_path, [answer, "x"], (accepted,), **how)
    assert (example.target, example.kind) == (answer, "preserved")
