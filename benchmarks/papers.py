"""The papers' tables and figures: each is a command, and ends in the paper's figures beside ours.

    LTRAG_DATA=/path/to/data python benchmarks/papers.py gece-1 --limit 10
    LTRAG_DATA=/path/to/data python benchmarks/papers.py sgic-5 --model FILE.gguf --out FOLDER

`papers/NAME.toml` says what the table varies and what it says (see `RunFile`). All runs go through
`ltrag_plugins.evaluate`; the same command goes on where it was stopped, and tables in one folder
share the model's answers.
"""

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from itertools import groupby
from pathlib import Path
from random import Random
from textwrap import fill
from typing import Any, Literal

import numpy as np
from distractors import model

from ltrag_plugins.cli import io
from ltrag_plugins.data import digest_of, json_lines, read_questions
from ltrag_plugins.errors import CalibrationError, InvalidInput, LtragError, NeedsGradients
from ltrag_plugins.evaluate import METRICS, Cell, Record, evaluate, summarize
from ltrag_plugins.evaluate.folder import RunFolder
from ltrag_plugins.evaluate.gating import RunGate
from ltrag_plugins.evaluate.spec import CellName
from ltrag_plugins.flow import Flow, World, ask, fetch, run_many
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.decision import Gate
from ltrag_plugins.gece.score import score_questions
from ltrag_plugins.llm.base import LLM, Encoder
from ltrag_plugins.llm.cached import CachedEncoder, CachedLLM
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.methods import METHODS, Method, method_named
from ltrag_plugins.methods.sgic import SGICAnswer, SGICMethodSettings
from ltrag_plugins.metrics.table import table
from ltrag_plugins.report import plots
from ltrag_plugins.report.sgic_figures import analysis_pictures
from ltrag_plugins.retrieval.dense import DenseRetriever
from ltrag_plugins.settings import Count, Settings, Whole, with_values
from ltrag_plugins.sgic import (
    Analysis,
    LabelledAnswer,
    ScoreScale,
    SGICSettings,
    Truth,
    analyse,
    calibrate,
    r_at_k,
    sampled,
    steps_of,
)
from ltrag_plugins.sgic.analysis import from_record
from ltrag_plugins.sgic.attention import round_attention
from ltrag_plugins.sgic.documents import check_source
from ltrag_plugins.types import Answer, Passage, Question

FOLDER = Path(__file__).with_suffix("")
_Place = Literal["as found", "first", "middle", "last", "random"]


@dataclass(frozen=True, slots=True)
class Data(Settings):
    """The questions of one run, and what they are answered from; files are under LTRAG_DATA."""

    questions: str
    where: Mapping[str, str] = field(default_factory=dict)
    """Only the questions with these fields."""
    passages: tuple[str, ...] = ()
    """Files whose questions' passages are searched together; none: each question has its own."""
    gold: _Place = "as found"
    """Where the gold ones stand among a question's own passages."""
    labelled: str = ""
    """Questions to learn from: a gate, a method, or the mean of SGIC's eq. 2."""
    learn: Count = 50
    """How many of them."""
    tuned: str = ""
    """Arguments of `sgic_tune.py`, for an adapter; "": the model as it is."""


