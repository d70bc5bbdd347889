"""Any causal language model of transformers, run here: text, probabilities, gradients.

What the prompts of one call share at their beginnings is computed once (see `trees`), and
logits are computed only where they are read.

Choose the next token, and read off how likely it was.

Guess the next tokens of a text: what followed the last time that its last tokens were seen.

Answers copy from their prompts: names out of passages, whole answers out of earlier rounds. The
model checks a guess in one pass (`Ahead.try_on`), which on a CPU takes as long as two or three
tokens one at a time, and on a GPU little longer than one.

References:
    Leviathan et al., 2023, "Fast Inference from Transformers via Speculative Decoding", for the
    check; Saxena, 2023, "Prompt Lookup Decoding", for the guesses.

Write on from prompts, a token each at a time, until each has ended.
"""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.llm.base import Direction, stopped
from ltrag_plugins.llm.engine import (
    Ahead,
    Engine,
    Guess,
    Ids,
    Place,
    PrefixMemory,
    Writing,
    best_engine,
)
from ltrag_plugins.llm.gradients import TokenBatch, gradient_agreement, mean_gradient
from ltrag_plugins.llm.loading import adapted, fingerprint, load_model
from ltrag_plugins.llm.prompting import Prompting, Scored, Speller, token_batches
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Token

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_extra("torch", "local") from error

ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """One token and the distribution it came from; log-probabilities and entropy in nats."""

    token: int
    logprob: float
    entropy: float
    likeliest: tuple[tuple[int, float], ...]
    """Token and log-probability, best first."""


def readings(
    logits: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, " rows"]
) -> list[Reading]:
    """The tokens under the untempered softmax of the logits."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    best, which = logprobs.topk(min(ALTERNATIVES, logprobs.shape[-1]), dim=-1)
    return [
        Reading(token, logprob, nats, tuple(zip(ids, values, strict=True)))
        for token, logprob, nats, ids, values in zip(
            tokens.tolist(),
            chosen.clamp_max(0).tolist(),
            entropy.tolist(),
            which.tolist(),
            best.clamp_max(0).tolist(),
            strict=True,
        )
    ]


def chosen(
    logits: Float[Tensor, "rows vocabulary"],
    temperature: float,
    dice: Sequence[np.random.Generator],
) -> Int[Tensor, " rows"]:
    """The next token of each row: the likeliest, or drawn with one throw of the row's dice."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    # float64: a float32 running sum over 262,144 tokens loses the small ones; MPS has no float64
    home = logits.to("cpu", torch.float64)
    heights = torch.softmax(home / temperature, dim=-1).cumsum(dim=-1)
    throws = torch.tensor([die.random() for die in dice], dtype=torch.float64)[:, None]
    drawn = torch.searchsorted(heights, throws * heights[:, -1:], right=True)[:, 0]
    return drawn.clamp_max(logits.shape[-1] - 1).to(logits.device)


def dice(prompt: str, seed: int | None) -> np.random.Generator:
    """Randomness that depends on the seed and the prompt, and on nothing else in the call."""
    if seed is None:
        return np.random.default_rng()
    digest = hashlib.blake2b(f"{seed}\0{prompt}".encode("utf-8", "surrogatepass"))
    return np.random.default_rng(int.from_bytes(digest.digest()[:16]))


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


try:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@final
class TransformersLLM:
    """A causal language model with its weights at hand; a `GradientLLM`.

    Prompts are wrapped in the tokenizer's chat template, as one user message, where it has
    one. `Token.logprob`, `.entropy` and `.alternatives` (the five likeliest) are those of the
    model's own distribution, whatever the temperature. The end-of-text token is neither in
    the text nor in the tokens; `Generation.completion_tokens` counts it, as it counts what a
    stop string cut off. A sample depends on the seed and the prompt, not on the rest of the
    call: the same prompt twice with a seed gives the same text twice.

    Calls from several threads take turns. The model handed in is not changed.

    Args:
        model: a causal language model in evaluation mode.
        tokenizer: the one it was trained with.
        chat: use the chat template; None: if there is one.
        system: a system message before each prompt; needs the chat template.
        batch_tokens: most tokens computed at once; None: 2,048 on the CPU, else 16,384.
        share_prefixes: compute what the prompts of a call share once. The answers are the same
            either way.
        remember_tokens: keep the keys and values of the last prompts, up to this many tokens, for
            later calls of `generate` that begin alike, as the rounds of a calibration do. They
            take two numbers a token for each key-value channel of each layer (SmolLM2-135M in
            float32: 46 kB a token). The answers are the same up to rounding. 0: none.
        prompt_lookup: guess tokens that the text copies from its prompt, and check some at once
            (Leviathan et al., 2023; Saxena, 2023). With `remember_tokens` a text is first guessed
            to be the one before it again, and that is checked while its prompt is read. The
            answers are the same up to rounding.
        label: what `name` starts with; None: the model's own name.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat: bool | None = None,
        system: str | None = None,
        batch_tokens: int | None = None,
        share_prefixes: bool = True,
        remember_tokens: int = 0,
        prompt_lookup: bool = True,
        label: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._prompting = Prompting.of(tokenizer, model.config, chat=chat, system=system)
        self._batch_tokens = batch_tokens or (2048 if model.device.type == "cpu" else 16384)
        self._share = share_prefixes
        if remember_tokens < 0:
            raise InvalidInput(f"remember_tokens is {remember_tokens}; it must be at least 0.")
        self._memory = PrefixMemory(remember_tokens)
        self._prompt_lookup = prompt_lookup
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._spellings: dict[int, str] = {}
        self._label = label or Path(model.config.name_or_path or type(model).__name__).name
        self._name: str | None = None

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        chat: bool | None = None,
        system: str | None = None,
        batch_tokens: int | None = None,
        share_prefixes: bool = True,
        remember_tokens: int = 0,
        prompt_lookup: bool = True,
        adapter: str | Path | None = None,
    ) -> "TransformersLLM":
        """From a folder in transformers' format, a hub name, or a ``.gguf`` file.

        Args:
            source: where the weights are.
            device: "auto" takes CUDA if there is one, else MPS, else the CPU.
            dtype: "auto" takes float32 on the CPU and half precision elsewhere; "fast" takes
                bfloat16 on a CPU that computes in it, about twice as fast there.
            chat, system, batch_tokens, share_prefixes, remember_tokens, prompt_lookup: as for the
                class.
            adapter: a folder that `ltrag_plugins.training` wrote for these weights; it is
                merged into them, so that answers take no longer.

        Raises:
            InvalidInput: there is no model at `source`, or no such dtype.
            ArtifactMismatch: the adapter is for other weights.
            UnreadableArtifact: the adapter is missing or was changed.
        """
        model, tokenizer = load_model(source, device=device, dtype=dtype)
        label = Path(source).stem if str(source).endswith(".gguf") else Path(source).name
        if adapter is not None:
            model, label = adapted(model, adapter, label)
        return cls(
            model,
            tokenizer,
            chat=chat,
            system=system,
            batch_tokens=batch_tokens,
            share_prefixes=share_prefixes,
            remember_tokens=remember_tokens,
            prompt_lookup=prompt_lookup,
            label=label,
        )

    @property
    def prompting(self) -> Prompting:
        """How prompts become tokens."""
        return self._prompting

    @property
    def name(self) -> str:
        """Label, fingerprint of the weights, dtype, and how prompts are wrapped."""
        if self._name is None:
            dtype = str(self.model.dtype).removeprefix("torch.")
            weights = fingerprint(self.model)
            self._name = f"{self._label}@{weights}/{dtype}/{self._prompting.name}"
        return self._name

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts; see `LLM`.

        Raises:
            PromptTooLong: a prompt and `max_tokens` exceed what the model reads.
        """
        # with a seed or without sampling the same prompt has the same answer: written once
        once = list(prompts)
        if settings.temperature == 0 or settings.seed is not None:
            once = list(dict.fromkeys(once))
        sequences = [self._prompting.ids(prompt) for prompt in once]
        for prompt, ids in zip(once, sequences, strict=True):
            self._prompting.check(prompt, len(ids), settings.max_tokens)
        throws = [dice(prompt, settings.seed) for prompt in once]
        written = self._written(sequences, throws, settings)
        if len(once) == len(prompts):
            return written
        place = {prompt: i for i, prompt in enumerate(once)}
        return [written[place[prompt]] for prompt in prompts]

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Generation]:
        """The continuations, each with the log-probabilities of its tokens after its prompt.

        A continuation is cut into tokens on its own, so that the prompt's tokens are those
        of `generate`; where a word would go on across the seam, start the continuation with
        its space. The end-of-text token is not scored.

        Raises:
            PromptTooLong: a prompt and its continuation exceed what the model reads.
            InvalidInput: there are not as many continuations as prompts.
        """
        cut = self._prompting.scored(prompts, continuations)
        found = iter(self._read([one for one in cut if one.continuation]))
        return [
            Generation(
                text,
                tuple(map(self._token, one.pieces, next(found))) if one.continuation else (),
                prompt_tokens=len(one.prompt),
                completion_tokens=len(one.continuation),
            )
            for text, one in zip(continuations, cut, strict=True)
        ]

    def mean_gradient(
        self, prompts: Sequence[str], continuations: Sequence[str], *, layers: int = 4
    ) -> Direction:
        """See `GradientLLM` and `gradients.mean_gradient`."""
        cut = self._prompting.scored(prompts, continuations)
        with self._lock:
            batches = (batch for _, batch in self._batches(cut))
            return mean_gradient(self.model, batches, layers=layers)

    def gradient_agreement(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str],
        *,
        along: Direction,
        cosine: bool = False,
        layers: int = 4,
    ) -> list[GradientAgreement]:
        """See `GradientLLM` and `gradients.gradient_agreement`."""
        cut = self._prompting.scored(prompts, continuations)
        found: dict[int, GradientAgreement] = {}
        with self._lock:
            for members, batch in self._batches(cut):
                agreements = gradient_agreement(
                    self.model, batch, along=along, cosine=cosine, layers=layers
                )
                found.update(zip(members, agreements, strict=True))
        return [found[i] for i in range(len(prompts))]

    def forget(self) -> None:
        """Drop the keys and values of earlier prompts (`remember_tokens`); no answer changes."""
        with self._lock:
            self._memory.forget()

    def __repr__(self) -> str:
        return f"TransformersLLM({self._label!r}, device={str(self.model.device)!r})"

    def _written(
        self,
        sequences: Sequence[Ids],
        throws: Sequence[np.random.Generator],
        settings: GenerationSettings,
    ) -> list[Generation]:
        ends = end_tokens(self.model, self.tokenizer)
        written: dict[int, Generation] = {}
        with self._lock, torch.inference_mode():
            guesses = self._guesses(sequences, settings)
            tried = [guess.tokens for guess in guesses]
            for writing in self._running().write(sequences, tried):
                rows = [self._row(i, sequences[i], throws[i], settings) for i in writing.members]
                write(writing, rows, ends)
                for row in rows:
                    prompt = sequences[row.member]
                    tokens = [reading.token for reading in row.readings]
                    self._memory.wrote(prompt, tokens)
                    self._memory.learn(guesses[row.member], tokens)
                    written[row.member] = row.generation(len(prompt), self._token)
        return [written[i] for i in range(len(sequences))]

    def _guesses(self, sequences: Sequence[Ids], settings: GenerationSettings) -> list[Guess]:
        """What followed prompts that begin alike, where few enough texts are written."""
        most = min(AT_ONCE // max(1, len(sequences)), settings.max_tokens) - 1
        if not self._prompt_lookup or most < 1:
            return [Guess()] * len(sequences)
        return [self._memory.guess(ids, most) for ids in sequences]

    def _row(
        self, member: int, prompt: Ids, throws: np.random.Generator, settings: GenerationSettings
    ) -> Row:
        lookup = Lookup(prompt) if self._prompt_lookup else None
        return Row(member, Speller(self.tokenizer, prompt), throws, settings, lookup)

    def _read(self, cut: Sequence[Scored]) -> list[list[Reading]]:
        sequences = [one.prompt + one.continuation for one in cut]
        first = [len(one.prompt) for one in cut]
        found: dict[Place, Reading] = {}
        with self._lock, torch.inference_mode():
            for places, logits in self._running().read(sequences, first):
                targets = torch.tensor([sequences[i][place] for i, place in places])
                found.update(zip(places, readings(logits, targets.to(logits.device)), strict=True))
        return [
            [found[i, place] for place in range(start, len(sequence))]
            for i, (start, sequence) in enumerate(zip(first, sequences, strict=True))
        ]

    def _batches(self, cut: Sequence[Scored]) -> Iterator[tuple[list[int], TokenBatch]]:
        return token_batches(cut, batch_tokens=self._batch_tokens, device=self.model.device)

    def _running(self) -> Engine:
        if self.model.training:
            raise InvalidInput(
                f"{self._label} is in training mode, where dropout would change its answers; "
                "call model.eval() first."
            )
        if self._engine is None:
            self._engine = best_engine(
                self.model,
                batch_tokens=self._batch_tokens,
                share=self._share,
                memory=self._memory,
            )
        return self._engine

    def _token(self, piece: str, reading: Reading) -> Token:
        alternatives = tuple((self._spelled(t), logprob) for t, logprob in reading.likeliest)
        return Token(piece, reading.logprob, reading.entropy, alternatives)

    def _spelled(self, token: int) -> str:
        if token not in self._spellings:
            self._spellings[token] = str(self.tokenizer.decode([token]))
        return self._spellings[token]
