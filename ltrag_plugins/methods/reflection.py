"""Reflection tokens: what a model trained for Self-RAG says of its need to search and its answer.

The tokens and the form of the prompt are those such models were trained on.

References:
    Asai et al., ICLR 2024 (Self-RAG), https://arxiv.org/abs/2310.11511, table 1 and section 3.3.
"""

import math
import re
from collections.abc import Mapping

from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.prompts.templates import beginning
from ltrag_plugins.types import Generation, Passage, Token

RETRIEVE = {"[Retrieval]": 1.0, "[No Retrieval]": 0.0}
RELEVANT = {"[Relevant]": 1.0, "[Irrelevant]": 0.0}
SUPPORTED = {
    "[Fully supported]": 1.0,
    "[Partially supported]": 0.5,
    "[No support / Contradictory]": 0.0,
}
USEFUL = {f"[Utility:{i}]": (i - 3) / 2 for i in range(1, 6)}
"""Each group's tokens and their values; usefulness runs from -1 to 1."""

_TOKENS = [*RETRIEVE, *RELEVANT, *SUPPORTED, *USEFUL, "[Continue to Use Evidence]"]
_NOT_ANSWER = re.compile(
    "|".join([r"<paragraph>.*?(?:</paragraph>|\Z)", *map(re.escape, _TOKENS)]), re.S
)


def trained_prompt(question: str) -> str:
    """The question as such models were shown it."""
    return f"### Instruction:\n{question}\n\n### Response:\n"


def with_passage(prompt: str, passage: Passage) -> str:
    """The prompt, a search, and the first 200 words of what it found."""
    text = beginning(passage.text)
    return f"{prompt}[Retrieval]<paragraph>{passage.title}\n{text}</paragraph>"


def value(reply: Generation, group: Mapping[str, float]) -> float | None:
    r"""The expected value of a group's tokens, in the range of their values.

    .. math:: \sum_{t \in G} v_t p_t / \sum_{t \in G} p_t

    with the probabilities where the reply first has a token of the group; where it has none, of
    RETRIEVE and RELEVANT, which open a reply, with those at its start. Without token probabilities
    the value of the token that the text names first. None where there is none.

    Raises:
        InvalidLogProbability: a log-probability is NaN or above 0.
    """
    spelled = [(token.text.strip(), _options(token)) for token in reply.tokens or ()]
    # a special token can be left out of the text; it is then the likeliest alternative
    places = [options for text, options in spelled if (text or next(iter(options))) in group]
    if group in (RETRIEVE, RELEVANT):
        places += [options for _, options in spelled[:1]]
    for options in places:
        shares = {name: p for name, p in options.items() if name in group}
        if sum(shares.values()) > 0:
            return sum(group[name] * p for name, p in shares.items()) / sum(shares.values())
    named = {reply.text.find(name): v for name, v in group.items() if name in reply.text}
    return named[min(named)] if named else None


def answer_text(reply: Generation) -> str:
    """The reply without reflection tokens and passages."""
    return " ".join(_NOT_ANSWER.sub(" ", reply.text).split())


def _options(token: Token) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text, logprob in token.alternatives or ((token.text, token.logprob),):
        checked_token(Token(text, logprob), "the model")
        shares[text.strip()] = shares.get(text.strip(), 0.0) + math.exp(min(0.0, logprob))
    return shares
