"""A head in its folder, and the checkpoints of a run."""

import hashlib
import json
import math
import pickle
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from ltrag_plugins.dur import DURRanker, DURSettings, PromptFormat
from ltrag_plugins.errors import (
    ArtifactMismatch,
    InvalidInput,
    ModelFailed,
    UnreadableArtifact,
    UnwritableArtifact,
)
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import (
    CANDIDATES,
    VALIDATION,
    Nonsense,
    houses,
    moody,
    moody_llm,
    numbers,
    trained,
)

FORM = PromptFormat("{question} {answer}", "{question}", context_words=9)
RUN = DURSettings(reward="match", epochs=2, batch_size=4, least_shots=None, seed=2)
SETTINGS = replace(RUN, format=FORM)


@pytest.fixture(scope="module")
def ranker() -> DURRanker:
    found = trained(RUN).ranker
    return DURRanker(found.head, found.encoder, SETTINGS, sigma=found.sigma)


@pytest.fixture
def folder(ranker, tmp_path):
    ranker.save(tmp_path / "head")
    return tmp_path / "head"


def test_a_saved_head_ranks_the_same_to_the_last_bit(ranker, folder):
    again = DURRanker.load(folder, encoder=Nonsense())
    for question in houses(500, 5):
        assert again.rank(question.text, CANDIDATES) == ranker.rank(question.text, CANDIDATES)
    assert again.sigma == ranker.sigma > 0
    assert json.loads((folder / "dur.json").read_text("utf-8"))["settings"]["batch_size"] == 4


@pytest.mark.parametrize(
    "settings",
    [DURSettings(), DURSettings.paper(), DURSettings.promptpg(), SETTINGS],
    ids=["default", "paper", "promptpg", "own"],
)
def test_settings_survive_the_folder_less_a_users_reward_function(settings, tmp_path):
    for reward, kept in ((settings.reward, settings.reward), (lambda *_: 1.0, "match")):
        given = replace(settings, reward=reward)
        DURRanker.untrained(Nonsense(), settings=given).save(tmp_path)
        again = DURRanker.load(tmp_path, encoder=Nonsense())
        assert again.settings == replace(settings, reward=kept)


def test_a_head_for_another_encoder_is_refused_by_name(folder):
    with pytest.raises(ArtifactMismatch, match=r"'nonsense'.*'other'.*fit anew"):
        DURRanker.load(folder, encoder=Nonsense(name="other"))
    shorter = DURRanker.load(folder, encoder=Nonsense(dim=5))
    with pytest.raises(ArtifactMismatch, match=r"vectors of 12 numbers.*gives 5"):
        shorter.rank("Who?", CANDIDATES)


def rewritten(change):
    def harm(folder):
        body = json.loads((folder / "dur.json").read_text("utf-8"))
        (folder / "dur.json").write_text(json.dumps(change(body) or body))

    return harm


def with_numbers(**changed):
    """Somebody who changes the numbers, and the hash with them."""

    def harm(folder):
        arrays = load((folder / "dur.safetensors").read_bytes())
        content = save(arrays | {f"head.{name}": array for name, array in changed.items()})
        (folder / "dur.safetensors").write_bytes(content)
        rewritten(lambda b: b.update(sha256=hashlib.sha256(content).hexdigest()))(folder)

    return harm


def flip_a_bit(folder):
    content = bytearray((folder / "dur.safetensors").read_bytes())
    content[-2] ^= 1
    (folder / "dur.safetensors").write_bytes(bytes(content))


