"""A training run that is killed again and again, and goes on where it was."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM

LIVES = 10
CALL = 0.03  # seconds that the model takes for one call
MOST = 5  # calls that are begun in a life

NURSERY = """
import json, os, sys, time
from dataclasses import replace

from ltrag_plugins.dur import DURSettings, DURTrainer
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.cached import CachedEncoder
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import Nonsense, houses, moody

class Slow:
    name = "slow"

    def __init__(self, log, most):
        self.log, self.left = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), most

    def generate(self, prompts, settings):
        print("asked", flush=True)
        self.left -= 1
        time.sleep(SECONDS if self.left >= 0 else 600)  # it cannot outrun whoever kills it
        replies = ScriptedLLM(moody).generate(prompts, settings)
        os.write(self.log, (json.dumps(list(prompts)) + "\\n").encode())  # it has answered
        return replies

def train(folder, log, most):
    settings = DURSettings(
        reward="match", batch_size=4, epochs=16, stop_at_turn=True, learning_rate=0.02
    )
    llm = CachedLLM(Slow(log, most), folder + "/answers.sqlite")
    encoder = CachedEncoder(Nonsense(), folder + "/vectors.sqlite")
    result = DURTrainer(encoder, llm, settings=settings).fit(
        houses(100, 30), houses(1, 18), checkpoint=folder + "/run"
    )
    result.ranker.save(folder + "/head")
    with open(folder + "/history", "w") as file:
        file.write(repr(result.history))

SECONDS = float(sys.argv[1])
for line in sys.stdin:
    folder, log, most = json.loads(line)
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        code = 1
        try:
            train(folder, log, most)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


class Nursery:
    """One process that has imported everything, whose children train and are killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY, str(CALL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )

    def life(self, folder: Path, log: Path, *, killed: float | None = None) -> tuple[int, int]:
        """Train until the end, or until killed: 2.5 is half-way through the third call.

        Returns the exit status and the number of calls that were begun.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        most = 10_000 if killed is None else int(killed) + 1
        order = json.dumps([str(folder), str(log), most])
        print(order, file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        calls = 0
        while (line := self._process.stdout.readline().split()) and line[0] == "asked":
            calls += 1
            if killed is not None and calls == most:
                time.sleep(killed % 1 * CALL)
                os.kill(child, signal.SIGKILL)
        return int(line[1]), calls

    def close(self) -> None:
        self._process.communicate()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_that_is_killed_ten_times_ends_with_the_same_bits_and_pays_for_no_answer_twice(
    tmp_path,
):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    nursery = Nursery()
    status, calls = nursery.life(whole, whole / "log")
    assert status == 0
    assert calls > 1.5 * LIVES * MOST  # so that each of the ten dies on the way

    moments = random.Random(8)
    paid: list[str] = []
    progress = []
    for _ in range(LIVES):
        status, _ = nursery.life(killed, killed / "log", killed=moments.uniform(0, MOST))
        assert status == -signal.SIGKILL
        paid = answered(killed)
        progress.append(len(paid))
    status, _ = nursery.life(killed, killed / "log")
    assert status == 0
    paid = answered(killed)
    nursery.close()

    for name in ("head/dur.json", "head/dur.safetensors", "run/checkpoint.safetensors", "history"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert [prompt for prompt, times in Counter(paid).items() if times > 1] == []
    assert sorted(paid) == sorted(answered(whole))
    assert len(set(progress)) > LIVES / 2  # the lives did get somewhere, and not to the end
    assert progress[-1] < len(paid)


def answered(folder: Path) -> list[str]:
    """The prompts of all calls that the model has answered.

    A kill may fall between the model's last word and its way to the cache. That call is lost,
    as a call that was begun is, and its line is taken out of the log.
    """
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    prompts = [prompt for line in lines for prompt in json.loads(line)]
    CachedLLM(ScriptedLLM(str), folder / "answers.sqlite").close()  # there from now on
    with closing(sqlite3.connect(folder / "answers.sqlite")) as file:
        [(kept,)] = file.execute("SELECT count(*) FROM answers")
    if lines and kept == len(prompts) - len(json.loads(lines[-1])):
        log.write_text("".join(f"{line}\n" for line in lines[:-1]))
        return answered(folder)
    assert kept == len(prompts)
    return prompts
