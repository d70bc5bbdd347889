import pytest
from method_parts import Library, flow_of, says, world

from ltrag_plugins.flow import run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.iter_retgen import IterRetGenSettings
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Passage

QUESTION = "Where was the author of Emma born?"
EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")
AUSTEN = Passage("Jane Austen was born in Steventon.", title="Jane Austen")
THINKING_PROMPT = IterRetGenSettings().template
FIRST = "Emma is by Jane Austen. So the answer is England."
SECOND = "Austen was born in Steventon. So the answer is Steventon.\n\nQuestion: next?"


def test_what_was_written_last_joins_the_question_as_the_next_query():
    library = Library({QUESTION: [EMMA], f"{FIRST} {QUESTION}": [AUSTEN]})
    llm = says(("Emma: Emma is", f" {FIRST}"), ("Jane Austen: Jane", SECOND))
    answer = run(
        flow_of("iter-retgen", QUESTION, IterRetGenSettings(iterations=2, k=1)), world(llm, library)
    )
    assert library.queries == [QUESTION, f"{FIRST} {QUESTION}"]
    assert llm.prompts == [
        reading_prompt(QUESTION, [EMMA], THINKING_PROMPT),
        reading_prompt(QUESTION, [AUSTEN], THINKING_PROMPT),
    ]
    assert answer.text == "Steventon"
    assert answer.passages == (AUSTEN,)
    assert [said.text for said in answer.trace] == [f" {FIRST}", SECOND.partition("\n\n")[0]]


def test_the_prompt_reads_well():
    assert reading_prompt("Who?", [EMMA], THINKING_PROMPT) == (
        "Emma: Emma is a novel by Jane Austen.\n\n"
        "Think about the question in one to three short sentences, with the help of the text "
        'above. Then end with "So the answer is" and the answer in a few words.\n'
        "Question: Who?\nThoughts:"
    )


def test_the_same_passages_again_end_it_whatever_their_scores():
    class Same:
        def search(self, queries, k):
            return [[Passage(EMMA.text, title="Emma", score=len(query))] for query in queries]

    llm = says(("", FIRST))
    answer = run(
        flow_of("iter-retgen", QUESTION, IterRetGenSettings(iterations=7)), world(llm, Same())
    )
    assert len(llm.prompts) == 1
    assert answer.text == "England"


@pytest.mark.parametrize("iterations", [1, 4])
def test_new_passages_every_time_end_it_after_its_iterations(iterations):
    class Everything:
        def search(self, queries, k):
            return [[Passage(query)] for query in queries]

    llm = ScriptedLLM(lambda prompt: f"Fact {len(llm.prompts)}.")
    settings = IterRetGenSettings(iterations=iterations)
    answer = run(flow_of("iter-retgen", QUESTION, settings), world(llm, Everything()))
    assert len(llm.prompts) == len(answer.trace) == iterations
    assert answer.text == f"Fact {iterations}"


def test_a_later_search_that_finds_nothing_leaves_the_answer_there_is():
    llm = says(("", FIRST))
    settings = IterRetGenSettings(iterations=3)
    answer = run(
        flow_of("iter-retgen", QUESTION, settings), world(llm, Library({QUESTION: [EMMA]}))
    )
    assert (answer.text, answer.passages) == ("England", (EMMA,))


def test_where_nothing_is_found_the_question_is_asked_directly():
    llm = says(("", "Steventon"))
    answer = run(flow_of("iter-retgen", QUESTION), world(llm, Library({})))
    assert llm.prompts == [direct_prompt(QUESTION)]
    assert (answer.text, answer.passages) == ("Steventon", ())
