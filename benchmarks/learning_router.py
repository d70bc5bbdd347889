"""A router that learns while it serves, over recorded answers of Llama-3.1-8B-Instruct.

    LTRAG_DATA=/path/to/data python benchmarks/learning_router.py [--signals] [--rate 0.5]
    python benchmarks/learning_router.py --table

The questions of adarague_llm_records come in random order, 3,000 of them, ten times: what the
router answers, how much it retrieves, and what its monitor says of the agreement of its direct
answers, beside the truth, after 100, 300, 1,000 and 3,000. Then those of TriviaQA and, from one
moment on, of Natural Questions: how soon the monitor says so, and how often it does without a
change. Each order's looks are kept in the file of records, from which `--table` prints.
"""

import argparse
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from recorded_outcomes import extra_signals, records
from records import Row, merged, parsed, read

from ltrag_plugins.flow import run
from ltrag_plugins.gece import GECESettings
from ltrag_plugins.gece.decision import guarded
from ltrag_plugins.gece.labels import answers_agree
from ltrag_plugins.gece.learning import LearningGate
from ltrag_plugins.gece.monitor import Watch
from ltrag_plugins.llm.embedded import embedded_encoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import normalized_exact_match
from ltrag_plugins.types import Generation

LOOKS = (100, 300, 1000, 3000)


class Kept:
    """An encoder that knows its texts already."""

    def __init__(self, texts: list[str]) -> None:
        encoder = embedded_encoder()
        self.name = encoder.name
        self._rows = dict(zip(texts, encoder.encode(texts), strict=True))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._rows[text] for text in texts])


class Recorded:
    """The model, the chain and the encoder, as they answered once."""

    def __init__(self, rows: list[dict], signals: bool) -> None:
        self.rows = {row["question"].strip(): row for row in rows}
        drafts = [(row["no_retrieval"] or "").strip() for row in rows]
        self.encoder = Kept([*self.rows, *drafts])
        self.llm = ScriptedLLM(self._draft, name="Llama-3.1-8B-Instruct, recorded")
        self.extra = {q: extra_signals(row, signals) for q, row in self.rows.items()}
        names = next(iter(self.extra.values()))
        self.signals = {name: lambda q, name=name: self.extra[q][name] for name in names}

    def chain(self, question: str) -> str:
        return self.rows[question]["one_retrieval_bm25_15"] or "none"

    def draft(self, question: str) -> str:
        return (self.rows[question]["no_retrieval"] or "").strip()

    def _draft(self, prompt: str) -> Generation:
        return Generation(self.draft(prompt.removeprefix("Q: ")))  # whole, however long

    def right(self, question: str, answer: str) -> bool:
        return normalized_exact_match(answer, self.rows[question]["answers"]) == 1


class Served:
    """A router at work over recorded answers."""

    def __init__(
        self, world: Recorded, folder: str, seed: int, options: argparse.Namespace
    ) -> None:

        self.world, self.log = world, list[tuple[str, bool, int]]()
        self.gate = LearningGate(
            world.llm,
            Path(folder, f"{seed}.sqlite"),
            warm_up=options.warm_up,
            encoder=world.encoder,
            signals=world.signals,
            target_rate=options.rate,
            settings=GECESettings(prompt="Q: {question}", stop=()),
            fit_here=True,
        )
        rng = random.Random(seed)
        self.watch = Watch(self.gate, audit_rate=options.audit_rate, rng=rng)

    def ask(self, question: str) -> None:
        decision = run(guarded(question, self.gate), self.gate.world)
        self.watch.saw(decision, lambda: self.world.chain(question))
        self.watch.settle()
        self.gate.refresh(now=True)
        self.log.append((question, decision.retrieve, getattr(decision, "gate", 0)))

    def truth(self) -> float | None:
        """Share of the direct answers of the gate at work that agree with the chain's."""
        newest = self.gate.store.newest
        direct = [q for q, retrieve, gate in self.log if gate == newest and not retrieve]
        agree = [answers_agree(self.world.draft(q), self.world.chain(q)) for q in direct]
        return float(np.mean(agree)) if agree else None

    def accuracy(self) -> float:
        world = self.world
        given = [(q, (world.chain if r else world.draft)(q)) for q, r, _ in self.log]
        return float(np.mean([world.right(*one) for one in given]))


