"""Write on from prompts, a token each at a time, until each has ended."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import missing_extra
from ltrag_plugins.llm.local.choosing import Reading, chosen, readings
from ltrag_plugins.llm.local.engine import Ahead, Ids, Writing
from ltrag_plugins.llm.local.lookup import Lookup
from ltrag_plugins.llm.local.spelling import Speller
from ltrag_plugins.llm.stopping import stopped
from ltrag_plugins.types import Generation, GenerationSettings, Token

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("transformers", "local") from error


AT_ONCE = 16
"""Most tokens of a pass that tries guesses; on a CPU it takes two or three times that of one."""


@dataclass(slots=True)
class Row:
    """One text on its way."""

    member: int
    speller: Speller
    dice: np.random.Generator
    settings: GenerationSettings
    lookup: Lookup | None = None
    """Where guesses of the next tokens come from; None: there are none."""
    readings: list[Reading] = field(default_factory=list)
    """One for each token of the text; not the end-of-text token."""
    steps: int = 0
    """Tokens the model was made to choose, the end-of-text token included."""

    def add(self, reading: Reading, ends: Collection[int]) -> bool:
        """Take one more token; whether the text goes on after it."""
        self.steps += 1
        if self.lookup is not None:
            self.lookup.add(reading.token)
        if reading.token in ends:
            return False
        self.readings.append(reading)
        piece = self.speller.add(reading.token)
        if self.steps >= self.settings.max_tokens:
            return False
        text = self.speller.text
        return not any(
            text.find(stop, max(0, len(text) - len(piece) - len(stop))) >= 0
            for stop in self.settings.stop
        )

    def guess(self, most: int) -> list[int]:
        """What may come next: none to `most` tokens, of those that it has left."""
        left = self.settings.max_tokens - self.steps - 1  # one is chosen after them
        return [] if self.lookup is None else self.lookup.guess(max(0, min(most, left)))

    def learn(self, guess: Ids, right: int) -> None:
        """How many tokens of its last guess were right."""
        if self.lookup is not None and guess:
            self.lookup.learn(right)

    def generation(self, prompt_tokens: int, token: Callable[[str, Reading], Token]) -> Generation:
        """What was written."""
        self.speller.finish()
        tokens = tuple(map(token, self.speller.pieces, self.readings))
        whole = Generation(self.speller.text, tokens, prompt_tokens, self.steps)
        return stopped(whole, self.settings.stop)


def write(writing: Writing, rows: Sequence[Row], ends: Collection[int]) -> None:
    """Write all rows to their ends.

    Args:
        rows: as `writing.members`; filled in place.
        ends: the tokens that end a text.
    """
    ahead = writing if isinstance(writing, Ahead) else None
    live, scores = list(rows), writing.logits[:, None]
    guesses: Sequence[Ids] = [[] for _ in live]
    if ahead:
        scores, guesses = ahead.tried, ahead.guessed
    looked_up = False  # the first guesses are the caller's
    while True:
        right, last = _added(live, scores, guesses, ends)
        if ahead and any(guesses):
            ahead.take([n + 1 for n in right])
        if looked_up:
            for row, guess, n in zip(live, guesses, right, strict=True):
                row.learn(guess, n)
        going = sorted(last)
        if not going:
            return
        if len(going) < len(live):
            live = [live[i] for i in going]
            writing.keep(going)
        tokens = torch.tensor([last[i] for i in going], device=scores.device)[:, None]
        guesses, looked_up = _guesses(live) if ahead else [[] for _ in live], True
        if ahead and any(guesses):
            scores = ahead.try_on(torch.cat([tokens, _padded(guesses).to(tokens)], dim=1))
        else:
            writing.step(tokens[:, 0])
            scores = writing.logits[:, None]


def _added(
    live: Sequence[Row],
    scores: Float[Tensor, "rows tokens vocabulary"],
    guesses: Sequence[Ids],
    ends: Collection[int],
) -> tuple[list[int], dict[int, int]]:
    """Choose tokens as long as each row's guess holds, and one more.

    Returns:
        How many guessed tokens were right; of the rows that go on, the token chosen last.
    """
    right, last = [0] * len(live), dict[int, int]()
    holding = list(range(len(live)))
    for place in range(scores.shape[1]):
        logits = scores[holding, place] if len(holding) < len(live) else scores[:, place]
        dice = [live[i].dice for i in holding]
        tokens = chosen(logits, live[0].settings.temperature, dice)
        going = [
            (i, reading.token)
            for i, reading in zip(holding, readings(logits, tokens), strict=True)
            if live[i].add(reading, ends)
        ]
        holding = [i for i, token in going if guesses[i][place : place + 1] == [token]]
        last |= {i: token for i, token in going if i not in holding}
        for i in holding:
            right[i] += 1
        if not holding:
            break
    return right, last


def _guesses(live: Sequence[Row]) -> list[list[int]]:
    most = AT_ONCE // len(live) - 1
    return [row.guess(most) if most > 0 else [] for row in live]


def _padded(guesses: Sequence[Sequence[int]]) -> Int[Tensor, "rows tokens"]:
    """What is after a guess is never read."""
    longest = max(map(len, guesses))
    return torch.tensor([[*guess, *[0] * (longest - len(guess))] for guess in guesses])


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a text, by the tokenizer, the model and its generation settings."""
    settings = (tokenizer, model.config.get_text_config(), model.generation_config)
    named = [getattr(setting, "eos_token_id", None) for setting in settings]
    each = chain.from_iterable(ids if isinstance(ids, list | tuple) else [ids] for ids in named)
    return frozenset(token for token in each if isinstance(token, int))
