"""A run folder, as a report shows it: what is there, what is not there yet, what is damaged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrag_plugins.errors import InvalidInput, UnreadableArtifact
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.summary import aligned


@dataclass(frozen=True, slots=True)
class Run:
    """A run, finished or not."""

    path: Path
    identity: Mapping[str, Any]
    """What was asked for; see `run.json`."""
    versions: Mapping[str, str]
    records: Mapping[str, Sequence[Record]]
    """Of each cell that has any, in the order of run.json."""
    complete: Mapping[str, Sequence[Record]]
    """Those that can be compared: the cells with the most questions, in one order of these."""
    asked: int | None
    """Questions of the run; None where run.json does not tell."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All measures, the first one first."""
        return tuple(next(iter(self.complete.values()))[0].scores)

    @property
    def metric(self) -> str:
        """The first measure, which tells right from wrong."""
        return self.metrics[0]

    @property
    def missing(self) -> dict[str, int | None]:
        """Questions left to answer, by cell; None: nobody knows how many."""
        counts = {name: len(self.records.get(name, ())) for name in self.identity["cells"]}
        if self.asked is None:
            return {name: None for name in counts if name not in self.complete}
        return {name: self.asked - n for name, n in counts.items() if n < self.asked}


def read_run_folder(folder: str | Path) -> Run:
    """Read a run folder; nothing is written to it."""
    run = RunFolder(Path(folder))
    body = run.read()
    if body is None:
        raise UnreadableArtifact(
            f"{folder} holds no run: there is no run.json. Name the folder that "
            "'ltrag evaluate --out' wrote."
        )
    identity, versions = body["identity"], body.get("versions")
    records = {cell: found for cell in identity["cells"] if (found := run.records(cell))}
    if not records:
        raise InvalidInput(f"{folder} has no records yet; answer a few questions first")
    most = max(map(len, records.values()))
    complete = aligned({name: found for name, found in records.items() if len(found) == most})
    asked = re.match(r"(\d+) questions", str(identity.get("questions")))
    versions = versions if isinstance(versions, dict) else {}
    return Run(run.path, identity, versions, records, complete, int(asked[1]) if asked else None)
