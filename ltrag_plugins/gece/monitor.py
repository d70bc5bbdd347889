"""Watching a gate at work: how much it retrieves, how its scores lie, and whether the answers that
it gives directly agree with those of the chain, against what its fit promised.

A random share of the questions answered directly is also sent through the chain, in the
background. Each such audit has a known chance, so the agreement estimated from them is that of all
direct answers: a ratio of sums weighted by one over the chance (Hajek 1971), with Wilson's interval
(1927) at the effective number of audits (Kish 1965). Whether questions have changed is asked of
each `WINDOW` decisions: the two-sample Kolmogorov-Smirnov test of their scores, of each signal, and
of the questions' length, against those of the fit and of the decisions since, and Fisher's exact
test of how many retrieve. Where nothing has changed, either kind gives an alarm with a chance of
one in a thousand.
"""

import atexit
import logging
import math
import os
import queue
import random
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from numbers import Real
from typing import Any

import numpy as np

from ltrag_plugins.errors import InvalidInput, require
from ltrag_plugins.gece.decision import Decision, question_digest
from ltrag_plugins.gece.savings import Savings, Usage, savings_of, wait_for_this_loop
from ltrag_plugins.llm.base import Shared
from ltrag_plugins.metrics.calibration import Interval, wilson_interval
from ltrag_plugins.tokenize import words

