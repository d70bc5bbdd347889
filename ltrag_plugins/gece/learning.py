"""A gate that starts with nothing: it retrieves for every question, drafts beside it, and gates
from the moment on that its own cross-validated report allows.

The label of a question is whether its draft agrees with the chain's answer. All questions are
compared until the first gate is there; from then on a random share, whatever the gate decides, so
that the next fit sees all questions as they come. A fit runs in a process of its own. Where the
monitor says "fit again" the gate is dropped, and learning begins anew.
"""

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

from ltrag_plugins import artifacts
from ltrag_plugins.data import digest_of
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, LtragError
from ltrag_plugins.flow import Flow, World, run
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.gate import GECEGate, names_of, read_gate
from ltrag_plugins.gece.labels import FEWEST_QUESTIONS, check_scorer
from ltrag_plugins.gece.models import FitReport
from ltrag_plugins.gece.monitor import LATEST, Monitor, monitor
from ltrag_plugins.gece.savings import Usage
from ltrag_plugins.gece.settings import GECESettings, Targets
from ltrag_plugins.gece.signals import (
    Evidence,
    OwnSignals,
    WordFrequencies,
    askable_question,
    drafting,
    frequencies_for,
    own_signals,
)
from ltrag_plugins.gece.store import DecisionStore
from ltrag_plugins.llm.base import LLM, Encoder, Shared
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.prompts.templates import standalone
from ltrag_plugins.types import Generation, Question

_GROWTH = 1.5  # how much larger a sample is fitted on again
_SAMPLE = 4000  # questions of a fit, the latest
_OFTEN = 1.0  # seconds between two looks for a gate of another process
_LEASE = 60.0  # seconds after which another process may fit in the place of one that died
_CHECKED = 5  # comparisons between two looks at the monitor
_TOLD = 0.95  # of the drafts, with token probabilities; a fit does without the others
_SAID = "said.json"
_HOW = (GECESettings, Targets, WordFrequencies)
_CHILD = "import sys; from ltrag_plugins.gece.learning import fit_stored; fit_stored(*sys.argv[1:])"
_logger = logging.getLogger(__name__)


class _Learned(Decision):
    """With what the next fit wants to know; no fields, as these are put out with a decision."""

    __slots__ = ("evidence", "gate", "history", "learning")

    @classmethod
    def of(cls, decision: Decision, gate: int, evidence: Evidence | None = None) -> "_Learned":
        """The same decision, of a gate by number."""
        made = cls(**{field.name: getattr(decision, field.name) for field in fields(Decision)})
        more = {"gate": gate, "evidence": evidence, "learning": not evidence, "history": ()}
        for name, value in more.items():
            object.__setattr__(made, name, value)
        return made


