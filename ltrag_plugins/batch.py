"""The same flows over Ray Data: shards of questions go to workers, records come back in order.

::

    evaluate(questions, cells, world, out="run/", engine=on_ray(make_world, workers=8))

A worker builds its own world (model, retriever, encoder) from a function, once. Ray starts a
worker that died again and gives its questions to another; what was answered is in the run's
records and its answer cache.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from ltrag_plugins.errors import InvalidInput, ModelError, missing_extra
from ltrag_plugins.evaluate import Engine, Record, Work
from ltrag_plugins.flow import World
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.types import Passage, Question

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")

try:
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.exceptions import RayError
except ImportError as error:
    raise missing_extra("ray", "ray") from error


def on_ray(
    make_world: Callable[[], World],
    *,
    workers: int = 2,
    gpus: float = 0,
    answers: str | Path | None = None,
) -> Engine:
    """An engine for `evaluate` that does the work in Ray's workers.

    Uses the Ray that is running (`ray.init(address=...)`), else starts one on this machine.

    Args:
        make_world: called once in each worker; must travel there, so a function of a module, or
            one that holds paths and names rather than models.
        workers: processes, at least 1.
        gpus: of each worker.
        answers: a SQLite file that all workers reach, where their models' answers are kept; None:
            they are not.

    Raises:
        InvalidInput: workers is below 1.
        ModelError: (when it runs) a worker failed for good; the cause is Ray's own error.
    """
    if workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    kept = None if answers is None else str(answers)

    def engine(work: Work, questions: Sequence[Question]) -> Iterator[list[Record]]:
        if work.cell.gate is not None:
            raise InvalidInput(
                "a gate holds a model, which does not travel to workers; put the gate's draft "
                "before the run, or evaluate gated cells in one process"
            )
        _start()
        travels = replace(work, world=World(), observers=())
        rows = [{"question": asdict(question)} for question in questions]
        data = ray.data.from_items(rows, override_num_blocks=_blocks(len(rows), work.batch))
        done = data.map_batches(
            _Worker,
            fn_constructor_args=(make_world, travels, kept),
            batch_size=work.batch,
            batch_format="numpy",
            compute=ActorPoolStrategy(size=workers),
            num_cpus=0 if gpus else 1,
            num_gpus=gpus,
        )
        try:
            for batch in done.iter_batches(batch_size=work.batch, batch_format="numpy"):
                yield [Record.from_line(str(line)) for line in batch["record"]]
        except RayError as error:
            raise ModelError(f"a worker failed: {type(error).__name__}: {error}") from error

    return engine


class _Worker:
    """Lives in a Ray actor."""

    def __init__(self, make_world: Callable[[], World], work: Work, answers: str | None) -> None:
        world = make_world()
        if answers is not None and world.llm is not None:
            world = replace(world, llm=CachedLLM(world.llm, answers))
        self._work = replace(work, world=world)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        questions = [_question(row) for row in batch["question"]]
        return {"record": [record.as_line() for record in self._work.records(questions)]}


def _start() -> None:
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    context = DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False


def _blocks(rows: int, batch: int) -> int:
    return max(1, -(-rows // batch))


def _question(row: dict[str, Any]) -> Question:
    fields = {name: tuple(row[name]) for name in ("answers", "options")}
    passages = tuple(Passage(**cast(Any, passage)) for passage in row["passages"])
    return Question(row["text"], id=row["id"], context=row["context"], passages=passages, **fields)
