"""The same flows over Ray Data: parts of the work go to workers, records come back in order.

::

    evaluate(questions, cells, world, out="run/", engine=on_ray(make_world, workers=8))

A worker builds its own world (model, retriever, encoder) from a function, once for all cells. Ray
starts a worker that died again and gives its questions to another; what was answered is in the
records of the run and its answer cache, which all workers share.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ltrag_plugins.errors import InvalidInput, ModelError, missing_extra
from ltrag_plugins.evaluate import Cell, Engine, Job, Record, Work
from ltrag_plugins.flow import Flow, World
from ltrag_plugins.gece.decision import Decision, Gate
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.types import Question

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")

try:
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.exceptions import RayError
except ImportError as error:
    raise missing_extra("ray", "ray") from error

_BLOCKS = 100
"""Of Ray's, at most, for each worker: what is done again when one dies is one block."""


def on_ray(
    make_world: Callable[[], World],
    *,
    workers: int = 2,
    gpus: float = 0,
    answers: str | Path | bool | None = True,
    gates: Mapping[str, Callable[[World], Gate]] | None = None,
) -> Engine:
    """An engine for `evaluate` that does the work in Ray's workers, which load their model once.

    Uses the Ray that is running (`ray.init(address=...)`), else starts one on this machine. What
    methods learn, they learn before, in this process.

    Args:
        make_world: called once in each worker; must travel there, so a function of a module, or
            one that holds paths and names rather than models.
        workers: processes, at least 1.
        gpus: of each worker.
        answers: where the workers' models keep their answers. True: in the run's own
            `answers.sqlite`; a path: in that SQLite file; both must be reached by all workers.
            False or None: nowhere, and what a worker that dies was at is asked again.
        gates: by `Cell.gate_name`, what makes the gate in each worker from its world, as
            ``lambda w: GECEGate.load(folder, llm=w.llm, encoder=w.encoder)`` does; travels too.
    """
    if workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    makers = _Makers(make_world, dict(gates or {}))

    def engine(jobs: Iterable[Job]) -> Iterator[tuple[str, list[Record]]]:
        works, parts, kept = [], [], None
        for work, questions in jobs:
            makers.check(work.cell)
            kept = _kept_in(answers, work.world)
            if work.observers:
                raise InvalidInput("observers do not travel to Ray's workers; leave them out")
            parts += [
                _Part(len(works), questions[start : start + work.batch])
                for start in range(0, len(questions), work.batch)
            ]
            works.append(_travelling(work))
        if not parts:
            return
        _start()
        data = ray.data.from_items(
            [{"part": i} for i in range(len(parts))],
            override_num_blocks=min(len(parts), _BLOCKS * workers),
        )
        done = data.map_batches(
            _Worker,
            fn_constructor_args=(replace(makers, answers=kept), works, list(map(ray.put, parts))),
            batch_size=1,
            batch_format="numpy",
            compute=ActorPoolStrategy(size=workers),
            num_cpus=0 if gpus else 1,
            num_gpus=gpus,
        )
        try:
            for row in done.iter_rows():
                lines = str(row["records"]).split("\n")  # a text may hold other ends of line
                yield works[row["work"]].cell.name, [Record.from_line(line) for line in lines]
        except RayError as error:
            raise ModelError(f"a worker failed: {type(error).__name__}: {error}") from error

    return engine


@dataclass(frozen=True, slots=True)
class _Makers:
    """What a worker makes its parts with."""

    world: Callable[[], World]
    gates: Mapping[str, Callable[[World], Gate]]
    answers: str | None = None

    def check(self, cell: Cell) -> None:
        if cell.gate is not None and cell.gate_name not in self.gates:
            raise InvalidInput(
                f"the gate of {cell.name} holds a model, which does not travel to workers: give "
                f"on_ray gates={{{cell.gate_name!r}: a function of a world that makes it}}"
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """Questions that one worker answers side by side; handed over when it takes them up."""

    work: int
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class _GateThere:
    """Stands for a gate on its way to the workers."""

    def deciding(self, question: str) -> Flow[Decision]:
        raise AssertionError("a worker makes its own gate")


class _Worker:
    """Lives in a Ray actor."""

    def __init__(
        self, makers: _Makers, works: Sequence[Work], parts: Sequence["ray.ObjectRef[_Part]"]
    ) -> None:
        world = makers.world()
        if makers.answers is not None and world.llm is not None:
            world = replace(world, llm=CachedLLM(world.llm, makers.answers))
        gates = {name: make(world) for name, make in makers.gates.items()}
        self._works = [replace(work, cell=_gated(work.cell, gates), world=world) for work in works]
        self._parts = parts

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        [number] = batch["part"]
        part = cast(_Part, ray.get(self._parts[int(number)]))
        records = self._works[part.work].records(part.questions)
        return {"work": [part.work], "records": ["\n".join(r.as_line() for r in records)]}


def _kept_in(answers: str | Path | bool | None, world: World) -> str | None:
    """The file for the workers' answers, of a run in this world; None: they are not kept."""
    if answers is True:  # the run has put its own cache around the model
        return str(world.llm.path) if isinstance(world.llm, CachedLLM) else None
    return None if answers is None or answers is False else str(answers)


def _travelling(work: Work) -> Work:
    """Without what stays here."""
    gate = None if work.cell.gate is None else _GateThere()
    return replace(work, cell=replace(work.cell, gate=gate), world=World(), observers=())


def _gated(cell: Cell, gates: Mapping[str, Gate]) -> Cell:
    return cell if cell.gate is None else replace(cell, gate=gates[cell.gate_name])


def _start() -> None:
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    context = DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
