"""Every system that the papers compare with, and this package's own: one file each.

A file holds its flow, its settings, its prompts (our wording) and a `METHOD`; `METHODS` is the
table of them. `prompts` has what several methods ask, and how their replies are read.
"""

from typing import TYPE_CHECKING

from ltrag_plugins.lazy import lazily

if TYPE_CHECKING:
    from ltrag_plugins.methods.method import Method as Method
    from ltrag_plugins.methods.method import Ready as Ready
    from ltrag_plugins.methods.table import METHODS as METHODS
    from ltrag_plugins.methods.table import method_named as method_named

_HOMES = {"METHODS": "table", "Method": "method", "Ready": "method", "method_named": "table"}
__all__ = ["METHODS", "Method", "Ready", "method_named"]
__getattr__, __dir__ = lazily(__name__, _HOMES)
