"""Pictures of what else lies in a run folder: a training of DUR, rounds of SGIC.

::

    RUN/dur_history.json   what `ltrag dur train --json` printed
    RUN/sgic_run.jsonl     what `ltrag_plugins.sgic.write_run` wrote
"""

import json
from functools import partial
from pathlib import Path

from ltrag_plugins.dur.training import Batch
from ltrag_plugins.errors import InvalidInput, UnreadableArtifact
from ltrag_plugins.report.picture import Picture

DUR_FILE, SGIC_FILE = "dur_history.json", "sgic_run.jsonl"
_WIDE = ("uncertainty", "paths")  # panels side by side


def training_pictures(run: Path) -> list[Picture]:
    """Those of the files that are there.

    Raises:
        UnreadableArtifact: DUR's file is damaged.
        BadRecord: a line of SGIC's is.
        InvalidInput: SGIC's is empty, or cannot be read.
    """
    return [*_dur(run / DUR_FILE), *_sgic(run / SGIC_FILE)]


def _dur(path: Path) -> list[Picture]:
    if not path.exists():
        return []
    from ltrag_plugins.dur.pictures import loss_picture, shots_picture, turns_picture

    history, shots = _history(path)
    found = [
        Picture(
            "dur-shots",
            "DUR: shots of the training",
            f"Shots in the prompts, against a fixed {shots} for every question.",
            partial(shots_picture, history, shots=shots),
            wide=True,
        ),
        Picture(
            "dur-loss",
            "DUR: loss and reward",
            "By batch. Whether the answers get better, the reward tells.",
            partial(loss_picture, history),
        ),
    ]
    if all(batch.turned_hard is not None for batch in history):
        turns = "Share of questions whose answer turns as shots are added, by epoch."
        draw = partial(turns_picture, history)
        found.append(Picture("dur-turns", "DUR: answers that turn", turns, draw))
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


def _sgic(path: Path) -> list[Picture]:
    if not path.exists():
        return []
    from ltrag_plugins.sgic import read_run
    from ltrag_plugins.sgic.analysis import pictures as sgic

    run = read_run(path)
    if not run:
        raise InvalidInput(f"{path} holds no answers; take it away, or write it with write_run")
    again = any(len(one.right) > 1 for one in run)
    promised = any(one.answer.p_wrong is not None for one in run)
    kinds = (
        ("uncertainty", "Of right and wrong first answers.", sgic.spread_picture, True),
        ("paths", "Single questions, right or wrong in each round.", sgic.paths_picture, True),
        ("turns", "Answers that stay or turn, by round.", sgic.turns_picture, again),
        ("wrongness", "P(wrong): said, and true.", sgic.reliability_picture, promised),
    )
    return [
        Picture(f"sgic-{name}", f"SGIC: {name}", told, partial(draw, run), wide=name in _WIDE)
        for name, told, draw, possible in kinds
        if possible
    ]
