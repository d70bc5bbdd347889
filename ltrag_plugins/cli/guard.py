"""Errors on the command line: one line on stderr and an exit code."""

from typing import Any

import typer
from typer.core import TyperGroup

from ltrag_plugins.cli.output import say
from ltrag_plugins.errors import LtragError

INTERRUPTED = 130
"""As shells report a program that Ctrl-C ended."""


class GuardedGroup(TyperGroup):
    """The outermost group of commands: what a command raises on purpose becomes one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            say("stopped")
            raise typer.Exit(INTERRUPTED) from stop
        except BrokenPipeError:
            raise  # whoever read our output has seen enough: no matter for a message
        except (LtragError, OSError) as error:
            if ctx.meta.get(_DEBUG):
                raise
            say(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(1) from error


def remember_debug(ctx: typer.Context, asked: bool) -> bool:
    """Keep `--debug` where `GuardedGroup` finds it."""
    ctx.meta[_DEBUG] = asked
    return asked


_DEBUG = "ltrag.debug"
