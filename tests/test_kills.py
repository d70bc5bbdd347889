"""Runs over a server that are killed by the number of a request: equal results, nothing paid for
twice but what was under way.

`LTRAG_KILLS=20 pytest --log-cli-level=INFO tests/test_kills.py` kills each of them twenty times,
and shows the figures.
"""

import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.openai_server import openai_server

KILLS = int(os.environ.get("LTRAG_KILLS", "2"))
AT_ONCE = 4

NURSERY = """
import json, os, sys, traceback
from dataclasses import replace

sys.path.append("tests")
from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.evaluate import evaluate
from ltrag_plugins.flow import World
from ltrag_plugins.gece import GECEGate
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.openai import OpenAICompatibleLLM
from ltrag_plugins.sgic.calibrator import Calibrator
from ltrag_plugins.types import Passage
from tests.dur_parts import Nonsense, houses
from tests.evaluate_parts import DIRECT, SINGLE, world

def run(job, folder, llm):
    kept, asked = CachedLLM(llm, folder + "/kept.sqlite"), houses(1, 24)
    if job == "evaluate":
        found = evaluate(asked, [DIRECT, SINGLE], replace(world(), llm=llm), out=folder + "/run")
        lines = [replace(one, ms=0.0).as_line() for cell in found.values() for one in cell]
        open(folder + "/result", "w").write("\\n".join(lines))
    if job == "gate":
        asked = [replace(one, answers=("red",)) for one in asked]
        found = ["red" if i % 3 else "grey" for i in range(len(asked))]
        gate = GECEGate.fit(asked, llm=kept, target_rate=0.3, retrieved_answers=found)
        gate.save(folder + "/result")
    if job == "sgic":
        passages = tuple(Passage(f"fact {i}") for i in range(3))
        asked = [replace(one, passages=passages) for one in asked[:10]]
        Calibrator.fit(asked, llm=kept).save(folder + "/result")
    if job == "dur":
        settings = DURSettings(reward="match", batch_size=4, epochs=2)
        trainer = DURTrainer(Nonsense(), kept, settings=settings)
        done = trainer.fit(houses(100, 20), houses(1, 8), checkpoint=folder + "/run")
        done.ranker.save(folder + "/result")

for line in sys.stdin:
    job, folder, url = json.loads(line)
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        sys.stdin.readline()  # whoever kills it knows its number
        code = 1
        try:
            run(job, folder, OpenAICompatibleLLM("m", base_url=url, max_concurrency=AT_ONCE))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def contents(result: Path) -> dict[str, bytes]:
    files = [result] if result.is_file() else sorted(result.iterdir())
    when = re.compile(rb'"date": "[^"]+"')  # on which nothing else depends
    return {file.name: when.sub(b"", file.read_bytes()) for file in files}


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything, whose children run and are killed."""
    command, pipe = [sys.executable, "-c", f"AT_ONCE = {AT_ONCE}\n{NURSERY}"], subprocess.PIPE
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:
        yield process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("job", ["evaluate", "gate", "dur", "sgic"])
def test_a_run_that_is_killed_pays_twice_for_what_was_under_way_alone(job, nursery, tmp_path):
    lock, paid = threading.Lock(), list[str]()
    child, left = 0, 0

    def reply(prompt: str) -> tuple[str, float]:
        nonlocal left
        with lock:
            paid.append(prompt)
            left -= 1
            if left == 0:
                os.kill(child, signal.SIGKILL)
        drawn = sha256(prompt.encode()).digest()
        return ("red", "grey", "blue")[drawn[0] % 3], 0.5 + drawn[1] / 600

    folder = {name: tmp_path / name for name in ("whole", "killed")}
    with openai_server(reply) as (url, _):

        def live(name: str, killed_at: int = 0) -> int:
            nonlocal child, left
            folder[name].mkdir(exist_ok=True)
            print(json.dumps([job, str(folder[name]), url]), file=nursery.stdin, flush=True)
            child, left = int(nursery.stdout.readline()), killed_at
            print(file=nursery.stdin, flush=True)
            return int(nursery.stdout.readline())

        assert live("whole") == 0
        wanted, rng = sorted(paid), random.Random(8)
        paid.clear()
        for _ in range(KILLS):
            most = max(1, 2 * len(wanted) // (KILLS + 1) - AT_ONCE)
            assert live("killed", rng.randint(1, most)) == -signal.SIGKILL
        assert live("killed") == 0
    again = len(paid) - len(wanted)
    figures = job, KILLS, len(wanted), again
    logging.getLogger(__name__).info("%s: %d kills, %d requests, %d paid for again", *figures)
    assert len(set(wanted)) == len(wanted) > 20
    assert contents(folder["killed"] / "result") == contents(folder["whole"] / "result")
    assert set(paid) == set(wanted)
    assert again <= KILLS * AT_ONCE
