"""How much faster is each method behind a gate, and how good, at every rate the gate could have?

Reads the records of a run of `ltrag evaluate` with a gate. For each method that was run behind it
and alone it prints the share of questions retrieved for, the differences in F1 from the method
alone and from as many questions chosen at random (what is expected of them), with 95 % intervals of
a paired bootstrap, and the speed-up; then F1 and speed-up at other thresholds than the one that was
fitted: a question whose score is above is charged the gate's draft and the method, another the
draft alone. With --keep all that takes is written to a file, which can be named in the place of
the run; then the run's own table is printed first, with gains in METRIC over the row of --compare
(direct answers, if none is named). With --behind the decisions of a gate in another
run of the same questions are put before these methods too; their answers stay as they are.

Usage:

    python benchmarks/gate_speed.py RUN/ [METRIC] [--keep FILE]
    python benchmarks/gate_speed.py FILE [METRIC] [--compare ROW] [--behind RUN/] [--keep FILE]
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from records import read, write

from ltrag_plugins.errors import LtragError
from ltrag_plugins.evaluate import summarize
from ltrag_plugins.evaluate.folder import read_run_folder
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.evaluate.spec import CellName, direct_of
from ltrag_plugins.metrics.calibration import paired_bootstrap

Records = Mapping[str, Sequence[Record]]
"""By cell."""
RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


def spent(records: Sequence[Record]) -> np.ndarray:
    """Milliseconds of each question, as the table of the run counts them."""
    return np.array([record.ms for record in records])


def scored(records: Sequence[Record], metric: str) -> np.ndarray:
    return np.array([record.scores[metric] for record in records])


def at_rates(
    gated: Sequence[Record], alone: Sequence[Record], direct: Sequence[Record], metric: str
) -> list[tuple[float, float]]:
    """(metric, speed-up) with the RATES of the questions retrieved for whose scores are highest.

    Questions of which the gate has no score (it failed) are left out.
    """
    known = [i for i, record in enumerate(gated) if record.decision is not None]
    decisions = [gated[i].decision or {} for i in known]
    method = spent(alone)[known]
    draft = spent(gated)[known] - method * np.array([float(d["retrieve"]) for d in decisions])
    order = np.argsort([-d["score"] for d in decisions], kind="stable")
    with_, without = scored(alone, metric)[known], scored(direct, metric)[known]
    found = []
    for rate in RATES:
        above = np.zeros(len(order), dtype=bool)
        above[order[: round(rate * len(order))]] = True
        value = np.where(above, with_, without).mean()
        found.append((float(value), float(method.sum() / (draft + above * method).sum())))
    return found


def both_ways(records: Records) -> dict[str, str]:
    """Cells behind a gate, and the name of the same without it."""
    pairs = {name: CellName.parse(name).alone for name in records}
    return {name: alone for name, alone in pairs.items() if name != alone and alone in pairs}


def at_random(
    gated: Sequence[Record], alone: Sequence[Record], direct: Sequence[Record], metric: str
) -> np.ndarray:
    """Of each question, what is expected where as many as the gate chose are drawn by lot."""
    rate = share(gated)
    return rate * scored(alone, metric) + (1 - rate) * scored(direct, metric)


def share(gated: Sequence[Record]) -> float:
    """Of the questions that the gate retrieved for, 0 to 1."""
    return float(np.mean([bool(r.decision and r.decision["retrieve"]) for r in gated]))


def as_fitted(records: Records, metric: str) -> str:
    """A row a method: what the gate of the run did."""
    direct, rows = direct_answers(records), both_ways(records)
    heads, wide = (f"{metric} minus alone", f"{metric} minus random"), width(rows)
    lines = [f"{'as fitted':<{wide}}{'retrieved':>10}{heads[0]:>28}{heads[1]:>28}{'speed-up':>10}"]
    for name, alone in rows.items():
        gated, without = records[name], records[alone]
        others = (scored(without, metric), at_random(gated, without, direct, metric))
        gains = "".join(f"{_gain(scored(gated, metric), other):>28}" for other in others)
        speed = spent(without).sum() / spent(gated).sum()
        lines.append(f"{shown(name, rows):<{wide}}{share(gated):>10.0%}{gains}{speed:>9.2f}x")
    return "\n".join(lines)


def shown(name: str, rows: Mapping[str, str]) -> str:
    """A row's name; the gate's part of it only where there are several."""
    return name if len({CellName.parse(one).gate for one in rows}) > 1 else rows[name]


def width(rows: Mapping[str, str]) -> int:
    return max(14, 2 + max((len(shown(name, rows)) for name in rows), default=0))


def _gain(now: np.ndarray, before: np.ndarray) -> str:
    gain = paired_bootstrap(now, before)
    return f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"


def direct_answers(records: Records) -> Sequence[Record]:
    """Those that a question below the threshold gets."""
    direct = direct_of(records)
    if direct is None:
        raise SystemExit("the run has no direct answers, which a question below a threshold gets")
    return records[direct]


def at_other_rates(records: Records, metric: str) -> str:
    """A row a method: alone, then each rate."""
    direct, rows = direct_answers(records), both_ways(records)
    wide = width(rows)
    lines = [f"{metric:<{wide}}{'alone':>7}" + "".join(f"{rate:>14.0%}" for rate in RATES)]
    for name, alone in rows.items():
        found = at_rates(records[name], records[alone], direct, metric)
        cells = "".join(f"{value:>8.3f} {speed:>4.1f}x" for value, speed in found)
        before = scored(records[alone], metric).mean()
        lines.append(f"{shown(name, rows):<{wide}}{before:>7.3f}{cells}")
    return "\n".join(lines)


def behind(records: Records, others: Records) -> dict[str, Sequence[Record]]:
    """The records, and after each row behind a gate one behind the gate of `others`: the method's
    record, on top of the draft's cost, where that retrieved, and the direct answer's elsewhere.
    Rows behind eq. 2 that are there already are made again."""
    gated = next((name for name in others if CellName.parse(name).gate), None)
    if gated is None:
        raise SystemExit("the run behind which to put the methods has no gate")
    cell, direct, rows = CellName.parse(gated), direct_answers(records), both_ways(records)
    gate = cell.gate
    if cell.has_probability and any(CellName.parse(name).gate == gate for name in rows):
        raise SystemExit(f"both runs have rows +{gate}, of two gates: only eq. 2 is made again")
    decided = {record.id: record.decision for record in others[gated]}
    if {record.id for record in direct} != decided.keys():
        raise SystemExit("the run behind which to put the methods has other questions")
    found = dict[str, Sequence[Record]]()
    for name, some in records.items():
        found[name] = some
        if name in rows:
            pairs = zip(records[rows[name]], direct, strict=True)
            found[f"{rows[name]}+{gate}"] = [_after(*pair, decided[pair[1].id]) for pair in pairs]
    return found


def _after(method: Record, draft: Record, decision: Any) -> Record:
    if decision is None or not decision["retrieve"]:
        return replace(draft, decision=decision)
    paid = {}
    for name in ("calls", "prompt_tokens", "completion_tokens", "retrievals", "ms"):
        both = getattr(method, name), getattr(draft, name)
        paid[name] = None if None in both else sum(both)
    return replace(method, decision=decision, **paid)


def slim(records: Records) -> Iterator[dict[str, Any]]:
    """A line a question and cell, without what no table here reads."""
    for name, some in records.items():
        for record in some:
            told = asdict(replace(record, question="", passages=(), trace=None, rounds=None))
            decision = record.decision and {k: record.decision[k] for k in ("retrieve", "score")}
            yield {"cell": name} | told | {"decision": decision}


def kept(path: Path) -> dict[str, list[Record]]:
    """What `slim` told, by cell."""
    found: dict[str, list[Record]] = {}
    for told in read(path):
        if "cell" not in told:
            raise SystemExit(f"{path} is of another benchmark; name a run, or what --keep wrote")
        found.setdefault(told.pop("cell"), []).append(Record(**told))
    return found


def led_by(metric: str, records: Records) -> Records:
    """The same records with this metric as the first, whose gains a table shows."""
    return {
        name: [replace(r, scores={metric: r.scores[metric], **r.scores}) for r in some]
        for name, some in records.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("metric", nargs="?", default="f1")
    parser.add_argument("--compare", metavar="ROW", help="of a FILE's table; direct, if none")
    parser.add_argument("--behind", type=Path, help="another run, with a gate")
    parser.add_argument("--keep", type=Path, help="a file in benchmarks/results/")
    options = parser.parse_args()
    try:
        told = options.run.is_dir()
        if told and options.compare:
            parser.error("--compare is of a FILE; for a run: ltrag report RUN/ --compare ROW")
        records: Records = read_run_folder(options.run).records if told else kept(options.run)
        if options.behind:
            records = behind(records, read_run_folder(options.behind).records)
    except LtragError as error:
        parser.error(str(error))
    known = sorted({name for some in records.values() for record in some for name in record.scores})
    if options.metric not in known:
        parser.error(f"the run has no metric {options.metric!r}; it has {', '.join(known)}")
    if not told:
        try:
            table = summarize(led_by(options.metric, records), compared=options.compare)
        except LtragError as error:
            parser.error(str(error))
        print(f"{table}\n")
    if options.keep:
        write(options.keep, slim(records))
    ways = as_fitted, at_other_rates
    print(*(way(records, options.metric) for way in ways), sep="\n\n")


if __name__ == "__main__":
    main()
