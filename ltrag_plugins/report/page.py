"""One HTML file of a run, with everything in it: no network, no other files. By the hashes in its
Content-Security-Policy no script runs but its own, and nothing is loaded.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path

from ltrag_plugins.errors import missing_extra, path_of

try:
    import matplotlib  # noqa: F401  # here, so that the extra of a whole report is named
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise missing_extra(error.name or "jinja2", "report") from error

from ltrag_plugins.artifacts import replace_file, writing
from ltrag_plugins.evaluate.folder import Run, read_run_folder
from ltrag_plugins.evaluate.spec import LOWER_IS_BETTER
from ltrag_plugins.evaluate.summary import Summary, summarize
from ltrag_plugins.report.escaping import script_json, size_of, visible
from ltrag_plugins.report.figures import pictures
from ltrag_plugins.report.listing import listing
from ltrag_plugins.report.plots import Picture, save_pictures

_FIRST = 25  # questions that are there without scripts; as many as the list shows at a time
_SCRIPTS = ("elements.js", "table.js", "trace.js", "answer.js", "list.js")
_SECTIONS = {
    "cost": ("Accuracy against cost", "What each way to answer buys, and for how much."),
    "gates": ("Gates", "Who needs retrieval, and what it buys to ask a gate."),
    "calibration": ("Calibration", "Do the probabilities keep what they promise?"),
    "rounds": ("Rounds", "What it does to look again."),
    "training": ("Training", "What DUR's heads learned from the model."),
}


@dataclass(frozen=True, slots=True)
class Written:
    """What a report came to."""

    page: Path
    size: int
    """Bytes."""
    pictures: tuple[Path, ...]
    run: Run


def write_report(
    run: str | Path,
    out: str | Path | None = None,
    *,
    pictures_to: str | Path | None = None,
    compared: str | None = None,
) -> Written:
    """Write the page of a run (unfinished, too), and its pictures as PNG and SVG in a folder.

    Args:
        out: the page; None: report.html in the run's folder.
        compared: the row that gains are over; None: the first one.

    Raises:
        UnreadableArtifact, BadRecord: there is no run, or its run.json or a record is damaged.
        InvalidInput: there are no records, or `compared` is not among the rows.
        UnwritableArtifact: page or pictures cannot be written.
    """
    found = read_run_folder(run)
    page = found.path / "report.html" if out is None else path_of(out)
    summary = summarize(found.complete, compared=compared)
    drawn = pictures(found, summary)
    content = _html(found, summary, drawn).encode("utf-8", "backslashreplace")
    with writing(page.parent):
        replace_file(page, content)
    every, both = chain(*drawn.values()), ("png", "svg")
    saved = () if pictures_to is None else save_pictures(every, pictures_to, both)
    return Written(page, len(content), tuple(saved), found)


def _html(run: Run, summary: Summary, drawn: Mapping[str, Sequence[Picture]]) -> str:
    assets, names = files("ltrag_plugins.report") / "assets", ("page.html", "page.css", *_SCRIPTS)
    page, style, *scripts = ((assets / name).read_text(encoding="utf-8") for name in names)
    script = "(() => {\n'use strict';\n" + "\n".join(scripts) + "\n})();\n"
    listed = listing(run)
    index = {"metrics": run.metrics, "cells": list(run.records), "questions": listed.questions}
    traces = {f"traces-{i}": block for i, block in enumerate(listed.blocks)}
    blocks = {"index": index, "passages": [*listed.passages], **traces}
    texts = {key: Markup(script_json(value)) for key, value in blocks.items()}
    own = {"script": script, "style": style}
    digests = {f"{name}_hash": hashlib.sha256(text.encode()).digest() for name, text in own.items()}
    hashes = {name: f"sha256-{b64encode(digest).decode()}" for name, digest in digests.items()}
    settings, pick = run.identity.get("settings"), min if run.metric in LOWER_IS_BETTER else max
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["visible"] = lambda text: visible(str(text))
    environment.filters["as_json"] = partial(json.dumps, indent=1)
    environment.filters["percent"] = lambda share: 100 * min(1.0, max(0.0, share))
    shown = {key: [(one, Markup(one.inline())) for one in some] for key, some in drawn.items()}
    return environment.from_string(page).render(
        run=run,
        name=run.path.resolve().name or str(run.path),
        summary=summary,
        metric=run.metric,
        lower=LOWER_IS_BETTER,
        best=pick(summary.rows, key=lambda row: row.scores[run.metric].value),
        sections=[(key, *_SECTIONS[key], some) for key, some in shown.items() if some],
        settings=settings if isinstance(settings, dict) else {},
        gated=any("+" in name for name in run.records),
        listed=listed,
        first=listed.questions[:_FIRST],
        blocks=texts,
        size=size_of(sum(map(len, texts.values()))),
        **{name: Markup(text) for name, text in own.items()},
        **hashes,
    )
