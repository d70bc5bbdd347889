"""`ltrag report`: a run as one page, and as pictures."""

from pathlib import Path
from typing import Annotated

import typer

from ltrag_plugins.cli.output import checked_file, checked_folder, say, show, working


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN/", help="Folder that 'ltrag evaluate --out' wrote.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.html", help="The page; by default report.html in the folder."
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures", metavar="DIR", help="Write the pictures here too, as PNG and SVG."
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="The row that gains are over; by default the first.")
    ] = None,
) -> None:
    """Show a run as one page that needs no network: table, pictures, every question.

    Prints the path of the page. Needs: pip install 'ltrag-plugins\\[report]'.

    [dim]ltrag report run/ --pictures run/pictures/[/]
    """
    from ltrag_plugins.report import write_report
    from ltrag_plugins.report.escaping import size_of

    if out is not None:
        checked_file(out)
    if pictures is not None:
        checked_folder(pictures)
    with working("drawing"):
        written = write_report(run, out, pictures_to=pictures, compared=compare)
    if written.run.missing:
        say(f"the run is not finished: {', '.join(written.run.missing)}")
    if pictures is not None:
        say(f"{len(written.pictures)} pictures are in {pictures}")
    say(f"the page has {size_of(written.size)}")
    show(str(written.page))
