"""What runs of an evaluation share: two ways to answer, questions, a model that reads."""

import dataclasses

from contracts.methods import PASSAGES, Letters

from ltrag_plugins.evaluate import Cell, Record
from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.types import Question

DIRECT, SINGLE = Cell(METHODS["direct"]), Cell(METHODS["single"])
READ = {"Emma": "Jane Austen", "Middlemarch": "George Eliot", "Bread": "flour and water"}


def writes(prompt: str) -> str:
    """Knows Emma; reads the first passage it is shown."""
    if not prompt.startswith("Answer"):
        return READ[prompt.partition(":")[0]]
    return "Jane Austen" if "Emma" in prompt else "no idea"


def world(function=writes) -> World:
    return World(llm=ScriptedLLM(function), retriever=BM25Retriever(PASSAGES), encoder=Letters())


def without_ms(records: dict[str, list[Record]]) -> dict[str, list[Record]]:
    return {
        name: [dataclasses.replace(record, ms=0.0) for record in found]
        for name, found in records.items()
    }


def many(count: int = 60) -> list[Question]:
    return [Question(f"Who wrote Emma, part {i}?", ("Jane Austen",), f"q{i}") for i in range(count)]
