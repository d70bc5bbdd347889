"""A run on Ray beside the same run in one process, a killed worker among the workers."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest
from test_evaluate import DIRECT, SINGLE, many, without_ms, world

from ltrag_plugins.batch import on_ray
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import World

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


def by_length(prompt: str) -> str:
    return "no idea" if len(prompt) % 3 else "Jane Austen"


def lengths() -> World:
    return world(by_length)


def test_two_workers_give_the_records_of_one_process(tmp_path):
    cells = [DIRECT, SINGLE]
    here = evaluate(many(), cells, lengths(), out=tmp_path / "here", batch=8)
    there = evaluate(
        many(), cells, lengths(), out=tmp_path / "ray", batch=8, engine=on_ray(lengths, workers=2)
    )
    assert without_ms(there) == without_ms(here)
    lines = (tmp_path / "ray" / "records" / "direct.jsonl").read_text().splitlines()
    assert len(lines) == len(many())


def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path):
    flag = tmp_path / "killed"

    def dying() -> World:
        def reply(prompt: str) -> str:
            if "part 33?" in prompt and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return by_length(prompt)

        return world(reply)

    here = evaluate(many(), [DIRECT], lengths(), out=tmp_path / "here", batch=8)
    there = evaluate(
        many(), [DIRECT], lengths(), out=tmp_path / "ray", batch=8, engine=on_ray(dying, workers=2)
    )
    assert flag.exists()
    assert without_ms(there) == without_ms(here)


def test_a_model_that_fails_is_a_row_there_too(tmp_path):
    def failing() -> World:
        def reply(prompt: str) -> str:
            if "part 7?" in prompt:
                raise RuntimeError("overloaded")
            return by_length(prompt)

        return world(reply)

    found = evaluate(
        many()[:12], [DIRECT], lengths(), out=tmp_path, batch=4, engine=on_ray(failing, workers=2)
    )
    assert [record.id for record in found["direct"] if record.error] == ["q7"]


def test_what_cannot_run_there_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="workers"):
        on_ray(lengths, workers=0)
    gated = Cell(DIRECT.method, gate=object())
    gated = dataclasses.replace(gated, gate_name="none")
    with pytest.raises(InvalidInput, match="gate"):
        evaluate(many()[:2], [gated], lengths(), out=tmp_path, engine=on_ray(lengths))
