"""What an import loads, seen from a fresh process."""

import subprocess
import sys
import textwrap

LANGCHAIN = ("langchain_core", "langchain", "langgraph", "langchain_text_splitters", "langsmith")
LLAMA_INDEX = ("llama_index",)
LOCAL = ("torch", "transformers", "sentence_transformers", "gguf", "accelerate")

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked", name=name)

BLOCKED = set(sys.argv[1:])
sys.meta_path.insert(0, Blocked())
"""


def python(code: str, *, without: tuple[str, ...] = ()) -> str:
    """What the code prints in a process that has not these packages."""
    told = subprocess.run(
        [sys.executable, "-c", BLOCK + textwrap.dedent(code), *without],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that are loaded after a statement."""
    code = f"{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(python(code).split())
