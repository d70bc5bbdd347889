"""One question on its way through the loop: its prompts, requests, scores and limits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ltrag_plugins.errors import EmptyQuestion, InvalidInput
from ltrag_plugins.flow import Flow, compute
from ltrag_plugins.sgic.answer import Round, Stop
from ltrag_plugins.sgic.budget import Budget
from ltrag_plugins.sgic.cutting import cut_to_words
from ltrag_plugins.sgic.documents import Documents, prepared
from ltrag_plugins.sgic.judging import (
    Relevance,
    Truth,
    encoder_scores,
    relevance_scores,
    true_answer_score,
    true_document_scores,
)
from ltrag_plugins.sgic.neutral import one_line
from ltrag_plugins.sgic.prompts import Said, render
from ltrag_plugins.sgic.scale import ScoreScale, document_scores, rounding
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage
from ltrag_plugins.uncertainty import Measured, measured, reestimate
from ltrag_plugins.words import words

if TYPE_CHECKING:  # it brings scikit-learn
    from ltrag_plugins.sgic.wrongness import WrongnessCalibration


@dataclass(frozen=True, slots=True)
class Case:
    """One question with all that is needed to answer it."""

    question: str
    documents: Documents
    settings: SGICSettings
    scale: ScoreScale
    budget: Budget
    relevance: Relevance | None
    truth: Truth | None

    @classmethod
    def of(
        cls,
        question: str,
        passages: Sequence[Passage],
        settings: SGICSettings | None,
        scale: ScoreScale | None,
        wrongness: "WrongnessCalibration | None",
        relevance: Relevance | None,
        truth: Truth | None,
    ) -> "Case":
        """Check what came in before anything is asked; raises as `calibrate` says."""
        settings = settings or SGICSettings()
        scale = scale or ScoreScale.default(settings.estimator)
        scale.check(settings.estimator)
        if wrongness is not None:
            wrongness.check(scale)
        asked = checked_question(question)
        documents = prepared(passages, settings)
        _check_source(settings, relevance, truth, len(documents.texts))
        return cls(asked, documents, settings, scale, Budget(settings), relevance, truth)

    @property
    def notes(self) -> list[str]:
        """What preparing the documents left out."""
        cut = sum(document.dropped > 0 for document in self.documents.scored)
        return [f"{cut} of {len(self.documents.texts)} documents were cut to "
                f"{self.settings.document_words} words"] if cut else []  # fmt: skip

    @property
    def all_are_kept(self) -> bool:
        """Whether a round could show nothing else than the first prompt did."""
        settings = self.settings
        return (
            settings.earlier == "none"
            and settings.documents == "none"
            and settings.cut_to is not None
            and settings.cut_to >= len(self.documents.texts)
        )

    def wants_scores(self, stop: Stop | None) -> bool:
        """Whether documents are to be scored, now that the first answer is known."""
        return self.settings.score_documents == "always" or (
            stop is None and self.settings.scores_documents
        )

    def prompt(self, trace: Sequence[Round], documents: Documents) -> str:
        """Of the round after those of the trace."""
        if not trace:
            return render(self.settings.templates, self.question, documents.plain)
        shown = documents.shown(self.settings)
        return render(self.settings.templates, self.question, shown, self._said(trace))

    def limit(self, trace: Sequence[Round], documents: Documents) -> Stop | None:
        """The limit that a further round could pass; "rounds" where it would ask the same again."""
        prompt = self.prompt(trace, documents)
        # only without earlier answers can a prompt be an earlier one
        if self.settings.earlier == "none" and prompt == self.prompt((), self.documents):
            return "rounds"
        return self.budget.exceeded([prompt])

    def answered(self, trace: Sequence[Round], documents: Documents) -> Flow[Round]:
        """Ask for the answer of the next round."""
        settings, prompt, number = self.settings, self.prompt(trace, documents), len(trace)
        if not trace and self.budget.exceeded([prompt]):
            raise InvalidInput(
                f"the first prompt may cost {self.budget.bound([prompt])} tokens, more than "
                f"max_tokens={settings.max_tokens}. Raise it, or give fewer or shorter "
                "documents."
            )
        [found] = yield from self._asked([prompt])
        said, samples = found.generation, found.samples
        if number and settings.shows_a_form:
            found = _without_echo(found, settings)
        text = found.generation.text.strip()
        uncertainty = found.uncertainty if text else 1.0
        return Round(
            number,
            text,
            uncertainty,
            self._score(uncertainty, text, number),
            said,
            samples,
            prompt if settings.keep_prompts else None,
        )

    def scored(self, first: Round) -> Flow[tuple[Documents, Stop | None]]:
        """The documents with their scores, or the limit for which they were left without."""
        settings, documents = self.settings, self.documents
        passages = [document.passage for document in documents.scored]
        scores: Sequence[float] = ()
        if settings.source == "encoder":
            scores = yield from encoder_scores(self.question, passages)
        elif settings.source == "relevance" and self.relevance is not None:
            judge = partial(relevance_scores, self.relevance, self.question, passages)
            scores = yield from compute(judge)
        elif settings.source == "oracle" and self.truth is not None:
            scores = true_document_scores(self.truth, self.question, settings.seed)
        else:
            prompts = [render(settings.templates, self.question, [d]) for d in documents.plain]
            # the only document's answer is the first answer
            answers = {self.prompt((), documents): Measured(first.generation, first.uncertainty)}
            once = [prompt for prompt in dict.fromkeys(prompts) if prompt not in answers]
            if once:
                if left_out := self.budget.exceeded(once, and_calls=int(settings.rounds > 0)):
                    return documents, left_out
                answers |= zip(once, (yield from self._asked(once)), strict=True)
            documents = _with_answers(documents, [answers[prompt] for prompt in prompts])
            found = [answers[prompt].uncertainty for prompt in prompts]
            scores = document_scores(found, noise=rounding(found, settings.estimator))
        return documents.with_scores(scores, settings.cut_to), None

    def _asked(self, prompts: Sequence[str]) -> Flow[list[Measured]]:
        settings = self.settings
        self.budget.sent(prompts)
        found = yield from measured(
            *prompts,
            estimator=settings.estimator,
            max_tokens=settings.answer_tokens,
            stop=settings.stop,
            samples=settings.samples,
            temperature=settings.temperature,
            seed=settings.seed,
            may_repeat=partial(self.budget.repeats, prompts),
        )
        replies = [reply for one in found for reply in (one.generation, *one.samples)]
        self.budget.received(prompts, replies)
        return found

    def _score(self, uncertainty: float, text: str, number: int) -> float:
        if self.settings.source == "oracle" and self.truth is not None:
            seed = self.settings.seed
            return true_answer_score(self.truth, self.question, text, number, seed)
        return self.scale.score(uncertainty, number)

    def _said(self, trace: Sequence[Round]) -> list[Said]:
        if self.settings.earlier == "none":
            return []
        with_scores = self.settings.earlier == "scores"
        # a token is hardly ever more than a word: only what overran its limit is cut
        texts = [cut_to_words(one_line(r.text), self.settings.answer_tokens).text for r in trace]
        return [
            Said(text, one.score if with_scores else None)
            for text, one in zip(texts, trace, strict=True)
        ]


def _without_echo(found: Measured, settings: SGICSettings) -> Measured:
    """The answer, and its uncertainty, without what it repeats of the prompt's form."""
    said, samples = settings.templates.said(found.generation), found.samples
    if said is found.generation and not samples:
        return found
    samples = tuple(map(settings.templates.said, samples))
    return Measured(said, reestimate(said, samples, settings.estimator), samples)


def _with_answers(documents: Documents, answers: Sequence[Measured]) -> Documents:
    scored = [
        replace(document, uncertainty=one.uncertainty, answer=one.generation.text.strip())
        for document, one in zip(documents.scored, answers, strict=True)
    ]
    return replace(documents, scored=tuple(scored))


def checked_question(question: str) -> str:
    """The question without blanks around it.

    Raises:
        EmptyQuestion: it has no words.
        InvalidInput: it is no string.
    """
    if not isinstance(question, str):
        raise InvalidInput(f"a question is a string, got {type(question).__name__}")
    if not words(question):
        raise EmptyQuestion(f"the question {question!r} has no words; ask something")
    return question.strip()


def _check_source(
    settings: SGICSettings, relevance: Relevance | None, truth: Truth | None, documents: int
) -> None:
    if settings.source == "relevance" and relevance is None:
        raise InvalidInput("source='relevance' needs relevance=..., a function of the passages")
    if settings.source == "oracle":
        if truth is None:
            raise InvalidInput("source='oracle' needs truth=Truth(relevant, answers)")
        if len(truth.relevant) != documents:
            raise InvalidInput(
                f"the truth is about {len(truth.relevant)} passages, and there are {documents}"
            )
