"""Folders that version 0.1.0 saved (commit 65bfade) load, and decide what they decided then.

`fixtures/first_house` holds the folders, and `expected.json` what that version made of them. The
figures below are computed with the models of this file and held against it: text, order and
decisions exactly, floats to twelve digits (a processor's own matrix product rounds the last ones).
Of reports and tables, which are laid out anew, every line or every figure is there.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ltrag_plugins.dur import DURRanker
from ltrag_plugins.evaluate import Cell, Record, cell_of, evaluate, summarize
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import Calibration
from ltrag_plugins.types import Generation, GradientAgreement, Passage, Question, Token

SAVED = Path(__file__).parent / "fixtures" / "first_house"
COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "pink")
STREETS = ("Abbey", "Baker", "Canal", "Dover", "Elm", "Fleet", "Grove")
SILENT = 113
"""The house about which the models say nothing."""


def question(house: int) -> Question:
    street = STREETS[house * 5 % len(STREETS)]
    text = f"What colour is house {house} in {street} Street?"
    return Question(text, (COLOURS[house % 8],), id=f"q{house}", passages=passages(house))


def passages(house: int) -> tuple[Passage, ...]:
    """About the house, its neighbour, and neither."""
    numbers = (house, house + 1)
    told = [Passage(f"House {n} is {COLOURS[n % 8]}.", id=f"p{n}", title="Paint") for n in numbers]
    street = STREETS[house * 5 % len(STREETS)]
    return (*told, Passage(f"{street} Street has {house} houses.", id=f"s{house}", title=street))


ASKED = [question(house) for house in (*range(100, 110), SILENT)]
"""What the gates and the calibrator decide about; nothing was fitted on these."""
RUN = [question(house) for house in range(200, 210)]
"""Those of the evaluation run."""
POOL = [p for house in range(200, 212, 2) for p in passages(house)]
CELLS = ("direct", "single:k=1", "single:k=1+gece", "sgic:k=2:loop.rounds=2")


def writes(prompt: str) -> Generation:
    """Knows houses of even number and reads of four streets; is not always honest about it."""
    house = int(re.findall(r"What colour is house (\d+) ", prompt)[-1])
    shown = f"House {house} is " in prompt
    rounds = len(re.findall(r"^Round \d+: ", prompt, re.MULTILINE))
    reads = shown and house * 5 % 7 not in (0, 3, 5) and (house + rounds) % 6
    right = reads or (house % 2 == 0 and "House" not in prompt)
    honest = house * 13 % 9 > 1
    doubt = (37 * house + 11 * shown + 23 * rounds) % 40 / 100
    read = len(prompt.split())
    if house == SILENT:
        return Generation("", (), read, 0)
    text = COLOURS[house % 8] if right else f"perhaps {COLOURS[(house + 3) % 8]}"
    return said(text, 0.95 - doubt if bool(right) == honest else 0.25 + doubt, read)


def said(text: str, probability: float, read: int) -> Generation:
    """The words as tokens, each with its runner-up."""
    words = re.findall(r"\s*\S+", text)
    chances = [float(np.log(probability ** (1 + i / 4))) for i in range(len(words))]
    other = float(np.log((1 - probability) / 2))
    tokens = []
    for word, chance in zip(words, chances, strict=True):
        ranked = sorted([(word, chance), ("x", other)], key=lambda pair: -pair[1])
        tokens.append(Token(word, chance, alternatives=tuple(ranked)))
    return Generation(text, tuple(tokens), read, len(tokens))


def llm() -> ScriptedLLM:
    return ScriptedLLM(writes, name="first house")


def talker() -> ScriptedLLM:
    """A model without token probabilities; every third answer to a prompt is another one."""
    asked: dict[str, int] = {}

    def talks(prompt: str) -> str:
        asked[prompt] = asked.get(prompt, 0) + 1
        text = writes(prompt).text
        return f"maybe {text} or grey" if text and (asked[prompt] + len(prompt)) % 3 == 0 else text

    return ScriptedLLM(talks, name="first house, text alone")


class Weights:
    """The same model with gradients: of a text, how often it has each letter."""

    name = "first house, weights"

    def __init__(self) -> None:
        self._llm = ScriptedLLM(writes)

    def generate(self, *prompts, **settings):
        return self._llm.generate(*prompts, **settings)

    def score(self, prompts, continuations):
        return [said(c, 0.5, len(p.split())) for p, c in zip(prompts, continuations, strict=True)]

    def mean_gradient(self, prompts, continuations, **settings):
        pairs = zip(prompts, continuations, strict=True)
        return {"layers.3.down.weight": np.mean([_gradient(*pair) for pair in pairs], axis=0)}

    def gradient_agreement(self, prompts, continuations, *, along, **settings):
        mean = along["layers.3.down.weight"].astype(float)
        found = []
        for pair in zip(prompts, continuations, strict=True):
            gradient = _gradient(*pair).astype(float)
            dot = float((gradient * mean).sum())
            norms = np.sqrt((gradient**2).sum() * (mean**2).sum())
            found.append(GradientAgreement(dot, float(dot / norms)))
        return found


def _gradient(prompt: str, continuation: str) -> np.ndarray:
    counts = [[text.count(c) for c in "abdeglnr"] for text in (prompt[-40:], continuation)]
    return np.array(counts, dtype=np.float32) - np.float32(1.5)


class Letters:
    """An encoder that counts letters."""

    name = "letters"

    def encode(self, texts):
        counts = [[text.lower().count(c) + 0.1 for c in "abcdefghikln"] for text in texts]
        rows = np.array(counts, dtype=np.float32).reshape(len(texts), 12)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


GATES = {
    "gate_gradients": (Weights, None),
    "gate_formula": (Weights, None),
    "gate_probabilities": (llm, Letters),
    "gate_text": (talker, None),
    "gate_one_signal": (llm, None),
    "gate_always": (llm, None),
}


def gate(name: str) -> GECEGate:
    model, encoder = GATES[name]
    return GECEGate.load(SAVED / name, llm=model(), encoder=encoder and encoder())


def decisions(gate: GECEGate) -> list[dict]:
    """One question at a time, as an app asks."""
    found = []
    for asked in ASKED:
        decision = gate.decide(asked.text)
        told = {name: getattr(decision, name) for name in ("retrieve", "score", "probability")}
        signals = dict(sorted(decision.ingredients.items()))
        found.append(told | {"tier": decision.tier, "answer": decision.answer, "signals": signals})
    return found


def rankings() -> dict:
    """Of passages and of solved examples: all, the first three, and those above sigma."""
    ranker = DURRanker.load(SAVED / "head", encoder=Letters())
    found = {"shots": ranker.shots, "sigma": ranker.sigma}
    candidates = {"passages": POOL[:9], "examples": [question(house) for house in range(120, 128)]}
    for kind, offered in candidates.items():
        for asked in ASKED[:3]:
            ways = {"all": {}, "three": {"top_n": 3}, "above sigma": {"sigma": 0.11}}
            for way, how in ways.items():
                ranked = ranker.rank(asked.text, offered, **how)
                found[f"{kind}, {asked.id}, {way}"] = [[one.index, one.score] for one in ranked]
    return found


CALIBRATIONS = ("calibration", "calibration_isotonic")


def calibration(name: str) -> Calibration:
    return Calibration.load(SAVED / name, llm=llm())


def certainties(calibration: Calibration) -> dict:
    """The scale, and P(wrong), at several uncertainties and scores."""
    assert calibration.wrongness is not None
    rounds = range(len(calibration.scale.means) + 1)
    uncertainties = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    return {
        "settings": [calibration.settings.rounds, calibration.settings.estimator],
        "scores": [[calibration.scale.score(u, round=n) for u in uncertainties] for n in rounds],
        "p_wrong": [calibration.wrongness.probability(s) for s in (0, 10, 25, 40, 50, 65, 80, 100)],
    }


def calibrated(calibration: Calibration) -> list[dict]:
    """What the calibrator answers with it, and which answers it keeps back at several limits."""
    from langchain_core.documents import Document

    from ltrag_plugins.langchain import SGICCalibrator

    found = []
    for asked in ASKED[:6]:
        documents = [Document(p.text, id=p.id) for p in asked.passages]
        given = {"question": asked.text, "documents": documents}
        told = {}
        for limit in (0.05, 0.2, 0.4, 0.6, 0.8):
            calibrator = SGICCalibrator(
                llm(), calibration=calibration, refuse_p_wrong_above=limit, refusal="-"
            )
            told = calibrator.invoke(given)
            found.append({"limit": limit, "answer": told["answer"], "refused": told["refused"]})
        figures = {name: told[name] for name in ("uncertainty", "score", "p_wrong")}
        scores = [document.metadata["sgic"]["score"] for document in told["documents"]]
        found.append(figures | {"documents": scores, "rounds": [r.text for r in told["trace"]]})
    return found


def cells() -> list[Cell]:
    """Those of the run; its gate is the one with token probabilities."""
    found = []
    for name in CELLS:
        word, _, gated = name.partition("+")
        cell = cell_of(word)
        guard = gate("gate_probabilities") if gated else None
        found.append(Cell(cell.method, cell.settings, guard, gated, label=cell.label))
    return found


def world(model: ScriptedLLM) -> World:
    retriever = BM25Retriever(POOL, engine="rank-bm25")
    return World(llm=model, retriever=retriever, encoder=Letters())


def records(folder: Path) -> dict[str, list[Record]]:
    """By cell, in the order of run.json."""
    names = json.loads((folder / "run.json").read_bytes())["identity"]["cells"]
    files = {name: folder / "records" / f"{name.replace(':', '~')}.jsonl" for name in names}
    return {
        name: [Record.from_line(line) for line in path.read_bytes().splitlines()]
        for name, path in files.items()
    }


def tables() -> list[list[str]]:
    """The figures that are printed of a run, over the first row and over another."""
    found = records(SAVED / "run")
    return [*map(figures, (summarize(found), summarize(found, compared=CELLS[1], level=0.9)))]


def figures(table: object) -> list[str]:
    return sorted(re.findall(r"[-+]?\d+\.\d+", str(table)))


def lines(report: object) -> list[str]:
    """All but the verdict, which older reports had not."""
    return sorted(line for line in str(report).splitlines() if re.search("(  |^note:)", line))


def examples() -> list[list]:
    from ltrag_plugins.training import load

    found = load(SAVED / "dataset")
    assert found.manifest["examples"] == len(found.examples)
    return [[e.id, e.kind, e.round, e.prompt, e.target] for e in found.examples]


SAYS = {
    **{name: lambda name=name: decisions(gate(name)) for name in GATES},
    "reports": lambda: {name: lines(gate(name).report) for name in GATES},
    "head": rankings,
    **{name: lambda name=name: certainties(calibration(name)) for name in CALIBRATIONS},
    **{f"{n}, answers": lambda name=n: calibrated(calibration(name)) for n in CALIBRATIONS},
    "tables": tables,
    "dataset": examples,
}


def assert_alike(found, wanted, at=""):
    """Everything equal, floats to twelve digits."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), at
        for name in wanted:
            assert_alike(found[name], wanted[name], f"{at}, {name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), at
        for i, pair in enumerate(zip(found, wanted, strict=True)):
            assert_alike(*pair, f"{at}, {i}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12), at
    else:
        assert (found, type(found)) == (wanted, type(wanted)), at


@pytest.mark.parametrize("part", SAYS)
def test_what_was_saved_says_what_it_said(part):
    expected = json.loads((SAVED / "expected.json").read_bytes())
    expected["tables"] = [*map(figures, expected["tables"])]
    expected["reports"] = {name: lines(text) for name, text in expected["reports"].items()}
    assert_alike(json.loads(json.dumps(SAYS[part]())), expected[part])


def test_a_saved_run_has_a_report_with_every_question(tmp_path):
    from ltrag_plugins.report import write_report

    shutil.copytree(SAVED / "run", tmp_path / "run")
    write_report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for name in CELLS:
        assert name in page
    for asked in RUN:
        assert asked.text in page


def test_a_saved_run_that_was_broken_off_goes_on_without_asking_the_model(tmp_path):
    def asked(prompt: str) -> str:
        raise AssertionError(f"the answer is in the folder's cache: {prompt}")

    run = tmp_path / "run"
    shutil.copytree(SAVED / "run", run)
    before = records(run)
    for path in (run / "records").iterdir():  # as after a kill: the last three are not there yet
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))
    found = evaluate(
        RUN, cells(), world(ScriptedLLM(asked, name="first house")), out=run,
        metrics=["contains", "f1"], trace=True,
    )  # fmt: skip
    for name in CELLS:
        for now, then in zip(found[name], before[name], strict=True):
            now, then = json.loads(now.as_line()), json.loads(then.as_line())
            del now["ms"], then["ms"]  # of the search, which is timed anew
            assert_alike(now, then, name)
