"""Solved examples in front of a question: random ones, and BM25's."""

from collections import Counter
from dataclasses import replace

import pytest
from rank_bm25 import BM25Plus

from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.shots import BM25ShotsSettings, RandomShotsSettings
from ltrag_plugins.types import Question

EMMA = Question("Who wrote Emma?", ("Jane Austen",))
SUMS = [Question(f"What is {n} plus {n}?", (str(2 * n), "even")) for n in range(20)]
BOOKS = [
    Question("Who wrote Persuasion?", ("Jane Austen",)),
    Question("What is bread baked from?", ("flour", "grain")),
    Question("Who wrote Middlemarch?", ("George Eliot",)),
    Question("Who painted Guernica?", ("Pablo Picasso",)),
]


def learned(name, examples, settings=None):
    method = METHODS[name]
    return method.taught(examples, settings or method.settings(), World())


def answer(name, question, examples, llm, settings=None):
    flow = METHODS[name].flow(question, settings, learned(name, examples, settings))
    return run(flow, World(llm=llm))


def drawn(question, examples=SUMS, **settings):
    [shots] = learned("random-shots", examples, RandomShotsSettings(**settings))([question])
    return shots


def shown(examples, question, **settings):
    llm = ScriptedLLM(lambda _: "x")
    answer("bm25-shots", question, examples, llm, BM25ShotsSettings(**settings))
    [prompt] = llm.prompts
    return prompt


def nearest(question, examples=BOOKS, shots=5):
    [found] = learned("bm25-shots", examples, BM25ShotsSettings(shots=shots))([question])
    return found


def test_one_prompt_with_two_solved_examples_worked_by_hand():
    llm = ScriptedLLM(lambda _: " Jane Austen \nQuestion: and then?")
    ones = [Question("What is 1 plus 1?", ("2", "two")), Question("Who wrote It?", ("King",))]
    found = answer("random-shots", EMMA, ones, llm, RandomShotsSettings(shots=2))
    shown = ["Question: What is 1 plus 1?\nAnswer: 2", "Question: Who wrote It?\nAnswer: King"]
    head = "Answer each question in a few words, as the examples do.\n\n"
    tail = "\n\nQuestion: Who wrote Emma?\nAnswer:"
    assert llm.prompts in ([head + "\n\n".join(s) + tail] for s in (shown, shown[::-1]))
    assert (found.text, found.passages, len(found.trace)) == ("Jane Austen", (), 1)


def test_the_two_nearest_examples_worked_by_hand():
    llm = ScriptedLLM(lambda _: " whoever\n")
    asked = Question("Who wrote Middlemarch, and who wrote Emma?")
    found = answer("bm25-shots", asked, BOOKS, llm, BM25ShotsSettings(shots=2))
    # "middlemarch" is in one example, "who" and "wrote" in both that are shown
    assert llm.prompts == [
        "Answer each question in a few words, as the examples do.\n\n"
        "Question: Who wrote Middlemarch?\nAnswer: George Eliot\n\n"
        "Question: Who wrote Persuasion?\nAnswer: Jane Austen\n\n"
        "Question: Who wrote Middlemarch, and who wrote Emma?\nAnswer:"
    ]
    assert found.text == "whoever"


def test_what_a_question_comes_with_is_shown_and_cut():
    asked = Question("Is it?", context="one two three four", options=("yes", "no"))
    solved = Question("Was it?", ("no",), context="five six", options=("yes", "no"))
    prompt = shown([solved], asked, context_words=3)
    assert prompt.endswith(
        "Question: Was it?\nText: five six\nOptions: yes; no\nAnswer: no\n\n"
        "Question: Is it?\nText: one two three\nOptions: yes; no\nAnswer:"
    )


def test_the_draw_is_the_questions_own_and_the_seeds():
    def of(text: str, seed: int) -> list[Question]:
        return drawn(Question(text), seed=seed)

    assert of("Who?", 0) == of("Who?", 0)
    assert of("Who?", 0) != of("Who?", 1)
    assert of("Who?", 0) != of("What?", 0)
    # a fixed value: the same in every process, on every machine
    assert [int(q.answers[0]) // 2 for q in of("Who?", 0)] == [1, 19, 3, 4, 14]


def test_every_example_is_drawn_about_as_often():
    ranker = learned("random-shots", SUMS)
    counts = Counter(q.text for n in range(2000) for q in ranker([Question(f"{n}?")])[0])
    assert len(counts) == 20
    # 10000 draws over 20: 500 each, with a standard deviation of about 19
    assert all(400 < count < 600 for count in counts.values())


@pytest.mark.parametrize("text", ["Who wrote Emma?", "who wrote emma", " Who  wrote: Emma?? "])
def test_a_question_is_never_its_own_example(text):
    for seed in range(30):
        assert EMMA not in drawn(Question(text), [EMMA, *SUMS], shots=20, seed=seed)
    assert EMMA not in nearest(Question(text), [EMMA, *BOOKS])


def test_a_question_that_is_left_out_takes_no_place():
    found = nearest(Question("who wrote middlemarch"), [*BOOKS, BOOKS[2]], shots=2)
    assert [q.text for q in found] == ["Who wrote Persuasion?", "Who painted Guernica?"]


def test_the_same_words_about_another_text_are_another_question():
    twin = Question("Is it true?", ("yes",), context="The sun is hot.")
    assert drawn(replace(twin, context="Ice is hot."), [twin])
    assert not drawn(twin, [twin])


def test_the_order_is_that_of_another_bm25():
    asked = "who wrote what about bread"
    other = BM25Plus([q.text.lower().strip("?").split() for q in BOOKS], delta=0)
    scores = other.get_scores(asked.split())
    by_hand = sorted(range(4), key=lambda i: -scores[i])
    assert nearest(Question(asked)) == [BOOKS[i] for i in by_hand]


def test_with_no_other_example_it_asks_without():
    llm = ScriptedLLM(lambda _: "me")
    answer("random-shots", EMMA, [EMMA], llm)
    answer("bm25-shots", Question("3 + 4 ="), BOOKS, llm)  # shares no word with any
    without = "Answer the question in a few words, without explanation.\nQuestion: {}\nAnswer:"
    assert llm.prompts == [without.format("Who wrote Emma?"), without.format("3 + 4 =")]


@pytest.mark.parametrize(
    ("name", "examples", "settings", "error", "why"),
    [
        ("random-shots", [], {}, CalibrationError, "random-shots learns from labelled questions"),
        ("bm25-shots", [EMMA, Question("Why?")], {}, MissingReferences, r"'Why\?' has no"),
        *(
            ("random-shots", SUMS, wrong, InvalidInput, next(iter(wrong)))
            for wrong in ({"shots": 0}, {"max_tokens": 0}, {"context_words": 0}, {"seed": -1})
        ),
        ("random-shots", SUMS, {"template": "{shots}"}, InvalidInput, "template"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(name, examples, settings, error, why):
    with pytest.raises(error, match=why):
        learned(name, examples, settings and RandomShotsSettings(**settings))


def test_an_example_that_speaks_of_placeholders_changes_nothing_but_itself():
    odd, asked = Question("Say {question} {shots}", ("{x}",)), Question("Say {shots}?")
    prompt = shown([odd], asked)
    assert "Question: Say {question} {shots}\nAnswer: {x}\n\n" in prompt
    assert prompt.endswith("Question: Say {shots}?\nAnswer:")
