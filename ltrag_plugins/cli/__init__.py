"""The command line, `ltrag`. Data goes to stdout, progress and messages to stderr. Exit codes: 0, 1
for an error with one line on stderr, 2 wrong usage, 130 interrupted."""

import logging
import warnings
from typing import Annotated, Any

from ltrag_plugins.errors import LtragError, missing_extra
from ltrag_plugins.version import __version__

try:
    import typer
    from typer.core import TyperGroup
except ImportError as error:
    raise missing_extra("typer", "cli") from error

from ltrag_plugins.cli import dur, evaluate, gate, pipeline, sgic  # noqa: F401  # they add their commands
from ltrag_plugins.cli.io import Stopped, say
from ltrag_plugins.cli.options import COMMANDS, PAPER_NAMES


class _GuardedGroup(TyperGroup):
    """The outermost group of commands: what a command raises on purpose becomes one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            kept = stop.args if isinstance(stop, Stopped) else ()  # a codec's stop has others
            say("; ".join(["stopped", *map(str, kept)]))
            raise typer.Exit(130) from stop  # as shells report a program that Ctrl-C ended
        except BrokenPipeError:
            raise  # whoever read our output has seen enough: no matter for a message
        except (LtragError, OSError, UnicodeEncodeError) as error:  # the last: no UTF-8 was given
            if ctx.params.get("debug"):
                raise
            say(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(1) from error


app = typer.Typer(
    name="ltrag",
    cls=_GuardedGroup,
    help="Retrieval only where the model needs it, of it only what helps, and answers that know "
    "how sure they are: learned from your questions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _commands in COMMANDS.items():
    app.add_typer(_commands, name=_name or None)
    if _name in PAPER_NAMES:
        app.add_typer(_commands, name=PAPER_NAMES[_name], hidden=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ltrag {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Errors with their traceback.")] = False,
) -> None:
    ctx.with_resource(warnings.catch_warnings())
    # of a script that the pictures' font lacks: the boxes in the picture say so
    warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
    log, notes = logging.getLogger("ltrag_plugins"), logging.Handler(logging.WARNING)
    notes.emit = lambda record: say(f"note: {record.getMessage()}")  # above a bar, and wrapped
    log.addHandler(notes)
    ctx.call_on_close(lambda: log.removeHandler(notes))
