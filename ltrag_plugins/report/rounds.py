"""Pictures of SGIC's rounds: of the records of a run, or of a file that lies in its folder.

::

    RUN/records/CELL.jsonl   those of a method that calibrates
    RUN/sgic_run.jsonl       what `ltrag_plugins.sgic.write_run` wrote
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.report.picture import Picture
from ltrag_plugins.report.words import slug, visible
from ltrag_plugins.sgic.analysis.judged import Judged
from ltrag_plugins.sgic.analysis.records import from_record, read_run

FILE = "sgic_run.jsonl"


def round_pictures(run: Path, records: Mapping[str, Sequence[Record]]) -> list[Picture]:
    """Those of each cell whose records have rounds, and of the file, if it is there.

    Raises:
        BadRecord: a line of the file is damaged.
        InvalidInput: the file is empty, or cannot be read.
    """
    found = []
    for name, some in records.items():
        judged = [from_record(one.rounds) for one in some if one.rounds is not None]
        if judged:
            found += _of(judged, f"sgic-{slug(name)}", visible(name))
    path = run / FILE
    if path.exists():
        judged = read_run(path)
        if not judged:
            raise InvalidInput(f"{path} holds no answers; take it away, or write it with write_run")
        found += _of(judged, "sgic", "SGIC")
    return found


def _of(run: Sequence[Judged], slug: str, title: str) -> list[Picture]:
    from ltrag_plugins.sgic.analysis import pictures as sgic

    again = any(len(one.right) > 1 for one in run)
    promised = any(one.answer.p_wrong is not None for one in run)
    known = any(one.relevant for one in run)
    paths = "Single questions, right or wrong in each round."
    kinds = (  # whether it can be drawn, and whether its panels stand side by side
        ("uncertainty", "Of right and wrong first answers.", sgic.spread_picture, True, known),
        ("paths", paths, sgic.paths_picture, again, True),
        ("turns", "Answers that stay or turn, by round.", sgic.turns_picture, again, False),
        ("wrongness", "P(wrong): said, and true.", sgic.reliability_picture, promised, False),
    )
    return [
        Picture(f"{slug}-{name}", f"{title}: {name}", told, partial(draw, run), wide=wide)
        for name, told, draw, possible, wide in kinds
        if possible
    ]
