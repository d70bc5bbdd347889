"""Run the Python blocks of Markdown files as a reader would, and compare what they print.

    python tests/docs/run_code_blocks.py README.md docs

The blocks of a page are one program. It runs in an empty folder, from the built wheel, in an
environment that has what the page's own `pip install` lines name and nothing else. A page with
tabs (`<!-- tab: LangChain -->` ... `<!-- end of tabs -->`) is read once for each. The folder holds
a reader's own files (`tests/village.py`), and a page that speaks of OPENAI_BASE_URL has llama.cpp's
server.

What a block prints stands in a ```text block after it; a line `...` stands for any lines. Lines are
compared as they are, seconds aside. After the comment `<!-- a model's own words -->` (or `<!-- a
machine's own figures -->`) figures may differ, and so may all that follows a line's name.

Links have to lead somewhere, those to files of this repository by their address too, and pages that
GitHub shows have no syntax that only the site knows.
"""

import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from packaging.requirements import Requirement
from platformdirs import user_cache_path

from examples.local_server import llama_cpp_server
from tests.docs.environment import ROOT, built_wheel, environment
from tests.village import lay

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
NEXT = re.compile(r"(.*?)^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABS = re.compile(r"<!-- tab: .*?<!-- end of tabs -->", re.DOTALL)
TAB = re.compile(r"<!-- tab: (.*?) -->.*?(?=<!-- tab: |<!-- end of tabs -->)", re.DOTALL)
OWN = re.compile(r"<!-- (a model's own words|a machine's own figures) -->")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
OURS = re.compile(
    r"https://(?:github\.com|raw\.githubusercontent\.com)/ltrag-plugins/ltrag-plugins/"
    r"(?:(?:blob|tree|raw)/)?main/"
)
ONLY_SITE = re.compile(r"^(?:///|:::|!!!|\?\?\?|===) ", re.MULTILINE)
FIGURE = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
SECONDS = re.compile(r"\d[\d.]*(?:e-?\d+)?(?= (?:seconds|ms)\b)")
MOST_SECONDS = 600


class Page(NamedTuple):
    """A file as the reader of one tab sees it: of the other tabs only empty lines are left."""

    file: Path
    tab: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}" + (f" ({self.tab})" if self.tab else "")

    def installed(self) -> tuple[frozenset[str], frozenset[str]]:
        """The extras that its commands install, and the distributions that come by themselves."""
        extras, bare = set[str](), set[str]()
        for line in "\n".join(SHELL.findall(self.text)).replace("&&", "\n").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:2] == ["pip", "install"]:
                for wanted in (Requirement(w) for w in words[2:] if not w.startswith("-")):
                    if wanted.name == "ltrag-plugins":
                        extras |= wanted.extras
                    elif "--no-deps" in words:
                        bare.add(wanted.name)
        return frozenset(extras), frozenset(bare)

    def program(self) -> str:
        """The blocks as one script, each at its own line, so that tracebacks fit; where the fence
        of a block stands its output begins."""
        lines = [""] * self.text.count("\n")
        for block in BLOCK.finditer(self.text):
            first = self.text.count("\n", 0, block.start(1))
            lines[first - 1] = r"print(end='\0', flush=True)"
            lines[first : first + block[1].count("\n")] = block[1].splitlines()
        return "\n".join(lines)


class Shown(NamedTuple):
    """What a page shows after a block."""

    text: str
    own: bool


def pages_of(file: Path) -> Iterator[Page]:
    text = file.read_text(encoding="utf-8")
    for tab in dict.fromkeys(TAB.findall(text)) or [""]:

        def chosen(tabs: re.Match[str], tab: str = tab) -> str:
            found = [*TAB.finditer(tabs[0])]
            best = next((one for one in found if one[1] == tab), found[0])
            whole = "".join(one[0] if one is best else "\n" * one[0].count("\n") for one in found)
            return whole + tabs[0][found[-1].end() :]

        yield Page(file, tab, TABS.sub(chosen, text))


def shown_after(page: Page) -> Iterator[Shown | None]:
    """For each block what stands after it, up to the next heading or block of another kind."""
    for block in BLOCK.finditer(page.text):
        found = NEXT.match(page.text, block.end())
        if found and found[2] == "text" and not re.search(r"^#", found[1], re.MULTILINE):
            yield Shown(found[3], bool(OWN.search(found[1])))
        else:
            yield None


def difference(shown: str, printed: str, *, own: bool) -> str:
    """How an output differs from what a page shows; empty where it does not."""
    wanted, came = ([said(line, own) for line in t.splitlines()] for t in (shown, printed))
    parts = [r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in wanted]
    if re.fullmatch("".join(parts), "".join(f"{line}\n" for line in came)):
        return ""
    lines = shown.splitlines(), printed.splitlines()
    return "\n".join(difflib.unified_diff(*lines, "the page shows", "printed", lineterm="", n=9))


