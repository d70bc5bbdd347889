from dataclasses import replace

import pytest
from method_parts import Library, Planes, Shelf

from ltrag_plugins.errors import InvalidInput, NoRetriever, RetrieverFailed
from ltrag_plugins.flow import World, embed, fetch, run
from ltrag_plugins.llm.base import stopped
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.direct import direct, single_retrieval
from ltrag_plugins.prompts.templates import (
    passages_block,
    reading_prompt,
    render_question,
    searching_for,
    standalone,
)
from ltrag_plugins.types import Generation, Passage, Question

EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")


def echo() -> ScriptedLLM:
    return ScriptedLLM(lambda prompt: " Jane Austen \nQuestion: next")


def test_direct_asks_once_and_answers_with_the_first_line():
    llm = echo()
    answer = run(direct("Who wrote Emma?"), World(llm=llm))
    assert answer.text == "Jane Austen"
    assert answer.passages == ()
    assert [draft.text for draft in answer.trace] == [" Jane Austen "]
    assert llm.prompts == [
        "Answer the question in a few words, without explanation.\n"
        "Question: Who wrote Emma?\nAnswer:"
    ]


def test_single_retrieval_searches_once_and_reads_what_it_found():
    llm, shelf = echo(), Shelf(EMMA, Passage("Persuasion is another."), Passage("not shown"))
    answer = run(single_retrieval("Who wrote Emma?", k=2), World(llm=llm, retriever=shelf))
    assert answer.text == "Jane Austen"
    assert answer.passages == (EMMA, shelf.passages[1])
    assert shelf.asked == [(("Who wrote Emma?",), 2)]
    [prompt] = llm.prompts
    assert prompt.startswith(
        "Emma: Emma is a novel by Jane Austen.\nPersuasion is another.\n\nAnswer"
    )
    assert "not shown" not in prompt
    assert prompt.endswith("Question: Who wrote Emma?\nAnswer:")


def test_long_passages_are_cut_by_words():
    long = Passage(" ".join(map(str, range(500))), title="Numbers")
    assert passages_block([long], max_words=3) == "Numbers: 0 1 2"


def test_a_long_passage_without_blanks_is_cut_too():
    # ten characters, and the mark behind them, for a word
    sentence = "巴黎是法国的首都城市。"
    assert passages_block([Passage(sentence * 500)], max_words=3) == sentence * 3
    assert passages_block([Passage("수도는, 서울")], max_words=1) == "수도는,"


def test_questions_are_searched_for_and_encoded_by_their_texts_alone():
    plain = Question("Who wrote Emma?", options=("Austen", "Zola"))
    longer = replace(plain, options=("Austen", "Zola", "Eliot"))
    quoting = Question(f"Read this: {render_question(plain)}", context="A quiz.")
    asked = [plain, longer, quoting]
    wholes, texts = [*map(render_question, asked)], [one.text for one in asked]
    around = [f"{whole}\nThink: bread" for whole in wholes[:2]]
    wanted = [*texts, *(f"{text}\nThink: bread" for text in texts[:2]), "Emma"]
    encoder = Planes(**{text.rstrip("?"): [1.0] for text in wanted})
    shelf = Library({})

    def flow():
        yield from fetch(*wholes, *around, "Emma", k=1)
        yield from embed(*wholes, *around, "Emma")

    run(searching_for(asked, flow()), World(retriever=shelf, encoder=encoder))
    assert shelf.queries == wanted
    assert encoder.asked == [tuple(wanted)]


def test_a_template_without_room_for_its_parts_is_refused():
    for template in ("{passages}", "{question}", "neither"):
        with pytest.raises(InvalidInput, match="template must hold"):
            reading_prompt("Who?", [EMMA], template)
    with pytest.raises(InvalidInput, match=r"\{question\}"):
        run(direct("Who?", template="Answer:"), World(llm=echo()))


def test_a_retriever_that_raises_or_is_not_there_is_named():
    class Down:
        def search(self, queries, k):
            raise ConnectionError("no route")

    with pytest.raises(RetrieverFailed, match="no route") as caught:
        run(single_retrieval("Who?"), World(llm=echo(), retriever=Down()))
    assert isinstance(caught.value.__cause__, ConnectionError)
    with pytest.raises(NoRetriever, match="retriever="):
        run(single_retrieval("Who?"), World(llm=echo()))


TURNS = [("human", "Tell me about Quarry Lane."), ("ai", "It has nine houses.")]


def test_a_long_follow_up_stands_alone_with_its_end():
    long = f"and of house 7, {' '.join(f'clause{i}' for i in range(90))} who lives there now?"
    llm = ScriptedLLM(lambda prompt: f"On Quarry Lane, {long}" if long in prompt else "?")
    assert run(standalone(long, TURNS), World(llm=llm)) == f"On Quarry Lane, {long}"


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS"])
def test_a_rewritten_question_that_was_cut_is_not_asked(reason):
    for ends, asked in ((reason, "who lives there?"), ("stop", "who lives on")):
        llm = ScriptedLLM(lambda _, ends=ends: Generation("who lives on", finish_reason=ends))
        assert run(standalone("who lives there?", TURNS), World(llm=llm)) == asked
    endless = ScriptedLLM(lambda _: "who lives on " * 50)
    assert run(standalone("who lives there?", TURNS), World(llm=endless)) == "who lives there?"


@pytest.mark.parametrize(
    ("text", "reason", "ended"),
    [
        ("who lives there?\nI", "length", "stop"),  # a server that does not know stop strings
        ("who lives on", "length", "length"),
        ("who lives\nthere", "content_filter", "content_filter"),
    ],
)
def test_what_a_stop_string_ended_was_not_cut_by_the_length(text, reason, ended):
    found = stopped(Generation(text, finish_reason=reason), ("\n",))
    assert (found.text, found.finish_reason) == (text.partition("\n")[0], ended)
