"""Load a causal language model and its tokenizer: from a folder, a hub, or a GGUF file.

LoRA adapters of `ltrag_plugins.training.finetune` are checked (their `finetune.json` names the base
model by its fingerprint and the files by their hashes), then merged. No pickle is ever read.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ltrag_plugins.artifacts import DAMAGE, reading
from ltrag_plugins.errors import ArtifactMismatch, InvalidInput, UnreadableArtifact, missing_extra

try:
    import torch
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError
    from safetensors.torch import load as load_tensors
    from torch import nn
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.pytorch_utils import Conv1D
    from transformers.utils import logging as transformers_logging
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error

FORMAT = 1
MANIFEST, WEIGHTS, CONFIG = "finetune.json", "adapter_model.safetensors", "adapter_config.json"

_SAMPLED = 64  # numbers of each weight that go into the fingerprint


def load_model(
    source: str | Path,
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    adapter: str | Path | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str]:
    """Model, tokenizer, and the short hash of the adapter merged in; see `TransformersLLM.load`."""
    where, names = _located(source)
    target = chosen_device(device)
    number = _chosen_dtype(dtype, target)
    unpacked = {"quantization_config": GgufConfig(dequantize=True)} if names else {}
    try:
        with quiet(), from_hub(where) as (safe, adapting):
            tokenizer = AutoTokenizer.from_pretrained(where, **names, **safe)
            model: Any = AutoModelForCausalLM.from_pretrained(
                where, dtype=number, **names, **unpacked, **safe, **adapting
            )
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InvalidInput(
            f"the model {str(source)!r} brings Python code of its own, which is never run here; "
            "read it, load the model yourself, and hand it in as TransformersLLM(model, tokenizer)"
        ) from error
    if names:  # the weights are plain numbers now; what still calls them quantized would not save
        model.hf_quantizer = None
        vars(model.config).pop("quantization_config", None)
    if dtype in ("auto", "fast") and target.type != "cpu" and model.dtype == torch.float32:
        model = model.to(torch.bfloat16)
    model = model.to(target).eval()
    return model, tokenizer, _merge_adapter(model, adapter) if adapter is not None else ""


def chosen_device(device: str) -> torch.device:
    """The device itself, or for "auto" the best there is."""
    if device == "auto":
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        device = "cuda" if torch.cuda.is_available() else best
    return torch.device(device)


def fingerprint(
    model: nn.Module,
    *,
    rounded: torch.dtype = torch.float32,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Twelve hexadecimal digits that change with the weights, the architecture and `settings`. Of
    each weight, its name, shape, and numbers at regular distances are read, `rounded` first."""
    digest = hashlib.sha256(type(model).__name__.encode())
    if settings is not None:
        digest.update(json.dumps(settings, sort_keys=True, default=repr).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(json.dumps([name, list(weight.shape)]).encode())
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _SAMPLED)]
        digest.update(some.to("cpu", rounded).to(torch.float32).numpy().tobytes())
    return digest.hexdigest()[:12]


def fingerprints(model: nn.Module) -> dict[str, str]:
    """The fingerprint in each precision: weights that were loaded in two of them share one."""
    precisions = (torch.float32, torch.bfloat16, torch.float16)
    return {str(p).removeprefix("torch."): fingerprint(model, rounded=p) for p in precisions}


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Modules, settings and hooks of its own over the same weight memory; in evaluation mode."""
    # of its own over the same memory, so its requires_grad, grad and dtype are not the caller's
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for weight in model.parameters():
        floating = weight.is_floating_point()
        memo[id(weight)] = nn.Parameter(weight.detach(), False) if floating else weight
    return copy.deepcopy(model, memo).eval()


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and load reports; as before afterwards."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def from_hub(source: str | Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What transformers is told beside a folder or a hub name: to run no code, about which it would
    ask on the terminal, and to look here alone where the hub cannot be reached, for which it would
    wait most of a minute; and what its models are told of adapters. Raises `InvalidInput` where the
    model is not here either."""
    trouble = None if Path(source).exists() else _hub_trouble(str(source))
    try:
        here = {"local_files_only": trouble is not None}
        yield {"trust_remote_code": False, **here}, {"adapter_kwargs": here}
    except OSError as error:
        if trouble is None:
            raise
        remedy = "connect this machine, or give a folder or a .gguf file that is here."
        gone = f"the model {str(source)!r} is not, or not whole, here, and the hub is not reached"
        raise InvalidInput(f"{gone} ({trouble}); {remedy}") from error


def _hub_trouble(name: str) -> Exception | None:
    """What keeps the hub from being asked about a model."""
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except (HfHubHTTPError, ValueError):  # it answers, or that is no name of a model
        return None
    except Exception as error:  # of httpx or its successor, or that the user wants no network
        return error
    return None


