"""Any causal language model of transformers, run here: text, probabilities, gradients.

What the prompts of one call share at their beginnings is computed once (see `engine`), and
logits are computed only where they are read.
"""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.llm.base import Direction, stopped
from ltrag_plugins.llm.engine import LocalEngine, Place, Writing, best_engine
from ltrag_plugins.llm.gradients import (
    TokenBatch,
    gradient_agreement,
    mean_gradient,
    token_batches,
)
from ltrag_plugins.llm.loading import fingerprint, load_model, with_adapter
from ltrag_plugins.llm.prompting import Detokenizer, Prompting, Scored, end_tokens
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Token

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error

_ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class _Reading:
    """One token and the distribution it came from; log-probabilities and entropy in nats."""

    token: int
    logprob: float
    entropy: float
    likeliest: tuple[tuple[int, float], ...]
    """Token and log-probability, best first."""


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
        label: str | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.prompting = Prompting.of(tokenizer, model.config, chat=chat, system=system)
        """How prompts become tokens."""
        self._batch_tokens = batch_tokens or (2048 if model.device.type == "cpu" else 16384)
        self._lock = threading.RLock()
        self._engine: LocalEngine | None = None
        self._decoded: dict[int, str] = {}
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
        adapter: str | Path | None = None,
        label: str | None = None,
    ) -> "TransformersLLM":
        """From a folder in transformers' format, a hub name, or a ``.gguf`` file.

        Args:
            source: where the weights are.
            device: "auto" takes CUDA if there is one, else MPS, else the CPU.
            dtype: "auto" takes float32 on the CPU and half precision elsewhere; "fast" takes
                bfloat16 on a CPU that computes in it, about twice as fast there.
            chat, system, batch_tokens: as for the class.
            adapter: a folder that `ltrag_plugins.training.finetune` wrote for these weights; it
                is merged into them, so that answers take no longer.
            label: what `name` starts with; None: the last part of `source`.

        Raises:
            InvalidInput: there is no model at `source`, or no such dtype.
            ArtifactMismatch: the adapter is for other weights.
            UnreadableArtifact: the adapter is missing or was changed.
        """
        model, tokenizer = load_model(source, device=device, dtype=dtype)
        if label is None:
            label = Path(source).stem if str(source).endswith(".gguf") else Path(source).name
        if adapter is not None:
            label += f"+{with_adapter(model, adapter)}"
        return cls(
            model, tokenizer, chat=chat, system=system, batch_tokens=batch_tokens, label=label
        )

    @property
    def name(self) -> str:
        """Label, fingerprint of the weights, dtype, and how prompts are wrapped."""
        if self._name is None:
            dtype = str(self.model.dtype).removeprefix("torch.")
            self._name = f"{self._label}@{fingerprint(self.model)}/{dtype}/{self.prompting.name}"
        return self._name

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts; see `LLM`.

        Raises:
            PromptTooLong: a prompt and `max_tokens` exceed what the model reads.
        """
        # with a seed or without sampling the same prompt has the same answer: written once
        alike = settings.temperature == 0 or settings.seed is not None
        once = list(dict.fromkeys(prompts)) if alike else list(prompts)
        sequences = [self.prompting.ids(prompt) for prompt in once]
        for prompt, ids in zip(once, sequences, strict=True):
            self.prompting.check(prompt, len(ids), settings.max_tokens)
        ends = end_tokens(self.model, self.tokenizer)
        written: dict[int, Generation] = {}
        with self._lock, torch.inference_mode():
            for writing in self._running().write(sequences):
                texts = [
                    _Text(i, Detokenizer(self.tokenizer, sequences[i]), rng(once[i], settings.seed))
                    for i in writing.members
                ]
                _write(writing, texts, ends, settings)
                for text in texts:
                    prompt_tokens = len(sequences[text.member])
                    written[text.member] = text.generation(prompt_tokens, settings, self._token)
        if not alike:
            return [written[i] for i in range(len(prompts))]
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
        cut = self.prompting.scored(prompts, continuations)
        members = [i for i, one in enumerate(cut) if one.continuation]
        sequences = [cut[i].prompt + cut[i].continuation for i in members]
        found: dict[Place, _Reading] = {}
        with self._lock, torch.inference_mode():
            first = [len(cut[i].prompt) for i in members]
            for places, logits in self._running().read(sequences, first):
                targets = torch.tensor([sequences[row][place] for row, place in places])
                read = _readings(logits, targets.to(logits.device))
                found |= {
                    (members[row], place): reading
                    for (row, place), reading in zip(places, read, strict=True)
                }
        return [
            Generation(
                text,
                tuple(
                    self._token(piece, found[i, place])
                    for place, piece in enumerate(one.pieces, len(one.prompt))
                ),
                prompt_tokens=len(one.prompt),
                completion_tokens=len(one.continuation),
            )
            for i, (text, one) in enumerate(zip(continuations, cut, strict=True))
        ]

    def mean_gradient(
        self, prompts: Sequence[str], continuations: Sequence[str], *, layers: int = 4
    ) -> Direction:
        """See `GradientLLM` and `gradients.mean_gradient`."""
        cut = self.prompting.scored(prompts, continuations)
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
        cut = self.prompting.scored(prompts, continuations)
        found: dict[int, GradientAgreement] = {}
        with self._lock:
            for members, batch in self._batches(cut):
                agreements = gradient_agreement(
                    self.model, batch, along=along, cosine=cosine, layers=layers
                )
                found.update(zip(members, agreements, strict=True))
        return [found[i] for i in range(len(prompts))]

    def __repr__(self) -> str:
        return f"TransformersLLM({self._label!r}, device={str(self.model.device)!r})"

    def _batches(self, cut: Sequence[Scored]) -> Iterator[tuple[list[int], TokenBatch]]:
        return token_batches(cut, batch_tokens=self._batch_tokens, device=self.model.device)

    def _running(self) -> LocalEngine:
        if self.model.training:
            raise InvalidInput(
                f"{self._label} is in training mode, where dropout would change its answers; "
                "call model.eval() first."
            )
        if self._engine is None:
            self._engine = best_engine(self.model, batch_tokens=self._batch_tokens)
        return self._engine

    def _token(self, piece: str, reading: _Reading) -> Token:
        for token, _ in reading.likeliest:
            if token not in self._decoded:
                self._decoded[token] = str(self.tokenizer.decode([token]))
        alternatives = tuple((self._decoded[t], logprob) for t, logprob in reading.likeliest)
        return Token(piece, reading.logprob, reading.entropy, alternatives)


def _readings(
    logits: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, " rows"]
) -> list[_Reading]:
    """The tokens under the untempered softmax of the logits."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    best, which = logprobs.topk(min(_ALTERNATIVES, logprobs.shape[-1]), dim=-1)
    return [
        _Reading(token, logprob, nats, tuple(zip(ids, values, strict=True)))
        for token, logprob, nats, ids, values in zip(
            tokens.tolist(),
            chosen.clamp_max(0).tolist(),
            entropy.tolist(),
            which.tolist(),
            best.clamp_max(0).tolist(),
            strict=True,
        )
    ]


