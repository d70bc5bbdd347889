"""Run the Python blocks of Markdown files as a reader would: those of a file one after the other.

    python tests/docs/run_code_blocks.py README.md docs

Files run side by side, one for each core. A block that raises ends the run with its file and line.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def program(text: str) -> str:
    """The blocks of a file as one script, each at its own line, so that tracebacks fit."""
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for i, line in enumerate(block[1].splitlines()):
            lines[first + i] = line
    return "\n".join(lines)


def broken_links(file: Path, text: str) -> list[str]:
    return [link for link in LINK.findall(text) if not (file.parent / link).exists()]


def check(file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    if broken := broken_links(file, text):
        print(f"{file}: links to nothing: {broken}")
        return False
    if not BLOCK.search(text):
        return True
    with tempfile.NamedTemporaryFile("w", suffix=f"_{file.stem}.py", encoding="utf-8") as script:
        script.write(program(text))
        script.flush()
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, script.name]
        done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    if done.returncode:
        said = f"a code block failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    else:
        said = f"{len(BLOCK.findall(text))} blocks run"
    print(f"{file}: {said}", flush=True)
    return done.returncode == 0


def main() -> None:
    named = [Path(argument) for argument in sys.argv[1:]]
    files = [f for path in named for f in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(check, files))  # all of them, so that one run shows every failure
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
