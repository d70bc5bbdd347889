"""What a method is, so that an evaluation can run any of them by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from ltrag_plugins.data import check_labelled
from ltrag_plugins.errors import CalibrationError, InvalidInput, checked, listed
from ltrag_plugins.flow import Flow, World, fetch, run
from ltrag_plugins.prompts import templates
from ltrag_plugins.prompts.replies import read_reply
from ltrag_plugins.settings import Count, Settings
from ltrag_plugins.types import Answer, Generation, Passage, Question

# what a method cannot do without, beside a model that writes
_Need = Literal["retriever", "encoder", "probabilities", "labelled questions"]
_A = TypeVar("_A", bound=Answer)


@dataclass(frozen=True, slots=True)
class ReadingSettings(Settings):
    """What all methods that read passages can be set to."""

    k: Count = 3
    """Passages to read."""
    template: templates.ReadingTemplate = templates.READING_PROMPT
    """Asks for the answer; `{passages}` and `{question}` are replaced."""
    max_tokens: Count = 24
    """Longest answer, in tokens."""

    def read(
        self, question: Question, passages: Sequence[Passage], trace: Sequence[Generation] = ()
    ) -> Flow[Answer]:
        """One model call that reads the passages; without any, the question is asked directly."""
        style = {"template": self.template, "max_tokens": self.max_tokens}
        return templates.answer_from(question.text, passages, **style, trace=trace)

    def searching(self, question: Question) -> Flow[Answer]:
        """One search, one model call."""
        [found] = yield from fetch(question.text, k=self.k)
        return (yield from self.read(question, found))


@dataclass(frozen=True, slots=True)
class Method:
    """A way to answer questions: one row of `METHODS`."""

    name: str
    """As it is called on the command line: lower case, hyphens."""
    summary: str
    """One line on what it does."""
    source: str
    """Who it is from, to cite; "-" for the plain ones."""
    settings: type
    """A checked frozen dataclass; `settings()` are the defaults."""
    answer: Callable[[Question, Any, Any], Flow[Answer]]
    """(question, settings, what `learn` returned) to the flow that answers it."""
    most_calls: Callable[[Any], int] = lambda _: 1
    """From settings to the most prompts that one question may send to the model."""
    needs: frozenset[_Need] = frozenset({"retriever"})
    learn: Callable[[Sequence[Question], Any], Flow[Any]] | None = None
    """(labelled questions, settings) to a flow that returns what `answer` needs; None: nothing. The
    questions keep their options beside the text that shows them."""
    train: Callable[[Sequence[Question], Any, World], Any] | None = None
    """In the place of `learn`: a training that makes its own calls to the world's model."""
    refuses: Callable[[Any, World], object] | None = None
    """From settings and a world: raises where one does not fit the other, before the first call."""
    reads_answers: bool = True
    """Whether it learns from the accepted answers; False: from the questions alone."""
    told: Callable[[Any], Mapping[str, Any]] | None = None
    """From what was learned to plain values for a report."""
    spells_out: bool = False
    """It shows options and context itself and reads its replies as options; for other methods they
    are part of the question's text (not of searches), and `picked` reads the answers."""

    @property
    def learns(self) -> bool:
        """Whether it needs labelled questions first."""
        return self.learn is not None or self.train is not None

    def taught(self, labelled: Sequence[Question], settings: Any, world: World) -> Any:
        """What `flow` needs as `learned`; None for a method that learns nothing. Raises
        `InvalidInput`: settings of another method, or what are no questions; `CalibrationError`,
        `MissingReferences`: there are none to learn from, or one has no accepted answers."""
        labelled, settings = listed(labelled, "labelled questions"), self._checked(settings)
        needed = "labelled questions" in self.needs
        if needed and not labelled:
            why = f"{self.name} learns from labelled questions and got none"
            raise CalibrationError(f"{why}; give some")
        check_labelled(labelled, answers=needed and self.reads_answers)
        if self.train is not None:
            return self.train(labelled, settings, world)
        if self.learn is not None:
            shown = [replace(self._shown(one), options=one.options) for one in labelled]
            flow = self.learn(shown, settings)
            return run(templates.searching_for(labelled, flow), world)
        return None

    def ready(
        self, world: World, *, settings: Any = None, labelled: Sequence[Question] = ()
    ) -> Callable[[str], Flow[Answer]]:
        """From a question's text to its flow; parts are checked, and it learns if it does."""
        labelled, settings = listed(labelled, "labelled questions"), self._checked(settings)
        self.check(world, labelled, settings)
        learned = self.taught(labelled, settings, world)
        return lambda question: self.flow(Question(question), settings, learned)

    def _checked(self, settings: Any) -> Any:
        settings = self.settings() if settings is None else settings
        return checked(settings, self.settings, f"settings of {self.name}", self.settings.__name__)

    def _shown(self, question: Question) -> Question:
        if self.spells_out:
            return question
        return replace(question, text=templates.render_question(question), options=(), context="")

    def flow(self, question: Question, settings: Any = None, learned: Any = None) -> Flow[Answer]:
        """Answer a question; where it offers options, with the one that the method picked. Raises
        `InvalidInput`: settings of another method, or nothing was learned and it must be."""
        settings = self._checked(settings)
        if self.learns and learned is None:
            remedy = "hand in learned=method.taught(questions, settings, world)"
            raise InvalidInput(f"{self.name} learns from labelled questions first: {remedy}")
        flow = self.answer(self._shown(question), settings, learned)
        return flow if self.spells_out else _picking(question, flow)

    def check(self, world: World, labelled: Sequence[Question], settings: Any = None) -> None:
        """Raise InvalidInput, naming what is missing, save what only replies can show; and what
        `refuses` raises of these settings, None: the defaults."""
        settings = self._checked(settings)
        for need, what, part in (
            ("model", "a model", world.llm),
            ("retriever", "a retriever", world.retriever),
            ("encoder", "an encoder", world.encoder),
            ("labelled questions", "labelled questions", labelled or None),
        ):
            if part is None and need in {"model", *self.needs}:
                raise InvalidInput(f"the method {self.name} needs {what}, and there is none")
        if self.refuses is not None:
            self.refuses(settings, world)


def picked(answer: _A, options: Sequence[str]) -> _A:
    """The answer as the option that it names (see `read_reply`); without options, itself."""
    return replace(answer, text=read_reply(answer.text, options)) if options else answer


def _picking(question: Question, flow: Flow[Answer]) -> Flow[Answer]:
    return picked((yield from templates.searching_for([question], flow)), question.options)
