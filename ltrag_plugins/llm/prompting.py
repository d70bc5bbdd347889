"""Text to tokens and back: the chat template, the seam before a continuation, the pieces."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ltrag_plugins.errors import InvalidInput, PromptTooLong, missing_extra
from ltrag_plugins.llm.base import checked_prompts

try:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise missing_extra("torch and transformers", "local") from error


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt and its continuation as tokens."""

    prompt: list[int]
    continuation: list[int]
    pieces: list[str]
    """The text of each token of the continuation; they join to it."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.continuation)


class Prompting:
    """How prompts become tokens for one model; see `TransformersLLM` for the arguments."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        *,
        chat: bool | None,
        system: str | None,
    ) -> None:
        chat = bool(tokenizer.chat_template) if chat is None else chat
        if chat and not tokenizer.chat_template:
            why = "chat=True, but this tokenizer has no chat template"
            raise InvalidInput(f"{why}; use chat=False, or set tokenizer.chat_template.")
        if system is not None and not chat:
            remedy = "write it into the prompts instead."
            raise InvalidInput(f"a system message needs the chat template; {remedy}")
        config, ends = model.config.get_text_config(), set[int]()
        for settings in (tokenizer, config, model.generation_config):
            named = getattr(settings, "eos_token_id", None)
            each = named if isinstance(named, list | tuple) else [named]
            ends |= {token for token in each if isinstance(token, int)}
        self.tokenizer, self.chat, self.system = tokenizer, chat, system
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        """Most tokens the model reads, its own included; None: it does not say."""
        self.ends = frozenset(ends)
        """The tokens that end a text, by the tokenizer, the model and its generation settings."""

    @property
    def name(self) -> str:
        """The same for the same handling of prompts."""
        if not self.chat:
            return "text"
        handled = f"{self.tokenizer.chat_template}\0{self.system}"
        return f"chat-{hashlib.sha256(handled.encode()).hexdigest()[:6]}"

    def text(self, prompt: str) -> str:
        """What the model reads: the prompt in the chat template, or as it is."""
        if not self.chat:
            return prompt
        said = ("system", self.system), ("user", prompt)
        messages = [{"role": role, "content": text} for role, text in said if text is not None]
        how: Any = {"tokenize": False, "add_generation_prompt": True}
        return str(self.tokenizer.apply_chat_template(messages, **how))

    def ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt; at least one."""
        if ids := self.tokenizer.encode(self.text(prompt), add_special_tokens=not self.chat):
            return ids
        for start in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if isinstance(start, int):
                return [start]
        raise InvalidInput("the prompt is empty, and this model has no token to start a text with")

    def pieces(self, text: str) -> tuple[list[int], list[str]]:
        """The tokens of a text on its own, without special tokens, and the piece of each."""
        if not text:
            return [], []
        fast = bool(self.tokenizer.is_fast)
        coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=fast)
        if not fast:
            return list(coded["input_ids"]), [text, *[""] * (len(coded["input_ids"]) - 1)]
        starts = [0, *(start for start, _ in coded["offset_mapping"][1:]), len(text)]
        return list(coded["input_ids"]), [text[a:b] for a, b in pairwise(starts)]

    def scored(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Scored]:
        """Prompts and continuations, cut into tokens apart from each other."""
        if len(checked_prompts(prompts)) != len(continuations):
            why = f"{len(prompts)} prompts, but {len(continuations)} continuations"
            raise InvalidInput(f"{why}; give one continuation for each prompt.")
        known = {prompt: self.ids(prompt) for prompt in dict.fromkeys(prompts)}
        cut = []
        for prompt, continuation in zip(prompts, continuations, strict=True):
            cut.append(one := Scored(known[prompt], *self.pieces(continuation)))
            self.check(prompt, len(one.prompt), len(one.continuation))
        return cut

    def check(self, prompt: str, read: int, more: int) -> None:
        """Let pass what the model can read."""
        if self.limit is not None and read + more > self.limit:
            raise PromptTooLong(
                f"the prompt {prompt[:40]!r}... has {read:,} tokens, and with {more:,} more the "
                f"model would have to read {read + more:,}; it reads at most {self.limit:,}. "
                "Shorten the prompt, show fewer passages, or lower max_tokens."
            )
