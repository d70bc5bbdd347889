import pytest
from method_parts import Shelf

from ltrag_plugins.errors import InvalidInput, NoRetriever, RetrieverFailed
from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.direct import direct, single_retrieval
from ltrag_plugins.prompts.templates import direct_prompt, passages_block, reading_prompt
from ltrag_plugins.types import Passage

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


def test_where_nothing_is_found_no_text_above_is_promised():
    llm = echo()
    answer = run(single_retrieval("Who wrote Emma?"), World(llm=llm, retriever=Shelf()))
    assert llm.prompts == [direct_prompt("Who wrote Emma?")]
    assert (answer.text, answer.passages) == ("Jane Austen", ())


def test_a_passage_that_speaks_of_placeholders_changes_nothing_but_itself():
    sly = Passage("Write {question} or {passages}.")
    prompt = reading_prompt("Is {passages} a word?", [sly])
    assert prompt.startswith("Write {question} or {passages}.\n")
    assert prompt.endswith("Question: Is {passages} a word?\nAnswer:")
    assert direct_prompt("{question} {0} {}").endswith("Question: {question} {0} {}\nAnswer:")


def test_long_passages_are_cut_by_words():
    long = Passage(" ".join(map(str, range(500))), title="Numbers")
    assert passages_block([long], max_words=3) == "Numbers: 0 1 2"


@pytest.mark.parametrize("template", ["{passages}", "{question}", "neither"])
def test_a_template_without_room_for_its_parts_is_refused(template):
    with pytest.raises(InvalidInput, match="template must hold"):
        reading_prompt("Who?", [EMMA], template)


def test_a_direct_template_without_room_for_the_question_is_refused():
    with pytest.raises(InvalidInput, match=r"\{question\}"):
        run(direct("Who?", template="Answer:"), World(llm=echo()))


def test_without_a_retriever_single_retrieval_says_so():
    with pytest.raises(NoRetriever, match="retriever="):
        run(single_retrieval("Who?"), World(llm=echo()))


def test_a_retriever_that_raises_is_named_with_its_cause():
    class Down:
        def search(self, queries, k):
            raise ConnectionError("no route")

    with pytest.raises(RetrieverFailed, match="no route") as caught:
        run(single_retrieval("Who?"), World(llm=echo(), retriever=Down()))
    assert isinstance(caught.value.__cause__, ConnectionError)
