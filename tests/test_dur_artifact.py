"""A head in its folder, and the checkpoints of a run."""

import hashlib
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save

from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer, PromptFormat
from ltrag_plugins.errors import ArtifactMismatch, ModelFailed, UnreadableArtifact
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import Nonsense, houses, moody, moody_llm

SETTINGS = DURSettings(
    format=PromptFormat("{question} {answer}", "{question}", context_words=9),
    reward="match",
    epochs=2,
    batch_size=4,
    least_shots=None,
    seed=2,
)
SETTINGS_QA = replace(SETTINGS, format="Q-A")
CANDIDATES, VALIDATION = houses(100, 12), houses(1, 10)


def trained(settings=SETTINGS_QA, **told):
    fitted = DURTrainer(Nonsense(), moody_llm(), settings=settings)
    return fitted.fit(CANDIDATES, VALIDATION, **told)


@pytest.fixture(scope="module")
def ranker() -> DURRanker:
    found = trained().ranker
    return DURRanker(found.head, found.encoder, SETTINGS, sigma=found.sigma)


@pytest.fixture
def folder(ranker, tmp_path):
    ranker.save(tmp_path / "head")
    return tmp_path / "head"


def test_a_saved_head_ranks_the_same_to_the_last_bit(ranker, folder):
    again = DURRanker.load(folder, encoder=Nonsense())
    for question in houses(500, 5):
        assert again.rank(question.text, CANDIDATES) == ranker.rank(question.text, CANDIDATES)
    assert again.settings == ranker.settings
    assert again.sigma == ranker.sigma > 0


def test_the_folder_holds_two_files_and_no_pickle(folder):
    assert sorted(p.name for p in folder.iterdir()) == ["dur.json", "dur.safetensors"]
    body = json.loads((folder / "dur.json").read_text("utf-8"))
    assert body["encoder"] == "nonsense"
    assert body["settings"]["batch_size"] == 4


@pytest.mark.parametrize(
    "settings",
    [DURSettings(), DURSettings.paper(), DURSettings.promptpg(), SETTINGS],
    ids=["default", "paper", "promptpg", "own"],
)
def test_settings_survive_the_folder(settings, tmp_path):
    DURRanker.untrained(Nonsense(), settings=settings).save(tmp_path)
    assert DURRanker.load(tmp_path, encoder=Nonsense()).settings == settings


def test_a_users_reward_function_is_left_out_of_the_folder(tmp_path):
    own = DURSettings(reward=lambda said, question: 1.0)
    DURRanker.untrained(Nonsense(), settings=own).save(tmp_path)
    again = DURRanker.load(tmp_path, encoder=Nonsense())
    assert again.settings == replace(own, reward="match")


def test_a_head_for_another_encoder_is_refused_by_name(folder):
    with pytest.raises(ArtifactMismatch, match=r"'nonsense'.*'other'.*train a head"):
        DURRanker.load(folder, encoder=Nonsense(name="other"))


def test_an_encoder_whose_vectors_have_another_length_is_refused(folder):
    again = DURRanker.load(folder, encoder=Nonsense(dim=5))
    with pytest.raises(ArtifactMismatch, match=r"vectors of 12 numbers.*gives 5"):
        again.rank("Who?", CANDIDATES)


def rewritten(change):
    def harm(folder):
        body = json.loads((folder / "dur.json").read_text("utf-8"))
        (folder / "dur.json").write_text(json.dumps(change(body) or body))

    return harm


def with_numbers(change):
    """Somebody who changes the numbers, and the hash with them."""

    def harm(folder):
        arrays = load((folder / "dur.safetensors").read_bytes())
        change(arrays)
        content = save(arrays)
        (folder / "dur.safetensors").write_bytes(content)
        rewritten(lambda b: b.update(sha256=hashlib.sha256(content).hexdigest()))(folder)

    return harm


def put_a_pickle(folder):
    (folder / "dur.safetensors").write_bytes(pickle.dumps({"weight": 1}))


def put_a_pickle_with_its_hash(folder):
    content = pickle.dumps({"weight": 1})
    (folder / "dur.safetensors").write_bytes(content)
    rewritten(lambda b: b.update(sha256=hashlib.sha256(content).hexdigest()))(folder)


def flip_a_bit(folder):
    content = bytearray((folder / "dur.safetensors").read_bytes())
    content[-2] ^= 1
    (folder / "dur.safetensors").write_bytes(bytes(content))


def spoil(name, value):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name].flat[3] = value

    return with_numbers(change)


