"""The pictures of docs/how-to/learn.md: a scripted application, its first day, week and a drift.
`pictures.py` writes them.

The model knows what everybody knows, and is sure of it; of the application's own documents it knows
nothing. After 1,500 questions users begin to ask about something new. Gate, store and monitor are
the real ones, drawn as `ltrag gate watch` draws them. Prints what the monitor says on the way.
"""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ltrag_plugins.flow import run
from ltrag_plugins.gece.decision import guarded
from ltrag_plugins.gece.learning import LearningGate, stored_monitor
from ltrag_plugins.gece.monitor import LATEST, Watch, Watched, monitor
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.report.plots import (
    BLUE,
    ORANGE,
    QUIET,
    SOFT,
    Picture,
    as_percent,
    canvas,
    styled,
)
from ltrag_plugins.report.watch_figures import watch_pictures
from ltrag_plugins.types import Generation, Token

CHANGE, END = 1500, 2700
PART = 50  # questions behind a point of the first picture
KINDS = {
    # how likely the draft is right, and the mean and spread of its log-probability
    "which city is the capital of country": (0.95, -0.15, 0.12),
    "what does the handbook say in paragraph": (0.05, -0.9, 0.4),
    "which setting has the new product at place": (0.03, -0.5, 0.25),
}


class Application:
    """Questions, what the model drafts, and what the chain finds."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.drafts = dict[str, Generation]()

    def questions(self) -> Iterator[str]:
        """Two kinds; after the change mostly the third."""
        for i in range(END):
            shares = (5, 4, 0) if i < CHANGE else (2, 1, 6)
            [kind] = self._rng.choices([*KINDS], shares)
            likely, mean, spread = KINDS[kind]
            question = f"{kind} {self._rng.randrange(1000, 10_000)}"
            word = self.chain(question) if self._rng.random() < likely else "unknown"
            logprob = min(-1e-4, self._rng.gauss(mean, spread))
            self.drafts[question] = Generation(
                word, (Token(word, logprob),), prompt_tokens=60, completion_tokens=4
            )
            yield question

    def chain(self, question: str) -> str:
        """The answer with retrieval."""
        return f"answer{question.rsplit(' ', 1)[1]}"

    def draft(self, prompt: str) -> Generation:
        """What the model says by itself."""
        return next(self.drafts[q] for q in reversed(self.drafts) if q in prompt)


@styled()
def course(records: list[Watched], marks: dict[int, str]) -> Picture:
    """The share retrieved over all questions, and what happened when."""
    figure, [axes] = canvas(size=(5.2, 3.4))
    ends = range(PART, len(records) + 1, PART)
    shares = [np.mean([r.retrieve for r in records[end - PART : end]]) for end in ends]
    axes.plot([*ends], shares, "o-", color=BLUE, markersize=4)
    for i, (place, text) in enumerate(marks.items()):
        ends_here = text in ("change", "dropped")
        height, colour = 1.1 + 0.12 * (i % 2), ORANGE if ends_here else QUIET
        axes.plot([place, place], [0, height + 0.06], color=colour, ls="--", lw=1.3)
        side, away = ("right", -4) if ends_here else ("left", 4)
        where: Any = {"xytext": (away, 0), "textcoords": "offset points", "ha": side}
        axes.annotate(text, (place, height), color=SOFT, annotation_clip=False, **where)
    axes.set(xlabel="questions", ylabel="retrieved", ylim=(-0.02, 1.32), xlim=(0, END + 20))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    as_percent(axes.yaxis)
    told = f"What share of {PART} questions each went through the chain."
    return Picture("course", "From nothing to a gate, and through a drift", told, figure)


def learning_pictures(seed: int = 1) -> list[Picture]:
    """The course of it all, the audits before the change, and the monitor in the drift."""
    application = Application(seed)
    with tempfile.TemporaryDirectory() as scratch:
        llm = ScriptedLLM(application.draft, name="scripted")
        gate = LearningGate(llm, Path(scratch, "app.sqlite"), fit_here=True)
        watch = Watch(gate, audit_rate=0.05, rng=random.Random(seed))
        marks, drawn, number, store = dict[int, str](), list[Picture](), 0, gate.store
        for i, question in enumerate(application.questions()):
            if i == CHANGE:
                marks[i] = "change"
                print(f"\n## before question {i}\n{stored_monitor(store)}")
                records = store.records(store.newest, LATEST)
                drawn += [p for p in watch_pictures(records, watch.monitor()) if p.name[0] == "a"]
            had = gate.gate
            decision = run(guarded(question, gate), gate.world)
            watch.saw(decision, lambda question=question: application.chain(question))
            watch.settle(3600)  # a fit takes long on a busy machine
            gate.refresh(now=True)
            if store.newest != number:
                if gate.gate is None:
                    records = store.records(number, LATEST)
                    print(f"\n## after question {i + 1}\n{(found := monitor(records, had))}")
                    drawn += [p for p in watch_pictures(records, found) if p.name != "agreement"]
                number = store.newest
                marks[i] = ("refit" if had else "a gate") if gate.gate else "dropped"
                print(f"{i + 1}: {marks[i]}: {watch.monitor().state}")
            elif i == 36 or (i + 1) % 50 == 0:
                print(f"{i + 1}: {watch.monitor().state}", flush=True)
        records = [r for n in range(number + 1) for r in store.records(n, LATEST)]
        records.sort(key=lambda r: r.at)
    drawn = [course(records, marks), *drawn]
    return [replace(picture, name=f"learn-{picture.name}") for picture in drawn]
