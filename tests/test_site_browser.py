"""The built site in a real browser: axe finds nothing, code stays whole, words find their guides.

Needs the extra `docs`, a driver, axe (`pip install axe-playwright-python`) and a Chromium, as
`test_report_browser.py` does; without one of them it is skipped.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

driver = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
)
pytest.importorskip("mkdocs", reason="pip install 'ltrag-plugins[docs]'")
ROOT = Path(__file__).parents[1]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
PAGES = ("index", "how-to/gate", "sgic", "api/types", "benchmarks")
BROKEN_WORDS = """() => {
    const broken = [];
    for (const code of document.querySelectorAll("article code")) {
        const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
        while (texts.nextNode())
            for (const word of texts.currentNode.data.matchAll(/\\w+/g)) {
                const range = document.createRange();
                range.setStart(texts.currentNode, word.index);
                range.setEnd(texts.currentNode, word.index + word[0].length);
                const lines = [...range.getClientRects()].filter(line => line.width);
                if (new Set(lines.map(line => Math.round(line.top))).size > 1) broken.push(word[0]);
            }
    }
    return broken;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site; the folder that LTRAG_SITE names, of which then every page is looked at."""
    if built := os.environ.get("LTRAG_SITE"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[driver.Browser]:
    with driver.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = own if Path(own).exists() else next(filter(None, map(shutil.which, PROGRAMS)), None)
        if found is None:
            pytest.skip("no Chromium on this machine: apt-get install chromium")
        opened = playwright.chromium.launch(executable_path=found, args=[*QUIET])
        yield opened
        opened.close()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_kind_of_page_is_whole_and_readable(width, colours, browser, site):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=colours, reduced_motion="reduce"
    )
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith("http") and complaints.append(sent.url))
    names = PAGES if "LTRAG_SITE" not in os.environ else every_page(site)
    for name in names:
        page.goto((site / f"{name}.html").as_uri())
        for violation in axe.Axe().run(page).response["violations"]:
            nodes = [node["html"][:100] for node in violation["nodes"]]
            complaints.append((name, violation["id"], nodes[:3]))
        if page.evaluate("document.documentElement.scrollWidth") > width:
            complaints.append((name, "sticks out of the window"))
        if broken := page.evaluate(BROKEN_WORDS):
            complaints.append((name, "code breaks inside words", broken[:3]))
    context.close()
    assert not complaints, "\n".join(map(str, complaints))


def every_page(site: Path) -> list[str]:
    pages = (page.relative_to(site).with_suffix("") for page in sorted(site.rglob("*.html")))
    return [str(page) for page in pages if page.name != "404"]


@pytest.mark.parametrize(
    ("words", "guide"),
    [
        ("hallucination", "how-to/calibrate.html"),
        ("how sure", "how-to/calibrate.html"),
        ("skip retrieval", "how-to/gate.html"),
        ("without labels", "how-to/gate.html"),
    ],
)
def test_the_words_of_users_find_the_guide_first(words, guide, browser, site):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially(words)
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    driver.expect(first).to_have_attribute("href", re.compile(re.escape(guide)), timeout=20_000)
    page.close()


def test_colours_follow_the_system_until_one_is_chosen(browser, site):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    scheme = "document.body.getAttribute('data-md-color-scheme') == '{}'"  # set by an event
    page.wait_for_function(scheme.format("slate"))
    page.emulate_media(color_scheme="light")
    page.wait_for_function(scheme.format("default"))
    page.locator("label[for=__palette_1]:visible").click()
    page.locator("label[for=__palette_2]:visible").click()
    page.wait_for_function(scheme.format("slate"))
    context.close()
