"""Gate, reranker and calibrator, each where it paid, as one Runnable."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig

from ltrag_plugins import evaluate
from ltrag_plugins.errors import checked, listed
from ltrag_plugins.evaluate import LongTailAnswer, PipelineReport
from ltrag_plugins.flow import Flow, World, run_many
from ltrag_plugins.gece.labels import accepted_in
from ltrag_plugins.langchain.component import (
    Asked,
    Asking,
    FlowRunnable,
    conversation_of,
    entries_of,
    in_graph,
    plain,
)
from ltrag_plugins.langchain.fitting import judge_of
from ltrag_plugins.langchain.method import parts_of
from ltrag_plugins.langchain.retriever import document_of
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.prompts.templates import standalone
from ltrag_plugins.retrieval.base import Retriever
from ltrag_plugins.types import Question


class LongTailRAG(FlowRunnable):
    """Answers with the parts that paid on your questions; `fit` or `load` makes one.

    Put in a question: a string, a mapping that holds it, messages, or a graph's state. Out comes a
    mapping, as from `SGICCalibrator`:

    - `question`; `answer`: text, or the refusal; `refused`: whether it is that
    - `p_wrong` and `uncertainty`, 0-1 (None where unknown): larger is less certain
    - `documents`: those that the answer rests on; none for a direct answer
    - `decision`: the gate's `Decision`; `calibrated`: the calibrator's `CalibratedAnswer`; None
      where that part did not speak
    - `messages`, where a state that holds some came in: the answer, with the rest as
      `response_metadata`

    In a node of LangGraph all of it is plain dicts, as its checkpointers want it. In `batch` the
    model calls of all questions are merged. `as_text()` gives the answer alone.

    Args:
        rag: the core's `evaluate.LongTailRAG`; `rag.refusing(0.8)` keeps unsure answers back.
        question_key, condense: as for `SGICCalibrator`.
    """

    def __init__(
        self,
        rag: evaluate.LongTailRAG,
        *,
        question_key: str = "question",
        condense: bool | Runnable[Any, Any] | None = True,
        name: str | None = None,
    ) -> None:
        wanted = "an evaluate.LongTailRAG (fit or load makes one)"
        self.rag: evaluate.LongTailRAG = checked(rag, evaluate.LongTailRAG, "rag", wanted)
        super().__init__(self._flow, rag.world, Asking(question_key, condense), _shown, name)

    def _flow(self, asked: Asked) -> Flow[LongTailAnswer]:
        return self.rag.answering(asked.question, history=asked.history)

    @classmethod
    def fit(
        cls,
        questions: Sequence[Any],
        *,
        llm: LLM | Runnable[Any, Any],
        retriever: Retriever | Runnable[Any, Any],
        encoder: Encoder | Embeddings | None = None,
        correct: Any = None,
        question_key: str = "question",
        **how: Any,
    ) -> Self:
        """Fit the parts and keep those that pay; see `evaluate.LongTailRAG.fit`.

        Args:
            questions: texts, messages, mappings (`answers` has the accepted ones) or `Question`s.
            llm, retriever, encoder: LangChain's or ours; a retriever may be any Runnable from a
                query to documents.
            correct: as for `GECERouter.fit`: also a LangChain model, or a Runnable.
            how: target_accuracy, budget, settings, observers, on_stage, batch.
        """
        parts = parts_of(llm, retriever, encoder)
        asked = _questions_of(listed(questions, "questions"), question_key, parts["llm"])
        rag = evaluate.LongTailRAG.fit(asked, **parts, correct=judge_of(correct), **how)
        return cls(rag, question_key=question_key)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        llm: LLM | Runnable[Any, Any],
        retriever: Retriever | Runnable[Any, Any] | None = None,
        encoder: Encoder | Embeddings | None = None,
        refuse_p_wrong_above: float | None = None,
        **options: Any,
    ) -> Self:
        """What `save` (or `ltrag fit`) wrote; raises as `evaluate.LongTailRAG.load`. The options
        are those of the class; with a limit, less sure answers are kept back."""
        rag = evaluate.LongTailRAG.load(folder, **parts_of(llm, retriever, encoder))
        if refuse_p_wrong_above is not None:
            rag = rag.refusing(refuse_p_wrong_above)
        return cls(rag, **options)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write what was kept."""
        self.rag.save(folder)

    @property
    def report(self) -> PipelineReport | None:
        """What the fit found, as a table."""
        return self.rag.report

    def as_text(self) -> Runnable[Any, str]:
        """The same, putting out the answer's text (or the refusal) alone."""
        return self.pick("answer")


def _shown(answer: LongTailAnswer, value: Any, config: RunnableConfig) -> dict[str, Any]:
    """As the class describes it: plain values in a graph, a message where messages came in."""
    names = ("question", "refused", "p_wrong", "uncertainty", "decision", "calibrated")
    told = {name: getattr(answer, name) for name in names}
    told = plain(told) if in_graph(config) else told
    told |= {"answer": answer.text, "documents": [*map(document_of, answer.passages)]}
    if "messages" in entries_of(value):
        scores = {name: told[name] for name in ("refused", "p_wrong", "uncertainty")}
        told["messages"] = [AIMessage(answer.text, response_metadata={"longtail": scores})]
    return told


def _questions_of(values: Sequence[Any], key: str, llm: LLM) -> list[Question]:
    """Questions in LangChain's forms, with their accepted answers; follow-ups stand alone."""
    plain = [one for one in values if not isinstance(one, Question)]
    answers = [accepted_in(entries_of(one)) for one in plain]
    read = [conversation_of(one, key, reads=True) for one in plain]
    flows = [standalone(one.words, one.history) for one in read]
    made = map(Question, run_many(flows, World(llm=llm)), answers)
    return [one if isinstance(one, Question) else next(made) for one in values]
