"""What is read of a model's mind, by hand-worked numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.dur import FORMATS, DURSettings
from ltrag_plugins.dur.feedback import Feedback, contextual_calibration, reading, reward
from ltrag_plugins.errors import (
    InvalidInput,
    InvalidLogProbability,
    MissingReferences,
    NoTokenProbabilities,
)
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.base import ScoringLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.types import Question, Token
from tests.dur_parts import Scorer, by_word

FORM = FORMATS["QO-A"]
BIRDS = Question("Do birds fly?", ("yes",), options=("yes", "no", "maybe"))
PARIS = Question("Capital of France?", ("Paris", "Paris, France"))


def token(text, logprob, best=None):
    return Token(text, logprob, alternatives=((("?", best),) if best is not None else ()))


def read(llm, question, *, shots=((),), both=False, **settings):
    """By default what "match" needs: the options where there are some, else a written answer."""
    settings = DURSettings(**{"format": FORM, "reward": "match"} | settings)
    scores = isinstance(llm, ScoringLLM)
    return run(reading(question, shots, settings, scores=scores, both=both), World(llm=llm))


def test_options_are_scored_by_what_follows_the_lead_in():
    def tokens(prompt, continuation):
        option = continuation.removeprefix(" The answer is ")
        last = {"yes": -0.5, "no": -1.5, "maybe": -2.5}[option]
        # the lead-in is unlikely, and not the options' fault
        return [token(" The", -7.0), token(" answer", -3.0), token(" is", -1.0),
                token(f" {option}", last)]  # fmt: skip

    llm = Scorer(tokens)
    [found] = read(llm, BIRDS)
    assert found.options == (-0.5, -1.5, -2.5)
    assert llm.pairs[1] == (FORM.prompt([], BIRDS), " The answer is no")
    assert found.answer == "yes"
    total = math.exp(-0.5) + math.exp(-1.5) + math.exp(-2.5)
    assert found.log_p_gold == pytest.approx(-0.5 - math.log(total))


@pytest.mark.parametrize(
    ("pieces", "counted"),
    [
        ([" The", " answer", " is", " yes"], [3]),
        ([" The", " answer", " is", " ", "yes"], [3, 4]),  # the space is the option's
        ([" The", " answer", " is y", "es"], [2, 3]),  # straddles: counted whole
        ([" The answer is yes"], [0]),
        ([" The", " answer", " is", " y", "e", "s"], [3, 4, 5]),
        ([" The", " answer", " is", "", "", " 🙂"], [3, 4, 5]),  # three bytes of one character
        (["", " The", " answer", " is", " yes"], [4]),
        ([" The", " answer", " is", " yes", ""], [3, 4]),
    ],
    ids=str,
)
def test_tokens_that_straddle_the_lead_in_belong_to_the_answer(pieces, counted):
    answer = "".join(pieces).removeprefix(" The answer is ")
    question = Question("?", (answer,))
    llm = Scorer(lambda *_: [token(p, -float(2**i), -float(2**i)) for i, p in enumerate(pieces)])
    [found] = read(llm, question, reward="log_p_gold")
    assert found.gold == -sum(2.0**i for i in counted)


def test_an_answer_is_greedy_if_each_of_its_tokens_is_the_likeliest():
    def llm(*numbers):
        lead = [token(" The", -9, -1), token(" answer", -9, -1), token(" is", -9, -1)]
        words = zip((" Jane", " Austen"), numbers, strict=True)
        return Scorer(lambda *_: [*lead, *(token(w, *n) for w, n in words)])

    emma = Question("Who wrote Emma?", ("Jane Austen",))
    [surely] = read(llm((-0.1, -0.1), (-0.2, -0.2)), emma, reward="p_gold")
    [first_not] = read(llm((-2.0, -0.3), (-0.2, -0.2)), emma, reward="p_gold")
    [last_not] = read(llm((-0.1, -0.1), (-2.0, -0.4)), emma, reward="p_gold")
    assert [r.greedy for r in (surely, first_not, last_not)] == [True, False, False]
    assert [r.right for r in (surely, first_not, last_not)] == [True, False, False]
    assert (surely.answer, last_not.answer) == ("Jane Austen", None)
    assert surely.gold == pytest.approx(-0.3)


@pytest.mark.parametrize(
    ("tokens", "question", "error", "match"),
    [
        ([token(" The answer is", -1.0), token(" Paris", -20.0)], PARIS, NoTokenProbabilities,
         r"likeliest.*reward='match'"),
        (None, PARIS, NoTokenProbabilities, r"no token probabilities.*reward='match'"),
        (None, BIRDS, NoTokenProbabilities, r"no token probabilities.*reward='match'"),
        ([token(" The answer is x", math.nan)], BIRDS, InvalidLogProbability, "natural logarithms"),
        ([token(" The answer is x", 0.5)], BIRDS, InvalidLogProbability, "natural logarithms"),
        ([], Question("Who knows?"), MissingReferences, "no references"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_named_with_a_remedy(tokens, question, error, match):
    with pytest.raises(error, match=match):
        read(Scorer(lambda *_: tokens), question, reward="p_gold")
    with pytest.raises(NoTokenProbabilities, match="TransformersLLM"):
        _ = Feedback(PARIS, text="x").log_p_gold


def test_a_probability_of_zero_is_a_small_reward_and_no_nan():
    llm = Scorer(by_word(lambda p, w: -math.inf if w == "yes" else -1.0))
    [found] = read(llm, BIRDS)
    assert found.log_p_gold == -30.0
    none = Feedback(BIRDS, options=(-math.inf,) * 3)
    assert none.log_p_gold == -30.0
    assert Feedback(PARIS, gold=-math.inf).log_p_gold == -30.0


def test_all_rungs_are_read_in_one_request():
    llm = Scorer(by_word(lambda p, w: -float(p.count("Question"))))
    shots = [Question("1?", ("no",)), Question("2?", ("no",))]
    found = read(llm, BIRDS, shots=[[], shots[:1], shots])
    assert [r.options for r in found] == [(-1,) * 3, (-2,) * 3, (-3,) * 3]
    assert len(llm.pairs) == 9


def test_calibration_on_a_content_free_question_takes_out_what_is_thought_of_the_options():
    def logprob(prompt, option):
        asked = prompt.rsplit("Question: ", 1)[1].split("\n")[0]
        table = {
            "Do birds fly?": {"yes": -1.0, "no": -0.9, "maybe": -3.0},
            "N/A": {"yes": -2.0, "no": -0.4, "maybe": -2.5},
        }
        return table[asked][option]

    llm = Scorer(by_word(logprob))
    about = replace(BIRDS, context="secret")
    [found] = read(llm, about, format="SQO-A", option_calibration="content-free")
    assert found.options == pytest.approx((1.0, -0.5, -0.5))
    assert found.answer == "yes"
    [plain] = read(llm, BIRDS)
    assert plain.answer == "no"
    empty = [p for p, _ in llm.pairs if "Question: N/A" in p]
    assert len(empty) == 3
    assert not any("secret" in p for p in empty)
    assert all("Options: (A) yes (B) no (C) maybe" in p for p in empty)


def test_calibration_by_a_batch_takes_out_its_mean_view_of_the_options():
    asked = Question("a?", ("yes",), options=("yes", "no"))
    likes_no = [Feedback(asked, tuple(np.log(shares))) for shares in ([0.3, 0.7], [0.1, 0.9])]
    found = contextual_calibration(likes_no)
    # mean log shares: yes (ln 0.3 + ln 0.1) / 2, no (ln 0.7 + ln 0.9) / 2
    yes, no = math.log(0.03) / 2, math.log(0.63) / 2
    assert found[0].options == pytest.approx((math.log(0.3) - yes, math.log(0.7) - no))
    assert found[1].options == pytest.approx((math.log(0.1) - yes, math.log(0.9) - no))
    assert [f.answer for f in found] == ["yes", "no"]


def test_calibration_by_a_batch_is_the_same_for_log_probabilities_that_do_not_sum_to_one():
    asked = Question("a?", ("yes",), options=("yes", "no"))
    shares = [Feedback(asked, tuple(np.log(row))) for row in ([0.3, 0.7], [0.6, 0.4])]
    rare = [replace(f, options=tuple(np.array(f.options) - 5 * i)) for i, f in enumerate(shares)]
    plain, moved = ([f.options for f in contextual_calibration(x)] for x in (shares, rare))
    assert np.array(plain) == pytest.approx(np.array(moved))


def test_calibration_by_a_batch_needs_one_set_of_options():
    other = replace(BIRDS, options=("yes", "no"))
    found = [Feedback(BIRDS, (-1.0, -1.0, -1.0)), Feedback(other, (-1.0, -1.0))]
    with pytest.raises(InvalidInput, match="use 'content-free'"):
        contextual_calibration(found)
    written = Feedback(PARIS, text="x")
    assert contextual_calibration([written]) == [written]
    assert contextual_calibration([written, found[0]]) == [
        written,
        *contextual_calibration(found[:1]),
    ]


NONE = ("no", "none", "no one")
SIGNED = ("2", "-2")
CS = ("C#", "C", "C++")
LONG = ("The answer is 2", "The answer is -2")
UNCLEAR = ("The answer is unclear", "Yes", "No")


@pytest.mark.parametrize(
    ("text", "options", "lead", "answer"),
    [
        ("none", NONE, None, "none"),
        ("None of them.", NONE, None, "none"),
        ("no", NONE, None, "no"),
        ("No, none", NONE, None, "no"),
        ("No one knows", NONE, None, "no one"),
        ("nothing", NONE, None, "nothing"),  # no option: the text stands as it is
        ("The answer is none", NONE, None, "none"),
        ("A", NONE, None, "no"),
        ("(B) none", NONE, None, "none"),
        ("(B)", NONE, None, "none"),
        ("b) no", NONE, None, "none"),
        ("C.", NONE, None, "no one"),
        ("Answer: C", NONE, None, "no one"),
        ("The answer is (C).", NONE, None, "no one"),
        ("B none", NONE, None, "none"),
        ("D", NONE, None, "D"),
        ("A bird", NONE, None, "A bird"),  # an article, no letter
        ("a", NONE, None, "no"),
        ("", NONE, None, ""),
        # letters between marks
        ("**B**", NONE, None, "none"),
        ('"B"', NONE, None, "none"),
        ("'b'", NONE, None, "none"),
        ("“B”.", NONE, None, "none"),
        ("[B]", NONE, None, "none"),
        ("_B_", NONE, None, "none"),
        ("**(B)**", NONE, None, "none"),
        ("**B.** never", NONE, None, "none"),
        ("**B**: never", NONE, None, "none"),
        ("**Answer:** **B**", NONE, None, "none"),
        ("The answer is **B**.", NONE, " The answer is", "none"),
        ("A's", NONE, None, "A's"),
        ("**B**", ("*", "+"), None, "+"),
        # characters tell apart what words do not
        *((said, SIGNED, None, "2") for said in ("2", "2.", "**2**", "+2", "Answer: 2", "A. 2")),
        *((said, SIGNED, None, "-2") for said in ("-2", "−2", "**-2**", "(-2)", "-2, as 0 - 2")),
        *((said, SIGNED, None, "-2") for said in ("B) -2", "The answer is -2", "**Answer:** -2")),
        ("$-2$.", SIGNED, " The answer is", "-2"),
        *((said, CS, None, "C") for said in ("C", "c", "C is older", '"C"', "The answer is C")),
        *(
            (said, CS, None, "C++")
            for said in ("C++", "c++ is", "**C++**", "C) C++", "Answer: C++")
        ),
        ("C#.", CS, " The answer is", "C#"),
        ("aA", ("AA", "Aa", "aA", "aa"), None, "aA"),
        ("p.", ("p", "p."), " The answer is", "p."),
        ("<= is right", ("<", "<="), None, "<="),
        ("St Louis", ("St", "St. Louis"), None, "St. Louis"),  # more words go before characters
        # the words of an option go before letters
        ("A", ("B", "A"), None, "A"),
        ("I do not know", tuple("123456789"), None, "I do not know"),
        ("New York City is", ("New York", "New York City"), None, "New York City"),
        ("New York is", ("New York City", "New York"), None, "New York"),
        # an option may begin with the lead-in
        *(
            (said, UNCLEAR, " The answer is", "The answer is unclear")
            for said in ("The answer is unclear", "The answer is unclear.", "A", "The answer is A")
        ),
        ("Answer: The answer is unclear", UNCLEAR, None, "The answer is unclear"),
        ("The answer is yes", UNCLEAR, " The answer is", "Yes"),
        ("The label is A", ("A", "The"), "The label is", "A"),
        ("答案是巴黎", ("答案是巴黎", "巴"), "答案是", "答案是巴黎"),
        ("The answer is", UNCLEAR, " The answer is", ""),
        *((said, LONG, " The answer is", said) for said in LONG),
        # without options: less the lead-in and the full stop
        (" The answer is Paris.", (), " The answer is", "Paris"),
        (" the ANSWER is Paris", (), " The answer is", "Paris"),
        (" Paris. ", (), " The answer is", "Paris"),
        ("The answer is", (), " The answer is", ""),
        ("The answer is: Paris.", (), " The answer is", "Paris"),
        ("The answer is : Paris.", (), " The answer is", "Paris"),
        ("The answer is\nParis.", (), " The answer is", "Paris"),
        ("The answer is: B", NONE, " The answer is", "none"),
        # another word that begins as the lead-in ends; Chinese has no blank between words
        ("The answer isn't in the text.", (), " The answer is", "The answer isn't in the text"),
        ("The answer is巴黎", (), " The answer is", "巴黎"),
        ("答案是巴黎", (), "答案是", "巴黎"),
        ("答案是：巴黎", (), "答案是", "巴黎"),
        ("答案是Paris.", (), "答案是", "Paris"),
        ("St. Ives", (), " The answer is", "St. Ives"),
        ("", (), " The answer is", ""),
    ],
)
def test_a_reply_is_read_as_an_option_by_words_or_letter_or_less_its_lead_in(
    text, options, lead, answer
):
    assert read_reply(text, options, lead=lead) == answer


def test_options_that_differ_in_signs_alone_are_told_apart():
    language = Question("Which?", ("C++",), options=("C", "C++"))
    assert not Feedback(language, (-0.1, -3.0)).right
    assert Feedback(language, (-3.0, -0.1)).right


@pytest.mark.parametrize("separator", ["\n\n", " | "])
def test_a_written_answer_ends_with_its_line(separator):
    form = replace(FORMATS["Q-A"], separator=separator)
    llm = Scorer(by_word(lambda *_: 0.0), says=lambda _: " The answer is Paris.\nQuestion: Next?")
    [found] = read(llm, PARIS, format=form)
    assert found == Feedback(PARIS, text="Paris")
    assert found.right
    assert replace(found, text="the paris").right
    assert not replace(found, text="Paris in spring").right


def test_rewards_of_a_right_and_a_wrong_option():
    right, wrong = (Feedback(BIRDS, row) for row in ((-0.1, -3.0, -3.0), (-3.0, -0.1, -3.0)))
    assert reward(right, DURSettings(reward="match")) == 1.0
    assert reward(wrong, DURSettings(reward="match")) == -1.0
    share = math.exp(-0.1) / (math.exp(-0.1) + 2 * math.exp(-3.0))
    assert reward(right, DURSettings(reward="p_gold")) == pytest.approx(share)
    told = reward(right, DURSettings(reward="log_p_gold"))
    assert told == pytest.approx(math.log(share))


def test_several_right_options_share_their_probability():
    both = replace(BIRDS, answers=("yes", "maybe"))
    found = Feedback(both, tuple(np.log([0.2, 0.5, 0.3])))
    assert found.log_p_gold == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(
    ("kind", "score"),
    # "the cat sat down" against "cat sat": 2 shared words of 3 (articles go) and 2: 2*2/5
    [("f1", 0.8), ("rouge_l", 2 * 2 / (4 + 2)), ("bleu", None)],
)
def test_rewards_of_free_text_are_one_above_the_threshold_and_minus_one_at_it(kind, score):
    from sacrebleu import sentence_bleu

    said, wanted = "the cat sat down", "cat sat"
    score = score or sentence_bleu(said, [wanted]).score / 100
    found = Feedback(Question("?", ("dog", wanted)), text=said)
    below, above = score - 1e-6, score + 1e-6
    assert 0 < score < 1
    assert reward(found, DURSettings(reward=kind, threshold=below)) == 1.0
    assert reward(found, DURSettings(reward=kind, threshold=above)) == -1.0
    exact = DURSettings(reward="f1", threshold=0.8)
    assert reward(replace(found, question=Question("?", (wanted,))), exact) == -1.0


def test_a_reward_of_ones_own_gets_the_answer_and_the_question():
    told = []

    def own(said, question):
        told.append((said, question))
        return 0.25

    assert reward(Feedback(PARIS, text="x"), DURSettings(reward=own)) == 0.25
    assert told == [("x", PARIS)]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "much"])
def test_a_reward_that_is_no_finite_number_is_refused(value):
    with pytest.raises(InvalidInput, match=r"reward (raised|function).*'x' to 'Capital of France"):
        reward(Feedback(PARIS, text="x"), DURSettings(reward=lambda *_: value))


@pytest.mark.parametrize(
    ("reward", "both", "scored", "written"),
    [
        ("match", False, False, True),
        ("bleu", False, False, True),
        pytest.param(lambda *_: 0.0, False, False, True, id="function"),
        ("p_gold", False, True, False),
        ("log_p_gold", False, True, False),
        ("match", True, True, True),
    ],
    ids=str,
)
def test_what_is_read_follows_from_the_reward_and_the_model(reward, both, scored, written):
    scorer = Scorer(by_word(lambda *_: -0.5), says=lambda _: " Paris")
    [found] = read(scorer, PARIS, reward=reward, both=both)
    assert (found.gold is not None, found.text is not None) == (scored, written)
    assert (len(scorer.pairs), len(scorer.prompts)) == (scored, written)
    # options go before both, where the model scores them
    [found] = read(scorer, BIRDS, reward=reward, both=both)
    assert (found.options, found.gold, found.text) == ((-0.5,) * 3, None, None)
    # a model that does not score is asked for an answer
    [found] = read(ScriptedLLM(lambda _: " no"), BIRDS, reward="match", both=both)
    assert found == Feedback(BIRDS, text="no")