WINDOW = 200
"""Decisions that are compared with the fit at a time."""
_CHANCE = 0.001  # of an alarm where nothing has changed, for each of the two kinds of test
_LENGTH = "question length"
_SLACK = 0.05  # of the fit's spread (5 to 95 %), by which scores may move and be the same
LATEST = 10_000
"""Decisions that a monitor looks at, and that are held without a store."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Monitor:
    """What a gate did since it began, against what its fit promised."""

    state: str
    """"holds", "drifting: ...", "fit again: ...", "learning: ...", or how many are seen so far."""
    decisions: int
    """By the gate at work, the latest 10,000 at most."""
    retrieved: float
    """Share of them that retrieve, 0 to 1."""
    expected: float | None
    """The same at the fit; None for a gate without a report."""
    window: float | None
    """Share that retrieve of the latest whole window of 200; None before the first."""
    scores: tuple[float, ...]
    """Their 5, 25, 50, 75 and 95 % quantiles."""
    fit_scores: tuple[float, ...]
    """The same at the fit."""
    stability: float | None
    """Population stability index of the window's scores, by tenths of the fit's; above 0.25 is
    usually called a shift. None before the first window."""
    ks_p: float | None
    """p-value of the Kolmogorov-Smirnov test of the window's scores against the fit's."""
    audits: int
    """Direct answers that were compared with the chain's."""
    agreement: Interval | None
    """Share of the direct answers that agree with the chain's, estimated from the audits."""
    promised: Interval | None
    """The same at the fit (share of right answers, where some were accepted: audits, which know no
    accepted ones, are then not held against it)."""
    skipped: int = 0
    """Comparisons that were left out by this process, as too many were waiting."""
    failed: int = 0
    """Comparisons that failed in this process, and decisions that could not be written; the log
    says why."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = {"state": self.state, "decisions": f"{self.decisions}"}
        if self.decisions:
            fit = "" if self.expected is None else f"; {self.expected:.1%} at the fit"
            last = "" if self.window is None else f"; {self.window:.1%} of the last {WINDOW}"
            rows["retrieved"] = f"{self.retrieved:.1%}{last}{fit}"
        if self.scores and self.fit_scores:
            rows["scores (5 to 95 %)"] = " ".join(f"{score:.3g}" for score in self.scores)
            rows["scores at the fit"] = " ".join(f"{score:.3g}" for score in self.fit_scores)
        if self.stability is not None:
            told = f"stability index {self.stability:.2f}, Kolmogorov-Smirnov p {self.ks_p:.2g}"
            rows["shift of the scores"] = told
        rows["audits"] = f"{self.audits}"
        for name, found in (("agreement", self.agreement), ("promised at the fit", self.promised)):
            if found is not None:
                rows[name] = (
                    f"{found.value:.3f}  (95 % interval {found.low:.3f} to {found.high:.3f})"
                )
        counts = {"comparisons skipped": self.skipped, "failed or not written": self.failed}
        rows |= {name: f"{count}" for name, count in counts.items() if count}
        return "\n".join(f"{name:<24} {value}" for name, value in rows.items())


def monitor(records: Sequence[Any], gate: Any, *, learned: bool = False, **counts: int) -> Monitor:
    """Judge a gate by its decisions (`Watched`, oldest first); `gate` has its `fitted` and `report`
    where they are known. One `learned` at work saw each question once, so it is judged likewise."""
    require("fit")
    report, fitted = (getattr(gate, name, None) for name in ("report", "fitted"))
    scores = np.array([r.score for r in records if math.isfinite(r.score)])
    known = np.asarray(getattr(fitted, "scores", ()))
    rate = getattr(report, "retrieval_rate", None)
    audited = [r for r in records if not r.retrieve and r.agrees is not None and r.chance > 0]
    agreement = estimated(audited)
    promised = getattr(report, "kept_accuracy", None)
    compared = _once if learned else list
    end = len(records) - len(records) % WINDOW
    last = records[max(0, end - WINDOW) : end]
    share = float(np.mean([r.retrieve for r in last])) if last else None
    state, stability, ks_p = "holds", None, None
    if len(records) < WINDOW:
        state = f"too early: {len(records)} of {WINDOW} decisions"
    elif len(known):
        first, second = (compared(records[: end - n * WINDOW]) for n in (1, 2))
        told, stability, ks_p = _moved(compared(last), first, fitted, report)
        if told:
            before = compared(records[end - 2 * WINDOW : end - WINDOW] if end > WINDOW else ())
            still = before and _moved(before, second, fitted, report)[0]
            state = f"{'fit again' if still else 'drifting'}: {told}"
    # asked again with every audit, so that chance has to be ruled out as by the tests
    surely = estimated(compared(audited), 1 - _CHANCE)
    if report and surely and promised and rate and getattr(report, "agreement", 0) == 1:
        kept = max(1, round((1 - rate.value) * report.questions))
        # where all agreed, the bootstrap knows nothing else
        least = min(promised.low, wilson_interval(promised.value, kept).low) - 1e-9
        if surely.high < least:
            told = (
                f"{surely.value:.0%} of the direct answers agree, {promised.value:.0%} at the fit"
            )
            state = f"fit again: {told}"
    points = [0.05, 0.25, 0.5, 0.75, 0.95]
    return Monitor(
        state=state,
        decisions=len(records),
        retrieved=float(np.mean([r.retrieve for r in records])) if records else 0.0,
        expected=None if rate is None else rate.value,
        window=share,
        scores=tuple(np.quantile(scores, points).tolist()) if scores.size else (),
        fit_scores=tuple(np.quantile(known, points).tolist()) if len(known) else (),
        stability=stability,
        ks_p=ks_p,
        audits=len(audited),
        agreement=agreement,
        promised=promised,
        **counts,
    )


def estimated(audited: Sequence[Any], level: float = 0.95) -> Interval | None:
    r"""Share of agreement among all, from those that were compared by chance; None: of none.

    .. math:: \hat a = \frac{\sum_i a_i / c_i}{\sum_i 1 / c_i}, \quad
        n_\mathrm{eff} = \frac{(\sum_i 1 / c_i)^2}{\sum_i 1 / c_i^2}
    """
    if not audited:
        return None
    weights = 1 / np.array([r.chance for r in audited])
    share = float(weights @ [float(r.agrees) for r in audited] / weights.sum())
    return wilson_interval(share, float(weights.sum() ** 2 / (weights**2).sum()), level)


def _once(records: Sequence[Any]) -> list[Any]:
    """The latest decision of each question."""
    return [*{r.question or r.id: r for r in records}.values()]


def _moved(
    window: Sequence[Any], before: Sequence[Any], fitted: Any, report: Any
) -> tuple[str, float, float]:
    """What tells a window for certain from the fit's questions and those between them, if anything;
    the stability index; the p-value of the scores."""
    from scipy.stats import fisher_exact  # a second to import

    earlier, scores = ([r.score for r in some if r.signals] for some in (before, window))
    retrieved, ks_p, stability = sum(r.retrieve for r in window), 1.0, 0.0
    share = f"{retrieved / len(window):.0%} retrieved"
    tests, rate = dict[str, float](), getattr(report, "retrieval_rate", None)
    if scores:
        tests["the scores"] = ks_p = _others(scores, fitted.scores, earlier)
        edges = np.quantile(fitted.scores, np.linspace(0, 1, 11))[1:-1]
        places = (np.searchsorted(edges, some) for some in (fitted.scores, scores))
        then, now = (np.bincount(some, minlength=10) for some in places)
        p, q = ((count + 0.5) / (count.sum() + 5) for count in (then, now))
        stability = float(np.sum((q - p) * np.log(q / p)))
    watched = dict(zip(fitted.names, fitted.quantiles, strict=True))
    if lengths := getattr(report, "question_words", ()):
        watched[_LENGTH] = lengths
    for name, points in watched.items():
        # the fit's questions are known by quantiles
        then = np.interp(np.linspace(0, 1, len(fitted.scores)), np.linspace(0, 1, 21), points)
        earlier, now = ([r.signals[name] for r in x if name in r.signals] for x in (before, window))
        if now:
            tests[name] = _others(now, then, earlier)
    if rate is not None:
        then = round(rate.value * report.questions) + sum(r.retrieve for r in before)
        others = report.questions + len(before) - then
        found: Any = fisher_exact([[retrieved, len(window) - retrieved], [then, others]])
        if found.pvalue < _CHANCE:
            return f"{share}, {rate.value:.0%} at the fit", stability, ks_p
    moved = [name for name, p in tests.items() if p < _CHANCE / len(tests)]
    told = f"the questions have changed ({', '.join(moved)}), {share}"
    return told if moved else "", stability, ks_p


def _watched(decision: Decision) -> dict[str, float]:
    """What the gate read, and how long the question is, which tells kinds of questions apart where
    their drafts look alike; nothing of a question that no gate judged."""
    read = {name: float(value) for name, value in decision.ingredients.items()}
    return read and {**read, _LENGTH: float(len(words(decision.question)))}


def _others(now: Sequence[float], then: Any, earlier: Sequence[float]) -> float:
    """p-value of the Kolmogorov-Smirnov test that all have one distribution, give or take a
    twentieth of the fit's spread: where scores come in bunches, a bunch moves a little from the
    fit's own questions to others."""
    from scipy.stats import ks_2samp

    low, high = np.quantile(then, [0.05, 0.95])
    known, some, slack = [*then, *earlier], np.array(now), _SLACK * float(high - low)
    larger: Any = ks_2samp(known, some - slack, alternative="greater", method="asymp")
    smaller: Any = ks_2samp(known, some + slack, alternative="less", method="asymp")
    return min(1.0, 2 * float(min(larger.pvalue, smaller.pvalue)))