@dataclass(frozen=True, slots=True)
class RunFile(Settings):
    """A table or a figure of a paper: what it varies, and what it says.

    A column is ``[RUN] MEASURE [VALUE]``, a row has a label, ``[RUN] CELL`` (or a list of these,
    for their mean) and the paper's figures, "-" where it has none; without any it has those of the
    row above. The run is the first one where none is named. A cell is a name of `cells` or a method
    word, with "+GATE" behind a gate; `{}` in it is the column's VALUE, in a column without one each
    of them, for the mean. Scores are in percent.
    """

    title: str
    source: str
    """The paper's table or figure, to cite."""
    model: str
    """The paper's."""
    differs: str
    """What is not as in the paper, and what stands in its place."""
    metrics: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    runs: Mapping[str, Any]
    """Tables of the fields of `Data`, by name."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Method words by a short name."""
    gates: Mapping[str, str] = field(default_factory=dict)
    """By the name behind "+": what `RunGate` takes, "fit", "paper" or "paper:quality=chrf"."""
    rate: float | Decimal = 0.2
    """Share of the questions that a gate lets retrieve (paper: 20 %)."""
    seeds: Count = 1
    """Runs of what draws at random."""
    limit: Whole = 100
    """Questions of each run; 0: all."""
    analysis: Literal["", "rounds", "gece"] = ""
    """What is printed and drawn beside the table."""
    values: tuple[str, ...] = ()
    """Those that a column without one is the mean of; (): those of the columns."""

    @classmethod
    def read(cls, name: str) -> "RunFile":
        """The file of that name; `InvalidInput` names the others."""
        path = FOLDER / f"{name}.toml"
        if not path.exists():
            raise InvalidInput(f"no table {name!r}; there are {', '.join(names())}")
        # decimals keep the digits that the paper prints
        told: dict[str, Any] = tomllib.loads(path.read_text("utf-8"), parse_float=Decimal)
        runs = {
            n: Data(**one | {"passages": tuple(one.get("passages", ()))})
            for n, one in told.pop("runs").items()
        }
        lists = ("metrics", "columns", "rows")
        told |= {n: tuple(told[n]) for n in lists} | {"rows": tuple(map(tuple, told["rows"]))}
        return cls(**told, runs=runs)

    def part(self, rows: int | None, columns: Sequence[str]) -> "RunFile":
        """Its first rows, and of its columns these; without any, all; and the runs and gates that
        they need. Raises `InvalidInput` where there is no such column, or not so many rows."""
        if unknown := {*columns} - {*self.columns}:
            raise InvalidInput(f"no column {min(unknown)!r}; there are {', '.join(self.columns)}")
        if rows is not None and not 1 <= rows <= len(self.rows):
            raise InvalidInput(f"no {rows} rows; there are {len(self.rows)}")
        kept = [i for i, column in enumerate(self.columns) if column in columns or not columns]
        some = tuple((*row[:2], *(row[2 + i] for i in kept if row[2:])) for row in self.rows[:rows])
        less = replace(self, rows=some, columns=tuple(self.columns[i] for i in kept))
        if columns:  # a mean stays that of all values
            less = replace(less, values=self._values())
        runs = {name: run for name, run in self.runs.items() if less.words(name)}
        behind = {word.partition("+")[2] for name in runs for word in less.words(name)}
        gates = {name: gate for name, gate in self.gates.items() if name in behind}
        return replace(less, runs=runs, gates=gates)

    def place(self, row: Sequence[Any], column: str) -> tuple[str, str, list[str]]:
        """The run, the measure and the words of the cells that a figure is of."""
        run, [measure, *value] = self._named(column)
        words = []
        for text in [row[1]] if isinstance(row[1], str) else row[1]:
            of_row, [word] = self._named(text)
            run = run or of_row
            values = (value or self._values()) if "{}" in word else [""]
            words += [word.replace("{}", v) for v in values]
        return run or next(iter(self.runs)), measure, words

    def _values(self) -> tuple[str, ...]:
        every = {v for c in self.columns for v in self._named(c)[1][1:]}
        return self.values or tuple(sorted(every))

    def _named(self, text: str) -> tuple[str, list[str]]:
        first, *rest = text.split()
        return (first, rest) if first in self.runs else ("", [first, *rest])

    def words(self, run: str) -> list[str]:
        """All cells of a run, each once, in the order of the table; those before a gate too."""
        places = (self.place(row, column) for row in self.rows for column in self.columns)
        return [*dict.fromkeys(word for at, _, words in places if at == run for word in words)]

    def cell(self, word: str) -> Cell:
        """The cell of a word, without its gate; raises as `cell_of`."""
        alone = word.partition("+")[0]
        name, *given = self.cells.get(alone, alone).split(":")
        method = method_named(name, {**METHODS, **OURS})
        label = alone if alone in self.cells else CellName.safe(":".join(given), "_")
        return Cell(method, with_values(method.settings(), given), label=label)


