"""Formulas as MathML, which browsers draw by themselves; and reStructuredText as docstrings use it.

For pages, fences of the kind ``math``; for docstrings ``.. math::``, ``:math:`` and the ``::`` that
announces an indented block. No script is loaded, so the site works without a network.
"""

import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

_DIRECTIVE = re.compile(r"\.\. math::(?P<rest>.*)")
_FENCE = re.compile(r"\s*(```|~~~)")


def fenced(source: str, *_: Any, **__: Any) -> str:
    """What superfences puts in the place of a fence of the kind ``math``."""
    return _display(source)


def _display(latex: str) -> str:
    return f'<div class="formula">{convert(" ".join(latex.split()), display="block")}</div>'


class _Directives(Preprocessor):
    """``.. math::`` with what is indented below it; ``::`` at the end of a line."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines as Markdown."""
        return list(self._read(lines))

    def _read(self, lines: list[str]) -> Iterator[str]:
        code, i = False, 0
        while i < len(lines):
            line = lines[i]
            i += 1
            code ^= _FENCE.match(line) is not None
            if code or line.startswith("    "):
                yield line
            elif found := _DIRECTIVE.match(line):
                latex = [found["rest"]]
                while i < len(lines) and lines[i].startswith("    "):
                    latex.append(lines[i])
                    i += 1
                yield from ("", self.md.htmlStash.store(_display(" ".join(latex))), "")
            elif line.endswith("::") and not line.startswith(":::"):
                yield line[:-2] if line == "::" else line[:-1]
            else:
                yield line


class _Inline(InlineProcessor):
    """``:math:`` before a formula in backticks."""

    def handleMatch(self, found: re.Match[str], data: str) -> tuple[str | Element, int, int]:
        """The formula, where it stood."""
        return self.md.htmlStash.store(convert(found[1])), found.start(0), found.end(0)


class MathML(Extension):
    """For Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Before fences (25) and code are read; after white space is put right (30)."""
        md.preprocessors.register(_Directives(md), "mathml", 28)
        md.inlinePatterns.register(_Inline(r":math:`([^`]+)`", md), "mathml", 200)


def on_config(config: Any) -> Any:
    """Called by MkDocs."""
    config.markdown_extensions.append(MathML())
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "math", "class": "formula", "format": fenced}
    ]
    return config
