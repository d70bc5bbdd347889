"""A picture of a report: in the page as SVG, and as files."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrag_plugins.report.style import styled, themed


@dataclass(frozen=True, slots=True)
class Picture:
    """What can be drawn into a file of any format that matplotlib writes."""

    name: str
    """Of letters, digits and hyphens; a file name and the start of its ids."""
    title: str
    caption: str
    """One or two sentences: what to look for."""
    draw: Callable[[Path], Any]
    """Writes the file; its suffix says the format."""
    wide: bool = False
    """Two panels side by side."""

    def inline(self) -> str:
        """An SVG element in the colours and the font of the page."""
        with tempfile.TemporaryDirectory() as folder, styled(in_page=True):
            path = Path(folder) / "picture.svg"
            self.draw(path)
            return themed(path.read_bytes(), self.name, f"{self.title}. {self.caption}")

    def save(self, folder: Path) -> list[Path]:
        """Write it as PNG and SVG, on white.

        Raises:
            OSError: the folder cannot be written to.
        """
        paths = [folder / f"{self.name}.png", folder / f"{self.name}.svg"]
        with styled():
            for path in paths:
                self.draw(path)
        return paths
