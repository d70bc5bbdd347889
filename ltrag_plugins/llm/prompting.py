"""From prompts to token ids: the chat template, the seam before a continuation, the limit.

Which piece of a text each token stands for: the pieces always join to the text.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from ltrag_plugins.errors import InvalidInput, PromptTooLong, missing_extra
from ltrag_plugins.llm.gradients import TokenBatch

try:
    from transformers import PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("transformers", "local") from error

CONTEXT = 4
"""Prompt tokens that are decoded along: some tokenizers drop a space at the start of a text."""
UNFINISHED = "\ufffd"


class Speller:
    """Spells tokens out one by one.

    A character that is spread over several tokens belongs to the last of them; the tokens
    before it have an empty piece. Special tokens have an empty piece.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT:])
        # characters of `_ids` that stand in the prompt or in a piece already
        self._spelled = len(self._decoded())
        self.pieces: list[str] = []
        self.text = ""

    def add(self, token: int) -> str:
        """The piece of one more token."""
        self._ids.append(token)
        decoded = self._decoded()
        if decoded.endswith(UNFINISHED):
            piece = ""
        else:
            piece = decoded[self._spelled :]
            self._ids = self._ids[-CONTEXT:]
            self._spelled = len(self._decoded())
        return self._append(piece)

    def finish(self) -> None:
        """Give what is left of an unfinished character to the last token."""
        rest = self._decoded()[self._spelled :]
        if self.pieces and rest:
            self._spelled += len(rest)
            self.pieces[-1] += rest
            self.text += rest

    def _append(self, piece: str) -> str:
        self.pieces.append(piece)
        self.text += piece
        return piece

    def _decoded(self) -> str:
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(self._ids, **options))


def pieces_of(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[str]]:
    """The tokens of a text on its own, without special tokens, and the piece of each."""
    if not text:
        return [], []
    if not tokenizer.is_fast:
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids, [text] + [""] * (len(ids) - 1)
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts = [start for start, _ in coded["offset_mapping"]]
    ends = [*starts[1:], len(text)]
    starts[:1] = [0]
    return list(coded["input_ids"]), [text[a:b] for a, b in zip(starts, ends, strict=True)]


try:
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import PretrainedConfig, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("transformers", "local") from error


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt and its continuation as tokens."""

    prompt: list[int]
    continuation: list[int]
    pieces: list[str]
    """The text of each token of the continuation; they join to it."""


@dataclass(frozen=True, slots=True)
class Prompting:
    """How prompts become tokens for one model."""

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    system: str | None
    limit: int | None
    """Most tokens the model reads, its own included; None: it does not say."""

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        config: PretrainedConfig,
        *,
        chat: bool | None,
        system: str | None,
    ) -> Self:
        """For a tokenizer and its model; see `TransformersLLM` for the arguments.

        Raises:
            InvalidInput: what was asked for needs a chat template, and there is none.
        """
        templated = bool(tokenizer.chat_template)
        chat = templated if chat is None else chat
        if chat and not templated:
            raise InvalidInput(
                "chat=True, but this tokenizer has no chat template; use chat=False, or set "
                "tokenizer.chat_template."
            )
        if system is not None and not chat:
            raise InvalidInput(
                "a system message needs the chat template; write it into the prompts instead."
            )
        limit = getattr(config.get_text_config(), "max_position_embeddings", None)
        return cls(tokenizer, chat, system, limit)

    @property
    def name(self) -> str:
        """The same for the same handling of prompts."""
        if not self.chat:
            return "text"
        handled = f"{self.tokenizer.chat_template}\0{self.system}"
        return f"chat-{hashlib.sha256(handled.encode()).hexdigest()[:6]}"

    def ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt; at least one.

        Raises:
            InvalidInput: the prompt is empty and the tokenizer has no token to start with.
        """
        if self.chat:
            prompt = self._templated(prompt)
        ids = self.tokenizer.encode(prompt, add_special_tokens=not self.chat)
        if ids:
            return ids
        for start in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if isinstance(start, int):
                return [start]
        raise InvalidInput("the prompt is empty, and this model has no token to start a text with")

    def scored(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Scored]:
        """Prompts and continuations, cut into tokens apart from each other.

        Raises:
            InvalidInput: there are not as many continuations as prompts.
            PromptTooLong: together they exceed what the model reads.
        """
        if len(prompts) != len(continuations):
            raise InvalidInput(
                f"{len(prompts)} prompts, but {len(continuations)} continuations; "
                "give one continuation for each prompt."
            )
        known = {prompt: self.ids(prompt) for prompt in dict.fromkeys(prompts)}
        cut = [
            Scored(known[prompt], *pieces_of(self.tokenizer, continuation))
            for prompt, continuation in zip(prompts, continuations, strict=True)
        ]
        for prompt, one in zip(prompts, cut, strict=True):
            self.check(prompt, len(one.prompt), len(one.continuation))
        return cut

    def check(self, prompt: str, read: int, more: int) -> None:
        """Let pass what the model can read.

        Raises:
            PromptTooLong: `read` tokens of prompt and `more` after them are too many.
        """
        if self.limit is not None and read + more > self.limit:
            raise PromptTooLong(
                f"the prompt {prompt[:40]!r}... has {read:,} tokens, and with {more:,} more the "
                f"model would have to read {read + more:,}; it reads at most {self.limit:,}. "
                "Shorten the prompt, show fewer passages, or lower max_tokens."
            )

    def _templated(self, prompt: str) -> str:
        messages = [{"role": "user", "content": prompt}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return str(
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )


def token_batches(
    scored: Sequence[Scored], *, batch_tokens: int, device: torch.device
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Batches of similar length for the gradient functions, each with its members' indices.

    Raises:
        InvalidInput: a continuation is empty, so that it has no loss.
    """
    for i, one in enumerate(scored):
        if not one.continuation:
            raise InvalidInput(f"continuation {i} is empty; it has no loss to differentiate.")
    order = sorted(range(len(scored)), key=lambda i: _length(scored[i]), reverse=True)
    while order:
        size = max(1, batch_tokens // _length(scored[order[0]]))
        members, order = order[:size], order[size:]
        yield members, _token_batch([scored[i] for i in members], device)


def _token_batch(scored: Sequence[Scored], device: torch.device) -> TokenBatch:
    ids = [torch.tensor(one.prompt + one.continuation) for one in scored]
    targets = [torch.arange(_length(one)) >= len(one.prompt) for one in scored]
    return TokenBatch(
        pad_sequence(ids, batch_first=True).to(device),
        pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).to(device),
        pad_sequence(targets, batch_first=True).to(device),
    )


def _length(one: Scored) -> int:
    return len(one.prompt) + len(one.continuation)
