"""Adapters: merged into the weights they were trained beside, and into no others."""

import copy
import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from peft import PeftModel

from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact
from ltrag_plugins.llm.embedded import embedded
from ltrag_plugins.llm.loading import fingerprints
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.training import FinetuneSettings, finetune
from tests.finetune_parts import EXAMPLES, TAUGHT, tiny_llm

SETTINGS = FinetuneSettings(steps=3, held_out=0, batch=4, learning_rate=1e-2, warmup=0)


@pytest.fixture(scope="module")
def llm(smollm2):
    return tiny_llm(smollm2.tokenizer)


def saved(llm, folder):
    """The model as a folder."""
    for part in (llm.model, llm.tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(llm, tmp_path_factory):
    return saved(llm, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module", params=[None, 1], ids=["all layers", "the last layer"])
def trained(request, llm, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "adapter"
    finetune(EXAMPLES, llm, out=out, settings=replace(SETTINGS, layers=request.param))
    return out


@pytest.fixture
def adapter(trained, tmp_path):
    """A copy to break."""
    return shutil.copytree(trained, tmp_path / "adapter")


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


def test_its_name_tells_it_from_the_model_alone_in_whatever_precision(llm, base, trained):
    plain = TransformersLLM.load(base, device="cpu")
    assert fingerprints(plain.model) == fingerprints(llm.model)
    merged = TransformersLLM.load(base, device="cpu", adapter=trained)
    assert merged.name != plain.name
    assert merged.name == TransformersLLM.load(base, device="cpu", adapter=str(trained)).name
    half = TransformersLLM.load(base, device="cpu", dtype="bfloat16", adapter=trained)
    assert half.model.dtype == torch.bfloat16


def test_it_goes_with_no_other_model(trained, smollm2, tmp_path):
    saved(tiny_llm(smollm2.tokenizer, seed=1), tmp_path)
    for load in (partial(TransformersLLM.load, tmp_path), embedded):
        with pytest.raises(ArtifactMismatch, match="was trained for 'tiny'"):
            load(device="cpu", adapter=trained)


def manifest_says(adapter, **changed):
    told = json.loads((adapter / "finetune.json").read_text()) | changed
    (adapter / "finetune.json").write_text(json.dumps(told))


def with_a_bit_flipped(name):
    def harm(adapter):
        content = (adapter / name).read_bytes()
        (adapter / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    return harm


def pickled(adapter):
    (adapter / "finetune.json").unlink()
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")


def of_other_matrices(adapter):
    told = json.loads((adapter / "adapter_config.json").read_text())
    content = json.dumps(told | {"target_modules": ["q_proj"]}).encode()
    (adapter / "adapter_config.json").write_bytes(content)
    files = json.loads((adapter / "finetune.json").read_text())["files"]
    digest = hashlib.sha256(content).hexdigest()
    manifest_says(adapter, files=files | {"adapter_config.json": digest})


WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        *((with_a_bit_flipped(name), f"{name} is not the file") for name in (WEIGHTS, CONFIG)),
        (lambda adapter: (adapter / WEIGHTS).unlink(), WEIGHTS),
        (lambda adapter: (adapter / CONFIG).unlink(), CONFIG),
        *(
            (
                lambda adapter, content=content: (adapter / "finetune.json").write_text(content),
                "finetune.json cannot be read",
            )
            for content in ("{", "[]", "{}", '{"format": 99}', '{"format": 1}')
        ),
        (lambda adapter: (adapter / "finetune.json").unlink(), "nothing tells which model it is"),
        (shutil.rmtree, "there is no folder"),
        (pickled, "pickled"),
        (of_other_matrices, "not those its configuration names"),
        (lambda adapter: manifest_says(adapter, method="full"), "holds a whole model"),
    ],
)
def test_what_is_no_sound_adapter_is_named(base, adapter, harm, why):
    harm(adapter)
    with pytest.raises(UnreadableArtifact, match=why):
        TransformersLLM.load(base, device="cpu", adapter=adapter)
