import pytest
from method_parts import Library, flow_of, says, world

from ltrag_plugins.flow import run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.ircot import IRCoTSettings
from ltrag_plugins.prompts.replies import concluded, next_thought
from ltrag_plugins.prompts.templates import (
    direct_prompt,
    filled,
    passages_block,
    reading_prompt,
)
from ltrag_plugins.types import Passage

QUESTION = "Where was the author of Emma born?"
EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma", score=2.0)
EMMA_AGAIN = Passage("Emma is a novel by Jane Austen.", title="Emma", score=7.0)
AUSTEN = Passage("Jane Austen was born in Steventon.", title="Jane Austen")
BATH = Passage("Bath is a city.", title="Bath")


def thought_prompt(question, passages, thoughts):
    shown, said = passages_block(passages), " ".join(thoughts) or "(none)"
    return filled(
        IRCoTSettings().thought_template, passages=shown, question=question, thoughts=said
    )


def test_each_sentence_fetches_for_the_next_and_the_reader_reads_all_that_was_found():
    library = Library(
        {QUESTION: [EMMA], "Emma was written by Jane Austen.": [EMMA_AGAIN, AUSTEN]},
    )
    llm = says(
        ("so far: (none)", " Emma was written by Jane Austen. She was born"),
        ("so far: Emma was written by Jane Austen.\n", "So the answer is: Steventon."),
        ("Answer the question", " Steventon\n"),
    )
    answer = run(flow_of("ircot", QUESTION, IRCoTSettings(k=2)), world(llm, library))
    assert library.queries == [QUESTION, "Emma was written by Jane Austen."]
    assert library.asked_for == [2, 2]
    assert llm.prompts == [
        thought_prompt(QUESTION, [EMMA], []),
        thought_prompt(QUESTION, [EMMA, AUSTEN], ["Emma was written by Jane Austen."]),
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


def test_a_thought_prompt_shows_passages_question_and_reasoning():
    assert thought_prompt("Who?", [EMMA], ["One.", "Two."]) == (
        "Emma: Emma is a novel by Jane Austen.\n\nQuestion: Who?\n"
        "Reason towards the answer step by step. Write only the next step: one short sentence with "
        'one fact from the text above. If the steps so far give the answer, write "So the answer '
        'is" and the answer.\n'
        "Steps so far: One. Two.\nNext step:"
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_a_model_that_never_concludes_is_stopped(steps):
    def endless(prompt):
        return f"Fact number {len(llm.prompts)}."

    class Everything:
        def search(self, queries, k):
            return [[Passage(query)] for query in queries]

    llm = ScriptedLLM(endless)
    answer = run(flow_of("ircot", QUESTION, IRCoTSettings(steps=steps)), world(llm, Everything()))
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
    answer = run(flow_of("ircot", QUESTION), world(llm, library))
    assert library.queries == queries
    assert len(llm.prompts) == len(queries) + 1
    assert answer.text == "Steventon"


def test_once_there_is_no_room_for_a_passage_nothing_more_is_thought():
    library = Library({QUESTION: [EMMA], "One.": [AUSTEN, BATH]})
    llm = says(("Next step:", "One."), ("Answer the question", "Steventon"))
    answer = run(flow_of("ircot", QUESTION, IRCoTSettings(most_passages=2)), world(llm, library))
    assert answer.passages == (EMMA, AUSTEN)
    assert len(llm.prompts) == 2


def test_where_nothing_is_found_the_question_is_asked_directly():
    llm = says(("Answer the question", "Steventon"))
    answer = run(flow_of("ircot", QUESTION), world(llm, Library({})))
    assert llm.prompts == [direct_prompt(QUESTION)]
    assert (answer.text, answer.passages) == ("Steventon", ())


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
        (" \n ", ""),
    ],
)
def test_the_first_sentence_is_cut_at_its_own_end(text, sentence):
    assert next_thought(text) == sentence


def test_a_sentence_concludes_if_it_says_what_the_answer_is():
    assert next_thought("so THE ANSWER IS: Bath.") == ""
    assert next_thought("The question asks for an answer.") == "The question asks for an answer."


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


def test_what_is_put_into_a_template_is_not_searched_for_places():
    llm = says(("Next step:", "{passages}"), ("", "yes"))
    library = Library({"Is {thoughts} a word?": [Passage("Write {question}.")]})
    run(flow_of("ircot", "Is {thoughts} a word?", IRCoTSettings(steps=2)), world(llm, library))
    assert llm.prompts[1].startswith("Write {question}.\n\nQuestion: Is {thoughts} a word?\n")
    assert llm.prompts[1].endswith("Steps so far: {passages}\nNext step:")
