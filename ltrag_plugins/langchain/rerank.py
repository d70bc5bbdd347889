"""Documents, and solved examples, in the order in which they help the model."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Self

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.runnables import RunnableLambda
from pydantic import ConfigDict, Field

from ltrag_plugins.dur.ranker import DURRanker, HeadHolder
from ltrag_plugins.dur.shots import ExamplePool
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain.component import conversation_of
from ltrag_plugins.langchain.embeddings import encoder_of
from ltrag_plugins.langchain.retriever import SCORE_KEYS, documents_in, passage_of
from ltrag_plugins.llm.base import Encoder


class DURReranker(HeadHolder, BaseDocumentCompressor):
    """Reranks documents by a trained head, with the score under `relevance_score`.

    A document is read as its title (metadata `title`) and text. Those put out are new; ids and
    other metadata are kept, an earlier score as `previous_relevance_score`.

    Args:
        ranker: from `DURTrainer` or `DURRanker.load`; see also `from_pretrained`.
        encoder, untrained: "encoder" ranks by plain similarity of an encoder's, without a head.
        top_n: most documents, at least 1; None: all above sigma. Their scores sum to 1.
        sigma: leave out what has a score of at most this, 0 to 1; at 0 nothing.
    """

    ranker: DURRanker = Field(exclude=True)
    top_n: int | None = None
    sigma: float = 0.0

    model_config = ConfigDict(arbitrary_types_allowed=True)
    _encoder_of = staticmethod(encoder_of)

    def __init__(
        self,
        ranker: DURRanker | None = None,
        *,
        encoder: Encoder | Embeddings | None = None,
        untrained: Literal["encoder"] | None = None,
        top_n: int | None = None,
        sigma: float = 0.0,
    ) -> None:
        ranker = self._chosen(ranker, encoder, untrained, top_n=top_n, sigma=sigma)
        fields: dict[str, Any] = {"ranker": ranker, "top_n": top_n, "sigma": sigma}
        super().__init__(**fields)

    @property
    def _run(self) -> RunnableLambda[dict[str, Any], list[Document]]:
        """As a step it is a run of its own, under the callbacks of a call or of the chain around
        it."""
        return RunnableLambda(self._compress, self._acompress, name="DURReranker")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """New documents, best first, each with its score (0 to 1) as `relevance_score`; raises
        `EmptyQuestion` where the query is blank."""
        given = {"documents": documents_in(documents, "to rerank"), "query": query}
        return self._run.invoke(given, {"callbacks": callbacks})

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """As `compress_documents`; an encoder without an async call computes in a thread."""
        given = {"documents": documents_in(documents, "to rerank"), "query": query}
        return await self._run.ainvoke(given, {"callbacks": callbacks})

    def _compress(self, given: dict[str, Any]) -> list[Document]:
        documents, query = given["documents"], given["query"]
        passages = [*map(passage_of, documents)]
        ranked = self.ranker.rank(query, passages, top_n=self.top_n, sigma=self.sigma)
        return [_rescored(documents[place.index], place.score) for place in ranked]

    async def _acompress(self, given: dict[str, Any]) -> list[Document]:
        documents, query = given["documents"], given["query"]
        passages = [*map(passage_of, documents)]
        ranked = await self.ranker.arank(query, passages, top_n=self.top_n, sigma=self.sigma)
        return [_rescored(documents[place.index], place.score) for place in ranked]


def _rescored(document: Document, score: float) -> Document:
    """A copy with the new score; an earlier one survives as `previous_relevance_score`."""
    key = SCORE_KEYS[0]
    earlier = {f"previous_{key}": document.metadata[key]} if key in document.metadata else {}
    return document.model_copy(update={"metadata": document.metadata | earlier | {key: score}})


class DURExampleSelector(HeadHolder, BaseExampleSelector):
    """Chooses shots for a few-shot prompt by a trained head, best first.

    The questions of the examples are encoded once, when they are added. An example whose
    question is the one being asked is never chosen.

    Args:
        ranker, encoder, untrained: as for `DURReranker`.
        examples: solved, as few-shot templates want them; copied. `InvalidInput` without question.
        question_key: which entry is the question, in the examples and in the input.
        k: most examples to choose, at least 1; None: as many as in the ranker's training.
        sigma: leave out what has a score of at most this, 0 to 1; at 0 nothing. The scores of the
            preselected examples sum to 1.
    """

    _encoder_of = staticmethod(encoder_of)

    def __init__(
        self,
        ranker: DURRanker | None = None,
        examples: Sequence[Mapping[str, str]] = (),
        *,
        question_key: str = "question",
        k: int | None = None,
        sigma: float = 0.0,
        encoder: Encoder | Embeddings | None = None,
        untrained: Literal["encoder"] | None = None,
    ) -> None:
        self.ranker = self._chosen(ranker, encoder, untrained, top_n=k, sigma=sigma)
        self.question_key, self.k, self.sigma = question_key, k, sigma
        self._pool: ExamplePool[dict[str, str]] = ExamplePool(self.ranker, shots=k, sigma=sigma)
        self._add(examples)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        folder: str | PathLike[str],
        examples: Sequence[Mapping[str, str]] = (),
        *,
        encoder: Encoder | Embeddings,
        question_key: str = "question",
        k: int | None = None,
        sigma: float = 0.0,
    ) -> Self:
        """As `DURReranker.from_pretrained`, with what the class takes beside its ranker."""
        ranker = DURRanker.load(folder, encoder=encoder_of(encoder))
        return cls(ranker, examples, question_key=question_key, k=k, sigma=sigma)

    def add_example(self, example: dict[str, str]) -> None:
        """Add one more; only its question is encoded."""
        self._add([example])

    def select_examples(self, input_variables: dict[str, Any]) -> list[dict[str, str]]:
        """Copies of the chosen examples, best first; raises `EmptyQuestion`, and `InvalidInput`
        where there is nothing under `question_key`."""
        asked = conversation_of(input_variables, self.question_key)
        return [dict(example) for example in self._pool.choose(asked.words)]

    def _add(self, examples: Sequence[Mapping[str, str]]) -> None:
        for example in examples:
            text = example.get(self.question_key)
            if not isinstance(text, str) or not text.strip():
                remedy = "Name the entry that holds it with question_key."
                lacks = f"an example has no question under {self.question_key!r}"
                raise InvalidInput(f"{lacks}: {dict(example)!r:.80}. {remedy}")
        texts = [example[self.question_key] for example in examples]
        self._pool.add(texts, [dict(example) for example in examples])
