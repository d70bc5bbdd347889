"""What a gate at work did, as pictures and as one page."""

from importlib.resources import files
from pathlib import Path

import numpy as np

from ltrag_plugins.artifacts import replace_file, writing
from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.gece.learning import stored_monitor
from ltrag_plugins.gece.monitor import LATEST, WINDOW, Monitor, Watched, estimated
from ltrag_plugins.gece.store import DecisionStore
from ltrag_plugins.metrics.calibration import wilson_interval
from ltrag_plugins.report import plots
from ltrag_plugins.report.escaping import visible

try:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise missing_extra(error.name or "jinja2", "report") from error

_PART = WINDOW // 4  # decisions behind a point, at least
_POINTS = 30  # with room for whiskers


def watch_page(
    store: DecisionStore, page: str | Path | None, pictures: str | Path | None = None
) -> Monitor:
    """Write what the newest gate in a store did as one HTML file, with everything in it, and its
    pictures as PNG and SVG in a folder; None: not.

    Raises:
        InvalidInput: the newest gate has decided nothing.
        UnwritableArtifact: page or pictures cannot be written.
    """
    found, records = stored_monitor(store), store.records(store.newest, LATEST)
    if not records:
        told = f"the newest gate in {store.path} has decided nothing yet"
        raise InvalidInput(f"{told}: {found.state}")
    drawn = watch_pictures(records, found)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    assets = files("ltrag_plugins.report") / "assets"
    texts = [(assets / name).read_text(encoding="utf-8") for name in ("watch.html", "page.css")]
    rows = [line.split("  ", 1) for line in str(found).splitlines()[1:]]  # the state is the heading
    content = environment.from_string(texts[0]).render(
        name=visible(store.path.name),
        state=found.state,
        rows=[(name, value.strip()) for name, value in rows],
        style=Markup(texts[1]),
        pictures=[(one, Markup(one.inline())) for one in drawn],
    )
    if page is not None:
        with writing(Path(page).parent):
            replace_file(Path(page), content.encode())
    if pictures is not None:
        plots.save_pictures(drawn, pictures, ("png", "svg"))
    return found


@plots.styled()
def watch_pictures(records: list[Watched], found: Monitor) -> list[plots.Picture]:
    """Share retrieved and agreement over time, and the scores beside those of the fit."""
    figure, [axes] = plots.canvas()
    size = min(len(records), max(_PART, len(records) // _POINTS))
    ends = range(size + len(records) % size, len(records) + 1, size)  # the newest is in the last
    shares = [float(np.mean([r.retrieve for r in records[end - size : end]])) for end in ends]
    for end, share in zip(ends, shares, strict=True):
        plots.whiskers(axes, end, wilson_interval(share, size))
    axes.plot(ends, shares, "o-", color=plots.BLUE, label=f"of {size} decisions each", markersize=4)
    if found.expected is not None:
        axes.axhline(found.expected, ls="--", color=plots.QUIET, label="at the fit")
    axes.set(xlabel="decisions", ylabel="retrieved", ylim=(-0.02, 1.02))
    plots.as_percent(axes.yaxis)
    axes.legend(loc="best")
    told = "What share of the questions the gate sent through the chain, with 95 % intervals."
    drawn = [plots.Picture("retrieved", "Share retrieved", told, figure)]
    audits = [(i + 1, r) for i, r in enumerate(records) if r.agrees is not None and not r.retrieve]
    if audits:
        figure, [axes] = plots.canvas()
        for part in np.array_split(np.arange(len(audits)), min(12, len(audits))):
            so_far = [record for _, record in audits[: part[-1] + 1]]
            if (at := estimated(so_far)) is not None:
                plots.whiskers(axes, audits[part[-1]][0], at)
                axes.plot([audits[part[-1]][0]], [at.value], "o", color=plots.ORANGE)
        if found.promised is not None:
            axes.axhline(found.promised.value, ls="--", color=plots.QUIET, label="at the fit")
            axes.legend(loc="best")
        axes.set(xlabel="decisions", ylabel="direct answers that agree", ylim=(-0.02, 1.02))
        plots.as_percent(axes.yaxis)
        told = "Estimated from the audits so far, with 95 % intervals."
        drawn.append(plots.Picture("agreement", "Agreement of direct answers", told, figure))
    if found.fit_scores and found.scores:
        figure, [axes] = plots.canvas()
        rows = (found.fit_scores, plots.QUIET), (found.scores, plots.BLUE)
        for place, (points, colour) in enumerate(rows):
            axes.plot([points[0], points[4]], [place] * 2, color=colour, lw=1.5)
            axes.plot([points[1], points[3]], [place] * 2, color=colour, lw=7)
            axes.plot([points[2]], [place], "o", color=plots.ORANGE)
        axes.set(xlabel="score", yticks=[0, 1], ylim=(-0.6, 1.6))
        axes.set_yticklabels(["at the fit", "since then"])
        told = "5 to 95 % of the scores, 25 to 75 % of them thick, and their median."
        drawn.append(plots.Picture("scores", "Scores", told, figure))
    return drawn
