"""Guess the next tokens of a text: what followed the last time that its last tokens were seen.

Answers copy from their prompts: names out of passages, whole answers out of earlier rounds. The
model checks a guess in one pass (`Ahead.try_on`), which on a CPU takes as long as two or three
tokens one at a time, and on a GPU little longer than one.

References:
    Leviathan et al., 2023, "Fast Inference from Transformers via Speculative Decoding", for the
    check; Saxena, 2023, "Prompt Lookup Decoding", for the guesses.
"""

from collections.abc import Sequence

SHORTEST, LONGEST = 2, 4
"""Tokens that must have been seen before a guess: at first, and after wrong guesses."""
PAYS, MOST = 3, 15
"""Tokens of a guess: so many, or else it is not worth its pass."""


class Lookup:
    """The tokens of a prompt and of what is written after it, and guesses of the next.

    After each guess that did not pay, one token more must have been seen before the next: texts
    that copy little cost little.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = list(prompt)
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = SHORTEST
        self._needed = SHORTEST

    def add(self, token: int) -> None:
        """One token more."""
        self._ids.append(token)

    def guess(self, most: int) -> list[int]:
        """The next tokens, up to `most`; none where nothing was seen, or too few are wanted."""
        ids = self._ids
        for place in range(self._indexed, len(ids)):
            for size in range(SHORTEST, min(LONGEST, place) + 1):
                self._after[tuple(ids[place - size : place])] = place
        self._indexed = max(self._indexed, len(ids))
        for size in range(min(LONGEST, len(ids)), self._needed - 1, -1):
            place = self._after.get(tuple(ids[-size:]))
            if place is not None:
                found = ids[place : place + min(most, MOST)]
                return found if len(found) >= PAYS else []
        return []

    def learn(self, right: int) -> None:
        """How many tokens of the last guess were right."""
        self._needed = SHORTEST if right >= PAYS else min(LONGEST, self._needed + 1)
