"""Each extra by itself, from the wheel: what works with it, and which extra the rest asks for."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import extras_program
from tests.docs.environment import ROOT, built_wheel, environment, needed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ALONE = sorted(EXTRAS.keys() - {"all", "dev", "docs", "langchain-openai", "llama-index-openai"})
EVERYTHING = ("", "langchain", "llama-index", "fit", "evaluate", "cli")
"""What everything is tried with; with the others, which take long to import, what is theirs."""
LINES = [*PROJECT["dependencies"]]
LINES += [f'{line}; extra == "{name}"' for name, lines in EXTRAS.items() for line in lines]


def held(extra: str) -> set[str]:
    """The extras whose packages an environment with this one has all of: another package may bring
    them too, as sentence-transformers brings scikit-learn."""
    has = needed(LINES, extra).keys()
    return {name for name in ALONE if needed(LINES, name).keys() <= has}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    extras_program.save(folder)
    shutil.copytree(ROOT / "tests" / "fixtures" / "first_house" / "run", folder / "run")
    return folder


@pytest.mark.parametrize("extra", ["", *ALONE])
def test_an_extra_alone_does_what_it_is_for_and_the_rest_names_its_own(
    extra, wheel, saved, tmp_path
):
    has = held(extra)
    wanted = {
        name: [one for one in needs if one not in has] or ["works"]
        for name, (_, needs) in extras_program.THINGS.items()
        if extra in EVERYTHING or extra in needs
    }
    python = environment(tmp_path / "venv", wheel, [extra] if extra else [])
    (tmp_path / "program.py").write_bytes(Path(extras_program.__file__).read_bytes())
    done = subprocess.run(
        [python, "program.py", saved, *wanted],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert {n: told for n, told in json.loads(done.stdout).items() if told not in wanted[n]} == {}


def test_constraints_name_all_that_an_extra_asks_for():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    known = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    asked = {canonicalize_name(Requirement(line).name) for line in LINES} - {"ltrag-plugins"}
    assert asked - known == set()