def said(line: str, own: bool) -> str:
    """A line without what another model or machine would print."""
    line = line.rstrip()
    if not own:
        return SECONDS.sub("#", line)
    name, *more = re.split(r"  +", line.strip(), maxsplit=1)
    return f"{name}  #" if more else FIGURE.sub("#", name)


class Runner:
    """Runs pages; an environment is made once for all that name the same extras."""

    def __init__(self, folder: Path, server: Callable[[], str]) -> None:
        self._folder, self._server = folder, server
        self._wheel = built_wheel(folder)
        self._pythons = dict[object, Path]()
        self._making = threading.Lock()

    def run(self, page: Page) -> str:
        """What is wrong with a page; empty where nothing is."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        python, given = self._python(page), self._variables(page, place)
        (place / "app.py").write_text(page.program(), encoding="utf-8")
        lay(place)
        with (place.parent / f"{place.name}.txt").open("w+b") as out:
            done = subprocess.run(
                [python, "app.py"],
                cwd=place,
                env=given,
                stdout=out,
                stderr=subprocess.PIPE,
                timeout=MOST_SECONDS,
                check=False,
            )
            out.seek(0)
            printed = out.read().decode(errors="replace")
        if done.returncode:
            extras = ",".join(sorted(page.installed()[0]))
            errors = done.stderr.decode(errors="replace")[-4000:]
            return f"a block failed with the extras [{extras}]\n{printed[-1000:]}\n{errors}"
        return "\n".join(compared(page, printed.split("\0")[1:]))

    def _python(self, page: Page) -> Path:
        with self._making:
            if (wanted := page.installed()) not in self._pythons:
                folder = self._folder / f"environment_{len(self._pythons)}"
                self._pythons[wanted] = environment(folder, self._wheel, *wanted)
            return self._pythons[wanted]

    def _variables(self, page: Page, home: Path) -> dict[str, str]:
        given = {"HOME": str(home), "XDG_CACHE_HOME": str(user_cache_path()), "HF_HUB_OFFLINE": "1"}
        given |= {"PATH": f"{self._python(page).parent}:{os.defpath}", "OMP_NUM_THREADS": "1"}
        given |= {name: os.environ[name] for name in ["LTRAG_CACHE"] if name in os.environ}
        if "OPENAI_BASE_URL" in page.text:
            with self._making:
                given |= {"OPENAI_BASE_URL": self._server(), "OPENAI_API_KEY": "none"}
        return given


def compared(page: Page, outputs: list[str]) -> Iterator[str]:
    """Each block whose output the page does not show as it came."""
    for block, shown, printed in zip(
        BLOCK.finditer(page.text), shown_after(page), outputs, strict=True
    ):
        line = page.text.count("\n", 0, block.start()) + 1
        if shown is None:
            if printed.strip():
                yield f"line {line}: the page does not show that the block prints this\n{printed}"
        elif differs := difference(shown.text, printed, own=shown.own):
            yield f"line {line}: the block prints something else\n{differs}"


def broken_links(file: Path) -> list[str]:
    """Links that lead to no file, or to no heading of it, of those that are ours."""
    broken = []
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in ("".join(found) for found in LINK.findall(text)):
        ours = OURS.match(link)
        if re.match(r"[a-z]+:", link) and not ours:
            continue
        path, _, anchor = (link[ours.end() :] if ours else link).partition("#")
        target = (ROOT if ours else file.parent) / path if path else file
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            broken.append(link)
    return broken


def anchors(file: Path) -> set[str]:
    """The names of its headings, as GitHub makes them; API pages have those of their objects."""
    text = file.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in plain}


def wrong_with(file: Path) -> Iterator[str]:
    """What is wrong with the text of a file."""
    if broken := broken_links(file):
        yield f"links to nothing: {broken}"
    text = file.read_text(encoding="utf-8")
    if "docs/api" not in file.resolve().as_posix() and (found := ONLY_SITE.search(text)):
        yield f"line {text.count(chr(10), 0, found.start()) + 1}: syntax that only the site knows"


def main() -> None:
    named = [Path(argument) for argument in sys.argv[1:]]
    files = [f for path in named for f in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    wrong = {str(file): "\n".join(wrong_with(file)) for file in files}
    for name in filter(wrong.get, wrong):
        print(f"{name}: {wrong[name]}", flush=True)
    pages = [page for file in files for page in pages_of(file) if BLOCK.search(page.text)]
    pages.sort(key=lambda page: "OPENAI_BASE_URL" not in page.text)  # the longest first

    def run(page: Page) -> str:
        start = time.perf_counter()
        found = runner.run(page)
        said = f"{len(BLOCK.findall(page.text))} blocks run, {time.perf_counter() - start:.0f} s"
        print(f"{page}: {found or said}", flush=True)
        return found

    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        runner = Runner(Path(folder), cache(lambda: opened.enter_context(llama_cpp_server())))
        with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
            found = [*side_by_side.map(run, pages)]
    sys.exit(any([*wrong.values(), *found]))


if __name__ == "__main__":
    main()
