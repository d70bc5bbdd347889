"""Any causal language model of transformers, run here: text, probabilities, gradients."""

import hashlib
import threading
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float, Int

from ltrag_plugins.errors import InvalidInput, missing_extra
from ltrag_plugins.llm.base import Direction, Shared, checked_prompts, stopped
from ltrag_plugins.llm.engine import PlainEngine, TreeEngine, best_engine
from ltrag_plugins.llm.gradients import gradient_agreement, mean_gradient, token_batches
from ltrag_plugins.llm.loading import fingerprint, load_model
from ltrag_plugins.llm.prompting import Prompting
from ltrag_plugins.types import Generation, GenerationSettings, GradientAgreement, Token

try:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error

_ALTERNATIVES = 5
_CONTEXT = 4  # prompt tokens decoded along: some tokenizers drop a space at the start of a text
_BYTES = 4  # of one character, at most
_UNFINISHED = "\ufffd"


@final
class TransformersLLM(Shared):
    """A causal language model with its weights at hand; a `GradientLLM`.

    Prompts are wrapped in the tokenizer's chat template, as one user message, where it has one.
    `Token.logprob`, `.entropy` and `.alternatives` (the five likeliest) are those of the model's
    own distribution, whatever the temperature. `Generation.completion_tokens` counts the closing
    token too, and what a stop string cut off. A sample depends on the seed and the prompt alone.
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
        self.prompting = Prompting(tokenizer, model, chat=chat, system=system)
        self._batch_tokens = batch_tokens or (2048 if model.device.type == "cpu" else 16384)
        self._lock = threading.RLock()
        self._decode = cache(lambda token: str(tokenizer.decode([token])))
        self._label = label or Path(model.config.name_or_path or type(model).__name__).name

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        chat: bool | None = None,
        system: str | None = None,
        adapter: str | Path | None = None,
        label: str | None = None,
    ) -> "TransformersLLM":
        """From a folder in transformers' format, a hub name, or a ``.gguf`` file.

        Args:
            source: where the weights are.
            device: "auto" takes CUDA if there is one, else MPS, else the CPU.
            dtype: "auto" takes float32 on the CPU and half precision elsewhere; "fast" takes
                bfloat16 on a CPU that computes in it, which is faster there.
            chat, system: as for the class.
            adapter: a folder of `ltrag_plugins.training.finetune`, merged into the weights.
            label: what `name` starts with; None: the last part of `source`.

        Raises:
            InvalidInput: there is no model at `source`, or no such dtype.
            ArtifactMismatch: the adapter is for other weights.
            UnreadableArtifact: the adapter is missing or was changed.
        """
        model, tokenizer, adapted = load_model(source, device=device, dtype=dtype, adapter=adapter)
        if label is None:
            label = Path(source).stem if str(source).endswith(".gguf") else Path(source).name
        label += f"+{adapted}" if adapted else ""
        return cls(model, tokenizer, chat=chat, system=system, label=label)

    @property
    def name(self) -> str:
        """Label, fingerprint of the weights, dtype, and how prompts are wrapped."""
        return self._name

    @cached_property
    def _name(self) -> str:
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"{self._label}@{fingerprint(self.model)}/{dtype}/{self.prompting.name}"

    def generate(
        self, prompts: Sequence[str], settings: GenerationSettings = GenerationSettings()
    ) -> list[Generation]:
        """One generation per prompt, in the order of the prompts; see `LLM`. `PromptTooLong` is
        raised where a prompt and `max_tokens` exceed what the model reads."""
        return self.generate_each(checked_prompts(prompts), [settings] * len(prompts))

    def generate_each(
        self, prompts: Sequence[str], settings: Sequence[GenerationSettings]
    ) -> list[Generation]:
        """As `generate`, each prompt by settings of its own; see `EachLLM`."""
        pairs, texts = [*zip(checked_prompts(prompts), settings, strict=True)], list[_Text]()
        # with a seed or without sampling the same prompt has the same answer: written once
        keys = [
            pair if pair[1].temperature == 0 or pair[1].seed is not None else (*pair, i)
            for i, pair in enumerate(pairs)
        ]
        once = dict(zip(keys, pairs, strict=True))
        sequences = [self.prompting.ids(prompt) for prompt, _ in once.values()]
        for (prompt, asked), ids in zip(once.values(), sequences, strict=True):
            self.prompting.check(prompt, len(ids), asked.max_tokens)
            texts.append(_Text(self.tokenizer, ids, _rng(prompt, asked.seed), asked))
        with self._lock, torch.inference_mode():
            for members, steps in self._running().write(sequences):
                self._write(steps, [texts[i] for i in members])
        known = {key: text.generation() for key, text in zip(once, texts, strict=True)}
        return [known[key] for key in keys]

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Generation]:
        """The continuations, each with the log-probabilities of its tokens after its prompt.

        A continuation is cut into tokens on its own: start a new word with its space.

        Raises:
            PromptTooLong: a prompt and its continuation exceed what the model reads.
            InvalidInput: there are not as many continuations as prompts.
        """
        cut = self.prompting.scored(prompts, continuations)
        tokens: list[list[Token]] = [[] for _ in cut]
        members = [i for i, one in enumerate(cut) if one.continuation]
        sequences = [cut[i].prompt + cut[i].continuation for i in members]
        with self._lock, torch.inference_mode():
            first = [len(cut[i].prompt) for i in members]
            for places, logits in self._running().read(sequences, first):
                targets = torch.tensor([sequences[row][place] for row, place in places])
                read = self._tokens(logits, targets.to(logits.device))
                for (row, _), token in zip(places, read, strict=True):
                    own, pieces = tokens[members[row]], cut[members[row]].pieces
                    own.append(replace(token, text=pieces[len(own)]))
        return [
            Generation(text, tuple(read), len(one.prompt), len(one.continuation))
            for text, one, read in zip(continuations, cut, tokens, strict=True)
        ]

    def mean_gradient(
        self, prompts: Sequence[str], continuations: Sequence[str], *, layers: int = 4
    ) -> Direction:
        """See `GradientLLM` and `gradients.mean_gradient`."""
        cut = self.prompting.scored(prompts, continuations)
        with self._lock:
            batches = (batch for _, batch in token_batches(cut, self._batch_tokens))
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
        found = dict[int, GradientAgreement]()
        cut = self.prompting.scored(prompts, continuations)
        with self._lock:
            for members, batch in token_batches(cut, self._batch_tokens):
                agreements = gradient_agreement(
                    self.model, batch, along=along, cosine=cosine, layers=layers
                )
                found.update(zip(members, agreements, strict=True))
        return [found[i] for i in range(len(prompts))]

    def __repr__(self) -> str:
        return f"TransformersLLM({self._label!r}, device={str(self.model.device)!r})"

    def _running(self) -> TreeEngine | PlainEngine:
        if not self.model.training:
            return self._engine
        why = f"{self._label} is in training mode, where dropout would change its answers"
        raise InvalidInput(f"{why}; call model.eval() first.")

    @cached_property
    def _engine(self) -> TreeEngine | PlainEngine:
        return best_engine(self.model, batch_tokens=self._batch_tokens)

    def _write(
        self,
        steps: Generator[Tensor, tuple[list[int], Tensor]],
        texts: list["_Text"],
    ) -> None:
        """Write all texts, a row each, to their ends."""
        live, logits = texts, next(steps)
        while True:
            heats = [text.settings.temperature for text in live]
            chosen = _next_tokens(logits, heats, [text.rng for text in live])
            read = zip(live, chosen.tolist(), self._tokens(logits, chosen), strict=True)
            on = [text.add(i, token, self.prompting.ends) for text, i, token in read]
            if not (going := [row for row, goes_on in enumerate(on) if goes_on]):
                return
            live, chosen = [live[i] for i in going], chosen[going]
            logits = steps.send((going, chosen))

    def _tokens(
        self, logits: Float[Tensor, "rows vocabulary"], chosen: Int[Tensor, " rows"]
    ) -> list[Token]:
        """The chosen tokens under the untempered softmax of the logits, not yet spelled."""
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        own = logprobs.gather(1, chosen[:, None])[:, 0]
        entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
        best, which = logprobs.topk(min(_ALTERNATIVES, logprobs.shape[-1]), dim=-1)
        parts = (own.clamp_max(0), entropy, which, best.clamp_max(0))
        return [
            Token("", logprob, nats, tuple(zip(map(self._decode, ids), values, strict=True)))
            for logprob, nats, ids, values in zip(*(part.tolist() for part in parts), strict=True)
        ]


def _next_tokens(
    logits: Float[Tensor, "rows vocabulary"],
    temperatures: Sequence[float],
    rngs: Sequence[np.random.Generator],
) -> Int[Tensor, " rows"]:
    """The next token of each row: the likeliest, or drawn with one number of the row's own."""
    chosen = logits.argmax(dim=-1)
    if drawn := [row for row, heat in enumerate(temperatures) if heat > 0]:
        own = [(temperatures[row], rngs[row].random()) for row in drawn]
        heats, throws = torch.tensor(own, dtype=torch.float64).split(1, dim=1)
        # float64: a float32 running sum of 262,144 tokens loses the small ones; MPS has no float64
        home = logits[drawn].to("cpu", torch.float64)
        heights = torch.softmax(home / heats, dim=-1).cumsum(dim=-1)
        found = torch.searchsorted(heights, throws * heights[:, -1:], right=True)[:, 0]
        chosen[drawn] = found.clamp_max(logits.shape[-1] - 1).to(logits.device)
    return chosen