@dataclass(frozen=True, slots=True)
class Watched:
    """One decision, and whether draft and answer with retrieval agree where both are known."""

    id: str
    question: str
    """Digest of the question; "" where nothing is stored."""
    at: float
    """Unix time, seconds."""
    gate: int
    """Number of the gate in its store; 0 without one."""
    retrieve: bool
    score: float
    chance: float
    """Probability, 0 to 1, with which both answers become known for a question like this one."""
    sampled: bool
    """Whether chance alone chose it, so that those chosen are a fair sample of all questions."""
    agrees: bool | None = None
    signals: Mapping[str, float] = field(default_factory=dict)
    """What the gate read, by name, and the question's length in words."""


class _Memory:
    """The latest decisions, in place of a store."""

    def __init__(self) -> None:
        self._lock, self._records = threading.Lock(), OrderedDict[str, Watched]()

    def add(self, records: Sequence[Watched]) -> None:
        with self._lock:
            for record in records:
                self._records.setdefault(record.id, record)
            while len(self._records) > LATEST:
                self._records.popitem(last=False)

    def compared(self, record: Watched, *_: Any) -> None:
        self.add([record])
        with self._lock:
            self._records[record.id] = record

    def records(self, *_: Any) -> list[Watched]:
        with self._lock:
            return [*self._records.values()]


