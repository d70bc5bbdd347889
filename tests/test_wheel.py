"""README's program, as it stands there, from the wheel, with nothing but what its extras bring, in
an empty folder, against llama.cpp's server."""

import subprocess

from tests.docs.environment import ROOT, built_wheel, environment, linked, needed
from tests.docs.run_code_blocks import Runner, pages_of

__all__ = ["linked", "needed"]
[README] = pages_of(ROOT / "README.md")


def test_the_program_of_the_readme_runs_from_the_wheel_and_prints_what_is_shown(
    tmp_path, real_server
):
    assert Runner(tmp_path, lambda: real_server).run(README) == ""


def test_the_wheel_has_no_package_that_its_extras_do_not_bring(tmp_path):
    python = environment(tmp_path / "env", built_wheel(tmp_path), README.installed()[0])
    code = "import importlib.util as i; print([n for n in %r if i.find_spec(n)])"
    others = [
        "torch",
        "transformers",
        "llama_index",
        "matplotlib",
        "langchain",
        "pytest",
        "sklearn",
    ]
    done = subprocess.run(
        [python, "-c", code % others], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout.strip() == "['sklearn']"
