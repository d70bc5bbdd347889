"""Write on from prompts, a token each at a time, until each has ended."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.llm.local.choosing import Reading, chosen, readings
from ltrag_plugins.llm.local.engine import Writing
from ltrag_plugins.llm.local.spelling import Speller
from ltrag_plugins.llm.stopping import stopped
from ltrag_plugins.types import Generation, Token

try:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@dataclass(frozen=True, slots=True)
class WritingSettings:
    """How to write; see `LLM.generate`."""

    max_tokens: int = 64
    """Most tokens to write, at least 1."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these; none is empty."""
    temperature: float = 0.0
    """0 takes the likeliest token; else what the logits are divided by."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidInput(f"max_tokens is {self.max_tokens}; it must be at least 1.")
        if not 0 <= self.temperature < float("inf"):
            raise InvalidInput(
                f"temperature is {self.temperature}; it must be 0 or a number above."
            )
        if "" in self.stop:
            raise InvalidInput("a stop string is empty; every text would end before it begins.")


@dataclass(slots=True)
class Row:
    """One text on its way."""

    member: int
    speller: Speller
    dice: np.random.Generator
    settings: WritingSettings
    readings: list[Reading] = field(default_factory=list)
    """One for each token of the text; not the end-of-text token."""
    steps: int = 0
    """Tokens the model was made to choose, the end-of-text token included."""

    def add(self, reading: Reading, ends: Collection[int]) -> bool:
        """Take one more token; whether the text goes on after it."""
        self.steps += 1
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
    live = list(rows)
    while True:
        temperature = live[0].settings.temperature
        tokens = chosen(writing.logits, temperature, [row.dice for row in live])
        found = readings(writing.logits, tokens)
        going = [i for i, row in enumerate(live) if row.add(found[i], ends)]
        if not going:
            return
        if len(going) < len(live):
            live = [live[i] for i in going]
            writing.keep(going)
            tokens = tokens[going]
        writing.step(tokens)


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a text, by the tokenizer, the model and its generation settings."""
    settings = (tokenizer, model.config.get_text_config(), model.generation_config)
    named = [getattr(setting, "eos_token_id", None) for setting in settings]
    each = chain.from_iterable(ids if isinstance(ids, list | tuple) else [ids] for ids in named)
    return frozenset(token for token in each if isinstance(token, int))
