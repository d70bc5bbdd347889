"""What a fit from an application's own chain needs: its inputs, its answers and what they cost."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from numbers import Real
from operator import add
from time import perf_counter
from typing import Any

import numpy as np
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from ltrag_plugins.errors import CalibrationError, InvalidInput, checked
from ltrag_plugins.flow import World, run, run_many
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.gece.labels import accepted_in, check_askable, check_fit
from ltrag_plugins.gece.savings import Usage, event_loop, timed
from ltrag_plugins.gece.signals import drafting
from ltrag_plugins.langchain.component import (
    ANSWER_KEYS,
    Asking,
    conversation,
    conversation_of,
    entries_of,
    properties_of,
)
from ltrag_plugins.langchain.model import model_of, unbound
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.prompts.templates import render_question, standalone
from ltrag_plugins.types import Question

_FORMS = ("auto", "text", "message")


def fit_from_chain(
    chain: Runnable[Any, Any],
    llm: LLM,
    questions: Sequence[Any],
    *,
    asking: Asking,
    answer: Any,
    check: Callable[[Any, Any], None] | None,
    most: int,
    correct: Any,
    **how: Any,
) -> tuple[GECEGate, Any]:
    """The gate, and an output of the chain; `most` runs of it at once; `check` may refuse the
    first input and output. See `GECERouter.fit`."""
    settings = check_fit(questions, most, how)
    takes = _entries_taken(chain)
    examples = [_example_of(one, takes, asking.key) for one in questions]
    inputs = [value for value, _ in examples]
    bounded: list[RunnableConfig] = [{"max_concurrency": most}] * len(inputs)
    asked = asking.read_many(inputs, bounded)
    for error in (one for one in asked if isinstance(one, Exception)):
        raise error
    alone = run_many([standalone(one.words, one.history) for one in asked], World(llm=llm))
    check_askable(alone, settings.max_words)

    def first(value: Any, output: Any) -> None:
        """After one run of the chain, refuse a shape that no draft fills and a model that fails."""
        if check:
            check(value, output)
        draft = drafting(alone[0], settings, vectors=how["encoder"] is not None)
        run(draft, World(llm=llm, encoder=how["encoder"]))

    found, texts, cost = _answers_of(chain, inputs, most, answer, first)
    kept = [i for i, output in enumerate(found) if not isinstance(output, Exception)]
    learned = list[Question]()
    for i in kept:
        example = examples[i][1]
        if render_question(example) != alone[i]:  # it was made to stand alone
            example = replace(example, text=alone[i], options=(), context="")
        learned.append(example)
    gate = GECEGate.fit(
        learned,
        llm=llm,
        retrieved_answers=[texts[i] for i in kept],
        retrieval_cost=cost,
        correct=judge_of(correct),
        **how,
    )
    return gate, found[kept[0]]


def _example_of(value: Any, takes: Sequence[str], key: str) -> tuple[Any, Question]:
    """What the chain, which `takes` these entries, gets for a question, and the question with its
    accepted answers."""
    if isinstance(value, str | Question):
        question = Question(value) if isinstance(value, str) else value
        return _as_input(render_question(question), takes, key), question
    answers = accepted_in(entries_of(value))
    if isinstance(value, Mapping) and "answers" in value:
        value = {name: entry for name, entry in value.items() if name != "answers"}
        if value.keys() == {key}:
            value = _as_input(value[key], takes, key)
    return value, Question(conversation_of(value, key).question, answers)


def output_text(output: Any, key: Any = None) -> str:
    """The answer in what a chain puts out: a text, a message, or a mapping or state that holds one,
    under `key` if that is a key."""
    if isinstance(output, str | BaseMessage):
        return output if isinstance(output, str) else str(output.text)
    entries = entries_of(output)
    unnamed = not isinstance(key, str) or key in _FORMS
    for name in ("messages", *ANSWER_KEYS) if unnamed else (key,):
        if (found := entries.get(name)) is not None:
            return output_text(found[-1] if name == "messages" and found else found)
    raise InvalidInput(
        f"there is no answer's text in what the chain puts out, {output!r:.80}. End the chain in a "
        "text or a message, or name the key: answer='...'."
    )


def streamed_text(chunks: Sequence[Any], key: Any = None) -> str:
    """The answer in the pieces of a chain's stream; of a graph's, in any of its modes, the last."""
    if not chunks:
        return ""
    pieces = [_bare(chunk) for chunk in chunks]
    if pieces[0] is chunks[0]:
        with suppress(TypeError, InvalidInput):  # a graph's states do not add up
            return output_text(reduce(add, pieces), key)
    for state in reversed([piece for piece in pieces if isinstance(piece, Mapping)]):
        for held in (state, *reversed([v for v in state.values() if isinstance(v, Mapping)])):
            with suppress(InvalidInput):
                return output_text(held, key)
    messages = [piece for piece in pieces if isinstance(piece, BaseMessage)]
    if not messages:
        return output_text(pieces[-1], key)
    return "".join(str(one.text) for one in messages if one.id == messages[-1].id)


def _bare(chunk: Any) -> Any:
    """Without the mode, the place and the metadata that a graph may put around it."""
    if type(chunk).__name__ == "GraphOutput":
        return chunk.value
    if isinstance(chunk, Mapping) and {"type", "ns", "data"} <= chunk.keys():
        return _bare(chunk["data"])
    while isinstance(chunk, tuple) and chunk:
        chunk = chunk[0] if isinstance(chunk[0], BaseMessage) else chunk[-1]
    return chunk


def _entries_taken(chain: Runnable[Any, Any]) -> Sequence[str]:
    """The entries of the mapping that a chain, or graph, declares to take."""
    try:
        return [*properties_of(chain.get_input_jsonschema())]
    except Exception:  # of a user's types; pydantic reads no `typing.TypedDict` before Python 3.12
        builder = getattr(unbound(chain), "builder", None)
        return [*builder.schemas[builder.input_schema]] if builder else []


def _as_input(text: str, takes: Sequence[str], key: str) -> Any:
    """The text in the form that a chain takes."""
    if key in takes:
        return {key: text}
    if "messages" in takes:
        return {"messages": [HumanMessage(text)]}
    return {takes[0]: text} if len(takes) == 1 else text


class Meter(BaseCallbackHandler):
    """Notes the tokens that each model call reports."""

    run_inline = True

    def __init__(self) -> None:
        self.totals = list[object]()
        self.began: float | None = perf_counter()

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """One call more; a completion model counts a batch as a whole, with the first of it."""
        used: Any = (response.llm_output or {}).get("token_usage")
        message = None
        for generations in response.generations:
            message = getattr(generations[0], "message", None)
            used = getattr(message, "usage_metadata", None) or used
        counted = message is None and used == {} and any(self.totals)  # with that first one
        rest = [0] * (len(response.generations) - 1)
        self.totals += [0 if counted else (used or {}).get("total_tokens"), *rest]

    def usage(self) -> Usage:
        """What one question took since this was made; no seconds where others went beside it."""
        seconds = None if self.began is None else perf_counter() - self.began
        return Usage.counted(self.totals, 1, seconds)


def _answers_of(
    chain: Runnable[Any, Any],
    inputs: Sequence[Any],
    most: int,
    key: Any,
    check: Callable[[Any, Any], None] | None = None,
) -> tuple[list[Any], list[Any], Usage]:
    """What the chain puts out for each input, or its exception, the same as texts, and what one
    costs on average."""
    meter, texts, batch = Meter(), list[Any](), chain.batch
    shared: Any = {"callbacks": [meter], "max_concurrency": most}

    def ask(part: list[Any]) -> list[Any]:
        configs: Any = [{**shared, "configurable": conversation(chain)} for _ in part]
        return batch(part, configs, return_exceptions=True)

    def run(part: list[Any]) -> list[Any]:
        nonlocal batch
        outputs = ask(part)
        unasked = all(isinstance(o, TypeError | NotImplementedError) for o in outputs)
        if outputs and unasked and batch is not awaited:  # it may have no sync call
            batch = awaited
            outputs = ask(part)
        return [read(value, output) for value, output in zip(part, outputs, strict=True)]

    def read(value: Any, output: Any) -> Any:
        """The output, or its exception, with its text beside it; a first one that cannot be read,
        or whose shape cannot be filled, ends the fit at once."""
        first = all(isinstance(text, Exception) for text in texts)
        if check and first and not isinstance(output, Exception):
            check(value, output)
        try:
            texts.append(output if isinstance(output, Exception) else output_text(output, key))
        except InvalidInput as error:
            if first:
                raise
            texts.append(output := error)
        return output

    with event_loop() as loop:

        def awaited(*given: Any, **how: Any) -> list[Any]:
            return asyncio.run_coroutine_threadsafe(chain.abatch(*given, **how), loop).result()

        try:
            found, seconds = timed(run, inputs)
        except CalibrationError as error:
            raise CalibrationError(
                f"{error}, given {inputs[0]!r:.80}: question_key= names the entry of the question, "
                "and a mapping with entries beside that and 'answers' goes to the chain as it is"
            ) from error.__cause__
    count = sum(not isinstance(output, Exception) for output in found)
    return found, texts, Usage.counted(meter.totals, count, seconds)


def judge_of(correct: Any) -> Callable[[str, str, str], Any] | LLM | None:
    """What LangChain has for a judge as ours."""
    if not isinstance(correct, Runnable):
        wanted = "a function, a model or a Runnable"
        return checked(correct, Callable | LLM | None, "correct", wanted)
    if isinstance(getattr(correct, "bound", correct), BaseLanguageModel):
        return model_of(correct)
    names = ("question", "answer", "reference")
    return lambda *given: _verdict(correct.invoke(dict(zip(names, given, strict=True))))


def _verdict(said: Any) -> float:
    if isinstance(said, Mapping | BaseModel):
        held = entries_of(said)
        said = next((held[key] for key in ("correct", "score", "value") if key in held), said)
    if isinstance(said, Real | np.bool_):
        return float(said)
    text = output_text(said).strip()
    word = re.split(r"[.,;!\n]", text)[0].strip("* ").lower()  # of "Yes, they agree."
    if word not in (*_YES, *_NO):
        raise InvalidInput(
            f"correct= gave {text[:80]!r}; it gives True or False, a number from 0 to 1, or yes or "
            "no (in a mapping or model under 'correct', 'score' or 'value')"
        )
    return float(word in _YES)


_YES, _NO = ("yes", "true", "correct", "y"), ("no", "false", "incorrect", "n")
