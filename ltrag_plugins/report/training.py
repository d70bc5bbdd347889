"""Pictures of DUR's training: of methods that trained in the run, or of a file in its folder.

::

    RUN/learned/CELL.json   what a method kept of its training
    RUN/dur_history.json    what `ltrag dur train --json` printed
"""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from ltrag_plugins.dur.batch import Batch
from ltrag_plugins.errors import UnreadableArtifact
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.report.picture import Picture
from ltrag_plugins.report.words import slug, visible

FILE = "dur_history.json"


def training_pictures(run: Path, cells: Iterable[str]) -> list[Picture]:
    """Those of each cell that trained, and of the file, if it is there.

    Raises:
        UnreadableArtifact: a file is damaged.
    """
    folder = RunFolder(run)
    files = [(folder.learned(name), f"dur-{slug(name)}", visible(name)) for name in cells]
    return [
        picture
        for path, name, title in [*files, (run / FILE, "dur", "DUR")]
        if path.exists()
        for picture in _of(path, name, title)
    ]


def _of(path: Path, name: str, title: str) -> list[Picture]:
    from ltrag_plugins.dur.pictures import loss_picture, shots_picture, turns_picture

    history, shots = _history(path)
    found = [
        Picture(
            f"{name}-shots",
            f"{title}: shots of the training",
            f"Shots in the prompts, against a fixed {shots} for every question.",
            partial(shots_picture, history, shots=shots),
            wide=True,
        ),
        Picture(
            f"{name}-loss",
            f"{title}: loss and reward",
            "By batch. Whether the answers get better, the reward tells.",
            partial(loss_picture, history),
        ),
    ]
    if all(batch.turned_hard is not None for batch in history):
        turns = "Share of questions whose answer turns as shots are added, by epoch."
        draw = partial(turns_picture, history)
        found.append(Picture(f"{name}-turns", f"{title}: answers that turn", turns, draw))
    return found


def _history(path: Path) -> tuple[list[Batch], int]:
    try:
        body = json.loads(path.read_bytes())
        history = [Batch(**batch) for batch in body["history"]]
        if not history:
            raise ValueError("no batch was trained")
        return history, int(body["settings"]["shots"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableArtifact(
            f"{path}: {type(error).__name__}: {error}. Write it with 'ltrag dur train --json', or "
            "take it away."
        ) from error
