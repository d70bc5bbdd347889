"""What a benchmark keeps of each question, so that its table can be printed without a model."""

import argparse
import gzip
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
Row = dict[str, Any]


def parsed(parser: argparse.ArgumentParser, name: str) -> argparse.Namespace:
    """The options, with a file of records: with --table that of the repository, else one of the
    run's own, if none is named."""
    parser.add_argument("--records", type=Path, help="file of records")
    parser.add_argument("--table", action="store_true", help="only print what is kept")
    options = parser.parse_args()
    if options.records is None:
        options.records = (FOLDER if options.table else Path("runs")) / f"{name}.jsonl.gz"
    return options


def read(path: Path) -> list[Row]:
    """The JSON lines of a file, packed or not; ends the program where there is none."""
    if not path.is_file():
        sys.exit(f"there is no file {path}")
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    return [json.loads(line) for line in lines]


def write(path: Path, rows: Iterable[Any]) -> None:
    """A JSON line for each; a file that is there is replaced."""
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    new.replace(path)


def short(value: float) -> float | None:
    """To nine digits, which keep the order of what differs; none where there is no number."""
    return None if math.isnan(value) else float(f"{value:.9g}")


def merged(path: Path, rows: Iterable[Row], *keys: str) -> None:
    """Write them into the file; those of the same keys that are there are replaced."""
    found = list(rows)
    told = {tuple(row[key] for key in keys) for row in found}
    before = read(path) if path.exists() else []
    write(path, [row for row in before if tuple(row[key] for key in keys) not in told] + found)
