from collections import Counter

import pytest

from ltrag_plugins.errors import CalibrationError, InvalidInput, MissingReferences
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.random_shots import RandomShotsSettings, drawn, random_shots
from ltrag_plugins.methods.shots import shot_pool, shots_prompt
from ltrag_plugins.types import Question

EMMA = Question("Who wrote Emma?", ("Jane Austen",))
POOL = [Question(f"What is {n} plus {n}?", (str(2 * n), "even")) for n in range(20)]


def pool(*questions: Question):
    return run(shot_pool(questions or POOL, "random-shots"), World())


def test_one_prompt_with_two_solved_examples_worked_by_hand():
    llm = ScriptedLLM(lambda _: " Jane Austen \nQuestion: and then?")
    ones = pool(Question("What is 1 plus 1?", ("2", "two")), Question("Who wrote It?", ("King",)))
    answer = run(random_shots(EMMA, ones, RandomShotsSettings(shots=2)), World(llm=llm))
    shown = [
        "Question: What is 1 plus 1?\nAnswer: 2",
        "Question: Who wrote It?\nAnswer: King",
    ]
    head = "Answer each question in a few words, as the examples do.\n\n"
    tail = "\n\nQuestion: Who wrote Emma?\nAnswer:"
    assert llm.prompts in ([head + "\n\n".join(s) + tail] for s in (shown, shown[::-1]))
    assert (answer.text, answer.passages, len(answer.trace)) == ("Jane Austen", (), 1)


def test_what_a_question_comes_with_is_shown_and_cut():
    asked = Question("Is it?", context="one two three four", options=("yes", "no"))
    solved = Question("Was it?", ("no",), context="five six", options=("yes", "no"))
    prompt = shots_prompt([solved], asked, context_words=3)
    assert prompt.endswith(
        "Question: Was it?\nText: five six\nOptions: yes; no\nAnswer: no\n\n"
        "Question: Is it?\nText: one two three\nOptions: yes; no\nAnswer:"
    )


def test_the_draw_is_the_questions_own_and_the_seeds():
    def of(text: str, seed: int) -> list[Question]:
        return drawn(Question(text), pool(), 5, seed)

    assert of("Who?", 0) == of("Who?", 0)
    assert of("Who?", 0) != of("Who?", 1)
    assert of("Who?", 0) != of("What?", 0)
    # a fixed value: the same in every process, on every machine
    assert [int(q.answers[0]) // 2 for q in of("Who?", 0)] == [1, 19, 3, 4, 14]


def test_every_example_is_drawn_about_as_often():
    counts = Counter(q.text for n in range(2000) for q in drawn(Question(f"{n}?"), pool(), 5, 0))
    assert len(counts) == 20
    # 10000 draws over 20: 500 each, with a standard deviation of about 19
    assert all(400 < count < 600 for count in counts.values())


@pytest.mark.parametrize("text", ["Who wrote Emma?", "who wrote emma", " Who  wrote: Emma?? "])
def test_a_question_is_never_its_own_example(text):
    many = pool(EMMA, *POOL)
    for seed in range(30):
        assert EMMA not in drawn(Question(text), many, 20, seed)


def test_the_same_words_about_another_text_are_another_question():
    twins = pool(Question("Is it true?", ("yes",), context="The sun is hot."))
    assert drawn(Question("Is it true?", context="Ice is hot."), twins, 1, 0)
    assert not drawn(Question("Is it true?", context="The sun is hot."), twins, 1, 0)


def test_with_no_other_example_it_asks_without():
    llm = ScriptedLLM(lambda _: "me")
    run(random_shots(EMMA, pool(EMMA)), World(llm=llm))
    assert llm.prompts == [
        "Answer the question in a few words, without explanation.\n"
        "Question: Who wrote Emma?\nAnswer:"
    ]


def test_no_examples_and_unsolved_ones_are_refused_by_name():
    with pytest.raises(CalibrationError, match="random-shots learns from labelled questions"):
        run(shot_pool([], "random-shots"), World())
    with pytest.raises(MissingReferences, match=r"question 2 \('Why\?'\)"):
        run(shot_pool([EMMA, Question("Why?")], "random-shots"), World())


@pytest.mark.parametrize(
    "wrong",
    [{"shots": 0}, {"seed": -1}, {"context_words": 0}, {"template": "{question}"}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        RandomShotsSettings(**wrong)


def test_an_example_that_speaks_of_placeholders_changes_nothing_but_itself():
    prompt = shots_prompt([Question("Say {question} {shots}", ("{x}",))], Question("Say {shots}?"))
    assert "Question: Say {question} {shots}\nAnswer: {x}\n\n" in prompt
    assert prompt.endswith("Question: Say {shots}?\nAnswer:")
