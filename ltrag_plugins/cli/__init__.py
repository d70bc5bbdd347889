"""The command line, `ltrag`: one module a group of commands.

Data goes to stdout, progress and messages to stderr. Exit codes: 0 fine, 1 an error with one
line on stderr, 2 wrong usage, 130 interrupted.
"""

from importlib.metadata import version
from typing import Annotated

import typer

from ltrag_plugins.cli import dur, gate, sgic
from ltrag_plugins.cli.evaluate import evaluate, methods
from ltrag_plugins.cli.guard import GuardedGroup, remember_debug
from ltrag_plugins.cli.report import report

app = typer.Typer(
    name="ltrag",
    cls=GuardedGroup,
    help="Retrieval only where the model needs it, of it only what helps, and answers that know "
    "how sure they are: learned from your questions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(gate.app, name="gate")
app.add_typer(dur.app, name="dur")
app.add_typer(sgic.app, name="sgic")
app.command()(evaluate)
app.command()(methods)
app.command()(report)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ltrag {version('ltrag-plugins')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", callback=remember_debug, help="Errors with their whole traceback."),
    ] = False,
) -> None:
    """What stands before any command."""