class Watch(Shared):
    """Sees every decision of a router; safe between threads, and in a forked process.

    Without a store the latest 10,000 decisions are held in memory. With audits or a store a few
    threads work in the background; what waits for them is bounded, the rest is left out and
    counted. At the end of a process at most two seconds go to what is not yet written.

    Args:
        gate: decides; a `LearningGate` learns from what is seen, and has its own store.
        audit_rate: probability, 0 to 1, that a question answered directly is also sent through the
            chain.
        store: path of a `DecisionStore`, where decisions are kept; made where there is none.
        correct: judges answers longer than ten words, as for `GECEGate.fit`.
    """

    def __init__(
        self,
        gate: Any,
        *,
        audit_rate: float = 0.0,
        store: str | os.PathLike[str] | None = None,
        correct: Any = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        share = isinstance(audit_rate, Real) and not isinstance(audit_rate, bool)
        if not (share and 0 <= float(audit_rate) <= 1):
            raise InvalidInput(f"audit_rate is a share from 0 to 1, got {audit_rate!r}")
        self.gate, self._rate, self._correct = gate, float(audit_rate), correct
        self._rng, self._clock = rng or random.Random(), clock
        self._lock, self._counts = threading.Lock(), {False: 0, True: 0}
        self._failed = self._audits = 0
        self._learner = gate if hasattr(gate, "learn") else None
        self.learns = self._learner is not None
        """Whether what the chain's answers cost is of use."""
        self._works = bool(audit_rate or store or self.learns)
        if self._works:
            require("fit")
        self._store, self._number = getattr(gate, "store", None) or _Memory(), 0
        if store is not None:
            from ltrag_plugins.gece.store import DecisionStore

            self._store = DecisionStore(store)
            self._number = self._store.enrolled(gate, clock())
        if self._works:
            import scipy.stats  # noqa: F401 (a second, which else an answer would wait for)
        # no part of this object, so that its threads end with it
        self._background = _Background(self._store, self._learner)
        weakref.finalize(self, self._background.end)

    def saw(
        self, decision: Decision, retrieved: Callable[[], str] | None, cost: Usage | None = None
    ) -> None:
        """One decision more; `retrieved` gives the text of the chain's answer, and asks the chain
        for it where the question was answered directly. None: it is not to be had."""
        with self._lock:
            self._counts[decision.retrieve] += 1
        failed = decision.retrieve and math.isinf(decision.score) and not decision.learning
        wanted = self.learns or not decision.retrieve  # of those that retrieve a fit alone learns
        comparable = wanted and not failed and retrieved is not None
        sampled = comparable and (decision.learning or self._rng.random() < self._rate)
        record = Watched(
            id=os.urandom(12).hex(),
            question=question_digest(decision.question) if self._works else "",
            at=self._clock(),
            gate=getattr(decision, "gate", self._number),
            retrieve=decision.retrieve,
            score=decision.score,
            chance=0.0 if not comparable else 1.0 if decision.learning else self._rate,
            sampled=sampled,
            signals=_watched(decision),
        )
        if not self._works:
            self._store.add([record])
            return
        self._background.write(record)
        if sampled and retrieved and not (self._learner and self._learner.off):
            self._background.compare(partial(self._compare, record, decision, retrieved, cost))

    def monitor(self) -> Monitor:
        """How the gate at work does; what waits in the background is not in it."""
        background = self._background
        counts = {"failed": self._failed + background.failed, "skipped": background.skipped}
        if self._learner is not None:
            return self._learner.monitor(**counts)
        return monitor(
            self._store.records(self._number, LATEST), self.gate, learned=False, **counts
        )

    def savings(self, price: float | None) -> Savings:
        """What the decisions of this process saved; see `savings_of`."""
        with self._lock:
            direct, retrieved, audits = self._counts[False], self._counts[True], self._audits
        report = getattr(self.gate, "report", None)
        if self.learns and report is None:  # nothing is known, and nothing avoided
            return Savings(direct + retrieved, retrieved, Usage(), Usage(), price)
        return savings_of(report, direct, retrieved, price, audits)

    def settle(self, timeout: float = 60.0) -> bool:
        """Wait until all is compared and written; False: the seconds were not enough."""
        return not self._works or self._background.settle(timeout)

    def _compare(
        self, record: Watched, decision: Any, retrieved: Callable[[], str], cost: Usage | None
    ) -> None:
        from ltrag_plugins.gece.labels import agreeing

        try:
            evidence = getattr(decision, "evidence", None)
            if self._learner is not None and evidence is None:
                evidence = self._learner.draft(decision.question, decision.history)
                record = replace(record, question=question_digest(evidence.question))
            read = decision if evidence is None else evidence
            draft = read.draft.text.strip()
            with self._lock:
                self._audits += not decision.retrieve
            if not (answer := retrieved().strip()):
                return  # the chain found nothing to say
            agrees = agreeing(read.question, draft, answer, self._correct)
            self._store.compared(replace(record, agrees=agrees), evidence, cost)
        except BaseException as error:  # of the user's chain or model; it ends no thread of ours
            with self._lock:
                self._failed += 1
            if not self._failed & (self._failed - 1):  # the 1st, 2nd, 4th, 8th, ...
                told = "%d comparisons of draft and chain failed in this process, the last: %r"
                _logger.warning(told, self._failed, error)
            return
        if self._learner is not None:
            self._learner.learn()


class WatchedRouter:
    """What the routers of the integrations tell of their gate at work."""

    _watch: Watch

    @property
    def monitor(self) -> Monitor:
        """How the gate does: how much it retrieves, how its scores lie, and what audits say."""
        return self._watch.monitor()

    def settle(self, timeout: float = 60.0) -> bool:
        """Wait until drafts, audits and fits in the background are done; False: the seconds were
        not enough. For the end of a program, which loses what still waits; on an event loop await
        `asyncio.to_thread(router.settle)`."""
        return self._watch.settle(timeout)

    def savings(self, price: float | None = None) -> Savings:
        """What the decisions so far saved against always retrieving, at the costs that `fit`
        measured; those of what is given as `direct` are not among them.

        Args:
            price: money for a token.

        Raises:
            InvalidInput: the gate was fitted without the chain or engine, so its costs are unknown.
        """
        return self._watch.savings(price)


class _Background:
    """Daemon threads for what no answer should wait for: one writes, two compare. At most 20,000
    records and 256 comparisons wait; others are left out and counted."""

    def __init__(self, store: Any, learner: Any) -> None:
        self._store, self._learner = store, learner
        self.skipped = self.failed = 0
        self._begin()

    def write(self, record: Watched) -> None:
        """At once, together with what came meanwhile."""
        self._put("_records", record, 20_000)

    def compare(self, work: Callable[[], None]) -> None:
        self._put("_comparisons", work, 256)

    def settle(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        compared = _settled(self._comparisons, end, self._threads)
        return compared and _settled(self._records, end)

    def _begin(self) -> None:
        self._process, self._starting = os.getpid(), threading.Lock()
        # bounded by us, so that `end` never waits for a place
        self._records = queue.Queue[Any]()
        self._comparisons = queue.Queue[Any]()
        self._threads = list[threading.Thread]()

    def _keep(self, records: list[Watched]) -> None:
        try:
            self._store.add(records)
        except Exception:
            self.failed += len(records)
            raise
        if self._learner is not None:
            self._learner.refresh()

    def _put(self, name: str, item: Any, most: int) -> None:
        if self._process != os.getpid():  # threads, and what waited, stay with the parent
            self._begin()
        if not self._threads:
            with self._starting:
                if not self._threads:
                    each = partial(_work_off, self._comparisons, _each, 1)
                    write = partial(_work_off, self._records, self._keep, 1000)
                    _unwritten[self._records] = self._process
                    _at_exit(_write_the_rest)
                    for work in (write, each, each):
                        thread = threading.Thread(target=work, name="ltrag-watch", daemon=True)
                        thread.start()
                        self._threads.append(thread)
        items: queue.Queue[Any] = getattr(self, name)
        if items.qsize() < most:
            items.put(item)
        else:
            self.skipped += 1

    def end(self) -> None:
        """Nobody can see more: the threads end when nothing waits any more."""
        each = (self._records, self._comparisons, self._comparisons)
        for items in each if self._threads else ():
            items.put(None)


# a thread holds its queue until all is written; with the process that it runs in
_unwritten = weakref.WeakKeyDictionary["queue.Queue[Any]", int]()
_at_exit = cache(atexit.register)  # once for all routers


def _write_the_rest() -> None:
    """At the end of a process, two seconds for all routers together."""
    end = time.monotonic() + 2
    for items, process in [*_unwritten.items()]:
        if process == os.getpid():
            _settled(items, end)


def _each(some: list[Callable[[], None]]) -> None:
    for work in some:
        work()


def _work_off(items: "queue.Queue[Any]", work: Callable[[list[Any]], None], most: int) -> None:
    while True:
        some = [items.get()]
        with suppress(queue.Empty):
            while len(some) < most and some[-1] is not None:
                some.append(items.get_nowait())
        ends = some[-1] is None
        try:
            work(some[: len(some) - ends])
        except Exception as error:
            _logger.warning("watching the gate: %s", error)
        for _ in range(len(some)):
            items.task_done()
        if ends:
            return
        del some  # it holds questions and answers, and the next may be long in coming


def _settled(
    items: "queue.Queue[Any]", end: float, threads: Sequence[threading.Thread] = ()
) -> bool:
    """Whether all was done by then; not if one of the threads needs the loop that is held up."""
    with items.all_tasks_done:
        while items.unfinished_tasks:
            if (left := end - time.monotonic()) <= 0:
                return False
            if not items.all_tasks_done.wait(min(left, 0.2)) and wait_for_this_loop(threads):
                _logger.warning(
                    "settle() holds up the event loop in which an audit asks the chain, so neither "
                    "would end: call it as await asyncio.to_thread(router.settle)"
                )
                return False
    return True
