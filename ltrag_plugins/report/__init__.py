"""A run of `evaluate` as one page that needs nothing else, and as pictures."""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.report.page import Written as Written
    from ltrag_plugins.report.page import write_report as write_report

__all__ = ["Written", "write_report"]

__getattr__, __dir__ = lazily(__name__, {"page": "Written write_report"})
