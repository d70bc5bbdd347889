"""Tabs out of plain Markdown, so that a page reads well where nobody draws tabs::

    <!-- tab: LangChain -->
    **LangChain**

    ...

    <!-- tab: LlamaIndex -->
    ...

    <!-- end of tabs -->

A forge shows each part below its bold line. Here each becomes a tab, without that line.
"""

import logging
import re
from typing import Any

_OPENING = re.compile(r"^<!-- tab: (.+?) -->\n\s*(?:\*\*\1\*\*\n)?", re.MULTILINE)
_GROUP = re.compile(r"^<!-- tab: .+? -->\n.*?^<!-- end of tabs -->$", re.MULTILINE | re.DOTALL)
_LEFT = re.compile(r"^<!-- (?:tab: .+?|end of tabs) -->$", re.MULTILINE)
_log = logging.getLogger("mkdocs.hooks.tabs")


def tabbed(markdown: str) -> str:
    """The page with each group of such parts as blocks of the extension that draws tabs."""
    return _GROUP.sub(lambda group: _blocks(group[0]), markdown)


def _blocks(group: str) -> str:
    _, *parts = _OPENING.split(group.removesuffix("<!-- end of tabs -->"))
    blocks = [
        f"/// tab | {title}\n{'' if i else '    new: true'}\n\n{body.strip()}\n\n///\n"
        for i, (title, body) in enumerate(zip(parts[::2], parts[1::2], strict=True))
    ]
    return "\n".join(blocks)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs."""
    done = tabbed(markdown)
    if left := _LEFT.search(done):
        _log.warning("%s: %s belongs to no group of tabs", page.file.src_uri, left[0])
    return done
