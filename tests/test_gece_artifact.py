import json
import pickle
import re
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from langchain_core.language_models import FakeListChatModel

from ltrag_plugins.data import digest_of
from ltrag_plugins.errors import (
    ArtifactMismatch,
    InvalidInput,
    MissingExtra,
    UnreadableArtifact,
)
from ltrag_plugins.gece import GECEGate, GECESettings, WordFrequencies
from tests.gece_parts import Houses, Letters, honest_llm, knows, questions

NEW = [f"What is the colour of house {i}?" for i in range(100, 140)]


@pytest.fixture(scope="module")
def gate() -> GECEGate:
    return GECEGate.fit(
        questions(40), llm=honest_llm(), encoder=Letters(), retriever=Houses(), target_rate=0.4
    )


@pytest.fixture
def folder(gate, tmp_path):
    gate.save(tmp_path / "gate")
    return tmp_path / "gate"


def test_a_saved_gate_decides_the_same_to_the_last_bit(gate, folder):
    again = GECEGate.load(folder, llm=honest_llm(), encoder=Letters())
    assert again.decide_many(NEW) == gate.decide_many(NEW)
    assert again.report == gate.report
    assert str(again.report) == str(gate.report)
    assert again.data == gate.data == digest_of(questions(40)) != digest_of(questions(41))
    assert again.explanation(again.decide(NEW[1])) == gate.explanation(gate.decide(NEW[1]))


@pytest.mark.parametrize(
    "settings",
    [
        GECESettings(scorer="product", calibration="isotonic"),
        GECESettings(scorer="gece", semantics=False, stop=("\n", "."), max_tokens=5),
        GECESettings(scorer="word_frequency", tier="text"),
    ],
    ids=lambda s: s.scorer,
)
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_every_kind_of_gate_survives_its_folder(settings, rate, tmp_path):
    corpus = WordFrequencies.of_corpus(["Which house has what colour, 7 or 8?"])
    gate = GECEGate.fit(
        questions(), llm=honest_llm(), target_rate=rate, settings=settings, frequencies=corpus
    )
    gate.save(tmp_path)
    again = GECEGate.load(tmp_path, llm=honest_llm())
    assert again.decide_many(NEW) == gate.decide_many(NEW)
    assert again.fitted.settings == settings
    assert again.fitted.frequencies == corpus
    assert again.report == gate.report


def without_wordfreq(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "wordfreq", None)


def test_a_gate_fits_and_works_without_wordfreq_by_default(folder, monkeypatch, tmp_path):
    without_wordfreq(monkeypatch)
    gate = GECEGate.load(folder, llm=honest_llm(), encoder=Letters())
    assert gate.fitted.frequencies is None
    assert gate.decide(NEW[0]).probability < gate.decide(NEW[1]).probability
    corpus = WordFrequencies.of_corpus(["Which house has what colour?"])
    for frequencies in (None, corpus):
        fitted = GECEGate.fit(questions(20), llm=honest_llm(), frequencies=frequencies)
        fitted.save(tmp_path)
        assert GECEGate.load(tmp_path, llm=honest_llm()).decide_many(NEW) == fitted.decide_many(NEW)
        assert not any("frequency" in note for note in fitted.report.notes)


@pytest.mark.parametrize(
    "how",
    [
        {"frequencies": WordFrequencies()},
        {"settings": GECESettings(scorer="rarest_word")},
        {"settings": GECESettings(scorer="gece", semantics=False)},
    ],
)
def test_a_gate_that_reads_a_languages_frequencies_says_what_it_needs(how, monkeypatch, tmp_path):
    gate = GECEGate.fit(questions(20), llm=honest_llm(), **how)
    gate.save(tmp_path)
    extra = r"pip install 'ltrag-plugins\[frequency\]'"
    [note] = [note for note in gate.report.notes if "frequencies" in note]
    assert re.search(extra, note)
    without_wordfreq(monkeypatch)
    with pytest.raises(MissingExtra, match=extra):
        GECEGate.load(tmp_path, llm=honest_llm())
    asked = honest_llm()
    with pytest.raises(MissingExtra, match=extra):
        GECEGate.fit(questions(20), llm=asked, **how)
    assert asked.calls == []


