import pytest
from rank_bm25 import BM25Plus

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.bm25_shots import BM25ShotsSettings, bm25_shots, nearest
from ltrag_plugins.methods.shots import shot_pool
from ltrag_plugins.types import Question

POOL = [
    Question("Who wrote Persuasion?", ("Jane Austen",)),
    Question("What is bread baked from?", ("flour", "grain")),
    Question("Who wrote Middlemarch?", ("George Eliot",)),
    Question("Who painted Guernica?", ("Pablo Picasso",)),
]


def pool(*questions: Question):
    return run(shot_pool(questions or POOL, "bm25-shots"), World())


def test_the_two_nearest_examples_worked_by_hand():
    llm = ScriptedLLM(lambda _: " whoever\n")
    asked = Question("Who wrote Middlemarch, and who wrote Emma?")
    answer = run(bm25_shots(asked, pool(), BM25ShotsSettings(shots=2)), World(llm=llm))
    # "middlemarch" is in one example, "who" and "wrote" in both that are shown
    assert llm.prompts == [
        "Answer each question in a few words, as the examples do.\n\n"
        "Question: Who wrote Middlemarch?\nAnswer: George Eliot\n\n"
        "Question: Who wrote Persuasion?\nAnswer: Jane Austen\n\n"
        "Question: Who wrote Middlemarch, and who wrote Emma?\nAnswer:"
    ]
    assert answer.text == "whoever"


def test_the_order_is_that_of_another_bm25():
    asked = "who wrote what about bread"
    other = BM25Plus([q.text.lower().strip("?").split() for q in POOL], delta=0)
    scores = other.get_scores(asked.split())
    by_hand = sorted(range(4), key=lambda i: -scores[i])
    assert nearest(Question(asked), pool(), 4) == [POOL[i] for i in by_hand]


def test_a_question_is_never_its_own_example_and_takes_no_place():
    asked = Question("who wrote middlemarch")
    found = nearest(asked, pool(*POOL, POOL[2]), 2)
    assert [q.text for q in found] == ["Who wrote Persuasion?", "Who painted Guernica?"]


def test_examples_that_share_no_word_are_not_shown():
    llm = ScriptedLLM(lambda _: "7")
    run(bm25_shots(Question("3 + 4 ="), pool()), World(llm=llm))
    assert "examples" not in llm.prompts[0]
    assert llm.prompts[0].endswith("Question: 3 + 4 =\nAnswer:")


def test_the_index_is_built_once():
    examples = pool()
    nearest(Question("who"), examples, 1)
    assert examples.index is examples.index


@pytest.mark.parametrize("wrong", [{"shots": 0}, {"max_tokens": 0}, {"template": "{shots}"}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        BM25ShotsSettings(**wrong)
