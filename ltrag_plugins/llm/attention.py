"""How much of the attention of the position that answers falls on each document of a prompt.

Only the last position's row of weights is ever computed: all tokens before it go into the key
and value cache with the model's own attention, then one token is read with eager attention, the
implementation that hands out its weights. The model handed in is not touched: this runs on a
twin, modules of its own over the same weight memory.

References:
    Chen et al. (SGIC), section 5.8, figure 6 and table 10.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float

from ltrag_plugins.errors import InvalidInput, ModelError, missing_extra
from ltrag_plugins.llm.prompting import Prompting
from ltrag_plugins.llm.transformers import TransformersLLM

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@dataclass(frozen=True, slots=True)
class AttentionShares:
    """Where the answer position looks: `documents` and `elsewhere` add up to 1."""

    documents: tuple[float, ...]
    """Of each document, summed over its tokens, in [0, 1]. A longer one has more to look at."""
    elsewhere: float
    """On the rest of the prompt (instructions, question, the first token), in [0, 1]."""

    @property
    def relative(self) -> tuple[float, ...]:
        """Of what falls on documents, the share of each; 0 for all where nothing does."""
        total = sum(self.documents)
        return tuple(share / total if total else 0.0 for share in self.documents)


def attention_shares(
    llm: TransformersLLM,
    prompt: str,
    documents: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    chat: bool | None = None,
    system: str | None = None,
) -> AttentionShares:
    """The attention from the position that predicts the first answer token, by document.

    Mean over all heads of the layers. The paper says neither which layers and heads it took, nor
    whether it summed over a document's tokens: all of them, and a sum, are our reading.

    Args:
        prompt: as `llm.generate` takes it; wrapped in the chat template in the same way.
        documents: texts as they stand in the prompt, in its order.
        layers: which layers, from 0, negative from the last; None: all.
        chat, system: what `llm` was built with.

    Raises:
        InvalidInput: a document does not stand in the prompt after the one before it, or is
            empty; no such layer; `llm` has no weights here, or wraps its prompts otherwise.
        PromptTooLong: the model reads no prompt of this length.
        ModelError: the model hands out no attention weights.
    """
    if not isinstance(llm, TransformersLLM):
        raise InvalidInput(
            f"attention needs local weights, got {type(llm).__name__}; give a TransformersLLM (of "
            "a CachedLLM its `llm`)"
        )
    prompting = _prompting(llm, chat, system)
    spans = _document_spans(prompt, documents)
    ids, offsets, start = _located(prompting, prompt)
    weights = _last_row(llm.model, ids, layers)
    taken = torch.zeros(len(ids), dtype=torch.bool)
    shares = []
    for first, end in spans:
        inside = _inside(offsets, start + first, start + end) & ~taken
        taken |= inside
        shares.append(float(weights[inside].sum()))
    return AttentionShares(tuple(shares), max(0.0, 1.0 - sum(shares)))


def _prompting(llm: TransformersLLM, chat: bool | None, system: str | None) -> Prompting:
    found = Prompting.of(llm.tokenizer, llm.model.config, chat=chat, system=system)
    if not llm.name.endswith(f"/{found.name}"):
        raise InvalidInput(
            f"{llm.name} wraps its prompts otherwise than {found.name!r}; give the chat=... and "
            "system=... that it was built with"
        )
    if not llm.tokenizer.is_fast:
        raise InvalidInput(
            f"the tokenizer {type(llm.tokenizer).__name__} does not tell where its tokens stand in "
            "the text; load the fast one (use_fast=True)"
        )
    return found


def _document_spans(prompt: str, documents: Sequence[str]) -> list[tuple[int, int]]:
    """First character of each document, and the one after its last."""
    if isinstance(documents, str):
        raise InvalidInput("documents is a str; give a list of texts")
    spans, end = [], 0
    for number, text in enumerate(documents, 1):
        found = prompt.find(text, end) if text else -1
        if found < 0:
            raise InvalidInput(
                f"document {number} ({text[:40]!r}) does not stand in the prompt after the one "
                "before it; give the texts as the prompt shows them (cut, on one line) in its order"
            )
        end = found + len(text)
        spans.append((found, end))
    return spans


def _located(prompting: Prompting, prompt: str) -> tuple[list[int], list[tuple[int, int]], int]:
    """Tokens, their characters in the text that the model reads, and where the prompt begins."""
    ids, text, before = prompting.ids(prompt), prompt, 0
    prompting.check(prompt, len(ids), 0)
    if prompting.chat:
        messages = [{"role": "user", "content": prompt}]
        if prompting.system is not None:
            messages.insert(0, {"role": "system", "content": prompting.system})
        text = str(
            prompting.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        )
        before = _before(text, prompt)
    coded = prompting.tokenizer(
        text, add_special_tokens=not prompting.chat, return_offsets_mapping=True
    )
    if list(coded["input_ids"]) != ids:
        raise ModelError("the tokens that have places in the text are not those that are read")
    return ids, list(coded["offset_mapping"]), before


def _before(text: str, prompt: str) -> int:
    """Where the prompt would begin; templates may strip blanks off its ends."""
    bare = prompt.strip()
    found = text.rfind(bare)
    if not bare or found < 0:
        raise InvalidInput(
            "the chat template does not show the prompt as it is, so documents cannot be found in "
            "it; build the model with chat=False"
        )
    return found - prompt.index(bare)


def _inside(offsets: Sequence[tuple[int, int]], first: int, end: int) -> Bool[Tensor, " tokens"]:
    """Which tokens have a character in the span; special tokens have none anywhere."""
    return torch.tensor([a < end and b > first and a < b for a, b in offsets], dtype=torch.bool)


def _last_row(
    model: PreTrainedModel, ids: Sequence[int], layers: Sequence[int] | None
) -> Float[Tensor, " tokens"]:
    """Attention of the last position on each token, mean over heads and layers; sums to 1."""
    # Any: the classes of models are annotated so that their own methods do not type-check
    twin: Any = _twin(model)
    read = torch.tensor([list(ids)], device=model.device)
    with torch.inference_mode():
        cache = None
        if len(ids) > 1:
            cache = twin.base_model(input_ids=read[:, :-1], use_cache=True).past_key_values
        twin.set_attn_implementation("eager")
        found = twin.base_model(
            input_ids=read[:, -1:], past_key_values=cache, use_cache=True, output_attentions=True
        ).attentions
    if not found or any(one is None for one in found):
        raise ModelError(
            f"{type(model).__name__} hands out no attention weights; take another architecture "
            "(Llama, Mistral, Qwen2, Qwen3 and Gemma-3 among others do)"
        )
    rows = [_whole(one[0, :, -1], len(ids)) for one in _picked(found, layers)]
    return torch.stack(rows).mean(0)


def _picked(found: Sequence[Tensor], layers: Sequence[int] | None) -> list[Tensor]:
    wanted = range(len(found)) if layers is None else layers
    if not wanted or any(not -len(found) <= layer < len(found) for layer in wanted):
        raise InvalidInput(
            f"layers={layers}, but the model has {len(found)}; give some of 0 to {len(found) - 1}, "
            "or None for all"
        )
    return [found[layer] for layer in wanted]


def _whole(row: Float[Tensor, "heads seen"], tokens: int) -> Float[Tensor, " tokens"]:
    """The mean over heads; a sliding window has seen the last tokens only, the others get 0."""
    seen = row.float().mean(0).cpu()
    return torch.cat([seen.new_zeros(tokens - len(seen)), seen])


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    # deepcopy takes what it finds in the memo: the same weights under modules of their own
    memo: dict[int, Any] = {
        id(weight): weight for weight in (*model.parameters(), *model.buffers())
    }
    return copy.deepcopy(model, memo).eval()
