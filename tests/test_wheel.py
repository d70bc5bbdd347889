"""README's first program, as it stands there, from the wheel, with nothing but what its extra
brings, in a folder that holds a reader's own texts and questions, against llama.cpp's server."""

import os
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from email.parser import Parser
from importlib.metadata import Distribution, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.router_parts import CAPITALS, VILLAGE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"^```py\n(.*?)^```\n.*?^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALLED = re.compile(r"^pip install 'ltrag-plugins\[([a-z-]+)\]'", re.MULTILINE)


def needed(metadata: list[str], extra: str) -> dict[str, Distribution]:
    """Installed distributions that a wheel's metadata asks for with an extra, by name."""
    found, waiting = dict[str, Distribution](), [(metadata, {extra})]
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


def files_of(one: Distribution) -> list[str]:
    """Paths of what it installed; quicker than its `files`."""
    record = one.read_text("RECORD") or ""
    return [line.rsplit(",", 2)[0].strip('"') for line in record.splitlines()]


def linked(wanted: dict[str, Distribution], site: Path) -> None:
    """Put them into a folder, as links: a whole package where no other has files in it."""
    owners = defaultdict[str, set[str]](set)
    for one in distributions():
        for top in {file.split("/")[0] for file in files_of(one)}:
            owners[top].add(canonicalize_name(one.metadata["Name"]))
    for one in wanted.values():
        tops = [(file.split("/")[0], file) for file in files_of(one)]
        places = {top if len(owners[top]) == 1 else file for top, file in tops}
        for place in places:
            if not place.startswith("..") and "__pycache__" not in place:
                (site / place).parent.mkdir(parents=True, exist_ok=True)
                (site / place).symlink_to(Path(str(one.locate_file(place))).resolve())


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that has the wheel, with the extra that README names, and no more."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    build += ["--no-build-isolation"] if find_spec("hatchling") else []
    subprocess.run(build, check=True, cwd=folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    [metadata] = site.glob("ltrag_plugins-*.dist-info/METADATA")
    requires = Parser().parsestr(metadata.read_text(encoding="utf-8")).get_all("Requires-Dist")
    found = INSTALLED.search(README)
    assert found
    linked(needed(requires or [], found[1]), site)
    return folder / "venv" / "bin" / "python"


def test_the_first_program_of_the_readme_runs_from_the_wheel_in_an_empty_folder(
    python, real_server, tmp_path
):
    program, shown = PROGRAM.search(README).groups()
    (tmp_path / "documents").mkdir()
    facts = VILLAGE | CAPITALS
    for i in range(0, len(facts), 3):
        text = " ".join([*facts.values()][i : i + 3])
        (tmp_path / "documents" / f"{i}.txt").write_text(text)
    (tmp_path / "questions.txt").write_text("\n".join(facts))
    (tmp_path / "app.py").write_text(program)
    given = {"OPENAI_BASE_URL": real_server, "OPENAI_API_KEY": "none", "HOME": str(tmp_path)}
    given |= {"PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "app.py"], cwd=tmp_path, env=given, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    # figures and answers are a model's own; what the lines speak of is the same
    printed, place = done.stdout, 0
    for line in shown.splitlines():
        if line != "...":
            name = re.split(r"  +", line)[0]
            assert name in printed[place:], f"README shows {line!r}; this was printed:\n{printed}"
            place = printed.index(name, place)


def test_the_wheel_has_no_package_that_its_extra_does_not_bring(python):
    code = "import importlib.util as i; print([n for n in %r if i.find_spec(n)])"
    others = ["torch", "transformers", "llama_index", "matplotlib", "langchain", "pytest", "nltk"]
    done = subprocess.run(
        [python, "-c", code % others], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout.strip() == "['nltk']"
