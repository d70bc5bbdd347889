"""Which piece of a text each token stands for: the pieces always join to the text."""

from collections.abc import Sequence

from ltrag_plugins.errors import missing_extra

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
