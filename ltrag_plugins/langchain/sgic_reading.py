"""A calibrator's question and documents: in its input, or found by its retriever."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig

from ltrag_plugins.errors import InvalidInput, LtragError
from ltrag_plugins.langchain.gate import question_of
from ltrag_plugins.langchain.retriever import asking_for
from ltrag_plugins.sgic.loop import checked_question


@dataclass(frozen=True, slots=True)
class Given:
    """A question with its documents."""

    question: str
    documents: list[Document]


@dataclass(frozen=True, slots=True)
class Reading:
    """Where to find them.

    `read`, `aread` and `read_many` raise `InvalidInput` (`EmptyQuestion`) where they are not
    to be found, and what the retriever raises.
    """

    retriever: Runnable[Any, Any] | None = None
    k: int | None = None
    """Most documents to take from the retriever; given ones are all taken."""
    question_key: str = "question"
    documents_key: str = "documents"

    def read(self, value: Any, config: RunnableConfig, arguments: Mapping[str, Any]) -> Given:
        """Arguments are the retriever's."""
        match self._asked(value, arguments):
            case Given() as given:
                return given
            case question, retriever:
                return self._found(question, retriever.invoke(question, config, **arguments))

    async def aread(
        self, value: Any, config: RunnableConfig, arguments: Mapping[str, Any]
    ) -> Given:
        """As `read`, with the retriever's own async call."""
        match self._asked(value, arguments):
            case Given() as given:
                return given
            case question, retriever:
                found = await retriever.ainvoke(question, config, **arguments)
                return self._found(question, found)

    def read_many(
        self,
        values: Sequence[Any],
        configs: Sequence[RunnableConfig],
        arguments: Mapping[str, Any],
    ) -> list[Given | Exception]:
        """As `read` for each, the searches in one batch; an error stands in its input's place."""
        outcomes: dict[int, Given | Exception] = {}
        wanted: dict[int, str] = {}
        retriever = self.retriever
        for i, value in enumerate(values):
            try:
                match self._asked(value, arguments):
                    case Given() as given:
                        outcomes[i] = given
                    case question, retriever:
                        wanted[i] = question
            except LtragError as error:
                outcomes[i] = error
        if wanted and retriever is not None:
            questions, their = list(wanted.values()), [configs[i] for i in wanted]
            found = retriever.batch(questions, their, return_exceptions=True, **arguments)
            for (i, question), documents in zip(wanted.items(), found, strict=True):
                outcomes[i] = self._outcome(question, documents)
        return [outcomes[i] for i in range(len(values))]

    def _asked(
        self, value: Any, arguments: Mapping[str, Any]
    ) -> Given | tuple[str, Runnable[Any, Any]]:
        """What was given, or the question and whom to ask for documents."""
        question = checked_question(question_of(value, self.question_key))
        entries = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        documents = entries.get(self.documents_key)
        if documents is None and self.retriever is None:
            raise InvalidInput(
                f"there are no documents under {self.documents_key!r} in {value!r:.80}, and the "
                "calibrator has no retriever. Give one of them; an empty list asks the model alone."
            )
        if documents is None and self.retriever is not None:
            return question, asking_for(self.retriever, self.k)
        if arguments:
            raise InvalidInput(
                f"{sorted(arguments)} are for the retriever, which is not asked where documents "
                "are given; leave one of them out"
            )
        return Given(question, _checked(documents, f"under {self.documents_key!r}"))

    def _found(self, question: str, documents: Any) -> Given:
        return Given(question, _checked(documents, "from the retriever")[: self.k])

    def _outcome(self, question: str, documents: Any) -> Given | Exception:
        if isinstance(documents, Exception):
            return documents
        try:
            return self._found(question, documents)
        except InvalidInput as error:
            return error


def _checked(found: Any, where: str) -> list[Document]:
    listed: list[Any] | None = None
    if isinstance(found, Iterable) and not isinstance(found, str | Mapping | Document):
        listed = list(found)
    if listed is None or not all(isinstance(item, Document) for item in listed):
        raise InvalidInput(
            f"{where} there must be a list of langchain_core Documents, got {found!r:.80}. "
            "Passages become Documents with ltrag_plugins.langchain.document_of."
        )
    return listed