class LearningGate(Shared):
    """A gate that learns from what a router sees; see `GECERouter.learning`.

    Threads, processes and restarts share the store. Safe to share between threads.

    Args:
        llm: drafts.
        store: path of a `DecisionStore`; made where there is none.
        warm_up: questions compared before the first fit.
        encoder: embeddings of question and draft sharpen the gate.
        target_rate, target_accuracy, budget: as for `GECEGate.fit`; "always" without any.
        settings, frequencies, signals: as for `GECEGate.fit`, but no gradients.
        fit_here: fit in the calling thread, not in a process of its own.

    Raises:
        InvalidInput: a setting is out of range, asks for gradients, or names a scorer that can
            never be fitted; or the store is that of a router that does not learn.
        ArtifactMismatch: the store was begun with another model or encoder.
        CacheUnreadable: the file is no decision store, or cannot be made.
    """

    def __init__(
        self,
        llm: LLM,
        store: str | os.PathLike[str],
        *,
        warm_up: int = 100,
        encoder: Encoder | None = None,
        target_rate: float | None = None,
        target_accuracy: Any = None,
        budget: float | None = None,
        settings: GECESettings | None = None,
        frequencies: WordFrequencies | None = None,
        signals: OwnSignals | None = None,
        clock: Callable[[], float] = time.time,
        fit_here: bool = False,
    ) -> None:
        self.world: World = World(llm=llm, encoder=encoder)
        self._settings, self._signals = settings or GECESettings(), own_signals(signals)
        targets = Targets(target_rate, target_accuracy, budget)
        self._how = {"settings": self._settings, "frequencies": frequencies, "targets": targets}
        if self._settings.gradients != "never":
            raise InvalidInput("a learning gate reads no gradients: leave gradients='never'")
        if self._settings.scorer == "gece":
            why = "the scorer 'gece' is learned from accepted answers, and a learning gate has none"
            raise InvalidInput(f"{why}; take another scorer")
        check_scorer(self._settings, self._signals)
        frequencies_for(self._settings, frequencies)  # a missing package is named at once
        if isinstance(warm_up, bool) or not isinstance(warm_up, int) or warm_up < FEWEST_QUESTIONS:
            wanted = f"a number of questions, {FEWEST_QUESTIONS} or more"
            raise InvalidInput(f"warm_up is {wanted}; got {warm_up!r}")
        self._clock, self._fit_here = clock, fit_here
        self.store: DecisionStore = DecisionStore(store)
        """What was seen, and the gates."""
        if self.store.newest and not self.store.fact("warm up"):
            theirs = f"{self.store.path} is the store of a router that does not learn"
            raise InvalidInput(f"{theirs}; give this one, which does, another file")
        told = json.dumps([*names_of(self.world).values()])
        self.store.note("made for", told, unless="")
        if (made := self.store.fact("made for")) != told:
            raise ArtifactMismatch(
                f"{self.store.path} was begun with model and encoder {made}, not {told}; give "
                "those, or another file"
            )
        self.store.note("warm up", f"{warm_up}")
        self._begin_anew_if_changed()
        self._busy, self._seen, self._handled = threading.Lock(), 0, 0
        self._at_work: tuple[GECEGate | None, int] = None, -1  # one value, as threads read it
        self._looked = -math.inf
        self.off: bool = False
        """Whether it has stopped learning; see `switch`."""
        self.refresh()

    def _begin_anew_if_changed(self) -> None:
        """Drafts of other settings are no sample of these; other targets want a fit at once."""
        made, number = self._settings, self.store.newest
        drafts = (made.prompt, made.max_tokens, made.stop, made.samples, made.temperature)
        drafts_changed = self._changed("drafts by", [*drafts, sorted(self._signals)])
        if self._changed("fits by", [*self._how.values()]):
            self.store.note(f"through {self.store.since(number)}", "0")
        if drafts_changed:
            _logger.warning(
                "%s was begun with another prompt, another length or number of drafts, or other "
                "signals, so learning begins anew: everything retrieves until there is a new gate",
                self.store.path,
            )
            self.store.add_gate(None, self._clock())

    def _changed(self, name: str, value: Any) -> bool:
        """Whether the store was last opened with another value; it knows this one from now on."""
        before, now = self.store.fact(name), artifacts.digest(value)
        self.store.note(name, now)
        return before not in (None, now)

    @property
    def report(self) -> FitReport | None:
        """What the fit of the gate at work found; None before the first."""
        return None if self.gate is None else self.gate.report

    @property
    def gate(self) -> GECEGate | None:
        """The gate at work, to look at or to save; None before the first."""
        return self._at_work[0]

    @property
    def _number(self) -> int:
        return self._at_work[1]

    def deciding(self, question: str) -> Flow[Decision]:
        """The flow: as the gate at work decides; without one, retrieve at no model call."""
        gate, number = self._at_work
        if gate is None:
            question = askable_question(question, self._settings.max_words)
            reason = "the gate is still learning, so everything retrieves"
            found = Decision(question, True, math.inf, 1.0, "text", reason, Generation(""))
            return _Learned.of(found, number)
        evidence = yield from gate.gathering(question)
        return _Learned.of(gate.judge(evidence), number, evidence)

    def draft(self, question: str, history: Sequence[tuple[str, str]] = ()) -> Evidence:
        """What a gate reads, of a question that nothing was drafted for, made to stand alone."""
        question, vectors = run(standalone(question, history), self.world), bool(self.world.encoder)
        flow = drafting(question, self._settings, vectors=vectors, own=self._signals)
        began, evidence = time.perf_counter(), run(flow, self.world)
        took = time.perf_counter() - began
        return replace(evidence, draft=replace(evidence.draft, seconds=took))

    def switch(self, on: bool) -> None:
        """Stop or go on learning, in all processes: no drafts beside the chain, no audits, no fits.
        The gate at work goes on."""
        self.store.note("off", "" if on else "off")
        self.off = not on

    def monitor(self, **counts: int) -> Monitor:
        """How the gate at work does, or how far learning is."""
        self.refresh(now=True)
        return stored_monitor(self.store, **counts)

    def refresh(self, *, now: bool = False) -> None:
        """Take over a gate, or a switch, of another process; once a second at most."""
        at = time.monotonic()
        if not now and at - self._looked < _OFTEN:
            return
        self._looked, self.off = at, self.store.fact("off") == "off"
        if (number := self.store.newest) == self._number:
            return
        with self.store.gate(number) as folder:
            parts: dict[str, Any] = {"encoder": self.world.encoder, "signals": self._signals}
            gate = folder and GECEGate.load(folder, llm=cast(LLM, self.world.llm), **parts)
        self._at_work = gate, number

    def learn(self) -> None:
        """One comparison more: fit if it is time, by one thread of one process."""
        self._seen += 1
        while self._seen != self._handled and not self.off and self._busy.acquire(blocking=False):
            try:
                self._handled = self._seen
                self._learn()
            finally:
                self._busy.release()

    def _learn(self) -> None:
        self.refresh(now=True)
        since = self.store.since(self._number)
        due = self.store.sample_size(since) >= _due(self.store, since)
        spent = self.gate is not None and self._handled % _CHECKED == 0 and self._is_spent()
        now = self._clock()
        if not (due or spent):
            return
        if not self.store.note("fitting", f"{now + _LEASE:020.3f}", unless=f"{now:020.3f}"):
            return
        try:
            if self.store.newest != self._number:  # another process was faster
                return
            if spent:
                self.store.add_gate(None, now)
            else:
                self._fit(since)
        finally:
            self.store.note("fitting", "")
            self.refresh(now=True)

    def _is_spent(self) -> bool:
        state = self.monitor().state
        if state.startswith("fit again"):
            _logger.warning("%s; everything retrieves until there is a new gate", state)
            return True
        return False

    def _fit(self, since: int) -> None:
        with TemporaryDirectory() as place:
            folder, through = Path(place), self.store.last
            how = self._how | {"names": names_of(self.world)}
            artifacts.write(folder, "how", how, format=1)
            if self._fit_here:
                fit_stored(self.store.path, since, folder)
            else:
                self._fit_elsewhere(since, folder)
            size, why = json.loads((folder / _SAID).read_text())
            self.store.note(f"through {since}", f"{through}")
            self.store.note(f"waits {since}", why)
            if why:
                _logger.info("no gate on %d questions: %s", size, why)
            else:
                self.store.add_gate(folder, self._clock())
                _logger.info("a gate was fitted on %d questions", size)

    def _fit_elsewhere(self, since: int, folder: Path) -> None:
        wanted = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", _CHILD, f"{self.store.path}", f"{since}", f"{folder}"]
        environment = {**os.environ, **wanted}
        with (folder / "errors").open("w") as errors:
            child = subprocess.Popen(command, env=environment, stdout=errors, stderr=errors)
            while True:
                try:
                    child.wait(_LEASE / 3)
                    break
                except subprocess.TimeoutExpired:  # others are told that this one still lives
                    self.store.note("fitting", f"{self._clock() + _LEASE:020.3f}")
        if child.returncode:
            size, told = self.store.sample_size(since), (folder / "errors").read_text().strip()
            (folder / _SAID).write_text(json.dumps([size, f"the fit failed: {told[-300:]}"]))