HARMS = {
    "no folder": shutil.rmtree,
    "a file in its place": lambda folder: shutil.rmtree(folder) or folder.write_text("x"),
    "a bit flipped": flip_a_bit,
    "NaN in W": with_numbers(weight=np.full((12, 12), np.nan), bias=np.zeros(12)),
    "infinity in b": with_numbers(bias=np.full(128, np.inf)),
    "W of another size than b": with_numbers(bias=np.zeros(3)),
    "W is a vector": with_numbers(weight=np.zeros(128)),
    "no head": rewritten(lambda body: body.pop("head") and None),
    "a head of numbers": rewritten(lambda body: body["head"].update(weight=3)),
    "a head of nothing": rewritten(lambda body: body["head"].update(bias=None)),
    "settings in the head's place": rewritten(lambda body: body.update(head=body["settings"])),
    "sigma is a word": rewritten(lambda body: body.update(sigma="high")),
    "sigma is NaN": rewritten(lambda body: body.update(sigma={"is": "number", "written": "nan"})),
    "sigma is no share": rewritten(lambda body: body.update(sigma=-0.5)),
    "a setting out of range": rewritten(lambda body: body["settings"].update(shots=0)),
    "a setting of another type": rewritten(lambda body: body["settings"].update(shots="five")),
    "a template that cannot be filled": rewritten(
        lambda body: body["settings"]["format"].update(shot="{x}")
    ),
    "more than a head": rewritten(lambda body: body.update(code="os.system")),
    "the encoder is nobody": rewritten(lambda body: body.update(encoder=None)),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_folder_that_cannot_be_read_says_so_and_what_to_do(folder, harm):
    harm(folder)
    with pytest.raises(UnreadableArtifact, match=r"(?s)no readable head.*Train one"):
        DURRanker.load(folder, encoder=Nonsense())


def test_a_run_in_pieces_ends_as_one_that_was_left_alone(tmp_path):
    whole = trained(RUN)
    for calls in range(0, sum(b.calls for b in whole.history), 15):
        assert trained(RUN, checkpoint=tmp_path, max_calls=calls).stopped
        # what a kill left half written does not disturb the next
        (tmp_path / "checkpoint.safetensors.1f.new").write_bytes(b"half of")
    last = trained(RUN, checkpoint=tmp_path)
    assert last.stopped is None
    assert numbers(last) == numbers(whole)
    assert (last.history, last.ranker.sigma) == (whole.history, whole.ranker.sigma)


def test_a_checkpoint_in_the_users_home_goes_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trained(RUN, checkpoint="~/run", max_calls=1)
    assert [path.name for path in tmp_path.joinpath("run").iterdir()] == ["checkpoint.safetensors"]


def test_a_place_for_the_checkpoint_that_cannot_be_written_to_is_found_before_a_call(tmp_path):
    llm, mine = moody_llm(), tmp_path / "mine"
    mine.write_text("mine")
    for folder in (mine, mine / "below"):
        with pytest.raises(UnwritableArtifact, match="cannot write to"):
            trained(RUN, llm, checkpoint=folder)
    assert (llm.calls, mine.read_text()) == ([], "mine")


def test_a_run_that_failed_at_once_leaves_the_folder_to_others(tmp_path):
    with pytest.raises(ModelFailed):
        trained(RUN, ScriptedLLM(lambda _: 1 / 0, name="broken"), checkpoint=tmp_path)
    assert trained(RUN, checkpoint=tmp_path).stopped is None


def test_a_finished_run_is_not_run_again_and_may_be_given_more_epochs(tmp_path):
    trained(RUN, checkpoint=tmp_path)
    llm = moody_llm()
    once = trained(RUN, llm, checkpoint=tmp_path)
    assert (llm.calls, len(once.history)) == ([], 6)
    with pytest.raises(ArtifactMismatch, match="a run of 2 epochs, more than epochs=1"):
        trained(replace(RUN, epochs=1), checkpoint=tmp_path)
    longer = replace(RUN, epochs=3)
    assert numbers(trained(longer, checkpoint=tmp_path)) == numbers(trained(longer))


REWARDS = (lambda *_: 1.0, lambda *_: -5.0)
OTHER_RUNS = {
    "candidates": {"candidates": CANDIDATES[1:]},
    "an answer": {"candidates": [replace(CANDIDATES[0], answers=("grey",)), *CANDIDATES[1:]]},
    "questions": {"validation": VALIDATION[1:]},
    "order": {"validation": VALIDATION[::-1]},
    "encoder": {"encoder": Nonsense(name="other")},
    "model": {"llm": moody_llm("other")},
    "seed": {"settings": replace(RUN, seed=3)},
    "batch size": {"settings": replace(RUN, batch_size=5)},
    "format": {"settings": SETTINGS},
    "reward": {"settings": replace(RUN, reward="f1")},
    "reward function": {"settings": replace(RUN, reward=REWARDS[1])},
}


@pytest.mark.parametrize("other", OTHER_RUNS)
def test_a_checkpoint_of_another_run_is_refused_and_left_as_it_was(other, tmp_path):
    own = replace(RUN, reward=REWARDS[0]) if other == "reward function" else RUN
    trained(own, checkpoint=tmp_path, max_calls=1)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(ArtifactMismatch, match=r"(?s)other candidates.*another folder, or move it"):
        trained(**({"settings": RUN} | OTHER_RUNS[other]), checkpoint=tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def rewrite_state(change):
    def harm(path):
        with safe_open(path, framework="numpy") as file:
            told = json.loads(file.metadata()["state"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        told = change(told, arrays) or told
        path.write_bytes(save(arrays, metadata={"state": json.dumps(told)}))

    return harm


BROKEN = {
    "nothing": lambda path: path.write_bytes(b""),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[:500]),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"state": 1})),
    "no state": lambda path: path.write_bytes(save({"x": np.zeros(1)})),
    "state of another kind": rewrite_state(lambda told, arrays: [1]),
    "no run": rewrite_state(lambda told, arrays: told.pop("run") and None),
    "no head": rewrite_state(lambda told, arrays: arrays.pop("head.bias") is None),
    "no steps": rewrite_state(lambda told, arrays: told.pop("steps") and None),
    "a history of another kind": rewrite_state(lambda told, arrays: told.update(history=[{}])),
}


