import pytest
from method_parts import Everything, Library, says
from method_parts import answer as ask

from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Passage

QUESTION = "Where was the author of Emma born?"
EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")
AUSTEN = Passage("Jane Austen was born in Steventon.", title="Jane Austen")
THINKING = """{}

Think about the question in one to three short sentences, with the help of the text above. \
Then end with "So the answer is" and the answer in a few words.
Question: Where was the author of Emma born?
Thoughts:"""
FIRST = "Emma is by Jane Austen. So the answer is England."
SECOND = "Austen was born in Steventon. So the answer is Steventon.\n\nQuestion: next?"


def test_what_was_written_last_joins_the_question_as_the_next_query():
    library = Library({QUESTION: [EMMA], f"{FIRST} {QUESTION}": [AUSTEN]})
    llm = says(("Emma: Emma is", f" {FIRST}"), ("Jane Austen: Jane", SECOND))
    answer = ask("iter-retgen", QUESTION, llm, library, iterations=2, k=1)
    assert library.queries == [QUESTION, f"{FIRST} {QUESTION}"]
    assert llm.prompts == [
        THINKING.format("Emma: Emma is a novel by Jane Austen."),
        THINKING.format("Jane Austen: Jane Austen was born in Steventon."),
    ]
    assert answer.text == "Steventon"
    assert answer.passages == (AUSTEN,)
    assert [said.text for said in answer.trace] == [f" {FIRST}", SECOND.partition("\n\n")[0]]


def test_the_same_passages_again_end_it_whatever_their_scores():
    class Same:
        def search(self, queries, k):
            return [[Passage(EMMA.text, title="Emma", score=len(query))] for query in queries]

    llm = says(("", FIRST))
    answer = ask("iter-retgen", QUESTION, llm, Same(), iterations=7)
    assert len(llm.prompts) == 1
    assert answer.text == "England"


@pytest.mark.parametrize("iterations", [1, 4])
def test_new_passages_every_time_end_it_after_its_iterations(iterations):
    llm = ScriptedLLM(lambda prompt: f"Fact {len(llm.prompts)}.")
    answer = ask("iter-retgen", QUESTION, llm, Everything(), iterations=iterations)
    assert len(llm.prompts) == len(answer.trace) == iterations
    assert answer.text == f"Fact {iterations}"


def test_a_later_search_that_finds_nothing_leaves_the_answer_there_is():
    answer = ask("iter-retgen", QUESTION, says(("", FIRST)), {QUESTION: [EMMA]}, iterations=3)
    assert (answer.text, answer.passages) == ("England", (EMMA,))