def names() -> list[str]:
    """All tables and figures."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _knowing(question: Question, settings: SGICMethodSettings, _: None) -> Flow[SGICAnswer]:
    """As the method sgic; it knows the truth, which only `loop.source=oracle` reads (table 6)."""
    [found] = yield from fetch(question.text, k=settings.k)
    truth = Truth(tuple(bool(p.metadata.get("gold")) for p in found), question.answers)
    asked = question.text, found, settings.loop, settings.scale
    answer = yield from calibrate(*asked, truth=truth)
    trace = tuple(one.generation for one in answer.trace)
    return SGICAnswer(answer.text, answer.uncertainty, tuple(found), trace, answer)


def _refuses(settings: SGICMethodSettings, world: World) -> None:
    check_source(settings.loop.source, encoder=world.encoder, oracle=True)


@dataclass(frozen=True, slots=True)
class SamplesSettings(SGICMethodSettings):
    """As SGIC asks first, several times."""

    samples: Count = 5
    """K (paper: as many as rounds)."""
    seed: Whole = 0
    """Of the first sample; the others count on from it."""


def _samples(question: Question, settings: SamplesSettings, _: None) -> Flow[Answer]:
    """The least uncertain of K samples of SGIC's own first prompt (section 5.2)."""
    [found] = yield from fetch(question.text, k=settings.k)
    loop = replace(settings.loop, seed=settings.seed * settings.samples)  # nothing is drawn twice
    answer = yield from sampled(question.text, found, settings.samples, loop)
    trace = tuple(one.generation for one in answer.trace)
    return Answer(answer.text, answer.uncertainty, tuple(found), trace)


_REASONING = (
    "Solve the problem step by step, one short step on each line. Write the final number alone on "
    "the last line, after ####.\nProblem: {question}\nSolution:\n"
)


@dataclass(frozen=True, slots=True)
class StepsSettings(Settings):
    """How a problem is reasoned about, and how its steps are calibrated."""

    max_tokens: Count = 256
    """Longest reasoning, in tokens."""
    loop: SGICSettings = field(default_factory=SGICSettings.steps)
    """The rounds over the steps; with 0 rounds the answer is the reasoning's own."""


def _stepwise(question: Question, settings: StepsSettings, _: None) -> Flow[Answer]:
    """The last number of a chain of reasoning, or what SGIC makes of its steps (section 5.4)."""
    [reply] = yield from ask(
        _REASONING.replace("{question}", question.text), max_tokens=settings.max_tokens
    )
    text, trace = reply.text, (reply,)
    if settings.loop.rounds:
        found = yield from calibrate(question.text, steps_of(text), settings.loop)
        text, trace = found.text, (reply, *(one.generation for one in found.trace))
    return Answer(last_number(text), trace=trace)


def last_number(text: str) -> str:
    """The last number of a text, without commas; the text where there is none."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else text.strip()


OURS = {
    "sgic": replace(METHODS["sgic"], answer=_knowing, refuses=_refuses),
    "sgic-samples": Method(
        name="sgic-samples",
        summary="several sampled answers to SGIC's first prompt; the least uncertain one wins",
        source="Chen et al. (SGIC), section 5.2",
        settings=SamplesSettings,
        answer=_samples,
        most_calls=lambda settings: settings.samples,
        needs=METHODS["sgic"].needs,
    ),
    "sgic-steps": Method(
        name="sgic-steps",
        summary="reasons step by step, and calibrates the answer with the steps as documents",
        source="Chen et al. (SGIC), section 5.4",
        settings=StepsSettings,
        answer=_stepwise,
        most_calls=lambda settings: 1 + settings.loop.max_calls,
        needs=frozenset({"probabilities"}),
    ),
}
"""Methods beside `METHODS`, for these tables alone."""


class OwnPassages:
    """A retriever that finds each question's own passages, in their order."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._found = {q.text: q.passages for q in questions}
        self.name = f"own passages of {digest_of(questions)}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The first k of each; `KeyError` of another text than a question's."""
        return [list(self._found[query][:k]) for query in queries]


def read(path: Path, data: Data, limit: int | None) -> list[Question]:
    """The first questions in the order of the hashes of their ids, their passages marked as gold or
    not, and in the order that is asked for."""
    found, lines = list[Question](), json_lines(path)
    for question, line in zip(read_questions(path, require_answers=True), lines, strict=True):
        told = line.fields
        if all(told.get(name) == value for name, value in data.where.items()):
            place, titles = told.get("gold_index"), told.get("supporting_titles", ())
            marked = (
                replace(p, metadata={"gold": i == place or p.title in titles})
                for i, p in enumerate(question.passages)
            )
            found.append(replace(question, passages=tuple(marked)))
    found.sort(key=lambda question: hashlib.sha256(question.id.encode()).hexdigest())
    return [ordered(question, data.gold) for question in found[:limit]]


