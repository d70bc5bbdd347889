import pytest
from method_parts import Shelf, flow_of

from ltrag_plugins.flow import World, run
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.filco import FILCOSettings
from ltrag_plugins.prompts.templates import (
    direct_prompt,
    filled,
    passages_block,
    reading_prompt,
)
from ltrag_plugins.types import Passage

EMMA = Passage(
    "Emma is a novel. It was written by Jane Austen. The sea is wide.",
    id="p0",
    title="Emma",
    score=2.0,
)
BREAD = Passage("Bread is baked. Bread is good.", id="p1")
TEXT = EMMA.text


def filter_prompt(question: str, passage: Passage) -> str:
    template = FILCOSettings().filter_template
    return filled(template, passage=passages_block([passage]), question=question)


def filtered(passages: list[Passage], replies: list[str]) -> list[Passage]:
    """What is read of the passages after these replies of the filter."""
    said = iter([*replies, "x"])
    world = World(llm=ScriptedLLM(lambda _: next(said)), retriever=Shelf(*passages))
    settings = FILCOSettings(k=len(passages))
    return list(run(flow_of("filco", "Who?", settings), world).passages)


def test_a_passage_is_cut_to_what_helps_and_another_is_left_out():
    replies = iter([" It was written by Jane Austen. ", "none", " Jane Austen\nmore"])
    llm, shelf = ScriptedLLM(lambda _: next(replies)), Shelf(EMMA, BREAD, EMMA)
    answer = run(
        flow_of("filco", "Who wrote Emma?", FILCOSettings(k=2)), World(llm=llm, retriever=shelf)
    )
    left = Passage("It was written by Jane Austen.", id="p0", title="Emma", score=2.0)
    assert shelf.asked == [(("Who wrote Emma?",), 2)]
    assert llm.calls == [
        (filter_prompt("Who wrote Emma?", EMMA), filter_prompt("Who wrote Emma?", BREAD)),
        (reading_prompt("Who wrote Emma?", [left]),),
    ]
    assert llm.prompts[0].startswith(f"Emma: {TEXT}\n\nCopy")
    assert llm.prompts[0].endswith("Question: Who wrote Emma?\nSentences:")
    assert llm.prompts[2].startswith("Emma: It was written by Jane Austen.\n\n")
    assert (answer.text, answer.passages, len(answer.trace)) == ("Jane Austen", (left,), 3)
    assert EMMA.text == TEXT


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("It was written by Jane Austen.", ("It was written by Jane Austen.",)),
        ("IT WAS WRITTEN, by jane austen", ("It was written by Jane Austen.",)),
        ('1. "Emma is a novel."\n2. The sea is wide.', ("Emma is a novel.", "The sea is wide.")),
        ("The sea is wide. Emma is a novel.", ("Emma is a novel.", "The sea is wide.")),
        ("written by Jane Austen", ("It was written by Jane Austen.",)),  # a piece of 4 words
        ("by Jane Austen", None),  # too short a piece
        ("It was written by Jane Austen in 1815.", ("It was written by Jane Austen.",)),
        ("It was written by George Eliot.", None),  # not what the text says
        ("She was born in Steventon. Emma is a novel.", ("Emma is a novel.",)),
        ("none", ()),
        ("None.", ()),
        ("None of the sentences helps.", ()),
        ("none, but Emma is a novel.", ("Emma is a novel.",)),
        ("", None),
        ("Jane Austen", None),
        ("a" * 9999, None),
    ],
)
def test_only_sentences_that_are_truly_there_are_kept(reply, kept):
    # a reply of no use leaves the passage whole; without a sentence it is left out
    found = [passage.text for passage in filtered([EMMA, BREAD], [reply, "Bread is good."])]
    left = [TEXT] if kept is None else [" ".join(kept)] if kept else []
    assert found == [*left, "Bread is good."]


def test_a_reply_of_no_use_leaves_the_passage_whole():
    assert filtered([EMMA, BREAD], ["I do not know", "Bread is good."]) == [
        EMMA,
        Passage("Bread is good.", id="p1"),
    ]


def test_where_all_are_left_out_all_come_back_whole():
    assert filtered([EMMA, BREAD], ["none", "none"]) == [EMMA, BREAD]


def test_where_nothing_is_found_it_asks_as_direct_does():
    llm = ScriptedLLM(lambda _: "x")
    answer = run(flow_of("filco", "Who?"), World(llm=llm, retriever=Shelf()))
    assert (llm.prompts, answer.passages) == ([direct_prompt("Who?")], ())


def test_the_filter_sees_as_much_of_a_passage_as_is_read():
    long = Passage(" ".join(f"w{i}" for i in range(500)))
    assert "w199\n" in filter_prompt("Who?", long)
    assert "w200" not in filter_prompt("Who?", long)
    [left] = filtered([long], [long.text])
    assert left.text.endswith("w199")


def test_a_passage_that_speaks_of_placeholders_changes_nothing_but_itself():
    prompt = filter_prompt("Is {passage} a word?", Passage("Write {question}."))
    assert prompt.startswith("Write {question}.\n")
    assert "Question: Is {passage} a word?\n" in prompt
