"""What a built site must hold, so that `make docs` fails where MkDocs itself sees nothing wrong.

    python docs/_site/check.py site

Every page has text, every exported name of a package is on its API page, no formula was left as it
was written, nothing is fetched from elsewhere, and every link and picture leads to something.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

DOCS = Path(__file__).parents[1]
PACKAGES = DOCS.parent
DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)
LEAST_TEXT = 300  # characters, headings and all
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """A page: the text of its article, its anchors and links, what a browser would fetch for it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.anchors, self.fetched, self.links = "", {""}, list[str](), set[str]()
        self._inside = self._code = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what matters of it."""
        given = dict(attrs)
        self._inside += tag == "article"
        self._code += tag == "code"
        if name := given.get("id"):
            self.anchors.add(name)
        if (link := given.get("href") or given.get("src")) and given.get("rel") != "canonical":
            self.links.add(link)
        url = given.get(FETCHING.get(tag, ""), "") or ""
        if url.startswith(("http:", "https:", "//")) and given.get("rel") != "canonical":
            self.fetched.append(url)

    def handle_endtag(self, tag: str) -> None:
        """Leave the article, or code."""
        self._inside -= tag == "article"
        self._code -= tag == "code"

    def handle_data(self, data: str) -> None:
        """Keep what is read there."""
        if self._inside and not self._code:
            self.text += data


@cache
def page_of(file: Path) -> Page:
    """The page, read once."""
    return Page(file.read_text(encoding="utf-8"))


def dead(built: Path) -> Iterator[str]:
    """The links of a page that lead to nothing inside the site."""
    for link in sorted(page_of(built).links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (built.parent / unquote(parts.path)).resolve() if parts.path else built
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{link} leads to nothing"
        elif target.suffix == ".html" and unquote(parts.fragment) not in page_of(target).anchors:
            yield f"{link} names no place on that page"


def file_of(name: str) -> Path | None:
    """Where a module is; None: the name is of a class or function."""
    path = PACKAGES / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if file.is_file() else None


def exported(file: Path | None) -> list[str]:
    """The names in a module's `__all__`; none where it has none."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def faults(source: Path, built: Path) -> Iterator[str]:
    """What is wrong with one page."""
    page = page_of(built)
    if len(page.text.strip()) < LEAST_TEXT:
        yield f"only {len(page.text.strip())} characters of text"
    for left in (".. math::", ":math:", "::: ", "/// ", "$$", "wzxhzdk"):
        if left in page.text:
            yield f"{left!r} was not turned into HTML"
    for url in page.fetched:
        yield f"fetches {url}"
    for name in DIRECTIVE.findall(source.read_text(encoding="utf-8")):
        if name not in page.anchors:
            yield f"{name} is missing"
        below = {anchor for anchor in page.anchors if anchor.startswith(f"{name}.")}
        file = file_of(name)
        if file and not below:
            yield f"nothing of {name} is shown"
        shown = {anchor.rpartition(".")[2] for anchor in below}
        yield from (f"{name}.{lost} is missing" for lost in exported(file) if lost not in shown)


def main() -> None:
    """Check all pages; leave with what is wrong."""
    site = Path(sys.argv[1]).resolve()
    wrong = []
    for source in sorted(DOCS.rglob("*.md")):
        place = source.relative_to(DOCS)
        built = site / place.with_suffix(".html")
        found = faults(source, built) if built.is_file() else ["was not built"]
        wrong += [f"{place}: {fault}" for fault in found]
    for built in sorted(site.rglob("*.html")):
        if built.name != "404.html":  # its links begin at the root of a server
            wrong += [f"{built.relative_to(site)}: {fault}" for fault in dead(built)]
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
