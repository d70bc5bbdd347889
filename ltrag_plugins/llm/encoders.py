"""Models of sentence-transformers, and any encoder of transformers, as encoders."""

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from jaxtyping import Float32

from ltrag_plugins.errors import ModelError, listed, missing_extra
from ltrag_plugins.llm.base import Shared
from ltrag_plugins.llm.loading import chosen_device, fingerprint, from_hub, quiet

try:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("sentence-transformers", "local") from error

_AT_ONCE = 32  # texts


class _LocalEncoder(Shared):
    def __init__(self, model: Any, *, label: str = "encoder") -> None:
        self.model, self._label, self._lock = model, label, threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._label!r})"


@final
class SentenceTransformerEncoder(_LocalEncoder):
    """Texts to vectors of length 1; an `Encoder`. Calls from several threads take turns.

    Args:
        model: a SentenceTransformer, not changed. Texts longer than it reads are cut at its limit.
        label: what `name` starts with.
    """

    @classmethod
    def load(cls, source: str | Path, *, device: str = "auto", label: str | None = None) -> Self:
        """From a folder or a hub name; "auto" takes CUDA if there is one, else MPS, else CPU."""
        target = str(chosen_device(device))
        with quiet(), from_hub(source) as (how, adapting):
            model = SentenceTransformer(str(source), device=target, model_kwargs=adapting, **how)
        return cls(model.eval(), label=label or Path(source).name)

    @property
    def name(self) -> str:
        """Label, and fingerprint of the weights and of the settings that change vectors."""
        return self._name

    @cached_property
    def _name(self) -> str:
        model = self.model
        settings = {
            "max_seq_length": model.max_seq_length,
            "truncate_dim": model.truncate_dim,
            "prompts": dict(model.prompts),
            "prompt": model.default_prompt_name,
            "modules": [  # the first is the weights', and the tokenizer's
                [type(module).__name__, getattr(module, "get_config_dict", dict)()]
                for module in list(model)[1:]
            ],
        }
        return f"{self._label}@{fingerprint(model, settings=settings)}"

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row of length 1 for each text, in the order of the texts."""
        texts = listed(texts, "texts")
        if not texts:
            return np.zeros((0, self.model.get_embedding_dimension()), dtype=np.float32)
        with self._lock:
            how = {"batch_size": _AT_ONCE, "normalize_embeddings": True, "show_progress_bar": False}
            rows = self.model.encode(texts, **how)
        return rows.astype(np.float32, copy=False)


@final
class TransformersEncoder(_LocalEncoder):
    """The vector of a model's first token ([CLS]), not normalized; an `Encoder`. What the DUR paper
    uses, with bert-base-uncased. Calls from several threads take turns.

    Args:
        model: any encoder of transformers with `last_hidden_state`; it is not changed. Texts longer
            than it reads are cut at its limit.
        tokenizer: the one it was trained with.
        label: what `name` starts with.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, label: str = "encoder"
    ) -> None:
        super().__init__(model, label=label)
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, source: str | Path, *, device: str = "auto", label: str | None = None) -> Self:
        """From a folder or a hub name; "auto" takes CUDA if there is one, else MPS, else CPU."""
        with quiet(), from_hub(source) as (how, adapting):
            tokenizer = AutoTokenizer.from_pretrained(source, **how)
            model = AutoModel.from_pretrained(source, **how, **adapting)
        model = model.eval().to(chosen_device(device))
        return cls(model, tokenizer, label=label or Path(source).name)

    @property
    def name(self) -> str:
        """Label, pooling and fingerprint of the weights."""
        return self._name

    @cached_property
    def _name(self) -> str:
        return f"{self._label}/cls@{fingerprint(self.model)}"

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """One row for each text, in the order of the texts."""
        texts = listed(texts, "texts")
        if self.model.training:
            why = f"{self._label} is in training mode, where dropout would change its vectors"
            raise ModelError(f"{why}; call model.eval() first.")
        rows = np.zeros((len(texts), self.model.config.hidden_size), dtype=np.float32)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        places = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        # RoBERTa's positions begin after that of its padding
        taken = -1 if (padding := getattr(places, "padding_idx", None)) is None else padding
        most = self.model.config.max_position_embeddings - taken - 1
        limit = min(self.tokenizer.model_max_length, most)
        with self._lock, torch.inference_mode():
            for start in range(0, len(texts), _AT_ONCE):
                members = by_length[start : start + _AT_ONCE]
                some = [texts[i] for i in members]
                tokens = self.tokenizer(
                    some, padding=True, truncation=True, max_length=limit, return_tensors="pt"
                ).to(self.model.device)
                first = self.model(**tokens).last_hidden_state[:, 0]
                rows[members] = first.float().cpu().numpy()
        return rows
