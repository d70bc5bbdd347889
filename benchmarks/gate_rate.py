"""Does a gate that was fitted on few questions retrieve for the share of new ones it was asked for?

Fits on random parts of `train` of adarague_llm_records (recorded answers of Llama-3.1-8B-Instruct,
text tier) and decides about all of `dev_test`, with the threshold the gate has and, for comparison,
one on the cross-validated scores. Usage:

    LTRAG_DATA=/path/to/data python benchmarks/gate_rate.py
    python benchmarks/gate_rate.py --table

How many each fit retrieves for is kept in the file of records, from which `--table` prints.
"""

import argparse
from dataclasses import replace

import numpy as np
from recorded_outcomes import outcomes, records
from records import Row, parsed, read, write

from ltrag_plugins.gece import GECESettings, Outcome
from ltrag_plugins.gece.fit import Labels, _cross_validated, fit_failure, fit_gain
from ltrag_plugins.gece.models import rate_threshold
from ltrag_plugins.gece.signals import available_signals, features
from ltrag_plugins.llm.embedded import embedded_encoder

RATES = (0.2, 0.3, 0.5, 0.7)
SIZES = (60, 200, 1000)
WAYS = ("failure", "failure, folds' scores", "gain", "gain, folds' scores")


def bare(rows: list[Outcome]) -> list[Outcome]:
    """Without `reasoning_words`, which a gate at run time has not."""
    return [replace(row, evidence=replace(row.evidence, extra={})) for row in rows]


def run(repeats: int) -> list[Row]:
    """For each size and threshold: of how many new questions each fit retrieves for, by rate."""
    encoder, settings = embedded_encoder(), GECESettings()
    train, test = (
        bare(outcomes(records(s), encoder, recorded=False)) for s in ("train", "dev_test")
    )
    names = available_signals([row.evidence for row in train], None)
    columns, new = (features([row.evidence for row in rows], names, None) for rows in (train, test))
    labels, rng, kept = Labels.of(train), np.random.default_rng(0), list[Row]()
    for size in SIZES:
        found: dict[str, list[list[int]]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            some = rng.choice(len(train), size, replace=False)
            part, known = columns[some], labels[some]
            failure, gain = fit_failure(part, known.fails, 0), fit_gain(part, known.gain, 0)
            folds = _cross_validated(part, known, names, settings)
            assert folds[1] is not None
            asked = (failure[0](new), gain[0](new))
            for way, own, scores in zip(
                WAYS,
                (failure[1], folds[0], gain[1], folds[1]),
                (asked[0], asked[0], asked[1], asked[1]),
                strict=True,
            ):
                found[way].append(
                    [int(np.sum(scores >= rate_threshold(own, rate))) for rate in RATES]
                )
        kept += [
            {"new": len(test), "fitted": size, "way": way, "retrieves": counts}
            for way, counts in found.items()
        ]
    return kept


def report(rows: list[Row]) -> None:
    print(
        f"{rows[0]['new']} new questions, {len(rows[0]['retrieves'])} fits each; "
        "mean rate, and how far off it is"
    )
    print(f"{'questions':<11}{'threshold of':<25}" + "".join(f"{r:>16.0%}" for r in RATES))
    for row in rows:
        rates = np.array(row["retrieves"]) / row["new"]
        off = np.abs(rates - RATES).mean(axis=0)
        told = "".join(f"{m:>9.3f} ± {o:.3f}" for m, o in zip(rates.mean(axis=0), off, strict=True))
        print(f"{row['fitted']:<11}{row['way']:<25}{told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10, help="fits of each size")
    options = parsed(parser, "gate_rate")
    if not options.table:
        write(options.records, run(options.repeats))
    report(read(options.records))


if __name__ == "__main__":
    main()
