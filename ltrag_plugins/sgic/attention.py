"""How much of the attention of the position that answers falls on each document of a prompt.

Source: Chen et al. (SGIC), section 5.8, figure 6 and table 10 (the first answer against round 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float

from ltrag_plugins.errors import InvalidInput, ModelError, missing_extra
from ltrag_plugins.llm.loading import twin
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.documents import prepared
from ltrag_plugins.sgic.settings import SGICSettings

try:
    import torch
    from torch import Tensor
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
    llm: TransformersLLM, prompt: str, documents: Sequence[str]
) -> AttentionShares:
    """The attention from the position that predicts the first answer token, by document: mean over
    all heads and layers, sum over a document's tokens, which is our reading of the paper.

    Args:
        prompt: as `llm.generate` takes it; wrapped in the chat template in the same way.
        documents: texts as they stand in the prompt, in its order.
    """
    if not isinstance(llm, TransformersLLM):
        raise InvalidInput(f"give local weights, got {type(llm).__name__} (CachedLLM: its `llm`)")
    prompting, tokenizer = llm.prompting, llm.tokenizer
    read, bare = prompting.text(prompt), prompt.strip()
    coded = tokenizer(read, add_special_tokens=not prompting.chat, return_offsets_mapping=True)
    prompting.check(prompt, len(coded["input_ids"]), 0)
    free = _last_row(llm.model, coded["input_ids"])
    starts, ends = torch.tensor(coded["offset_mapping"]).T
    end, shares = read.rfind(bare), list[float]()
    for number, text in enumerate(documents, 1):
        first = read.find(text, end) if text else -1
        if first < 0:
            raise InvalidInput(
                f"document {number} ({text[:40]!r}) does not stand in the prompt after the one "
                "before it; give texts as the prompt shows them, and a template that keeps them"
            )
        end = first + len(text)
        # a token of two documents counts for the first; a special one has no characters
        own = (starts < end) & (ends > first) & (starts < ends)
        shares.append(float(free[own].sum()))
        free[own] = 0
    return AttentionShares(tuple(shares), max(0.0, 1.0 - sum(shares)))


def round_attention(
    llm: TransformersLLM, answer: CalibratedAnswer, settings: SGICSettings, *, round: int = 0
) -> AttentionShares:
    """`attention_shares` of the prompt of a round (from 0), one share for each document: 0 where
    the round did not show it (`cut_to`). The answer is of `calibrate` with these settings,
    `keep_prompts=True` among them."""
    if not 0 <= round < (count := len(answer.trace)):
        raise InvalidInput(f"round {round} of an answer with {count}; they count from 0")
    if (prompt := answer.trace[round].prompt) is None:
        raise InvalidInput(f"round {round} has no prompt; set SGICSettings(keep_prompts=True)")
    texts, _ = prepared([document.passage for document in answer.documents], settings)
    shown = [i for i, one in enumerate(answer.documents) if one.shown or not round]
    found = attention_shares(llm, prompt, [texts[i] for i in shown])
    shares = dict(zip(shown, found.documents, strict=True))
    return replace(found, documents=tuple(shares.get(i, 0.0) for i in range(len(texts))))


def _last_row(model: Any, ids: Sequence[int]) -> Float[Tensor, " tokens"]:
    """Attention of the last position on each token, mean over heads and layers; sums to 1."""
    # only the last token is read with eager attention, which hands out its weights
    own: Any = twin(model)
    read = torch.tensor([list(ids)], device=model.device)
    with torch.inference_mode():
        told: dict[str, Any] = {"use_cache": True}
        if len(ids) > 1:
            told["past_key_values"] = own.base_model(input_ids=read[:, :-1], **told).past_key_values
        own.set_attn_implementation("eager")
        found = own.base_model(input_ids=read[:, -1:], output_attentions=True, **told).attentions
    if not found or any(one is None for one in found):
        raise ModelError(f"{type(model).__name__} hands out no attention weights; Llama or Qwen do")
    rows = torch.zeros(len(ids))
    for layer in found:
        seen = layer[0, :, -1].float().mean(0).cpu()
        rows[len(ids) - len(seen) :] += seen  # a sliding window sees the last tokens only
    return rows / len(found)
