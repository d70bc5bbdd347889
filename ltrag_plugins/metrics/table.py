"""Figures side by side as text, in lines of at most 80 columns."""

from collections.abc import Iterable, Sequence

_WIDTH = 80
_NAMES = 24  # columns for names where there is little room; a longer name has a line of its own


def table(
    rows: Iterable[tuple[str, Sequence[str]]], *groups: Sequence[str], title: str = ""
) -> list[str]:
    """The lines of a table: of each row a name, and a cell for each heading in `groups`. Groups of
    columns that do not fit beside each other stand below each other."""
    rows = [(title, [head for group in groups for head in group]), *rows]
    widths = [2 + max(map(len, cells)) for cells in zip(*(row for _, row in rows), strict=True)]
    places = iter(range(len(widths)))
    columns = [[next(places) for _ in group] for group in groups]
    room = max(_NAMES, _WIDTH - max(sum(widths[i] for i in group) for group in columns))
    beside = 2 + max(2, *(len(name) for name, _ in rows if len(name) <= room - 2))
    blocks: list[list[int]] = [[]]
    for group in columns:
        whole = sum(widths[i] for i in group) <= _WIDTH - beside
        for part in [group] if whole else [[i] for i in group]:
            if blocks[-1] and sum(widths[i] for i in blocks[-1] + part) > _WIDTH - beside:
                blocks.append([])
            blocks[-1] += part
    lines: list[str] = []
    for block in blocks:
        lines += [""] * bool(lines)
        for name, cells in rows:
            lines += [name] * (len(name) > beside)
            figures = "".join(f"{cells[i]:>{widths[i]}}" for i in block)
            lines.append(f"{name if len(name) <= beside else '':<{beside}}{figures}".rstrip())
    return lines
