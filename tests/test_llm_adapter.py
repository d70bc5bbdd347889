"""Adapters: merged into the weights they were trained beside, and into no others."""

import copy
import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.llm.loading import fingerprints
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training import FinetuneSettings, finetune
from tests.finetune_parts import EXAMPLES, TAUGHT, tiny_llm
from tests.import_parts import python

SETTINGS = FinetuneSettings(steps=3, held_out=0, batch=4, learning_rate=1e-2, warmup=0)


@pytest.fixture(scope="module")
def llm(smollm2):
    return tiny_llm(smollm2.tokenizer)


@pytest.fixture(scope="module")
def base(llm, tmp_path_factory):
    """The model as a folder."""
    folder = tmp_path_factory.mktemp("base")
    for part in (llm.model, llm.tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[None, 1], ids=["all layers", "the last layer"])
def trained(request, llm, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "adapter"
    finetune(EXAMPLES, llm, out=out, settings=replace(SETTINGS, layers=request.param))
    return out


def logprobs(llm):
    scored = llm.score(list(TAUGHT), list(TAUGHT.values()))
    return [token.logprob for one in scored for token in one.tokens]


def test_merged_it_says_what_peft_says_with_the_adapter_beside_the_weights(llm, base, trained):
    beside = PeftModel.from_pretrained(copy.deepcopy(llm.model), trained).eval()
    merged = TransformersLLM.load(base, device="cpu", adapter=trained)
    expected = []
    for question, answer in TAUGHT.items():
        prompt, said = llm.prompting.ids(question), llm.tokenizer.encode(answer)
        with torch.no_grad():
            logits = beside(torch.tensor([prompt + said])).logits[0].log_softmax(-1)
        expected += [logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(said)]
    assert logprobs(merged) == pytest.approx(expected, abs=1e-4)
    assert logprobs(merged) != pytest.approx(logprobs(llm), abs=1e-2)
    assert {type(part) for part in merged.model.modules()} == {type(p) for p in llm.model.modules()}


def test_its_name_tells_it_from_the_model_alone(llm, base, trained):
    plain = TransformersLLM.load(base, device="cpu")
    assert fingerprints(plain.model) == fingerprints(llm.model)
    merged = TransformersLLM.load(base, device="cpu", adapter=trained)
    assert merged.name != plain.name
    assert merged.name == TransformersLLM.load(base, device="cpu", adapter=str(trained)).name


def test_it_goes_with_the_same_weights_in_another_precision(base, trained):
    half = TransformersLLM.load(base, device="cpu", dtype="bfloat16", adapter=trained)
    assert half.model.dtype == torch.bfloat16


def test_it_goes_with_no_other_model(trained, smollm2, tmp_path):
    other = tiny_llm(smollm2.tokenizer, seed=1)
    for part in (other.model, other.tokenizer):
        part.save_pretrained(tmp_path)
    with pytest.raises(ArtifactMismatch, match="was trained for 'tiny'"):
        TransformersLLM.load(tmp_path, adapter=trained)
    with pytest.raises(ArtifactMismatch, match="was trained for 'tiny'"):
        embedded(device="cpu", adapter=trained)


FILES = "adapter_model.safetensors", "adapter_config.json"
MANIFEST = "finetune.json"


def changed(adapter: Path, name: str) -> None:
    content = (adapter / name).read_bytes()
    (adapter / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def with_manifest(adapter: Path, **told: object) -> None:
    manifest = json.loads((adapter / MANIFEST).read_text())
    (adapter / MANIFEST).write_text(json.dumps(manifest | told))


def misnaming(adapter: Path) -> None:
    told = json.loads((adapter / FILES[1]).read_text())
    content = json.dumps(told | {"target_modules": ["q_proj"]}).encode()
    (adapter / FILES[1]).write_bytes(content)
    files = json.loads((adapter / MANIFEST).read_text())["files"]
    with_manifest(adapter, files=files | {FILES[1]: hashlib.sha256(content).hexdigest()})


def pickled(adapter: Path) -> None:
    (adapter / MANIFEST).unlink()
    (adapter / FILES[0]).rename(adapter / "adapter_model.bin")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        *((partial(changed, name=name), f"{name} is not the file") for name in FILES),
        *((lambda adapter, name=name: (adapter / name).unlink(), name) for name in FILES),
        *(
            (lambda adapter, text=text: (adapter / MANIFEST).write_text(text), "cannot be read")
            for text in ("{", "[]", "{}", '{"format": 99}', '{"format": 1}')
        ),
        (lambda adapter: (adapter / MANIFEST).unlink(), "nothing tells which model it is for"),
        (shutil.rmtree, "there is no folder"),
        (pickled, "pickled"),
        (misnaming, "not those its configuration names"),
        (partial(with_manifest, method="full"), "holds a whole model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_sound_adapter_is_refused_by_name(base, trained, tmp_path, harm, said):
    adapter = shutil.copytree(trained, tmp_path / "adapter")
    harm(adapter)
    with pytest.raises(UnreadableArtifact) as caught:
        TransformersLLM.load(base, device="cpu", adapter=adapter)
    assert said in str(caught.value)


@pytest.mark.parametrize("package", ["peft", "trl"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package):
    told = python(
        """
        from ltrag_plugins.errors import MissingExtra
        try:
            import ltrag_plugins.training.tuning
        except MissingExtra as error:
            print(error)
        """,
        without=(package,),
    )
    assert told.endswith("pip install 'ltrag-plugins[train]'")
