"""A real server that nobody here wrote: llama.cpp's own, over SmolLM2's GGUF from its wheel."""

from examples.local_server import llama_cpp_server

__all__ = ["llama_cpp_server"]
