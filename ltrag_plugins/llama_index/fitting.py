"""What a fit from an application's own query engine needs: its answers and what they cost."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from threading import get_ident
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.bridge.pydantic import Field
from llama_index.core.evaluation.base import BaseEvaluator
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMCompletionEndEvent
from llama_index.core.schema import QueryBundle
from llama_index_instrumentation import get_dispatcher

from ltrag_plugins.errors import InvalidInput, checked
from ltrag_plugins.flow import World, run
from ltrag_plugins.gece.gate import GECEGate
from ltrag_plugins.gece.labels import accepted_in, check_askable, check_fit
from ltrag_plugins.gece.savings import Usage, event_loop, timed
from ltrag_plugins.gece.signals import drafting
from ltrag_plugins.llama_index.gate import asked
from ltrag_plugins.llama_index.model import model_of
from ltrag_plugins.llm.base import LLM
from ltrag_plugins.llm.openai_format import field_of
from ltrag_plugins.prompts.templates import render_question
from ltrag_plugins.types import Question


def fit_from_engine(
    engine: BaseQueryEngine,
    llm: LLM,
    questions: Sequence[Any],
    *,
    most: int,
    correct: Any,
    **how: Any,
) -> GECEGate:
    """The gate before an engine, which is asked `most` queries at once; see `GECERouter.fit`."""
    settings = check_fit(questions, most, how)
    examples = [question_of(one) for one in questions]
    texts = [render_question(one) for one in examples]
    check_askable(texts, settings.max_words)
    # a model that fails is found before the engine is asked
    first = drafting(texts[0], settings, vectors=how["encoder"] is not None)
    run(first, World(llm=llm, encoder=how["encoder"]))
    found, cost = _answers_of(engine, texts, most)
    kept = [i for i, answer in enumerate(found) if not isinstance(answer, Exception)]
    return GECEGate.fit(
        [examples[i] for i in kept],
        llm=llm,
        retrieved_answers=[found[i] for i in kept],
        retrieval_cost=cost,
        correct=judge_of(correct),
        **how,
    )


def question_of(value: Any) -> Question:
    """The question in what an application has, with its accepted answers."""
    match value:
        case Question():
            return value
        case str():
            return Question(value)
        case QueryBundle():
            return Question(value.query_str)
        case {"question": str(text), **rest} | {"query": str(text), **rest}:
            return Question(text, accepted_in(rest))
    raise InvalidInput(
        f"questions are texts, QueryBundles, Questions, or mappings with 'question' and, where "
        f"they are known, 'answers'; got {value!r:.80}"
    )


_metering: ContextVar[tuple[Any, ...]] = ContextVar("ltrag_metering", default=())


class _Meter(BaseEventHandler):
    """Notes the tokens that each model call reports."""

    totals: list[Any]
    told: dict[int, Any] = Field(default_factory=dict)
    """The kind and the reply of the latest call that ended, by thread."""

    def handle(self, event: BaseEvent, **_: Any) -> None:
        """One call more; an LLM whose `complete` asks its own `chat` tells of the reply twice."""
        ours = any(one is self for one in _metering.get())  # of this fit, not of others' calls
        if ours and isinstance(event, LLMChatEndEvent | LLMCompletionEndEvent):
            raw = getattr(event.response, "raw", None)
            kind, before = self.told.get(get_ident(), (type(event), None))
            self.told[get_ident()] = type(event), raw
            if raw is not None and before is raw and kind is not type(event):
                return
            usage = field_of(raw, "usage")
            self.totals.append(field_of(usage, "total_tokens"))


def _answers_of(
    engine: BaseQueryEngine, queries: Sequence[str], most: int
) -> tuple[list[Any], Usage]:
    """The engine's answer to each query, or its exception, and what one costs on average."""

    def one(query: str) -> Any:
        _metering.set((*_metering.get(), meter))
        try:
            return asked(engine, query, loop)
        except Exception as error:
            return error

    def together(part: list[str]) -> list[Any]:
        with ThreadPoolExecutor(most) as pool:  # each in a copy of the caller's context
            return [*pool.map(lambda q: context.copy().run(one, q), part)]

    context, meter, root = copy_context(), _Meter(totals=[]), get_dispatcher()
    root.add_event_handler(meter)
    try:
        with event_loop() as loop:
            found, seconds = timed(together, queries)
    finally:
        # by identity: handlers with equal fields, as of another fit just begun, are equal
        root.event_handlers[:] = [one for one in root.event_handlers if one is not meter]
    count = sum(not isinstance(answer, Exception) for answer in found)
    return found, Usage.counted(meter.totals, count, seconds)


def judge_of(correct: Any) -> Callable[[str, str, str], Any] | LLM | None:
    """What LlamaIndex has for a judge as ours."""
    if isinstance(correct, BaseLLM):
        return model_of(correct)
    if isinstance(correct, BaseEvaluator):
        return partial(_passing, correct)
    if correct is None or callable(correct) or isinstance(correct, LLM):
        return correct
    raise InvalidInput(f"correct must be a function, a model or an evaluator, got {correct!r:.60}")


def _passing(evaluator: BaseEvaluator, question: str, answer: str, reference: str) -> bool:
    found = evaluator.evaluate(query=question, response=answer, reference=reference)
    wanted = f"a verdict (passing) of {type(evaluator).__name__}; it gave {found.feedback!r:.80}"
    return bool(checked(found.passing, bool, "correct", wanted))
