"""A stranger's first minutes: from `pip install` to the first routed answer, and to the first page.

    python benchmarks/first_minutes.py

In a fresh environment and an empty folder: the wheel with the extras that README names, from the
package index; README's program against llama.cpp's server over SmolLM2-135M; then the extras of the
command line, `ltrag evaluate` over twenty questions of the reader's own, and `ltrag report`. Each
row has the seconds of its step, those since the first, and the processor's, which on a busy machine
say more. pip takes what it has in its cache.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.local_server import llama_cpp_server
from tests.docs.environment import ROOT, built_wheel
from tests.docs.run_code_blocks import pages_of
from tests.village import lay

PAGE = ["cli", "openai", "report"]
EVALUATE = (
    "evaluate questions.jsonl --passages passages.jsonl --methods direct,single:k=1 --out run"
)


class Clock:
    """Prints what each step took."""

    def __init__(self) -> None:
        print(f"{'':<42}seconds  since start  processor", flush=True)
        self._start = self._last = time.perf_counter()
        self._worked = worked()

    def step(self, name: str, note: str = "") -> None:
        now, busy = time.perf_counter(), worked()
        took, since, processor = now - self._last, now - self._start, busy - self._worked
        print(f"{name:<42}{took:7.0f}{since:13.0f}{processor:11.0f}  {note}", flush=True)
        self._last, self._worked = now, busy


def worked() -> float:
    """Seconds of the processor, of this process, which has the server, and of those it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def megabytes(folder: Path) -> str:
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return f"{sum(file.stat().st_size for file in files) / 2**20:.0f} MB"


def main() -> None:
    [readme] = pages_of(ROOT / "README.md")
    first = sorted(readme.installed()[0])
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as folder:
        wheel, place = built_wheel(Path(built)), Path(folder)
        lay(place)
        (place / "app.py").write_text(readme.program(), encoding="utf-8")
        bin, clock = place / ".venv" / "bin", Clock()

        def install(extras: list[str]) -> None:
            wanted = f"{wheel}[{','.join(extras)}]"
            pinned = ["-c", str(ROOT / "constraints.txt")]
            run([str(bin / "pip"), "install", "-qq", wanted, *pinned])
            clock.step(f"pip install [{','.join(extras)}]", megabytes(place / ".venv"))

        def run(command: list[str], **given: str) -> str:
            variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            done = subprocess.run(
                command,
                cwd=place,
                env=variables | given,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            return done.stdout

        subprocess.run([sys.executable, "-m", "venv", place / ".venv"], check=True)
        clock.step("python -m venv")
        install(first)
        with llama_cpp_server() as url:
            server = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
            said = run([str(bin / "python"), "app.py"], **server).strip().splitlines()
            answer = said[-1].rpartition("  ")[2]  # the question stands before it
            clock.step("README's program, to its routed answers", answer)
            install(PAGE)
            model = ["--model", f"openai:smollm2@{url}"]
            run([str(bin / "ltrag"), *EVALUATE.split(), *model], **server)
            clock.step("ltrag evaluate, 20 questions, two methods")
        page = run([str(bin / "ltrag"), "report", "run"]).split()
        clock.step("ltrag report, to the first page", " ".join(page))


if __name__ == "__main__":
    main()