def orders(world: Recorded, options: argparse.Namespace) -> Row:
    """What each order shows at the looks, and in which there was an alarm."""
    looks, alarms, questions = list[Row](), list[bool](), [*world.rows]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.orders):
            served, alarm = Served(world, folder, seed, options), False
            for i, place in enumerate(np.random.default_rng(seed).permutation(len(questions))):
                if i == LOOKS[-1]:
                    break
                served.ask(questions[place])
                if (i + 1) % 50 == 0:
                    state = served.watch.monitor().state
                    alarm |= state.startswith(("drifting", "fit again"))
                if i + 1 in LOOKS:
                    monitor, truth = served.watch.monitor(), served.truth()
                    seen = monitor.agreement
                    looks.append({
                        "order": seed,
                        "after": i + 1,
                        "em": served.accuracy(),
                        "retrieved": sum(retrieve for _, retrieve, _ in served.log),
                        "at work": monitor.promised is not None,
                        "audits": monitor.audits,
                        "agreement": seen and [seen.value, seen.low, seen.high],
                        "truth": truth,
                    })  # fmt: skip
            alarms.append(alarm)
            print(f"order {seed}: {served.watch.monitor().state}", flush=True)
    always, never = (
        float(np.mean([world.right(q, way(q)) for q in questions]))
        for way in (world.chain, world.draft)
    )
    return {"always": always, "never": never, "alarms": alarms, "looks": looks}


def orders_report(row: Row) -> None:
    alarms = sum(row["alarms"])
    print(
        f"EM always {row['always']:.3f}, never {row['never']:.3f}; orders with an alarm: {alarms}"
    )
    print(f"{'after':>6}{'EM':>8}{'retrieved':>11}{'gates at work':>15}{'audits':>8}"
          f"{'estimate':>10}{'truth':>8}{'off by':>8}{'width':>7}{'covered':>9}")  # fmt: skip
    for count in dict.fromkeys(look["after"] for look in row["looks"]):
        some = [look for look in row["looks"] if look["after"] == count]
        judged = [
            (look["agreement"], look["truth"])
            for look in some
            if look["agreement"] and look["truth"] is not None
        ]
        covered = [low <= truth <= high for (_, low, high), truth in judged]
        mean = np.mean([(look["em"], look["retrieved"] / count) for look in some], axis=0)
        each = [(a[0], t, abs(a[0] - t), a[2] - a[1]) for a, t in judged] or [[np.nan] * 4]
        estimate, truth, off, width = np.mean(each, axis=0)
        working = sum(look["at work"] for look in some)
        audits = np.mean([look["audits"] for look in some])
        print(
            f"{count:>6}{mean[0]:>8.3f}{mean[1]:>11.1%}{working:>15}{audits:>8.1f}"
            f"{estimate:>10.3f}{truth:>8.3f}{off:>8.3f}{width:>7.2f}"
            f"{sum(covered):>5} of {len(covered)}"
        )


def change(world: Recorded, options: argparse.Namespace) -> Row:
    """After how many questions each order notices the change, and in which one was seen before."""
    sets = {name: [q for q, row in world.rows.items() if row["dataset"] == name]
            for name in ("trivia", "nq")}  # fmt: skip
    noticed, false = list[int | None](), list[bool]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.orders):
            rng, served = np.random.default_rng(seed), Served(world, folder, seed, options)
            first, then = (rng.permutation(sets[name]).tolist() for name in sets)
            soon, early = None, False
            for i, question in enumerate(first + then[:500]):
                served.ask(question)
                if (i + 1) % 10 == 0 and soon is None:
                    state, gate = served.watch.monitor().state, served.gate.store.newest
                    dropped = served.gate.gate is None and gate > 0
                    if state.startswith(("drifting", "fit again")) or dropped:
                        if i < len(first) and not early:
                            print(f"order {seed}, after {i + 1}, without a change: {state}")
                        early |= i < len(first)
                        soon = i + 1 - len(first) if i >= len(first) else None
            noticed.append(soon)
            false.append(early)
    return {"questions": len(sets["trivia"]), "noticed": noticed, "before": false}


def change_report(row: Row) -> None:
    print(
        f"TriviaQA ({row['questions']}), then Natural Questions: noticed after {row['noticed']}; "
        f"orders with an alarm before: {sum(row['before'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", action="store_true", help="with the recorded uncertainties")
    parser.add_argument("--rate", type=float, default=0.5, help="target_rate of the gate")
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--audit-rate", type=float, default=0.05)
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--splits", nargs="+", default=["train", "dev_test"])
    parser.add_argument("--change", action="store_true", help="only the change of the mix")
    options = parsed(parser, "learning_router")
    if not options.table:
        run_all(options)
    for row in read(options.records):
        print(f"\n## {row['signals']}")
        if "orders" in row:
            orders_report(row["orders"])
        change_report(row["change"])


def run_all(options: argparse.Namespace) -> None:
    rows = [row for split in options.splits for row in records(split)]
    if options.signals:
        rows = [row for row in rows if row.get("seakr_direct")]
    world = Recorded(rows, options.signals)
    signals = "with signals" if options.signals else "texts alone"
    how = {name: vars(options)[name] for name in ("rate", "warm_up", "audit_rate", "splits")}
    before = read(options.records) if options.records.exists() else []
    row: Row = {"signals": signals, "how": how}
    row = next((one for one in before if row.items() <= one.items()), row)
    if not options.change:
        row["orders"] = orders(world, options)
    row["change"] = change(world, options)
    merged(options.records, [row], "signals")


if __name__ == "__main__":
    main()
