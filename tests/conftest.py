"""Real models for tests: the embedded ones, loaded once a session."""

import os

import hypothesis
import pytest
from jaxtyping import install_import_hook

# shapes and types are checked at run time in tests only; before the package is imported
SHAPED = ["engine", "gradients", "transformers"]
install_import_hook([f"ltrag_plugins.llm.{name}" for name in SHAPED], "beartype.beartype")

# no test is timed: a busy machine is no failure
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

pytest.register_assert_rewrite("tests.contracts.llm")


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


def _choose_threads() -> None:
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2 if _many_workers() else 2))


def _many_workers() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
