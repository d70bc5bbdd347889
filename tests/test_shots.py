"""Solved examples in front of a question: random ones, BM25's, the model's own choice, SuRe's."""

from collections import Counter
from itertools import permutations

import pytest
from method_parts import says

from ltrag_plugins.dur.shots import ShotRanker
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.shots import (
    BM25ShotsSettings,
    ListwiseShotsSettings,
    RandomShotsSettings,
    listwise_ranker,
)
from ltrag_plugins.types import Passage, Question

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
    """The prompt of a question with these examples."""
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


def test_with_no_other_example_it_asks_without():
    llm = ScriptedLLM(lambda _: "me")
    answer("random-shots", EMMA, [EMMA], llm)
    answer("bm25-shots", Question("3 + 4 ="), BOOKS, llm)  # shares no word with any
    without = "Answer the question in a few words, without explanation.\nQuestion: {}\nAnswer:"
    assert llm.prompts == [without.format("Who wrote Emma?"), without.format("3 + 4 =")]


def test_an_example_that_speaks_of_placeholders_changes_nothing_but_itself():
    odd, asked = Question("Say {question} {shots}", ("{x}",)), Question("Say {shots}?")
    prompt = shown([odd], asked)
    assert "Question: Say {question} {shots}\nAnswer: {x}\n\n" in prompt
    assert prompt.endswith("Question: Say {shots}?\nAnswer:")


WROTE = Question("Who wrote Middlemarch, and who wrote Emma?")


def test_the_model_puts_the_examples_in_order_and_answers_after_the_best():
    llm = says(("Order:", " [2] > [1]"), ("as the examples do", " whoever\n"))
    found = answer("listwise-shots", WROTE, BOOKS, llm, ListwiseShotsSettings(shots=1))
    shown = "[1] Question: Who wrote Middlemarch? Answer: George Eliot\n"
    shown += "[2] Question: Who wrote Persuasion? Answer: Jane Austen\n"
    ranking, asking = llm.prompts
    assert ranking.startswith(
        f"{shown}[3] Question: Who painted Guernica? Answer: Pablo Picasso\n\n"
    )
    assert "Put the numbered solved examples in order" in ranking
    assert ranking.endswith("\nQuestion: Who wrote Middlemarch, and who wrote Emma?\nOrder:")
    assert asking == (
        "Answer each question in a few words, as the examples do.\n\n"
        "Question: Who wrote Persuasion?\nAnswer: Jane Austen\n\n"
        "Question: Who wrote Middlemarch, and who wrote Emma?\nAnswer:"
    )
    assert (found.text, len(found.trace)) == ("whoever", 2)


def test_ranked_shots_are_bm25s_in_whatever_order_the_model_puts_them():
    [first] = ShotRanker.bm25(BOOKS, shots=4)([WROTE])
    for order in permutations(range(4)):
        llm = ScriptedLLM(lambda _, order=order: " > ".join(f"[{i + 1}]" for i in order))
        [shots] = listwise_ranker(llm, BOOKS, shots=3)([WROTE])
        assert shots == [first[i] for i in order[:3]]
        assert len(llm.prompts) == 1


def test_many_questions_are_ranked_as_each_alone():
    def largest(prompt):  # first the example with the largest sum
        answers = [int(line.split("Answer: ")[1]) for line in prompt.split("\n\n")[0].split("\n")]
        return " > ".join(f"[{answers.index(n) + 1}]" for n in sorted(answers, reverse=True))

    asked = [Question(f"What is {n} plus {n}?") for n in range(3, 9)]
    ranker = listwise_ranker(ScriptedLLM(largest), SUMS, shots=5, preselected=10)
    found = ranker(asked)
    assert found == [ranker([question])[0] for question in asked]
    for question, shots in zip(asked, found, strict=True):
        [ten] = ShotRanker.bm25(SUMS, shots=10)([question])
        assert shots == sorted(ten, key=lambda shot: -int(shot.text.split()[2]))[:5]
        assert question.text not in {shot.text for shot in shots}


def test_passages_are_put_in_order_too():
    bread, emma = Passage("Bread is baked.", title="Bread"), Passage("Emma is by Jane Austen.")
    llm = ScriptedLLM(lambda _: "[2] > [1]")
    assert listwise_ranker(llm, [emma, bread], shots=2)([EMMA]) == [[bread, emma]]
    assert llm.prompts[0].startswith("[1] Emma is by Jane Austen.\n[2] Bread: Bread is baked.\n\n")


def test_sure_reads_the_examples_and_picks_the_answer_with_the_best_summary():
    llm = says(
        ("Write the 2 most plausible answers", "1. George Eliot\n2. Jane Austen"),
        ("Suppose the answer is: George Eliot", "Eliot wrote."),
        ("Suppose the answer is: Jane Austen", "Austen wrote Emma."),
        ("Summary: Eliot wrote.", "No."),
        ("Summary: Austen wrote Emma.", "Yes."),
        ("Which summary tells more", "1"),
    )
    found = answer("sure-shots", EMMA, BOOKS[:3], llm)
    assert (found.text, len(found.trace)) == ("Jane Austen", 7)
    read = "Question: Who wrote Persuasion? Answer: Jane Austen\n"
    read += "Question: Who wrote Middlemarch? Answer: George Eliot\n\n"
    assert [prompt.startswith(read) for prompt in llm.prompts] == [True] * 3 + [False] * 4


def test_where_sure_names_no_answer_it_asks_as_bm25_does():
    llms = [says(("Answers:\n", ""), ("as the examples do", "Jane Austen")) for _ in range(2)]
    for name, llm in zip(("sure-shots", "bm25-shots"), llms, strict=True):
        assert answer(name, EMMA, BOOKS, llm).text == "Jane Austen"
    assert llms[0].prompts[1:] == llms[1].prompts


AUTHORS = ("Zola", "Eliot", "Jane Austen")


@pytest.mark.parametrize(
    ("named", "candidates"),
    [
        ("jane austen.\nZola", ("Jane Austen", "Zola")),
        ("Somebody\n(C) Jane Austen", ("Jane Austen", "Zola")),  # then the others in their order
        ("", ("Zola", "Eliot")),
    ],
)
@pytest.mark.parametrize("winner", [0, 1])
def test_sure_chooses_among_options_those_that_the_model_names_first(named, candidates, winner):
    asked = Question("Who wrote Emma?", ("Jane Austen",), options=AUTHORS)
    llm = says(
        ("Options: Zola; Eliot; Jane Austen\nAnswers:", named),
        *((f"Suppose the answer is: {one}", f"For {one}.") for one in candidates),
        (f"Summary: For {candidates[winner]}.", "yes"),
        ("Does the summary", "no"),
        ("Which summary tells more", "neither"),
    )
    found = answer("sure-shots", asked, BOOKS, llm)
    assert (found.text, len(found.trace)) == (candidates[winner], 7)
