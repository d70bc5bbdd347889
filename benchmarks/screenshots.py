"""Pictures of the two pages: the report of a small run with a real model, and a gate at work.

    python benchmarks/screenshots.py docs/assets

For the report SmolLM2 answers 40 questions about capitals, which it may know, and about a village
that this file makes up; its gate is fitted on 40 others. Some minutes on two quiet cores; with
`--run FOLDER` the run is kept, and a kept one is drawn again. The gate at work is the one of
learning_pictures.py before its questions change. Needs playwright and a Chromium.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

from learning_pictures import CHANGE, Application
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from ltrag_plugins.data import read_passages
from ltrag_plugins.flow import run
from ltrag_plugins.gece.decision import guarded
from ltrag_plugins.gece.learning import LearningGate
from ltrag_plugins.gece.monitor import Watch
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.report import write_report
from ltrag_plugins.report.watch_figures import watch_page

CAPITALS = (
    "France Paris, Japan Tokyo, Italy Rome, Spain Madrid, Germany Berlin, Egypt Cairo, Iran "
    "Tehran, Greece Athens, China Beijing, Austria Vienna, Peru Lima, Cuba Havana, Russia "
    "Moscow, Portugal Lisbon, Poland Warsaw, Ireland Dublin, Norway Oslo, Sweden Stockholm, "
    "Iraq Baghdad, Finland Helsinki, Denmark Copenhagen, Hungary Budapest, Belgium Brussels, "
    "Canada Ottawa, Kenya Nairobi, Turkey Ankara, Thailand Bangkok, Vietnam Hanoi, Bulgaria "
    "Sofia, Chile Santiago, Jordan Amman, Lebanon Beirut, Morocco Rabat, Nepal Kathmandu, Syria "
    "Damascus, Ukraine Kyiv, Romania Bucharest, Serbia Belgrade, Colombia Bogota, Uruguay "
    "Montevideo"
)
TRADES = (
    "baker brewer butcher carpenter clockmaker cobbler cook dentist doctor farrier ferryman "
    "fiddler fisher florist gardener glazier grocer guide innkeeper joiner judge librarian "
    "mason mayor miller nurse organist painter piper plumber postman potter printer roofer "
    "saddler sexton shepherd tailor thatcher weaver"
)
FIRST, LAST = "Nora Ewan Mhairi Olaf Iona Callum Ailsa Rory", "Baird Laird Stott Berg Gunn"
QUIET = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb")


def write_questions(folder: Path) -> None:
    """Both kinds, those that the gate is fitted on, and the passages that answer them all: a fact,
    and 60 words of a page about something else."""
    pages = read_passages("examples/data/nq_passages.jsonl.gz")
    files: dict[str, list[object]] = {"questions": [], "labelled": [], "passages": []}
    names = product(FIRST.split(), LAST.split())
    rows = zip(CAPITALS.split(", "), TRADES.split(), names, strict=True)
    for i, (known, trade, name) in enumerate(rows):
        country, capital = known.split()
        person, kind = " ".join(name), "labelled" if i % 2 else "questions"
        for question, answer, passage in (
            (f"What is the capital of {country}?", capital, f"{capital} is {country}'s capital."),
            (f"Who is the {trade} of Dirleton?", person, f"{person} is Dirleton's {trade}."),
        ):
            files[kind].append({"question": question, "answers": [answer]})
            number = len(files["passages"])
            others = " ".join(pages[number].text.split()[:60])
            files["passages"].append({"id": f"{number}", "text": f"{passage} {others}"})
    for file, lines in files.items():
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{file}.jsonl").write_text(text, encoding="utf-8")


def report_page(folder: Path) -> Path:
    """The page of the run in the folder, which is made, or goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_questions(folder)
    files = {name: str(folder / f"{name}.jsonl") for name in ("questions", "labelled", "passages")}
    command = [
        *(sys.executable, "-m", "ltrag_plugins", "evaluate", files.pop("questions")),
        *(word for name, file in files.items() for word in (f"--{name}", file)),
        *("--methods", "direct,single:k=1,single:k=3", "--gate", "fit", "--rate", "0.5"),
        *("--metrics", "contains", "--set", "trace=true", "--out", str(folder / "smollm2")),
    ]
    subprocess.run(command, check=True)
    return write_report(folder / "smollm2").page


def watched_page(folder: Path) -> Path:
    """The page of a gate that learned, and works as its fit promised."""
    application = Application(1)
    llm = ScriptedLLM(application.draft, name="scripted")
    gate = LearningGate(llm, folder / "app.sqlite", fit_here=True)
    watch = Watch(gate, audit_rate=0.05, rng=random.Random(1))
    for _, question in zip(range(CHANGE), application.questions(), strict=False):
        decision = run(guarded(question, gate), gate.world)
        watch.saw(decision, lambda question=question: application.chain(question))
        watch.settle(3600)
        gate.refresh(now=True)
    print(watch_page(gate.store, folder / "watch.html"))
    return folder / "watch.html"


def save(browser: Browser, page: Path, name: Path, last: str) -> None:
    """The page in both colours, 1280 wide, from its top to the end of an element."""
    for colours in ("light", "dark"):
        opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=colours)
        opened.goto(page.resolve().as_uri())
        box = opened.locator(last).bounding_box()
        assert box is not None
        clip: Any = {"x": 0, "y": 0, "width": 1280, "height": box["y"] + box["height"] + 24}
        file = name.with_name(f"{name.name}-{colours}.png")
        image = Image.open(BytesIO(opened.screenshot(full_page=True, clip=clip)))
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
        print(f"{file.name}: {clip['height']:.0f} high, {file.stat().st_size / 1e3:.0f} kB")
        opened.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", type=Path, help="keep the report's run here, or draw the one here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        program = own if Path(own).exists() else shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=[*QUIET])
        report, watch = report_page(options.run or Path(scratch)), watched_page(Path(scratch))
        save(browser, report, options.folder / "report", "#cost figure >> nth=1")
        save(browser, watch, options.folder / "monitor", ".figures")
        browser.close()


if __name__ == "__main__":
    main()