def test_a_mean_gradient_is_kept(gate, tmp_path):
    class Local:
        """A model with gradients, as far as a protocol can see."""

        name = "honest"
        generate = score = mean_gradient = gradient_agreement = lambda *_, **__: []

    along = {"layers.3.down.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    replace(gate, along=along).save(tmp_path)
    again = GECEGate.load(tmp_path, llm=Local(), encoder=Letters()).along
    assert list(again) == list(along)
    assert np.array_equal(again["layers.3.down.weight"], along["layers.3.down.weight"])
    with pytest.raises(ArtifactMismatch, match="gradients"):
        GECEGate.load(tmp_path, llm=honest_llm(), encoder=Letters())


def test_the_folder_holds_strict_json_and_no_pickle(folder):
    assert sorted(p.name for p in folder.iterdir()) == ["gate.json", "gate.safetensors"]

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    body = json.loads((folder / "gate.json").read_text("utf-8"), parse_constant=refuse)
    assert body["llm"] == "honest"
    assert body["report"]["questions"] == 40


def test_saving_again_replaces_the_older_gate(folder):
    other = GECEGate.fit(questions(), llm=honest_llm(), settings=GECESettings(scorer="product"))
    other.save(folder)
    again = GECEGate.load(folder, llm=honest_llm())
    assert asdict(again.report) == asdict(other.report)
    assert len(list(folder.iterdir())) == 2


def test_a_frameworks_model_is_to_be_wrapped(folder):
    bare = FakeListChatModel(responses=["x"])
    with pytest.raises(InvalidInput, match="wrap what comes"):
        GECEGate.load(folder, llm=bare, encoder=Letters())  # type: ignore[arg-type]


def test_another_model_is_refused_by_name(folder):
    with pytest.raises(ArtifactMismatch, match=r"'honest'.*'another'.*fit anew"):
        GECEGate.load(folder, llm=honest_llm("another"), encoder=Letters())


def test_signals_of_ones_own_are_handed_in_again(tmp_path):
    signals = {"mine": lambda question: float(not knows(question)), "length": len}
    settings, llm = GECESettings(scorer="mine"), honest_llm()
    how = {"llm": llm, "settings": settings, "target_rate": 0.5}
    gate = GECEGate.fit(questions(), signals=signals, **how)
    gate.save(tmp_path)
    again = GECEGate.load(tmp_path, llm=llm, signals=signals)
    assert again.decide_many(NEW) == gate.decide_many(NEW)
    for given, lacks in ((None, "'length', 'mine'"), ({"mine": len}, "'length'")):
        with pytest.raises(InvalidInput, match=rf"reads \[{lacks}\].*signals=\{{'length': ...\}}"):
            GECEGate.load(tmp_path, llm=llm, signals=given)


@pytest.mark.parametrize("encoder", [None, Letters("other letters")])
def test_another_encoder_or_none_is_refused(folder, encoder):
    with pytest.raises(ArtifactMismatch, match="encoder 'letters'"):
        GECEGate.load(folder, llm=honest_llm(), encoder=encoder)


def truncate(name):
    def harm(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return harm


def flip_a_bit(folder):
    content = bytearray((folder / "gate.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "gate.safetensors").write_bytes(bytes(content))


def remove(name):
    return lambda folder: (folder / name).unlink()


def rewrite(change):
    def harm(folder):
        body = json.loads((folder / "gate.json").read_text("utf-8"))
        changed = change(body)
        (folder / "gate.json").write_text(json.dumps(body if changed is None else changed))

    return harm


def leave_a_pickle_only(folder):
    for path in folder.iterdir():
        path.unlink()
    (folder / "gate.pkl").write_bytes(pickle.dumps({"gate": 1}))


HARMS = {
    "weights with a bit flipped": flip_a_bit,
    "weights truncated": truncate("gate.safetensors"),
    "weights missing": remove("gate.safetensors"),
    "JSON truncated": truncate("gate.json"),
    "JSON missing": remove("gate.json"),
    "not text": lambda folder: (folder / "gate.json").write_bytes(b"\xff\xfe\x00"),
    "JSON of another program": lambda folder: (folder / "gate.json").write_text('{"name": "x"}'),
    "a list": rewrite(lambda body: [1, 2]),
    "another format": rewrite(lambda body: body.update(format=2)),
    "no gate": rewrite(lambda body: body.update(gate=3)),
    "report and gate exchanged": rewrite(
        lambda body: body.update(gate=body["report"], report=body["gate"])
    ),
    "an unknown kind": rewrite(lambda body: body["gate"].update(failure={"is": "os.system"})),
    "an unknown field": rewrite(lambda body: body["gate"]["settings"].update(speed=9)),
    "a field missing": rewrite(lambda body: body["gate"].pop("threshold")),
    "a setting out of range": rewrite(lambda body: body["gate"]["settings"].update(folds=0)),
    "nested without end": lambda folder: (folder / "gate.json").write_text("[" * 100_000),
    "a pickle only": leave_a_pickle_only,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_folder_that_cannot_be_read_says_so_and_what_to_do(folder, harm):
    harm(folder)
    with pytest.raises(UnreadableArtifact, match=r"gate.*Fit it again"):
        GECEGate.load(folder, llm=honest_llm(), encoder=Letters())


def test_a_missing_folder_and_a_file_are_no_gates(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(UnreadableArtifact, match="Fit it again"):
            GECEGate.load(path, llm=honest_llm())


def test_a_gate_is_loaded_and_asked_without_scikit_learn_or_the_metrics(tmp_path):
    GECEGate.fit(questions(), llm=honest_llm(), settings=GECESettings(scorer="product")).save(
        tmp_path
    )
    script = (
        "import sys\n"
        "from ltrag_plugins.gece import GECEGate\n"
        "from ltrag_plugins.llm.scripted import ScriptedLLM\n"
        "from ltrag_plugins.types import Generation, Token\n"
        "llm = ScriptedLLM(lambda p: Generation('a', (Token('a', -0.1, alternatives=(('a', -0.1), "
        "('b', -3.0))),)), name='honest')\n"
        f"GECEGate.load({str(tmp_path)!r}, llm=llm).decide('Who?')\n"
        "heavy = {'sklearn', 'nltk', 'sacrebleu', 'torch', 'langchain_core', 'llama_index', "
        "'wordfreq'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
