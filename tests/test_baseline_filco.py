import asyncio
from dataclasses import replace

import pytest
from method_parts import Shelf, answer, flow_of

from ltrag_plugins.errors import ModelFailed
from ltrag_plugins.flow import World, arun, run, run_many
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods.filco import FILCOSettings
from ltrag_plugins.prompts.templates import filled, passages_block, reading_prompt
from ltrag_plugins.types import Passage

TEXT = "Emma is a novel. It was written by Jane Austen. The sea is wide."
EMMA = Passage(TEXT, id="p0", title="Emma", score=2.0)
BREAD = Passage("Bread is baked. Bread is good.", id="p1")


def filter_prompt(question: str, passage: Passage) -> str:
    template = FILCOSettings().filter_template
    return filled(template, passage=passages_block([passage]), question=question)


def filtered(passages: list[Passage], replies: list[str]) -> list[Passage]:
    """What is read of the passages after these replies of the filter."""
    said = iter([*replies, "x"])
    llm = ScriptedLLM(lambda _: next(said))
    return list(answer("filco", "Who?", llm, Shelf(*passages), k=len(passages)).passages)


def test_a_passage_is_cut_to_what_helps_and_another_is_left_out():
    replies = iter([" It was written by Jane Austen. ", "none", " Jane Austen\nmore"])
    llm, shelf = ScriptedLLM(lambda _: next(replies)), Shelf(EMMA, BREAD, EMMA)
    found = answer("filco", "Who wrote Emma?", llm, shelf, k=2)
    left = Passage("It was written by Jane Austen.", id="p0", title="Emma", score=2.0)
    assert shelf.asked == [(("Who wrote Emma?",), 2)]
    assert llm.calls == [
        (filter_prompt("Who wrote Emma?", EMMA), filter_prompt("Who wrote Emma?", BREAD)),
        (reading_prompt("Who wrote Emma?", [left]),),
    ]
    assert llm.prompts[0].startswith(f"Emma: {TEXT}\n\nCopy")
    assert llm.prompts[0].endswith("Question: Who wrote Emma?\nSentences:")
    assert llm.prompts[2].startswith("Emma: It was written by Jane Austen.\n\n")
    assert (found.text, found.passages, len(found.trace)) == ("Jane Austen", (left,), 3)
    assert EMMA.text == TEXT


def test_a_filter_of_its_own_filters_and_the_model_reads():
    reads, filters = ScriptedLLM(lambda _: "Jane Austen"), ScriptedLLM(lambda _: "Emma is a novel.")
    world = World(llm=reads, retriever=Shelf(EMMA, BREAD), filter=filters)
    runs = [
        lambda: run(flow_of("filco", "Who?"), world),
        lambda: asyncio.run(arun(flow_of("filco", "Who?"), world)),
        lambda: run_many([flow_of("filco", "Who?"), flow_of("direct", "Who?")], world)[0],
    ]
    for one in runs:
        assert one().text == "Jane Austen"
    asked = tuple(filter_prompt("Who?", passage) for passage in (EMMA, BREAD))
    assert filters.calls == [asked] * 3
    assert not {*asked} & {*reads.prompts}


def test_what_its_filter_raises_is_the_models_failure():
    def raises(prompt: str) -> str:
        raise ConnectionError("no route")

    world = World(ScriptedLLM(str), Shelf(EMMA), filter=ScriptedLLM(raises))
    with pytest.raises(ModelFailed, match="no route"):
        run(flow_of("filco", "Who?"), world)


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
    left = [EMMA] if kept is None else [replace(EMMA, text=" ".join(kept))] if kept else []
    good = replace(BREAD, text="Bread is good.")
    assert filtered([EMMA, BREAD], [reply, good.text]) == [*left, good]


@pytest.mark.parametrize(
    ("text", "reply", "kept"),
    [
        ("爱玛是一本小说。它很旧了。", "爱玛是一本小说", "爱玛是一本小说。"),
        ("यह किताब है। यह पुरानी है।", "यह पुरानी है", "यह पुरानी है।"),
    ],
)
def test_sentences_of_other_scripts_are_told_apart(text, reply, kept):
    [passage] = filtered([Passage(text)], [reply])
    assert passage.text == kept


def test_where_all_are_left_out_all_come_back_whole():
    assert filtered([EMMA, BREAD], ["none", "none"]) == [EMMA, BREAD]


def test_the_filter_sees_as_much_of_a_passage_as_is_read():
    long = Passage(" ".join(f"w{i}" for i in range(500)))
    [left] = filtered([long], [long.text])
    assert left.text.endswith("w199")
