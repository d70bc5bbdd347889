"""Run the Python blocks of Markdown files as a reader would: those of a file one after the other.

    python tests/docs/run_code_blocks.py README.md docs

Files run side by side, one for each core, each in a process of its own. These are forked from one
that has imported the large packages, so a file does not spend ten seconds on that. A block that
raises ends its file; the run then fails with the file and line.
"""

import importlib
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
LARGE = ["llm.transformers", "llm.encoders", "langchain", "llama_index", "gece", "dur", "sgic"]


def program(text: str) -> str:
    """The blocks of a file as one script, each at its own line, so that tracebacks fit."""
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for i, line in enumerate(block[1].splitlines()):
            lines[first + i] = line
    return "\n".join(lines)


def broken_links(file: Path) -> list[str]:
    links = LINK.findall(file.read_text(encoding="utf-8"))
    return [link for link in links if not (file.parent / link).exists()]


def run(script: Path, shown: Path) -> None:
    """Run a script in this process; what it prints goes to `shown`."""
    with shown.open("wb") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")


def run_all(files: list[Path], folder: Path) -> bool:
    """Run files side by side and say how each went, as soon as it has ended."""
    forking, passed = multiprocessing.get_context("fork"), True
    waiting, running = list(files), {}
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            file = waiting.pop(0)
            shown = folder / str(len(waiting))
            script = shown.with_name(f"{len(waiting)}_{file.stem}.py")
            script.write_text(program(file.read_text(encoding="utf-8")), encoding="utf-8")
            process = forking.Process(target=run, args=(script, shown))
            process.start()
            running[process.sentinel] = process, file, shown
        for sentinel in wait(list(running)):
            process, file, shown = running.pop(sentinel)
            process.join()
            said = f"{len(BLOCK.findall(file.read_text(encoding='utf-8')))} blocks run"
            if process.exitcode:
                passed = False
                printed = shown.read_text(encoding="utf-8", errors="replace")[-6000:]
                said = f"a code block failed (exit status {process.exitcode})\n{printed}"
            print(f"{file}: {said}", flush=True)
    return passed


def main() -> None:
    named = [Path(argument) for argument in sys.argv[1:]]
    files = [f for path in named for f in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    passed = True
    for file in files:
        if broken := broken_links(file):
            print(f"{file}: links to nothing: {broken}")
            passed = False
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in LARGE:
        importlib.import_module(f"ltrag_plugins.{name}")
    with_blocks = [file for file in files if BLOCK.search(file.read_text(encoding="utf-8"))]
    with tempfile.TemporaryDirectory() as folder:
        passed = run_all(with_blocks, Path(folder)) and passed  # all, to show every failure
    sys.exit(not passed)


if __name__ == "__main__":
    main()
