"""The same flows over Ray Data: parts of the work go to workers, records come back in order.

::

    evaluate(questions, cells, world, out="run/", engine=on_ray(make_world, workers=8))

A worker builds its own world (model, retriever, encoder) from a function, once for all cells. Ray
starts a worker that died again and gives its questions to another; what was answered is in the
records of the run and its answer cache, which all workers share.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ltrag_plugins.errors import InvalidInput, ModelError, missing_extra, path_of
from ltrag_plugins.evaluate import Engine, Job, Record, Work
from ltrag_plugins.evaluate.run import remembering
from ltrag_plugins.flow import World
from ltrag_plugins.gece.decision import Gate
from ltrag_plugins.llm.cached import CachedLLM

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")

try:
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.exceptions import RayError
except ImportError as error:
    raise missing_extra("ray", "ray") from error

_BLOCKS = 100  # Ray's, at most, for each worker: what is done again when one dies is one block


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
        answers: the SQLite file, which all workers reach, where their models keep answers; True:
            the run's own. False, None: nowhere, and what a worker that dies was at is asked again.
        gates: by `Cell.gate_name`, what makes the gate in each worker from its world, as
            ``lambda w: GECEGate.load(folder, llm=w.llm, encoder=w.encoder)`` does; travels too.
    """
    if workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    makers = dict(gates or {})

    def engine(jobs: Iterable[Job]) -> Iterator[tuple[str, list[Record]]]:
        names, works, parts = [], [], []
        kept = None if isinstance(answers, bool | None) else str(path_of(answers).absolute())
        for work, questions in jobs:
            cell, llm = work.cell, work.world.llm
            if cell.gate is not None and cell.gate_name not in makers:
                wanted = f"gates={{{cell.gate_name!r}: a function of a world that makes it}}"
                raise InvalidInput(f"the gate of {cell.name} does not travel; give on_ray {wanted}")
            if answers is True:  # the run has put its own cache around the model
                kept = str(llm.path) if isinstance(llm, CachedLLM) else None
            starts = range(0, len(questions), work.batch)
            parts += [(len(works), questions[i : i + work.batch]) for i in starts]
            names.append(cell.name)
            gate = None if cell.gate is None else cell.gate_name
            works.append((replace(work, cell=replace(cell, gate=None), world=World()), gate))
        if not parts:
            return
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        data = ray.data.from_items(
            [{"part": i} for i in range(len(parts))],
            override_num_blocks=min(len(parts), _BLOCKS * workers),
        )
        done = data.map_batches(
            _Worker,
            fn_constructor_args=(make_world, makers, kept, works, list(map(ray.put, parts))),
            batch_size=1,
            batch_format="numpy",
            compute=ActorPoolStrategy(size=workers),
            num_cpus=0 if gpus else 1,
            num_gpus=gpus,
        )
        try:
            for row in done.iter_rows():
                lines = str(row["records"]).split("\n")  # a text may hold other ends of line
                yield names[row["work"]], [Record.from_line(line) for line in lines]
        except RayError as error:
            raise ModelError(f"a worker failed: {type(error).__name__}: {error}") from error

    return engine


class _Worker:
    """Lives in a Ray actor."""

    def __init__(
        self,
        make_world: Callable[[], World],
        makers: Mapping[str, Callable[[World], Gate]],
        answers: str | None,
        works: Sequence[tuple[Work, str | None]],
        parts: Sequence[Any],
    ) -> None:
        world = make_world()
        if answers is not None:
            world = remembering(world, answers)
        gates = {None: None} | {name: make(world) for name, make in makers.items()}
        self._works = [
            replace(work, cell=replace(work.cell, gate=gates[gate]), world=world)
            for work, gate in works
        ]
        self._parts = parts

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        work, questions = ray.get(self._parts[int(batch["part"][0])])
        records = self._works[work].records(questions)
        return {"work": [work], "records": ["\n".join(r.as_line() for r in records)]}
