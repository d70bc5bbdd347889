"""End a text before a stop string, and keep its tokens in step with it."""

from collections.abc import Sequence
from dataclasses import replace

from ltrag_plugins.types import Generation, Token


def stopped(generation: Generation, stop: Sequence[str]) -> Generation:
    """The generation ended before the first stop string, its tokens joining to its text.

    For providers that hand back the stop string, or tokens beyond the end of the text (the
    stop string's, the end-of-text marker). Tokens that spell another text are left alone.
    The token counts stay what was paid for.
    """
    ends = [generation.text.find(string) for string in stop if string]
    text = generation.text[: min((end for end in ends if end >= 0), default=None)]
    tokens = generation.tokens
    spelled = "".join(token.text for token in tokens or ())
    if tokens is None or spelled == text or not spelled.startswith(text):
        return replace(generation, text=text)
    return replace(generation, text=text, tokens=_covering(tokens, len(text)))


def _covering(tokens: Sequence[Token], characters: int) -> tuple[Token, ...]:
    """The first tokens, as many as hold this many characters; the last may be cut."""
    kept: list[Token] = []
    for token in tokens:
        if characters <= 0:
            break
        kept.append(replace(token, text=token.text[:characters]))
        characters -= len(token.text)
    return tuple(kept)
