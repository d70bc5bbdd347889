"""The pictures of docs/how-to/learn.md: a scripted application, its first day, week and a drift.

    python benchmarks/learning_pictures.py docs/assets

The model knows what everybody knows, and is sure of it; of the application's own documents it knows
nothing. After 1,500 questions users begin to ask about something new. Gate, store and monitor are
the real ones, drawn as `ltrag gate watch` draws them. Prints what the monitor says on the way.
"""

import argparse
import math
import random
import re
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ltrag_plugins.flow import run
from ltrag_plugins.gece.decision import guarded
from ltrag_plugins.gece.learning import LearningGate, stored_monitor
from ltrag_plugins.gece.monitor import LATEST, Watch, Watched
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


def themes() -> dict[str, dict[str, str]]:
    """The colours of the report's page, in light and in the dark."""
    style = (files("ltrag_plugins.report") / "assets" / "page.css").read_text(encoding="utf-8")
    light, dark = style.split("prefers-color-scheme: dark")[:2]
    parts = {"light": light, "dark": dark.partition("}")[0]}
    return {n: dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", part)) for n, part in parts.items()}


def save(picture: Picture, folder: Path) -> None:
    """As two files, as a picture in an <img> knows nothing of its page."""
    svg = picture.inline().replace("var(--sans)", "system-ui, sans-serif")
    _, _, width, height = re.findall(r'viewBox="(\S+) (\S+) (\S+) (\S+)"', svg)[0]
    size = f'<svg width="{math.ceil(float(width) * 1.5)}" height="{math.ceil(float(height) * 1.5)}"'
    for theme, colours in themes().items():
        text = svg.replace("<svg", size, 1)
        for name, colour in colours.items():
            text = text.replace(f"var({name})", colour)
        (folder / f"learn-{picture.name}-{theme}.svg").write_text(text + "\n", encoding="utf-8")


@styled()
def course(records: list[Watched], marks: dict[int, str]) -> Picture:
    """The share retrieved over all questions, and what happened when."""
    figure, [axes] = canvas(size=(7.2, 3.3))
    ends = range(PART, len(records) + 1, PART)
    shares = [np.mean([r.retrieve for r in records[end - PART : end]]) for end in ends]
    axes.plot([*ends], shares, "o-", color=BLUE, markersize=4)
    for place, text in marks.items():
        ends_here = text in ("change", "dropped")
        axes.axvline(place, color=ORANGE if ends_here else QUIET, ls="--", lw=1.3)
        side, away = ("right", -4) if ends_here else ("left", 4)
        where: Any = {"xytext": (away, 0), "textcoords": "offset points", "ha": side}
        axes.annotate(text, (place, 1.1), color=SOFT, fontsize=9, annotation_clip=False, **where)
    axes.set(xlabel="questions", ylabel="retrieved", ylim=(-0.02, 1.2), xlim=(0, END + 20))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    as_percent(axes.yaxis)
    told = f"What share of {PART} questions each went through the chain."
    return Picture("course", "From nothing to a gate, and through a drift", told, figure, wide=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    application = Application(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        llm = ScriptedLLM(application.draft, name="scripted")
        gate = LearningGate(llm, Path(scratch, "app.sqlite"), fit_here=True)
        watch = Watch(gate, audit_rate=0.05, rng=random.Random(options.seed))
        marks, drawn, said, number, store = dict[int, str](), list[Picture](), "", 0, gate.store
        for i, question in enumerate(application.questions()):
            if i == CHANGE:
                marks[i] = "change"
                print(f"\n## before question {i}\n{stored_monitor(store)}")
                records = store.records(store.newest, LATEST)
                drawn += [p for p in watch_pictures(records, watch.monitor()) if p.name[0] == "a"]
            had = gate.gate is not None
            decision = run(guarded(question, gate), gate.world)
            watch.saw(decision, lambda question=question: application.chain(question))
            watch.settle()
            gate.refresh(now=True)
            if gate.store.newest != number:
                number = gate.store.newest
                marks[i] = ("refit" if had else "a gate") if gate.gate else "dropped"
                print(f"{i + 1}: {marks[i]}: {watch.monitor().state}")
            elif i == 36 or (i + 1) % 50 == 0:
                found = watch.monitor()
                if found.state.startswith("fit again") and not said:
                    said = found.state
                    print(f"\n## after question {i + 1}\n{found}")
                    pictures = watch_pictures(store.records(number, LATEST), found)
                    drawn += [p for p in pictures if p.name != "agreement"]
                print(f"{i + 1}: {found.state}", flush=True)
        records = [r for n in range(number + 1) for r in store.records(n, LATEST)]
        records.sort(key=lambda r: r.at)
    for picture in [course(records, marks), *drawn]:
        save(picture, options.folder)


if __name__ == "__main__":
    main()
