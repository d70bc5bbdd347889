"""Figures side by side as text, in lines of at most 80 columns."""

from collections.abc import Iterable, Iterator, Sequence

_WIDTH = 80
_LONGEST = 22  # a longer name has a line of its own


def table(
    rows: Iterable[tuple[str, Sequence[str]]], *groups: Sequence[str], title: str = ""
) -> list[str]:
    """The lines of a table: of each row a name, and a cell for each heading in `groups`. Groups of
    columns that do not fit beside each other stand below each other."""
    rows = [(title, [head for group in groups for head in group]), *rows]
    columns = zip(*(cells for _, cells in rows), strict=True)
    widths = [2 + max(map(len, column)) for column in columns]
    beside = 2 + max(2, *(len(name) for name, _ in rows if len(name) <= _LONGEST))
    lines: list[str] = []
    for block in _blocks(groups, widths, _WIDTH - beside):
        lines += [""] * bool(lines)
        for name, cells in rows:
            if len(name) > beside - 2:
                lines.append(name)
                name = ""
            figures = "".join(f"{cells[i]:>{widths[i]}}" for i in block)
            lines.append(f"{name:<{beside}}{figures}".rstrip())
    return lines


def _blocks(
    groups: Iterable[Sequence[str]], widths: Sequence[int], room: int
) -> Iterator[list[int]]:
    """Columns that stand beside each other: whole groups, or parts of one that is too wide."""
    block, first = list[int](), 0
    for group in groups:
        columns = [*range(first, first := first + len(group))]
        whole = sum(widths[i] for i in columns) <= room
        for part in [columns] if whole else [[i] for i in columns]:
            if block and sum(widths[i] for i in [*block, *part]) > room:
                yield block
                block = []
            block = [*block, *part]
    yield block
