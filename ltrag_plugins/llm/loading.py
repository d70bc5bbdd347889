"""Load a causal language model and its tokenizer: from a folder, a hub, or a GGUF file."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ltrag_plugins.errors import InvalidInput, missing_extra

try:
    import torch
    from torch import nn
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.utils import logging as transformers_logging
except ImportError as error:
    raise missing_extra("transformers", "local") from error

SAMPLED = 64
"""Numbers of each weight that go into the fingerprint."""


def load_model(
    source: str | Path, *, device: str = "auto", dtype: str | torch.dtype = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, ready to run, and its tokenizer.

    Args:
        source: a folder in transformers' format, a model's name on the hub, or a path that
            ends in ``.gguf``.
        device: "auto" takes CUDA if there is one, else MPS, else the CPU.
        dtype: a torch dtype or its name; "auto" takes float32 on the CPU, elsewhere the
            model's own half precision, or bfloat16 where it has none; "fast" takes bfloat16
            on a CPU that computes in it as well, which reads and writes about twice as fast
            there, with log-probabilities good to about two digits.

    Raises:
        InvalidInput: the path does not exist, the dtype is unknown, or the model brings code of
            its own.
    """
    where, names = _located(source)
    target = chosen_device(device)
    number = _chosen_dtype(dtype, target)
    safe: dict[str, Any] = {"trust_remote_code": False}  # else transformers asks on the terminal
    with quiet(), _no_code_of(source):
        tokenizer = AutoTokenizer.from_pretrained(where, **names, **safe)
        # Any: the classes of models are annotated so that their own methods do not type-check
        model: Any = AutoModelForCausalLM.from_pretrained(
            where, dtype=number, **_unpacked(names), **safe
        )
    if names:  # the weights are plain numbers now; what still calls them quantized would not save
        model.hf_quantizer = None
        vars(model.config).pop("quantization_config", None)
    if dtype in ("auto", "fast") and target.type != "cpu" and model.dtype == torch.float32:
        model = model.to(torch.bfloat16)
    return model.to(target).eval(), tokenizer


@contextmanager
def _no_code_of(source: str | Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InvalidInput(
            f"the model {str(source)!r} brings Python code of its own, which is never run here; "
            "read that code, load the model yourself, and hand it in as "
            "TransformersLLM(model, tokenizer)"
        ) from error


def chosen_device(device: str) -> torch.device:
    """The device itself, or for "auto" the best there is."""
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def fingerprint(
    model: nn.Module,
    *,
    rounded: torch.dtype = torch.float32,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Twelve hexadecimal digits that change with the weights or the architecture.

    Of each weight, its name, shape, and numbers at regular distances are read: cheap, the
    same in every process, and any training step changes it.

    Args:
        rounded: the numbers are rounded to this first.
        settings: what else they are to change with.
    """
    digest = hashlib.sha256(type(model).__name__.encode())
    if settings is not None:
        digest.update(json.dumps(settings, sort_keys=True, default=repr).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(json.dumps([name, list(weight.shape)]).encode())
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // SAMPLED)]
        digest.update(some.to("cpu", rounded).to(torch.float32).numpy().tobytes())
    return digest.hexdigest()[:12]


def fingerprints(model: nn.Module) -> dict[str, str]:
    """The fingerprint in each precision: weights that were loaded in two of them share one."""
    precisions = (torch.float32, torch.bfloat16, torch.float16)
    return {str(p).removeprefix("torch."): fingerprint(model, rounded=p) for p in precisions}


def adapted(model: PreTrainedModel, adapter: str | Path, label: str) -> tuple[PreTrainedModel, str]:
    """The model with an adapter merged into its weights, and a label that tells which; see
    `adapters.merged`."""
    # here, because only whoever has an adapter needs the package that reads it
    from ltrag_plugins.llm.adapters import merged

    model, digest = merged(model, adapter)
    return model, f"{label}+{digest}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and load reports; as before afterwards."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _located(source: str | Path) -> tuple[str, dict[str, str]]:
    path = Path(source).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InvalidInput(f"there is no GGUF file {str(path)!r}; give the path of one.")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InvalidInput(
                f"the folder {str(path)!r} has no config.json, so it is not a model in "
                "transformers' format; save one there with model.save_pretrained, or name a "
                ".gguf file."
            )
        return str(path), {}
    if isinstance(source, Path) or path.is_absolute() or str(source).startswith((".", "~")):
        raise InvalidInput(
            f"there is no folder {str(path)!r}; give a folder, a hub name or a .gguf."
        )
    return str(source), {}


def _unpacked(names: dict[str, str]) -> dict[str, Any]:
    return names | {"quantization_config": GgufConfig(dequantize=True)} if names else {}


def _computes_in_bfloat16(device: torch.device) -> bool:
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # since torch 2.12
        return False
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def _chosen_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "fast":
        return torch.bfloat16 if _computes_in_bfloat16(device) else _chosen_dtype("auto", device)
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    named = getattr(torch, dtype, None)
    if not isinstance(named, torch.dtype):
        raise InvalidInput(
            f"dtype {dtype!r} is none of torch's; say 'float32', 'bfloat16', 'auto' or 'fast'."
        )
    return named
