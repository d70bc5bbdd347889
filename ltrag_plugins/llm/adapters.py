"""LoRA adapters that `ltrag_plugins.training` wrote: checked, then merged into the weights.

Beside `adapter_model.safetensors` lies `finetune.json`, which names the base model by the
fingerprint of its weights and the two files by their hashes. No pickle is ever read.
"""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, cast

from ltrag_plugins.errors import ArtifactMismatch, UnreadableArtifact, missing_extra
from ltrag_plugins.llm.loading import fingerprints, quiet

try:
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
except ImportError as error:
    raise missing_extra("peft", "train") from error

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from transformers import PreTrainedModel

FORMAT = 1
MANIFEST, WEIGHTS, CONFIG = "finetune.json", "adapter_model.safetensors", "adapter_config.json"
SHAPE = ("r", "lora_alpha", "target_modules", "layers_to_transform", "layers_pattern", "bias")
"""What of the adapter's configuration is read; the rest of such a file may name code to import."""


def merged(model: PreTrainedModel, folder: str | Path) -> tuple[PreTrainedModel, str]:
    """The model with the adapter in its weights, which are changed, and the adapter's short hash.

    Raises:
        UnreadableArtifact: the folder holds no adapter, or one that was changed.
        ArtifactMismatch: the adapter was trained for other weights.
    """
    manifest, config, content = read_adapter(Path(folder).expanduser())
    check_base(manifest, model, Path(folder))
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the libraries', about one another
            wrapped = get_peft_model(model, LoraConfig(**config, inference_mode=True))
            found: Any = set_peft_model_state_dict(wrapped, load_tensors(content))
            if found.unexpected_keys or any("lora_" in key for key in found.missing_keys):
                raise ValueError("its matrices are not those its configuration names")
            # Any: merge_and_unload is the tuner's, which the wrapper hands on by name
            whole = cast(Any, wrapped).merge_and_unload(safe_merge=True)
    except (ValueError, TypeError, RuntimeError, KeyError, SafetensorError) as error:
        raise UnreadableArtifact(f"the adapter in {folder} cannot be applied: {error}") from error
    return whole.eval(), hashlib.sha256(content).hexdigest()[:8]


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The manifest, the shape of the adapter, and the bytes of its weights, all checked.

    Raises:
        UnreadableArtifact: something is missing or was changed.
    """
    manifest = read_manifest(folder)
    if manifest["method"] != "lora":
        raise UnreadableArtifact(
            f"{folder} holds a whole model, not an adapter; load it as the model itself "
            "(--model, or TransformersLLM.load)."
        )
    try:
        content, config = (folder / WEIGHTS).read_bytes(), (folder / CONFIG).read_bytes()
        for name, part in ((WEIGHTS, content), (CONFIG, config)):
            if hashlib.sha256(part).hexdigest() != manifest["files"][name]:
                raise ValueError(f"{name} is not the file that {MANIFEST} belongs to")
        told = json.loads(config)
        return manifest, {k: told[k] for k in SHAPE if told.get(k) is not None}, content
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableArtifact(
            f"the adapter in {folder} cannot be read ({type(error).__name__}: {error}). Train it "
            "again, or restore the folder."
        ) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `finetune.json` says.

    Raises:
        UnreadableArtifact: it is missing, or not what this version writes.
    """
    if not folder.is_dir():
        raise UnreadableArtifact(
            f"there is no folder {str(folder)!r}; name the one that 'ltrag sgic finetune' wrote."
        )
    if not (folder / MANIFEST).is_file():
        raise UnreadableArtifact(_foreign(folder))
    try:
        told = json.loads((folder / MANIFEST).read_bytes())
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']!r}, where this version reads {FORMAT}")
        if not {"method", "files", "base"} <= told.keys() or "fingerprints" not in told["base"]:
            raise ValueError("it does not say what was trained for which model")
        return told
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableArtifact(
            f"{folder / MANIFEST} cannot be read ({type(error).__name__}: {error}). Train again, "
            "or restore the folder."
        ) from error


def check_base(manifest: dict[str, Any], model: PreTrainedModel, folder: Path) -> None:
    """Let pass the weights that the adapter was trained beside, in whatever precision.

    Raises:
        ArtifactMismatch: they are others.
    """
    base, found = manifest["base"], fingerprints(model)
    if any(base["fingerprints"].get(name) == found[name] for name in found):
        return
    raise ArtifactMismatch(
        f"the adapter in {folder} was trained for {base.get('label')!r} with weights "
        f"{base['fingerprints'].get('float32')}; this model's are {found['float32']}. Load the "
        "model it was trained for, or train an adapter for this one."
    )


def _foreign(folder: Path) -> str:
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        return (
            f"{folder} has no {MANIFEST}, and its weights are pickled, which can run code and is "
            "never read; use an adapter that 'ltrag sgic finetune' wrote."
        )
    return (
        f"{folder} has no {MANIFEST}, so nothing tells which model it is for. Name a folder that "
        "'ltrag sgic finetune' finished; an adapter made elsewhere has to be merged with peft "
        "and saved as a model first."
    )
