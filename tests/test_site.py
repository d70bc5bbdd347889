"""The hooks of the documentation's site, its checks, and the claims of its benchmarks."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
griffe = pytest.importorskip("griffe", reason="pip install 'ltrag-plugins[docs]'")


@pytest.fixture(scope="module", autouse=True)
def hooks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "_site")
        yield
        for name in ("tabs", "notebooks", "front_matter", "signatures", "check"):
            sys.modules.pop(name, None)


PARTS = """Before.

<!-- tab: LangChain -->
**LangChain**

```python
chain()
```

<!-- tab: LlamaIndex -->
**LlamaIndex**

An engine.

<!-- end of tabs -->

"""


def drawn(markdown: str) -> str:
    """The page as the site draws it."""
    from markdown import markdown as draw
    from tabs import tabbed

    kinds = {"pymdownx.blocks.tab": {"alternate_style": True}}
    return draw(
        tabbed(markdown),
        extensions=["pymdownx.blocks.tab", "pymdownx.superfences"],
        extension_configs=kinds,
    )


def test_parts_between_comments_become_tabs_without_their_bold_lines():
    html = drawn(PARTS + "After.")
    assert re.findall(r"<label for=\S+?>(.+?)</label>", html) == ["LangChain", "LlamaIndex"]
    assert "<strong>" not in html
    assert "<!--" not in html
    assert html.index("Before.") < html.index("chain") < html.index("An engine.")
    assert html.rstrip().endswith("<p>After.</p>")


def test_two_groups_of_parts_are_two_sets_of_tabs():
    again = PARTS.removeprefix("Before.\n\n")  # with nothing between the two
    assert drawn(PARTS + again).count('class="tabbed-set') == 2


def test_a_page_without_such_comments_stays_as_it_is():
    from tabs import tabbed

    text = "/// tab | LangChain\n\nas before\n\n///\n\n**bold**\n"
    assert tabbed(text) == text


@pytest.mark.parametrize("left", ["<!-- tab: LangChain -->", "<!-- end of tabs -->"])
def test_a_comment_of_no_group_is_a_warning(left, caplog):
    from tabs import on_page_markdown

    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/gate.md"))
    on_page_markdown(f"Text.\n\n{left}\n\nMore.\n", page=page)
    assert f"how-to/gate.md: {left}" in caplog.text


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebooks_page_has_its_code_and_all_that_it_printed(path):
    import nbformat
    from notebooks import page_of

    page = page_of(json.loads(path.read_text("utf-8")), "https://forge/")
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.source.strip() in page
            printed = [output.text for output in cell.outputs if "text" in output]
            assert all(text.rstrip() in page for text in printed)
    for link in re.findall(r"\]\(([^)]+)\)", page):
        if not link.startswith(("https:", "data:", *(f"{one.stem}.md" for one in NOTEBOOKS))):
            assert (DOCS / "notebooks" / link.partition("#")[0]).resolve().is_file(), link


def test_a_notebooks_links_lead_to_pages_or_to_the_repository():
    from notebooks import page_of

    text = "[a](../../docs/gece.md#tiers), [b](../vector_store.py), [c](https://example.org)"
    cells = [{"cell_type": "markdown", "source": [text]}]
    page = page_of({"cells": cells}, "https://forge/examples/notebooks/")
    assert re.findall(r"\]\((.+?)\)", page) == [
        "../gece.md#tiers",
        "https://forge/examples/notebooks/../vector_store.py",
        "https://example.org",
    ]


def test_words_that_users_search_for_are_given_to_pages_that_exist():
    from front_matter import BOOSTS, WORDS

    assert all((DOCS / place).is_file() for place in WORDS)
    assert all((DOCS / place).exists() or place == "notebooks/" for place in BOOSTS)


def test_api_pages_show_short_values_and_no_private_alias(tmp_path):
    from signatures import LONGEST, Signatures

    long = repr("x" * LONGEST)
    (tmp_path / "shown.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import Literal\n"
        "_OnError = Literal['raise', 'retrieve']\n"
        f"_PROMPT = {long}\n"
        f"TABLE: dict[str, _OnError] = {{{long}: 'raise'}}\n"
        "SHORT = 3\n"
        "def fit(on_error: _OnError = 'raise', prompt: str = _PROMPT) -> list[_OnError]: ...\n"
        "@dataclass\nclass Settings:\n    rounds: int = 5\n    prompt: str = _PROMPT\n"
    )
    package = griffe.load(
        "shown",
        search_paths=[tmp_path],
        extensions=griffe.load_extensions("dataclasses", Signatures),
    )
    alias = "Literal['raise', 'retrieve']"
    assert str(package["fit"].parameters["on_error"].annotation) == alias
    assert str(package["fit"].returns) == f"list[{alias}]"
    assert package["fit"].parameters["prompt"].default == "..."
    assert package["TABLE"].value is None
    assert str(package["TABLE"].annotation) == f"dict[str, {alias}]"
    assert package["SHORT"].value == "3"
    assert package["Settings.rounds"].value == "5"
    defaults = {one.name: one.default for one in package["Settings"].parameters}
    assert defaults == {"self": None, "rounds": "5", "prompt": "..."}


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("other.html#there", None),
        ("#here", None),
        ("https://example.org", None),
        ("gone.html", "leads to nothing"),
        ("other.html#gone", "names no place"),
    ],
)
def test_a_dead_link_is_found(link, fault, tmp_path):
    from check import dead, page_of

    page_of.cache_clear()
    (tmp_path / "other.html").write_text('<p id="there">', "utf-8")
    (tmp_path / "page.html").write_text(f'<p id="here"><a href="{link}">x</a>', "utf-8")
    found = list(dead(tmp_path / "page.html"))
    assert len(found) == bool(fault)
    assert all(one.startswith(f"{link} {fault}") for one in found)


def claims() -> list[tuple[str, str, str]]:
    """Claim, figure and page of results of each row of the benchmarks."""
    lines = (DOCS / "benchmarks.md").read_text("utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if "](results/" in line]
    return [(row[0], row[1], re.findall(r"\((results/[\w-]+\.md)", row[2])[0]) for row in rows]


NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[str]:
    return [one.replace(",", "") for one in NUMBER.findall(text)]


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim[0][:50])
def test_a_claims_figures_stand_on_its_page_of_results(claim):
    _, figure, place = claim
    printed = [abs(float(one)) for one in numbers((DOCS / place).read_text("utf-8"))]
    for one in numbers(figure):
        digits = len(one.partition(".")[2])
        near = [value for value in printed if abs(value - abs(float(one))) <= 0.5001 * 10**-digits]
        assert near, f"{one} is not on {place}"


PROSE = sorted([ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("how-to/*.md")])
FENCED, CODE = re.compile(r"^( *)```.*?^\1```", re.M | re.S), re.compile(r"`[^`]*`")
SHARE = re.compile(r"(?<![\w.])0\.\d\d+(?![\w%])")


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_a_measured_share_that_a_page_tells_is_a_claims(page):
    text = page.read_text("utf-8")
    printed = " ".join(found[0] for found in FENCED.finditer(text))
    known = {*SHARE.findall(" ".join(figure for _, figure, _ in claims()) + printed)}
    told = {*SHARE.findall(CODE.sub("", FENCED.sub("", text)))}
    assert page.stem == "benchmarks" or told <= known, told - known


def outcomes() -> list[tuple[str, str, list[str]]]:
    """Of what came of the papers' tables: which, what is said, the pages that it links."""
    page = (DOCS / "results" / "papers.md").read_text("utf-8")
    lines = page.partition("\n## What came of them")[2].splitlines()
    _, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("| "))
    links = r"\]\(([\w-]+\.md)?[^)]*\)"
    return [(row[0], re.sub(links, "", row[2]), re.findall(links, row[2])) for row in rows]


@pytest.mark.parametrize("row", outcomes(), ids=lambda row: row[0])
def test_what_came_of_a_papers_table_stands_on_the_pages_that_it_links(row):
    _, said, pages = row
    shown = [(DOCS / "results" / page).read_text("utf-8") for page in pages]
    values = [abs(float(one)) for text in shown for one in numbers(text)]
    values += [100 * value for value in values]
    for one in numbers(CODE.sub("", said)):
        digits = len(one.partition(".")[2])
        near = [v for v in values if abs(v - abs(float(one))) <= 0.5001 * 10**-digits]
        assert near, f"{one} is not on {pages}"


def test_every_page_of_results_is_linked_from_a_claim():
    assert {place for *_, place in claims()} == {
        f"results/{page.name}" for page in (DOCS / "results").glob("*.md")
    }
