"""A run of `evaluate` as one page that needs nothing else, and as pictures.

::

    reading       a run folder: finished, unfinished or damaged
    page          all of it as HTML; assets/ holds its parts
    listing       questions, answers and traces, small enough for a page
    escaping      text from strangers, shown as text
    plots         the plotting kit: one look for all pictures, in the page and as files
    figures       which pictures a run has: cost, gates, calibration
    sgic_figures  those of SGIC's rounds
    dur_figures   those of DUR's training
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ltrag_plugins.errors import missing_extra

if TYPE_CHECKING:
    from ltrag_plugins.report.page import Written as Written
    from ltrag_plugins.report.page import write_report as write_report

__all__ = ["Written", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:  # matplotlib and jinja2 come with an extra; the page's own error names this one
        import_module("matplotlib")
    except ImportError as error:
        raise missing_extra("matplotlib", "report") from error
    return getattr(import_module("ltrag_plugins.report.page"), name)