def next_tokens(
    logits: Float[Tensor, "rows vocabulary"],
    temperature: float,
    rngs: Sequence[np.random.Generator],
) -> Int[Tensor, " rows"]:
    """The next token of each row: the likeliest, or drawn with one number of the row's own."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    # float64: a float32 running sum over 262,144 tokens loses the small ones; MPS has no float64
    home = logits.to("cpu", torch.float64)
    heights = torch.softmax(home / temperature, dim=-1).cumsum(dim=-1)
    throws = torch.tensor([rng.random() for rng in rngs], dtype=torch.float64)[:, None]
    drawn = torch.searchsorted(heights, throws * heights[:, -1:], right=True)[:, 0]
    return drawn.clamp_max(logits.shape[-1] - 1).to(logits.device)


def rng(prompt: str, seed: int | None) -> np.random.Generator:
    """Randomness that depends on the seed and the prompt, and on nothing else in the call."""
    if seed is None:
        return np.random.default_rng()
    digest = hashlib.blake2b(f"{seed}\0{prompt}".encode("utf-8", "surrogatepass"))
    return np.random.default_rng(int.from_bytes(digest.digest()[:16]))


@dataclass(slots=True)
class _Text:
    """One text on its way."""

    member: int
    detokenizer: Detokenizer
    rng: np.random.Generator
    readings: list[_Reading] = field(default_factory=list)
    """One for each token of the text; not the end-of-text token."""
    steps: int = 0
    """Tokens the model was made to choose, the end-of-text token included."""

    def add(self, reading: _Reading, ends: Collection[int], settings: GenerationSettings) -> bool:
        """Take one more token; whether the text goes on after it."""
        self.steps += 1
        if reading.token in ends:
            return False
        self.readings.append(reading)
        piece = self.detokenizer.add(reading.token)
        text = self.detokenizer.text
        return self.steps < settings.max_tokens and not any(
            text.find(stop, max(0, len(text) - len(piece) - len(stop))) >= 0
            for stop in settings.stop
        )

    def generation(
        self,
        prompt_tokens: int,
        settings: GenerationSettings,
        token: Callable[[str, _Reading], Token],
    ) -> Generation:
        """What was written."""
        self.detokenizer.finish()
        tokens = tuple(map(token, self.detokenizer.pieces, self.readings))
        whole = Generation(self.detokenizer.text, tokens, prompt_tokens, self.steps)
        return stopped(whole, settings.stop)


def _write(
    writing: Writing, texts: Sequence[_Text], ends: Collection[int], settings: GenerationSettings
) -> None:
    """Write all texts, which are as `writing.members`, to their ends."""
    live = list(texts)
    while live:
        tokens = next_tokens(writing.logits, settings.temperature, [text.rng for text in live])
        read = zip(live, _readings(writing.logits, tokens), strict=True)
        going = [i for i, (text, one) in enumerate(read) if text.add(one, ends, settings)]
        if going and len(going) < len(live):
            writing.keep(going)
            tokens = tokens[going]
        live = [live[i] for i in going]
        if live:
            writing.step(tokens)