@pytest.mark.parametrize("harm", BROKEN.values(), ids=BROKEN)
def test_a_checkpoint_that_was_damaged_is_named_and_left_as_it_was(harm, tmp_path):
    trained(RUN, checkpoint=tmp_path, max_calls=1)
    path = tmp_path / "checkpoint.safetensors"
    harm(path)
    before = path.read_bytes()
    with pytest.raises(UnreadableArtifact, match=r"no readable checkpoint.*Move it away"):
        trained(RUN, checkpoint=tmp_path)
    assert path.read_bytes() == before


def raising(error):
    raise error


FAILURES = {
    "the model raises": ("llm", lambda: raising(ConnectionResetError("hung up")), "hung up"),
    "the reward raises": ("reward", lambda: raising(ZeroDivisionError("oops")),
                          "the reward raised ZeroDivisionError: oops, .* to 'What colour is house"),
    "no number": ("reward", lambda: math.nan, "the reward function returned nan"),
    "infinity": ("reward", lambda: -math.inf, "the reward function returned -inf"),
    "a word": ("reward", lambda: "good", "the reward raised ValueError"),
}  # fmt: skip


def test_a_reward_may_hold_what_cannot_be_copied(tmp_path):
    class Judge:
        def __init__(self):
            self.lock = threading.Lock()  # as the clients of APIs hold some

        def score(self, said, question):
            return float(bool(self.lock) and said == question.answers[0])

    own = replace(RUN, reward=Judge().score)
    trained(own, checkpoint=tmp_path, max_calls=1)
    again = trained(replace(RUN, reward=Judge().score), checkpoint=tmp_path)
    assert numbers(again) == numbers(trained(own))


def test_a_reward_that_was_made_with_another_number_is_another(tmp_path):
    def above(least):
        def longer(said, question):
            return float(len(said) > least)

        return longer

    trained(replace(RUN, reward=above(0)), checkpoint=tmp_path)
    with pytest.raises(ArtifactMismatch):
        trained(replace(RUN, reward=above(99)), checkpoint=tmp_path)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_in_the_middle_loses_nothing_of_what_was_learned_or_paid_for(failure, tmp_path):
    which, value, match = FAILURES[failure]
    paid, worth, broken = [], [], True
    spoils = [value] * (which == "reward")

    def model(prompt):
        if which == "llm" and broken and len(paid) > 30:
            return value()
        paid.append(prompt)
        return moody(prompt)

    def own(said, question):
        worth.append(said)
        if spoils and len(worth) > 40:
            return spoils[0]()
        return float(said == question.answers[0])

    def mended(said, question):
        return float(said == question.answers[0])

    mended.__qualname__ = own.__qualname__

    def fit(reward):
        with CachedLLM(ScriptedLLM(model, name="moody"), tmp_path / "answers") as llm:
            return trained(replace(RUN, reward=reward), llm, checkpoint=tmp_path / "run")

    with pytest.raises(ModelFailed if which == "llm" else InvalidInput, match=match) as caught:
        fit(own)
    if "raises" in failure:
        assert isinstance(caught.value.__cause__, ConnectionResetError | ZeroDivisionError)
    kept = trained(replace(RUN, reward=own), checkpoint=tmp_path / "run", max_calls=0).history
    assert 0 < len(kept) < 6
    broken = False
    again, whole = fit(mended), trained(replace(RUN, reward=mended))
    assert again.history == whole.history
    assert numbers(again) == numbers(whole)
    if which == "reward":  # what a model said in a call that it then broke off is lost
        assert len(paid) == len(set(paid))
