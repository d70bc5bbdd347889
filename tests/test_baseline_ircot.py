from dataclasses import replace

import pytest
from method_parts import Everything, Library, says
from method_parts import answer as ask

from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.prompts.replies import concluded, next_thought
from ltrag_plugins.prompts.templates import passages_block, reading_prompt
from ltrag_plugins.types import Passage

QUESTION = "Where was the author of Emma born?"
EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma", score=2.0)
AUSTEN = Passage("Jane Austen was born in Steventon.", title="Jane Austen")
BATH = Passage("Bath is a city.", title="Bath")


def thought_prompt(passages, thoughts):
    return (
        f"{passages_block(passages)}\n\nQuestion: {QUESTION}\n"
        "Reason towards the answer step by step. Write only the next step: one short sentence with "
        'one fact from the text above. If the steps so far give the answer, write "So the answer '
        'is" and the answer.\n'
        f"Steps so far: {thoughts}\nNext step:"
    )


def test_each_sentence_fetches_for_the_next_and_the_reader_reads_all_that_was_found():
    again = replace(EMMA, score=7.0)
    library = Library({QUESTION: [EMMA], "Emma was written by Jane Austen.": [again, AUSTEN]})
    llm = says(
        ("so far: (none)", " Emma was written by Jane Austen. She was born"),
        ("so far: Emma was written by Jane Austen.\n", "So the answer is: Steventon."),
        ("Answer the question", " Steventon\n"),
    )
    answer = ask("ircot", QUESTION, llm, library, k=2)
    assert library.queries == [QUESTION, "Emma was written by Jane Austen."]
    assert library.asked_for == [2, 2]
    assert llm.prompts == [
        thought_prompt([EMMA], "(none)"),
        thought_prompt([EMMA, AUSTEN], "Emma was written by Jane Austen."),
        reading_prompt(QUESTION, [EMMA, AUSTEN]),
    ]
    assert answer.text == "Steventon"
    assert answer.passages == (EMMA, AUSTEN)
    assert [said.text for said in answer.trace] == [
        " Emma was written by Jane Austen. She was born",
        "So the answer is: Steventon.",
        " Steventon",
    ]
    assert answer.uncertainty is None


@pytest.mark.parametrize("steps", [1, 3])
def test_a_model_that_never_concludes_is_stopped(steps):
    llm = ScriptedLLM(lambda _: f"Fact number {len(llm.prompts)}.")
    answer = ask("ircot", QUESTION, llm, Everything(), steps=steps)
    assert len(llm.prompts) == steps + 1
    assert len(answer.passages) == steps + 1


@pytest.mark.parametrize(
    ("reply", "queries"),
    [
        ("", [QUESTION]),
        ("\nEmma is a book.", [QUESTION]),
        ("Emma is a book.", [QUESTION, "Emma is a book."]),
    ],
)
def test_reasoning_that_is_blank_or_goes_in_circles_ends(reply, queries):
    llm = says(("Next step:", reply), ("Answer the question", "Steventon"))
    library = Library({QUESTION: [EMMA]})
    answer = ask("ircot", QUESTION, llm, library)
    assert library.queries == queries
    assert len(llm.prompts) == len(queries) + 1
    assert answer.text == "Steventon"


def test_once_there_is_no_room_for_a_passage_nothing_more_is_thought():
    library = Library({QUESTION: [EMMA], "One.": [AUSTEN, BATH]})
    llm = says(("Next step:", "One."), ("Answer the question", "Steventon"))
    answer = ask("ircot", QUESTION, llm, library, most_passages=2)
    assert answer.passages == (EMMA, AUSTEN)
    assert len(llm.prompts) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Emma is a book. It is old.", "Emma is a book."),
        ("J. K. Rowling met Mr. Smith. He left.", "J. K. Rowling met Mr. Smith."),
        ("\n 1. It cost 2.5 million! Really.\nMore.", "It cost 2.5 million!"),
        ("- no full stop", "no full stop"),
        ("He was at Yahoo! as a clerk. He left.", "He was at Yahoo! as a clerk."),
        ('He said "yes." Then he left.', 'He said "yes."'),
        ("爱玛是一本书。很旧。", "爱玛是一本书。"),
        ("यह किताब है। यह पुरानी है।", "यह किताब है।"),
        ("هل هذا كتاب؟ نعم.", "هل هذا كتاب؟"),
        ("یہ کتاب ہے۔ پرانی ہے۔", "یہ کتاب ہے۔"),
        (" \n ", ""),
        # one that says what the answer is concludes
        ("so THE ANSWER IS: Bath.", ""),
        ("The question asks for an answer.", "The question asks for an answer."),
    ],
)
def test_the_first_sentence_is_cut_at_its_own_end(text, sentence):
    assert next_thought(text) == sentence


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Emma is old. So the answer is: Jane Austen. She wrote", "Jane Austen"),
        ("So the answer is 12. This is because", "12"),
        ("The answer to the question is: 12", "12"),
        ('So the answer is **"Bath"**.', "Bath"),
        ("So the answer is J. K. Rowling.\nQuestion: next? So the answer is no.", "J. K. Rowling"),
        ("It is an old book.\nBath.\n", "Bath"),
        ("", ""),
        ("So the answer is", ""),
    ],
)
def test_a_chain_of_thought_yields_its_answer(text, answer):
    assert concluded(text) == answer
