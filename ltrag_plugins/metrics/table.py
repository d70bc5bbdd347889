"""Figures side by side as text, in lines of at most 80 columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

_WIDTH = 80
_LONGEST = 22  # a longer name has a line of its own


def table(rows: Mapping[str, Sequence[str]], *groups: Sequence[str]) -> list[str]:
    """The lines of a table. `groups` are headings, and a row has a cell for each of them; groups of
    columns that do not fit beside each other stand below each other."""
    heads = [head for group in groups for head in group]
    columns = zip(heads, *rows.values(), strict=True)
    widths = [2 + max(map(len, column)) for column in columns]
    beside = 2 + max((len(name) for name in rows if len(name) <= _LONGEST), default=2)
    lines: list[str] = []
    for block in _blocks(groups, widths, _WIDTH - beside):
        lines += [""] * bool(lines)
        for name, cells in {"": heads, **rows}.items():
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
