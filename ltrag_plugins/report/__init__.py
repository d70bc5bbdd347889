"""A run of `evaluate` as one page that needs nothing else, and as pictures.

::

    reading      a run folder: finished, unfinished or damaged
    gates        what gates decided, and what other thresholds would have come to
    reliability  said and true shares of wrong answers
    table        the summary as cells
    listing      questions, answers and traces, small enough for a page
    words        text from strangers, shown as text
    style        one look for all pictures
    picture      one of them, in the page and as files
    labels       names beside points
    drawing      the pictures of an evaluation
    rounds       those of SGIC
    training     those of DUR
    pictures     which ones a run has
    page         all of it as HTML; assets/ holds its parts
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ltrag_plugins.errors import missing_extra

if TYPE_CHECKING:
    from ltrag_plugins.report.page import Written as Written
    from ltrag_plugins.report.page import write_report as write_report

__all__ = ["Written", "write_report"]


def __getattr__(name: str) -> Any:
    # matplotlib and jinja2 come with an extra
    if name in __all__:
        try:
            import_module("matplotlib")
        except ImportError as error:
            raise missing_extra("matplotlib", "report") from error
        from ltrag_plugins.report import page

        return getattr(page, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