def _rng(prompt: str, seed: int | None) -> np.random.Generator:
    """Randomness that depends on the seed and the prompt, and on nothing else in the call."""
    if seed is None:
        return np.random.default_rng()
    digest = hashlib.blake2b(f"{seed}\0{prompt}".encode("utf-8", "surrogatepass"))
    return np.random.default_rng(int.from_bytes(digest.digest()[:16]))


class _Text:
    """One text on its way; a character of several tokens belongs to the last of them."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Sequence[int],
        rng: np.random.Generator,
        settings: GenerationSettings,
    ) -> None:
        self.rng, self.settings, self.text, self.tokens = rng, settings, "", list[Token]()
        # tokens read, and those chosen, the end-of-text token included
        self._prompt_tokens, self._steps, self._reason = len(prompt), 0, "length"
        self._tokenizer, self._ids = tokenizer, list(prompt[-_CONTEXT:])
        # byte fallback (SentencePiece) loses a run of bytes that begins within a character
        for size in range(_CONTEXT + 1, _CONTEXT + _BYTES):
            if self._decoded().startswith(_UNFINISHED):
                self._ids = list(prompt[-size:])
        self._starts = [0]  # where in `_ids` whole characters begin
        # characters of `_ids` that stand in the prompt or in a token already
        self._known = len(self._decoded())

    def add(self, token_id: int, token: Token, ends: Collection[int]) -> bool:
        """Take one more token; whether the text goes on after it."""
        self._steps += 1
        if token_id in ends:
            self._reason = "stop"
            return False
        self._ids.append(token_id)
        decoded, piece = self._decoded(), ""
        if not decoded.endswith(_UNFINISHED):
            piece = decoded[self._known :]
            self._starts.append(len(self._ids))
            cut = max((at for at in self._starts if len(self._ids) - at >= _CONTEXT), default=0)
            self._ids = self._ids[cut:]
            self._starts = [at - cut for at in self._starts if at >= cut]
            self._known = len(self._decoded())
        self.tokens.append(replace(token, text=piece))
        self.text += piece
        before = len(self.text) - len(piece)
        ends_at = ((stop, max(0, before - len(stop))) for stop in self.settings.stop)
        found = any(self.text.find(stop, start) >= 0 for stop, start in ends_at)
        return self._steps < self.settings.max_tokens and not found

    def generation(self) -> Generation:
        """What was written; the last token gets what is left of an unfinished character."""
        if self.tokens and (rest := self._decoded()[self._known :]):
            self.tokens[-1] = replace(self.tokens[-1], text=self.tokens[-1].text + rest)
            self.text += rest
        counts = self._prompt_tokens, self._steps
        whole = Generation(self.text, tuple(self.tokens), *counts, finish_reason=self._reason)
        return stopped(whole, self.settings.stop)

    def _decoded(self) -> str:
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(self._ids, **options))
