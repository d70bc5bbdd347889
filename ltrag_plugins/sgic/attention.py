"""Attention of the rounds of an answered question on its documents; needs the extra `local`.

References:
    Chen et al. (SGIC), section 5.8, figure 6 and table 10 (the first answer against round 1).
"""

from collections.abc import Sequence
from dataclasses import replace

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.attention import AttentionShares, attention_shares
from ltrag_plugins.llm.transformers import TransformersLLM
from ltrag_plugins.sgic.answer import CalibratedAnswer
from ltrag_plugins.sgic.documents import prepared
from ltrag_plugins.sgic.settings import SGICSettings


def round_attention(
    llm: TransformersLLM,
    answer: CalibratedAnswer,
    settings: SGICSettings,
    *,
    round: int = 0,
    layers: Sequence[int] | None = None,
) -> AttentionShares:
    """`attention_shares` of the prompt of a round, one share for each document of the answer.

    A document that the round did not show (`cut_to`) has a share of 0.

    Args:
        answer: of `calibrate` with `keep_prompts=True`.
        settings: those it was answered with.
        round: which, from 0.
        layers: see `attention_shares`.
    """
    if not 0 <= round < len(answer.trace):
        raise InvalidInput(
            f"round {round} of an answer with {len(answer.trace)}; they count from 0"
        )
    if (prompt := answer.trace[round].prompt) is None:
        raise InvalidInput(
            f"round {round} has no prompt; answer again with SGICSettings(keep_prompts=True)"
        )
    texts = prepared([document.passage for document in answer.documents], settings).texts
    shown = [i for i, one in enumerate(answer.documents) if one.shown or not round]
    found = attention_shares(llm, prompt, [texts[i] for i in shown], layers=layers)
    shares = dict(zip(shown, found.documents, strict=True))
    return replace(found, documents=tuple(shares.get(i, 0.0) for i in range(len(texts))))