def stored_monitor(store: DecisionStore, **counts: int) -> Monitor:
    """How the newest gate in a store does, or how far learning is."""
    number, learned = store.newest, bool(store.fact("warm up"))
    parts = _newest_gate(store)
    gate = SimpleNamespace(fitted=parts.get("gate"), report=parts.get("report"))
    found = monitor(store.records(number, LATEST), gate, learned=learned, **counts)
    state, since = found.state, store.since(number)
    if learned and not parts:
        state = f"learning: {store.sample_size(since)} of {_due(store, since)} questions compared"
        state = "; ".join(filter(None, [state, store.fact(f"waits {since}")]))
    return replace(found, state=state + ("; switched off" if store.fact("off") else ""))


def _newest_gate(store: DecisionStore) -> dict[str, Any]:
    """The parts of it; nothing where there is none."""
    with store.gate(store.newest) as folder:
        return {} if folder is None else read_gate(folder)[0]


def _due(store: DecisionStore, since: int) -> int:
    """Questions in the sample at which to fit next. Those of the latest fit count as far as they
    are still kept, so that a full store is fitted on again too."""
    tried = store.sample_size(since, int(store.fact(f"through {since}") or 0))
    return max(int(store.fact("warm up") or 0), math.ceil(_GROWTH * tried))


