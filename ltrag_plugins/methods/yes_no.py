"""How far a reply to a yes-or-no question says yes.

References:
    Kadavath et al., 2022, https://arxiv.org/abs/2207.05221 (the probability of the word "True" as
    a model's judgement); here of yes against no.
"""

import math
import re

from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.types import Generation, Token

REPLY_TOKENS = 4
"""What to let the model write: the word, and what may stand before it."""


def yes_probability(reply: Generation) -> float:
    r"""Probability of yes against no, in [0, 1].

    .. math:: p_{yes} / (p_{yes} + p_{no})

    summed over the spellings among the alternatives of the first token that is not blank. Where
    there are none, or neither word is among them, the first "yes" or "no" of the text counts as 1
    or 0; a text with neither is undecided, 0.5.

    Raises:
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    first = next((token for token in reply.tokens or () if token.text.strip()), None)
    yes, no = _shares(first) if first else (0.0, 0.0)
    if yes + no > 0:
        return yes / (yes + no)
    said = re.search(r"\b(yes|no)\b", reply.text, re.IGNORECASE)
    return 0.5 if said is None else float(said[1].lower() == "yes")


def _shares(token: Token) -> tuple[float, float]:
    options = token.alternatives or ((token.text, token.logprob),)
    shares = {"yes": 0.0, "no": 0.0}
    for text, logprob in options:
        word = re.sub(r"\W", "", text).lower()
        if word in shares:
            checked_token(Token(text, logprob), "the model")
            shares[word] += math.exp(min(0.0, logprob))
    return shares["yes"], shares["no"]
