"""Real models for tests, the embedded ones, loaded once a session; modules of the benchmarks."""

import os
import sys
from importlib import import_module
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

# shapes and types are checked at run time in tests only; before the package is imported
SHAPED = ["engine", "gradients", "transformers"]
install_import_hook([f"ltrag_plugins.llm.{name}" for name in SHAPED], "beartype.beartype")

# no test is timed, as a busy machine is no failure, and each run draws the same examples; for
# others: pytest --hypothesis-profile default
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("same")

pytest.register_assert_rewrite("tests.contracts.llm")

# of these files a few tests take longest, so they come first: with the work of a file on one
# worker, none is left at the end with a long file while the others have nothing to do
LONG = [
    "test_notebooks.py",
    "test_examples.py",
    "test_sgic_finetune.py",
    "test_gece_learners.py",
    "test_cli_gate.py",
    "test_cli_dur.py",
    "test_cli_sgic.py",
    "test_batch.py",
]
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first, the longest before all."""
    items.sort(key=lambda i: LONG.index(i.path.name) if i.path.name in LONG else len(LONG))


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct as `embedded()` gives it."""
    _choose_threads()
    from ltrag_plugins.llm.embedded import embedded

    return embedded(device="cpu")


@pytest.fixture(scope="session")
def minilm():
    """all-MiniLM-L6-v2 as `embedded_encoder()` gives it."""
    _choose_threads()
    from ltrag_plugins.llm.embedded import embedded_encoder

    return embedded_encoder(device="cpu")


@pytest.fixture(scope="session")
def real_server():
    """The base URL of llama.cpp's server over SmolLM2."""
    from real_server import llama_cpp_server

    with llama_cpp_server() as url:
        yield url


@pytest.fixture
def load(monkeypatch):
    """A module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]


def _choose_threads() -> None:
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2 if _many_workers() else 2))


def _many_workers() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