def _located(source: str | Path) -> tuple[str, dict[str, str]]:
    """What transformers is to load, and with which further arguments."""
    path = Path(source).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InvalidInput(f"there is no GGUF file {str(path)!r}; give the path of one.")
        return str(path.parent), {"gguf_file": path.name}
    if (path / "config.json").is_file():
        return str(path), {}
    named = isinstance(source, Path) or path.is_absolute() or str(source).startswith((".", "~"))
    if path.is_dir() or named:
        here = "has no config.json" if path.is_dir() else "is no folder"
        why = here if path.exists() else "is not there"
        remedy = "give a folder that model.save_pretrained wrote, a hub name or a .gguf file."
        raise InvalidInput(f"{str(path)!r} {why}; {remedy}")
    return str(source), {}


def _chosen_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    on_cpu = device.type == "cpu"
    able: Any = getattr(torch.cpu, "get_capabilities", dict)()  # since torch 2.12
    if dtype == "fast" and on_cpu and (able.get("avx512_bf16") or able.get("amx_bf16")):
        return torch.bfloat16
    if dtype in ("auto", "fast"):
        return torch.float32 if on_cpu else "auto"
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(named, torch.dtype):
        some = "say 'float32', 'bfloat16', 'auto' or 'fast'."
        raise InvalidInput(f"dtype {dtype!r} is none of torch's; {some}")
    return named


@torch.no_grad()
def _merge_adapter(model: PreTrainedModel, folder: str | Path) -> str:
    """Merge an adapter into the model's weights, which are changed, as W + alpha / r B A (Hu et
    al., ICLR 2022, "LoRA: Low-Rank Adaptation of Large Language Models", eq. 3); its short hash."""
    folder = Path(folder).expanduser()
    manifest, config, content = read_adapter(folder)
    if manifest["method"] != "lora":
        why = f"{folder} holds a whole model, not an adapter; load it as the model itself"
        raise UnreadableArtifact(f"{why} (--model, or TransformersLLM.load).")
    base, found = manifest["base"], fingerprints(model)
    # the weights that the adapter was trained beside, in whatever precision
    if all(base["fingerprints"].get(name) != digest for name, digest in found.items()):
        raise ArtifactMismatch(
            f"the adapter in {folder} was trained for {base.get('label')!r} with weights "
            f"{base['fingerprints'].get('float32')}; this model's are {found['float32']}. Load "
            "the model it was trained for, or train an adapter for this one."
        )
    try:
        tensors, scale = load_tensors(content), config["lora_alpha"] / config["r"]
        ends = tuple(f".{name}" for name in config["target_modules"])
        for name in {key.partition(".lora_")[0] for key in tensors}:
            a, b = (tensors.pop(f"{name}.lora_{x}.weight").float() for x in "AB")
            module = model.get_submodule(name.removeprefix("base_model.model."))
            if not name.endswith(ends) or not isinstance(module, nn.Linear | Conv1D):
                raise ValueError("its matrices are not those its configuration names")
            change = scale * (b @ a)
            if not change.isfinite().all():
                raise ValueError("it holds NaN or infinity")
            change = change.T if isinstance(module, Conv1D) else change
            module.weight.add_(change.to(module.weight))
    except (*DAMAGE, RuntimeError) as error:
        raise UnreadableArtifact(f"the adapter in {folder} cannot be applied: {error}") from error
    return hashlib.sha256(content).hexdigest()[:8]


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """`finetune.json`, and with method "lora" the adapter's shape and its weights, all checked."""
    if not (folder / MANIFEST).is_file():
        why = "nothing tells which model it is for"
        if not folder.is_dir():
            why = "there is no folder of that name"
        elif [*folder.glob("*.bin"), *folder.glob("*.pt")]:
            why = "its weights are pickled, which can run code and is never read"
        raise UnreadableArtifact(
            f"{folder} has no {MANIFEST}: {why}. Name a folder that 'ltrag calibrate finetune' "
            "finished; an adapter made elsewhere has to be merged with peft and saved as a model."
        )
    remedy = "Train again, or restore the folder."
    with reading(f"{folder}: the adapter or its {MANIFEST} cannot be read", remedy):
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r}, where this version reads {FORMAT}")
        hashes, _ = manifest["files"], manifest["base"]["fingerprints"]
        if manifest["method"] != "lora":
            return manifest, {}, b""
        found = {part: (folder / part).read_bytes() for part in (WEIGHTS, CONFIG)}
        for part, content in found.items():
            if hashlib.sha256(content).hexdigest() != hashes[part]:
                raise ValueError(f"{part} is not the file that {MANIFEST} belongs to")
        return manifest, dict(json.loads(found[CONFIG])), found[WEIGHTS]
