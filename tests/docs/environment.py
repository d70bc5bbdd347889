"""The wheel, and environments that hold it with the extras a page names and nothing else.

Nothing is downloaded: an environment is a folder of links to what is installed here, made in a
second.
"""

import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Collection
from email.parser import Parser
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def built_wheel(folder: Path) -> Path:
    """The wheel of this repository, built into a folder."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    build += ["--no-build-isolation"] if find_spec("hatchling") else []
    subprocess.run(build, check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def environment(
    folder: Path, wheel: Path, extras: Collection[str], bare: Collection[str] = ()
) -> Path:
    """The interpreter of an environment with a wheel's extras, and with `bare` distributions
    without what these need."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    unpacked = _unpacked(wheel)
    for part in unpacked.iterdir():
        (site / part.name).symlink_to(part)
    [metadata] = unpacked.glob("*.dist-info/METADATA")
    said = Parser().parsestr(metadata.read_text(encoding="utf-8"))
    if unknown := {*extras} - {*(said.get_all("Provides-Extra") or [])}:
        raise ValueError(f"the wheel has no extra {', '.join(sorted(unknown))}")
    more = {name: distribution(name) for name in bare}
    linked(needed(said.get_all("Requires-Dist") or [], *extras) | more, site)
    return folder / "bin" / "python"


@cache
def _unpacked(wheel: Path) -> Path:
    """Once, so that its modules are compiled once."""
    folder = wheel.with_suffix("")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def needed(metadata: list[str], *named: str) -> dict[str, Distribution]:
    """Installed distributions that a wheel's metadata asks for with some extras, by name."""
    found, waiting = dict[str, Distribution](), [(metadata, set(named))]
    own = defaultdict[str, set[str]](set)
    while waiting:
        lines, extras = waiting.pop()
        for requirement in map(Requirement, lines):
            marker, name = requirement.marker, canonicalize_name(requirement.name)
            if marker and not any(marker.evaluate({"extra": one}) for one in ("", *extras)):
                continue
            new = requirement.extras - own[name]
            if name == "ltrag-plugins":
                waiting += [(metadata, new)] if new else []
            elif name not in found or new:
                found[name] = distribution(name)
                waiting.append((found[name].requires or [], requirement.extras))
            own[name] |= new
    return found


def linked(wanted: dict[str, Distribution], site: Path) -> None:
    """Put them into a folder, as links: whole folders where no other has files in them, so that
    what is compiled there is compiled once."""
    shared = _shared()
    for one in wanted.values():
        places = set[str]()
        for file in files_of(one):
            parts = file.split("/")
            above = ("/".join(parts[: i + 1]) for i in range(len(parts)))
            places.add(next((place for place in above if place not in shared), file))
        for place in places:
            if not place.startswith("..") and "__pycache__" not in place:
                (site / place).parent.mkdir(parents=True, exist_ok=True)
                (site / place).symlink_to(Path(str(one.locate_file(place))).resolve())


@cache
def _shared() -> frozenset[str]:
    """Folders in which more than one installed distribution has files."""
    owner, shared = dict[str, str](), set[str]()
    for one in distributions():
        name = canonicalize_name(one.metadata["Name"])
        folders = set[str]()
        for file in files_of(one):
            folder = file.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        shared |= {folder for folder in folders if owner.setdefault(folder, name) != name}
    return frozenset(shared)


def files_of(one: Distribution) -> list[str]:
    """Paths of what it installed; quicker than its `files`."""
    record = one.read_text("RECORD") or ""
    return [line.rsplit(",", 2)[0].strip('"') for line in record.splitlines()]
