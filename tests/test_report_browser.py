"""The page in a real browser: it opens, sorts, searches, shows a trace, and runs nobody's script.

Needs `pip install playwright` and a Chromium on the PATH (Debian: `apt-get install chromium`), or
one that `playwright install chromium` fetched.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pictured_runs import RUN
from report_parts import HOSTILE, cells, decision, record, run_folder

from ltrag_plugins.flow import run
from ltrag_plugins.gece.learning import LearningGate
from ltrag_plugins.gece.monitor import Watch
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.report import write_report
from ltrag_plugins.report.watch_figures import watch_page
from ltrag_plugins.sgic import write_run
from tests.router_parts import knows_the_odd

MISSING = "no driver for a browser: pip install playwright"
driver = pytest.importorskip("playwright.sync_api", reason=MISSING)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


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


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    records = cells()
    for i in range(10, 60):
        for name in ("direct", "single"):
            records[name].append(record(i, i % 3 == 0))
    del records["single+gate"]
    return write_report(run_folder(tmp_path_factory.mktemp("run"), records)).page


@pytest.fixture
def page(browser, file):
    """The page, opened; whatever it complains about fails the test."""
    page, complaints = browser.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith("file:") or complaints.append(sent.url))
    page.goto(file.as_uri())
    yield page
    assert page.evaluate("window.pwned") is None
    page.close()
    assert complaints == []


def search(page, words: str, *, found: int) -> None:
    page.fill("#search", words)
    driver.expect(page.locator(".question")).to_have_count(found)


def column(page, number: int) -> list[str]:
    return page.eval_on_selector_all(
        "#results tbody tr", f"rows => rows.map(row => row.cells[{number}].dataset.value)"
    )


def test_a_heading_sorts_the_table_and_again_turns_it_round(page):
    before = column(page, 0)
    page.locator("#results thead button").nth(1).click()
    values = [float(value) for value in column(page, 1)]
    assert values == sorted(values, reverse=True)
    assert page.locator("#results th").nth(1).get_attribute("aria-sort") == "descending"
    page.locator("#results thead button").nth(1).click()
    assert [float(value) for value in column(page, 1)] == sorted(values)
    page.locator("#results thead button").first.click()
    assert column(page, 0) == sorted(before)


def test_a_trace_opens_and_a_script_in_it_is_text(page):
    search(page, "book 2?", found=6)  # 2, 12, 22, ...
    page.locator(".question", has_text="book 2?").locator("summary").click()
    page.get_by_role("button", name="Show 2 steps").click()
    shown = page.locator(".trace").inner_text()
    assert "</script><script>window.pwned=1</script>" in shown
    assert "U+202E" in shown
    assert "U+E0041" in shown
    assert not {"\u202e", "\U000e0041"} & set(shown)
    page.locator(".trace details summary").first.click()
    assert "worth a number" in page.locator(".trace details .text").inner_text()
    page.get_by_role("button", name="Hide 2 steps").click()
    assert page.locator(".trace").is_hidden()


def test_the_list_is_paged_and_filtered(page):
    assert page.locator(".question").count() == 25
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    assert page.locator("#place").inner_text() == "Page 3 of 3"
    assert page.locator(".question").count() == 10
    page.select_option("#outcome", "failed")
    assert page.locator("#count").inner_text() == "1–1 of 1, out of 60 questions"
    page.locator(".question summary").click()
    assert HOSTILE.partition("\u202e")[0] in page.locator(".line.error").inner_text()
    search(page, "nobody asked this", found=0)
    assert "None of 60 questions" in page.locator("#count").inner_text()


def test_a_result_that_is_clicked_right_after_a_search_stays_open(page):
    search(page, "book 7?", found=6)
    page.locator(".question summary").first.click()
    page.wait_for_timeout(200)
    assert page.locator(".question[open] .answer").count() == 2


@pytest.fixture(scope="module")
def run_page(tmp_path_factory) -> Path:
    """With gates, failures, long names, rounds in pictures that are wide, and a second measure."""
    found, name = cells(), "single:passages=5_and_more_of_a_long_label"
    found[f"{name}+gate"] = [
        record(i, i % 3 > 0, decision=decision(i / 10, i > 4), prompt_tokens=12_345, ms=123_456.0)
        for i in range(9)
    ] + [record(9, False, error="ModelFailed: late")]
    folder = run_folder(tmp_path_factory.mktemp("gated"), found)
    write_run(RUN, folder / "sgic_run.jsonl")
    return write_report(folder).page


@pytest.fixture(scope="module")
def watched_page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    gate = LearningGate(
        ScriptedLLM(knows_the_odd),
        folder / "app.sqlite",
        warm_up=40,
        target_rate=0.5,
        fit_here=True,
    )
    watch = Watch(gate, audit_rate=1.0)
    for i in range(59):
        asked = f"Which city is number {i} of the list?"
        watch.saw(run(gate.deciding(asked), gate.world), lambda i=i: f"City {i}")
        assert watch.settle(600)
    watch_page(gate.store, folder / "watch.html")
    return folder / "watch.html"


@pytest.mark.parametrize("width", [1024, 1280, 1440])
def test_speed_up_and_failures_are_in_sight_at_every_desktop_width(browser, run_page, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(run_page.as_uri())
    edge = page.locator(".scroll").first.bounding_box()
    for name in ("speed-up", "failed"):
        box = page.locator("#results th", has_text=name).bounding_box()
        assert box["x"] + box["width"] <= edge["x"] + edge["width"]
    page.close()


def test_without_scripts_questions_open_and_nothing_waits_for_a_script(browser, run_page):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(run_page.as_uri())
    page.locator(".question summary").nth(3).click()
    driver.expect(page.locator(".question .answer").nth(12)).to_be_visible()
    driver.expect(page.locator("#filters")).to_be_hidden()
    assert page.locator("button:enabled").count() == page.locator(".pager button").count()
    context.close()


def test_keys_alone_sort_the_table_open_an_answer_and_reach_what_scrolls(browser, run_page):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(run_page.as_uri())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the link to the results
    page.keyboard.press("Tab")  # the table, which scrolls
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#results th").first.get_attribute("aria-sort") == "ascending"
    page.locator(".question summary").nth(2).focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show 2 steps").press("Enter")
    driver.expect(page.locator(".trace").first).to_be_visible()
    unreached = """[...document.querySelectorAll('body *')].filter((one) =>
        one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === 'auto' &&
        one.tabIndex < 0 && !one.querySelector('a, button')).map((one) => one.className)"""
    assert page.evaluate(unreached) == []
    page.close()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("what", ["run_page", "watched_page"])
def test_axe_finds_nothing(browser, request, what, width, colours):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core here")
    size = {"width": width, "height": 800}
    page = browser.new_page(viewport=size, color_scheme=colours)
    page.goto(request.getfixturevalue(what).as_uri())
    for kind, act in (("details", "one.open = true"), ("button.open", "one.click()")) * 2:
        page.evaluate(f"document.querySelectorAll('{kind}').forEach((one) => {{ {act}; }})")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_sticks_out_of_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.locator(".question summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