HARMS = {
    "a bit flipped": flip_a_bit,
    "a pickle renamed": put_a_pickle,
    "a pickle renamed, with its hash": put_a_pickle_with_its_hash,
    "NaN in W": spoil("head.weight", np.nan),
    "infinity in b": spoil("head.bias", np.inf),
    "W of another size than b": with_numbers(
        lambda arrays: arrays.update({"head.bias": np.zeros(3)})
    ),
    "W is a vector": with_numbers(lambda arrays: arrays.update({"head.weight": np.zeros(128)})),
    "another hash": rewritten(lambda body: body.update(sha256="f" * 64)),
    "numbers missing": lambda folder: (folder / "dur.safetensors").unlink(),
    "JSON missing": lambda folder: (folder / "dur.json").unlink(),
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
    "another format": rewritten(lambda body: body.update(format=9)),
    "more than a head": rewritten(lambda body: body.update(code="os.system")),
    "the encoder is nobody": rewritten(lambda body: body.update(encoder=None)),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_folder_that_cannot_be_read_says_so_and_what_to_do(folder, harm):
    harm(folder)
    with pytest.raises(UnreadableArtifact, match=r"(?s)no readable head.*Train one"):
        DURRanker.load(folder, encoder=Nonsense())


def test_a_missing_folder_and_a_file_are_no_heads(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(UnreadableArtifact, match="Train one"):
            DURRanker.load(path, encoder=Nonsense())


def test_a_run_in_pieces_ends_as_one_that_was_left_alone(tmp_path):
    whole = trained()
    for calls in range(0, sum(b.calls for b in whole.history), 15):
        part = trained(checkpoint=tmp_path, max_calls=calls)
        assert part.stopped is not None
    last = trained(checkpoint=tmp_path)
    assert last.stopped is None
    assert last.ranker.head.weight.tobytes() == whole.ranker.head.weight.tobytes()
    assert last.ranker.head.bias.tobytes() == whole.ranker.head.bias.tobytes()
    assert (last.history, last.ranker.sigma) == (whole.history, whole.ranker.sigma)


def test_a_finished_run_is_not_run_again_and_may_be_given_more_epochs(tmp_path):
    trained(checkpoint=tmp_path)
    llm = moody_llm()
    again = DURTrainer(Nonsense(), llm, settings=SETTINGS_QA)
    once = again.fit(CANDIDATES, VALIDATION, checkpoint=tmp_path)
    assert llm.calls == []
    assert len(once.history) == 6
    longer = replace(SETTINGS_QA, epochs=3)
    more = trained(longer, checkpoint=tmp_path)
    assert more.ranker.head.weight.tobytes() == trained(longer).ranker.head.weight.tobytes()


OTHERS = {
    "candidates": lambda t: t.fit(CANDIDATES[1:], VALIDATION, checkpoint=t.folder),
    "an answer": lambda t: t.fit(
        [replace(CANDIDATES[0], answers=("grey",)), *CANDIDATES[1:]],
        VALIDATION,
        checkpoint=t.folder,
    ),
    "questions": lambda t: t.fit(CANDIDATES, VALIDATION[1:], checkpoint=t.folder),
    "order": lambda t: t.fit(CANDIDATES, VALIDATION[::-1], checkpoint=t.folder),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_other_data_is_refused_and_left_as_it_was(other, tmp_path):
    trained(checkpoint=tmp_path, max_calls=1)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    class Trainer:
        folder = tmp_path
        fit = DURTrainer(Nonsense(), moody_llm(), settings=SETTINGS_QA).fit

    with pytest.raises(ArtifactMismatch, match=r"another folder, or move it away"):
        other(Trainer)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("encoder", "llm", "settings"),
    [
        (Nonsense(name="other"), moody_llm(), SETTINGS_QA),
        (Nonsense(), moody_llm("other"), SETTINGS_QA),
        (Nonsense(), moody_llm(), replace(SETTINGS_QA, seed=3)),
        (Nonsense(), moody_llm(), replace(SETTINGS_QA, batch_size=5)),
        (Nonsense(), moody_llm(), replace(SETTINGS_QA, format=SETTINGS.format)),
        (Nonsense(), moody_llm(), replace(SETTINGS_QA, reward=lambda *_: 0.0)),
    ],
    ids=["encoder", "model", "seed", "batch size", "format", "reward"],
)
def test_a_checkpoint_of_another_run_is_refused(encoder, llm, settings, tmp_path):
    trained(checkpoint=tmp_path, max_calls=1)
    with pytest.raises(ArtifactMismatch, match="other candidates, questions, settings, encoder"):
        DURTrainer(encoder, llm, settings=settings).fit(CANDIDATES, VALIDATION, checkpoint=tmp_path)


def rewrite_state(change):
    def harm(path):
        from safetensors import safe_open

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
    trained(checkpoint=tmp_path, max_calls=1)
    path = tmp_path / "checkpoint.safetensors"
    harm(path)
    before = path.read_bytes()
    with pytest.raises(UnreadableArtifact, match=r"no readable checkpoint.*Move it away"):
        trained(checkpoint=tmp_path)
    assert path.read_bytes() == before


def test_what_a_killed_run_was_writing_does_not_disturb_the_next(tmp_path):
    trained(checkpoint=tmp_path, max_calls=1)
    (tmp_path / "checkpoint.safetensors.new").write_bytes(b"half of")
    assert trained(checkpoint=tmp_path).history == trained().history


def test_a_model_that_raises_in_the_middle_leaves_its_whole_batches(tmp_path):
    calls = []

    def fit(answers_at_most):
        def fragile(prompt):
            calls.append(prompt)
            if len(calls) >= answers_at_most:  # from then on, also where it is tried again
                raise ConnectionResetError("hung up")
            return moody(prompt)

        llm = ScriptedLLM(fragile, name="moody")
        return DURTrainer(Nonsense(), llm, settings=SETTINGS_QA).fit(
            CANDIDATES, VALIDATION, checkpoint=tmp_path
        )

    with pytest.raises(ModelFailed, match="hung up") as caught:
        fit(answers_at_most=30)
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    kept = trained(checkpoint=tmp_path, max_calls=0).history
    assert 0 < len(kept) < 6
    again = fit(answers_at_most=10_000)
    whole = trained()
    assert again.history == whole.history
    assert again.ranker.head.weight.tobytes() == whole.ranker.head.weight.tobytes()