def fit_stored(
    path: str | os.PathLike[str], since: int | str, folder: str | os.PathLike[str]
) -> None:
    """Fit a gate on a store's sample and save it to the folder, where `how` is written; beside it
    why there is none, or why not to use it. In a process of its own the priority is low."""
    from ltrag_plugins.gece.fit import fit_outcomes

    if isinstance(since, str) and hasattr(os, "nice"):
        os.nice(10)
    named = ("settings", "frequencies", "targets", "names")
    how, _ = artifacts.read(Path(folder), "how", kinds=_HOW, format=1, parts=named)
    store = DecisionStore(path)
    size, (outcomes, cost) = store.sample_size(int(since)), store.sample(int(since), _SAMPLE)
    told = [o for o in outcomes if o.evidence.draft.tokens is not None]
    if len(told) >= _TOLD * len(outcomes):  # else one reply without them takes them from all
        outcomes = told
    drafts = [(o.evidence.draft, *o.evidence.samples) for o in outcomes]
    parts: dict[str, Any] = {name: how[name] for name in ("settings", "frequencies")}
    if cost is not None:
        took = [o.evidence.draft.seconds for o in outcomes if o.evidence.draft.seconds is not None]
        if not took:  # those before the first gate alone were timed
            known = getattr(_newest_gate(store).get("report"), "gate_cost", None)
            took = [known.seconds] if known and known.seconds is not None else []
        parts["costs"] = (Usage.of(drafts, median(took) if took else None), cost)
    said, names = "", how["names"]
    encoder: Any = names["encoder"] and SimpleNamespace(name=names["encoder"])
    world = World(llm=ScriptedLLM(str, name=names["llm"]), encoder=encoder)
    try:
        fitted, report = fit_outcomes(outcomes, **parts, **asdict(how["targets"]))
        data = digest_of([Question(o.evidence.question) for o in outcomes])
        GECEGate(fitted, world, report, data=data).save(folder)
        if not report.pays:
            retrieves = f"it would retrieve for {report.retrieval_rate.value:.0%}"
            said = f"no gate pays yet: {retrieves}, AUROC {report.auroc.value:.2f}"
            gate, always = report.gate_cost, report.retrieval_cost
            share = gate.share_of(always) if gate and always else None
            if share and share > 1 - report.retrieval_rate.value:
                said += f", and a draft costs {share:.0%} of an answer with retrieval"
    except LtragError as error:
        said = f"{error}"
    Path(folder, _SAID).write_text(json.dumps([size, said]))
