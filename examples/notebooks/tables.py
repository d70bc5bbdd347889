"""Tables for the notebooks, as Markdown, which notebooks and forges both show."""

import warnings
from collections.abc import Iterable, Sequence

from IPython.display import Markdown

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's, where there is no ipywidgets


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Markdown:
    lines = [columns, ["---"] * len(columns), *rows]
    return Markdown("\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines))


def _cell(value: object) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
