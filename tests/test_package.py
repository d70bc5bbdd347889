"""What is uploaded: the wheel has the package and no more, the sdist what its tests read too."""

import subprocess
import tarfile
import zipfile
from email.parser import Parser

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import ltrag_plugins
from tests.docs.environment import ROOT

SHIPPED = ("ltrag_plugins", "tests", "docs", "examples", "benchmarks", "README.md", "LICENSE")
SHIPPED += ("Makefile", "constraints.txt", "pyproject.toml", "mkdocs.yml", "CHANGELOG.md")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def kept() -> set[str]:
    """Paths of the files that git keeps, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not in a git checkout, so nobody knows which files are stray")
    return {path for path in done.stdout.splitlines() if (ROOT / path).is_file()}


def test_the_wheel_has_each_file_of_the_package_and_its_metadata_and_no_more(wheel, kept):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == {path for path in kept if path.startswith("ltrag_plugins/")}
    assert "ltrag_plugins/py.typed" in files
    told = {name.partition("/")[2] for name in wheel.namelist() if ".dist-info/" in name}
    assert told == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_sdist_has_all_that_is_needed_to_run_its_tests_and_nothing_stray(tmp_path, kept):
    [path] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - kept == {"PKG-INFO"}
    assert {path for path in kept if path.split("/")[0] in SHIPPED} - names == set()


def test_version_addresses_and_the_readme_are_in_the_metadata(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
    told = Parser().parsestr(wheel.read(name).decode())
    assert told["Version"] == ltrag_plugins.__version__
    addresses = {line.partition(", ")[0] for line in told.get_all("Project-URL") or []}
    assert addresses == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(part in told["Summary"] for part in ("GECE", "DUR", "SGIC"))