def ordered(question: Question, gold: _Place) -> Question:
    """The question with its gold passages at that place among the others."""
    if gold == "as found":
        return question
    passages = list(question.passages)
    if gold == "random":
        Random(question.id).shuffle(passages)
        return replace(question, passages=tuple(passages))
    best, rest = ([p for p in passages if p.metadata["gold"] is kind] for kind in (True, False))
    at = {"first": 0, "middle": len(rest) // 2, "last": len(rest)}[gold]
    return replace(question, passages=(*rest[:at], *best, *rest[at:]))


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs stand on."""

    load: Callable[[Path | None], LLM]
    """The model, with an adapter if one is named."""
    encoder: Encoder | None
    """Searches the passages of files; None: each question has its own."""
    root: Path
    """Of the question files."""
    out: Path
    """Where all runs are kept, and the answers that they share."""
    source: str = "embedded"
    """The model's name for `sgic_tune.py`."""
    limit: int | None = None
    """Questions of each run; None: as the run file says; 0: all."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A run that is done."""

    questions: Mapping[str, Question]
    """By id."""
    records: Mapping[str, Sequence[Record]]
    """By the cell's word, of all seeds."""
    cells: Mapping[str, Cell]
    """By word, the first seed's."""
    llm: LLM

    def rounds(self, word: str) -> list[LabelledAnswer]:
        """What SGIC kept of each question, with the passages that are gold."""
        found = []
        for record in self.records[word]:
            if record.rounds is not None:
                one, passages = from_record(record.rounds), self.questions[record.id].passages
                gold = tuple(p.metadata["gold"] for p in passages[: len(one.answer.documents)])
                found.append(replace(one, relevant=gold))
        return found


def answered(paper: RunFile, name: str, parts: Parts) -> Answered:
    """Run, or read, all cells of one run."""
    data, folder = paper.runs[name], RunFolder(parts.out / name)
    limit = paper.limit if parts.limit is None else parts.limit
    learn = min(data.learn, 5 * limit) if limit else data.learn
    asked = read(parts.root / data.questions, data, limit or None)
    others = read(parts.root / data.labelled, data, learn) if data.labelled else []
    adapter = tuned(data.tuned, learn, parts) if data.tuned else None
    llm = CachedLLM(parts.load(adapter), parts.out.parent / "answers.sqlite")
    world = World(
        llm=llm, retriever=retriever(data, [*asked, *others], parts), encoder=parts.encoder
    )
    words, cells = paper.words(name), dict[str, list[Cell]]()
    gates: dict[str, Gate | None] = {"": None}
    for gate, spec in paper.gates.items():
        print(f"{name}: the gate of rows +{gate}", flush=True)
        try:
            gates[gate] = RunGate(spec, float(paper.rate)).made(world, asked, others, folder)
        except (CalibrationError, NeedsGradients) as error:
            print(f"{name}: rows +{gate} are left out: {error}")
    for word in words:
        gate = word.partition("+")[2]
        if gate not in gates:
            continue
        cell = scaled(paper.cell(word), others, world)
        cell = replace(cell, gate=gates[gate], gate_name=gate)
        drawn = paper.seeds > 1 and hasattr(cell.set, "seed")
        cells[word] = [replace(cell, seed=n) for n in (range(paper.seeds) if drawn else [None])]
    every = {cell.name: cell for some in cells.values() for cell in some}
    how: Any = {"metrics": paper.metrics, "labelled": others, "batch": 8}
    print(f"{name}: {len(every)} cells, {len(asked)} questions", flush=True)
    done = sum(not one.error for cell in every for one in folder.records(cell))
    with io.answering(len(every) * len(asked), done) as on_record:
        records = evaluate(asked, every.values(), world, out=folder, on_record=on_record, **how)
    print(summarize(records), flush=True)
    found = {w: [r for cell in some for r in records[cell.name]] for w, some in cells.items()}
    first = {word: some[0] for word, some in cells.items()}
    return Answered({q.id: q for q in asked}, found, first, llm)


def retriever(data: Data, questions: Sequence[Question], parts: Parts) -> Any:
    """Each question's own passages, or a dense search over those of the files; None without any."""
    if data.passages and parts.encoder is not None:
        files = (read_questions(parts.root / file) for file in data.passages)
        pool = {(p.title, p.text): p for some in files for q in some for p in q.passages}
        print(f"{len(pool)} passages, encoded if they are not in vectors.sqlite", flush=True)
        vectors = CachedEncoder(parts.encoder, parts.out.parent / "vectors.sqlite")
        return DenseRetriever(pool.values(), vectors)
    return OwnPassages(questions) if any(q.passages for q in questions) else None


def scaled(cell: Cell, others: Sequence[Question], world: World) -> Cell:
    """SGIC with the mean of eq. 2: of the first answers to other questions, where there are any."""
    if cell.method.name != "sgic" or not others:
        return cell
    loop = cell.set.loop
    first = replace(loop, rounds=0, source="uncertainty", score_documents="needed")
    flows = [calibrate(q.text, q.passages, first) for q in others]
    traces = [answer.trace for answer in run_many(flows, world, batch=8)]
    scale = ScoreScale.of_rounds(loop.estimator, traces)
    return replace(cell, settings=replace(cell.set, scale=scale))


def tuned(arguments: str, questions: int, parts: Parts) -> Path:
    """The adapter that `sgic_tune.py` makes with these arguments; what it has begun goes on."""
    out = parts.out.parent / "tuned" / re.sub(r"\W+", "-", f"{arguments} {questions}").strip("-")
    told = [*shlex.split(arguments), "--questions", str(questions), "--out", str(out)]
    script = Path(__file__).with_name("sgic_tune.py")
    subprocess.run([sys.executable, script, "--model", parts.source, *told], check=True)
    return out / "adapter"


MEASURES: Mapping[str, Callable[[Analysis], float | None]] = {
    "auroc": lambda found: found.rounds[-1].auroc,
    "right": lambda found: found.first.good.mean,
    "wrong": lambda found: found.first.bad.mean,
    "relevant": lambda found: found.documents and found.documents.good.mean,
    "irrelevant": lambda found: found.documents and found.documents.bad.mean,
    "mended": lambda found: found.mending.mended / found.mending.questions,
    "failed": lambda found: found.mending.failed / found.mending.questions,
    "early": lambda found: found.mending.mended_early / n if (n := found.mending.mended) else None,
}
"""What a column can be beside a metric, of a cell of SGIC: AUROC for wrong of the last round's
uncertainty; mean uncertainty of right and wrong first answers and of relevant and other documents;
shares of the questions that were mended and that stayed wrong, and of the mended those within two
rounds. And "R@2", "R@5" of the attention in the last round; "speed-up" over the row without gate.
"""


def attention(run: Answered, word: str, k: int) -> float | None:
    """R@k of the documents by the attention on them in the last round (table 10)."""
    if not isinstance(local := getattr(run.llm, "llm", run.llm), TransformersLLM):
        return None
    found, loop = [one for one in run.rounds(word) if any(one.relevant)], run.cells[word].set.loop
    shares = [
        round_attention(local, one.answer, loop, round=len(one.right) - 1).documents
        for one in found
    ]
    return r_at_k(shares, [one.relevant for one in found], [k])[k]


def figure(run: Answered, measure: str, words: Sequence[str], base: Sequence[str]) -> float | None:
    """One figure of a row: in percent, a speed-up as it is; None where a cell was left out, or
    learned nothing and so failed on all questions."""
    if any(all(record.error for record in run.records.get(word, ())) for word in words):
        return None
    means = [
        np.mean([r.scores[measure] if measure in METRICS else r.ms for r in run.records[word]])
        for word in words
    ]
    if measure in METRICS:
        return 100 * float(np.mean(means))
    if measure == "speed-up":
        before = np.mean([r.ms for word in base for r in run.records[word]])
        return float(before / np.mean(means))
    values = [
        attention(run, word, int(measure[2:]))
        if measure.startswith("R@")
        else MEASURES[measure](analyse(run.rounds(word)))
        for word in words
    ]
    known = [value for value in values if value is not None]
    return 100 * float(np.mean(known)) if known else None


def compared(paper: RunFile, runs: Mapping[str, Answered]) -> list[str]:
    """The lines of the paper's table, each figure of ours beside the paper's."""
    rows, base, told = list[tuple[str, list[str]]](), dict[str, list[str]](), ()
    for row in paper.rows:
        told, cells = row[2:] or told, list[str]()
        for column, said in zip(paper.columns, told, strict=True):
            run, measure, words = paper.place(row, column)
            if not any("+" in word for word in words):
                base[column] = words
            value = figure(runs[run], measure, words, base.get(column, words))
            digits = len(str(said).partition(".")[2]) or 1
            cells.append(f"{'-' if value is None else f'{value:.{digits}f}'} | {said}")
        rows.append((row[0], cells))
    groups = [list(some) for _, some in groupby(paper.columns, key=lambda c: c.split()[0])]
    return table(rows, *groups, title="ours | the paper's")


def rounds_told(paper: RunFile, runs: Mapping[str, Answered], out: Path) -> Iterator[str]:
    """The analysis of each cell of SGIC; its pictures are written to the folder."""
    for name, run in runs.items():
        for word in run.records:
            if found := run.rounds(word):
                files = analysis_pictures(found, out / "pictures" / f"{name}-{word}")
                yield f"{name}, {word}:\n{analyse(found)}\npictures: {files[0].parent}\n"


@plots.styled()
def gece_picture(scores: Mapping[str, Sequence[float]], long_tail: set[int], path: Path) -> Path:
    """The values of each question, a panel for each way to compute them."""
    picture, axes = plots.canvas(1, len(scores), size=(9.0, 3.6))
    kinds = (("common", plots.BLUE, "o"), ("long-tail", plots.ORANGE, "X"))
    for place, (title, values) in zip(axes, scores.items(), strict=True):
        for tail, (label, colour, mark) in enumerate(kinds):
            rows = [i for i in range(len(values)) if (i in long_tail) == tail]
            place.scatter(rows, [values[i] for i in rows], color=colour, marker=mark, label=label)
        place.set(title=title, ylabel="GECE")
        plots.count_axis(place, "question", 0, len(values) - 1)
        place.legend()
    return plots.save_figure(picture, path)


def gece_told(paper: RunFile, runs: Mapping[str, Answered], out: Path) -> Iterator[str]:
    """GECE (eq. 2, with the reference) of each question with and without statistics and semantics;
    long-tail is the highest share `rate` of the full formula, as in the paper."""
    [run] = runs.values()
    questions, llm = [*run.questions.values()], run.llm
    bare = GECESettings(statistics=False, semantics=False)
    scores = {
        "with both": [s.value for s in score_questions(questions, llm=llm, batch=8)],
        "without": [s.value for s in score_questions(questions, llm=llm, settings=bare, batch=8)],
    }
    order = np.argsort(scores["with both"])[::-1]
    long_tail = {int(i) for i in order[: round(float(paper.rate) * len(order))]}
    path = gece_picture(scores, long_tail, out / "gece.png")
    lines = [
        (questions[i].text[:50], ["long-tail" if i in long_tail else "common",
                                  *(f"{values[i]:.4g}" for values in scores.values())])
        for i in map(int, order)
    ]  # fmt: skip
    yield "\n".join(table(lines, ["kind", *scores], title="GECE, eq. 2"))
    yield f"picture: {path}"


ANALYSES = {"rounds": rounds_told, "gece": gece_told}


def shown(paper: RunFile, parts: Parts) -> None:
    """Run what is not there yet, and print all of it."""
    print(f"{paper.title}\n{paper.source}\nthere {paper.model}, here {parts.load(None).name}")
    print(fill(" ".join(paper.differs.split()), 100), flush=True)
    runs = {name: answered(paper, name, parts) for name in paper.runs}
    if paper.analysis:
        print("", *ANALYSES[paper.analysis](paper, runs, parts.out), sep="\n")
    print("", *compared(paper, runs), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help=f"one of {', '.join(names())}")
    parser.add_argument("--model", default="embedded", help="'embedded', a folder, or a GGUF file")
    parser.add_argument("--dtype", default="auto", help='"fast": bfloat16 where the CPU has it')
    parser.add_argument("--limit", type=int, help="questions of each run; 0: all")
    parser.add_argument("--rows", type=int, help="the first so many rows alone")
    parser.add_argument("--columns", default="", help="these alone, with commas between them")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    options = parser.parse_args()
    if not (root := os.environ.get("LTRAG_DATA")):
        sys.exit("set LTRAG_DATA to the folder that holds nq_distractor/, hotpotqa/ and the others")

    @cache
    def load(adapter: Path | None) -> LLM:
        return model(
            options.model,
            adapter=None if adapter is None else str(adapter),
            dtype=options.dtype,
        )

    try:
        columns = [column for column in options.columns.split(",") if column]
        paper = RunFile.read(options.name).part(options.rows, columns)
        out = options.out / options.name
        how: Any = {"source": options.model, "limit": options.limit}
        shown(paper, Parts(load, embedded_encoder(), Path(root), out, **how))
    except LtragError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        # it has said why, unless it was killed
        sys.exit(error.returncode if error.returncode > 0 else f"{error} The same command goes on.")


if __name__ == "__main__":
    main()
