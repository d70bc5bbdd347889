"""Text from outside, made unable to pass for the prompt's own structure.

Scores are computed and never read from text, so what a passage says about itself counts for
nothing there; this module keeps it from looking like more than a passage to the model. It only
ever inserts a character, or turns a colon into " -", so that a reader sees what was done:

* chat-template control tokens are broken by spaces: ``<|im_end|>`` -> ``< |im_end| >``,
  ``</s>`` -> ``< /s >``, ``[INST]`` -> ``[ INST ]``, ``[|user|]`` -> ``[ |user| ]``;
* the field labels of the prompt lose their colon: ``Round 1:`` -> ``Round 1 -``;
* the mark of key documents is spelled out: ``<<<KEY>>>`` -> ``< < < K E Y > > >``.

A passage is brought to one line first, so that nothing in it begins a line.

Cut a text to a budget of words, where a sentence ends if one ends late enough.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

# invisible characters must not hide a label; possessive, so that long runs take linear time
_GAP = r"[\s\u200b-\u200f\u2060\ufeff]*+"
_NAMES = (
    r"s|bos|eos|pad|unk|mask|sep|cls|image|audio|think|sys|instruct|user|assistant|system|human|bot"
    r"|ai|用户|role|so[hpt]|eo[adhmpt]|(?:seed|minimax):[a-z_]+|fim-[a-z]+|ctrl\d+"
    r"|extra_id_\d+|unused\d+|0x[0-9a-f]{2}|[a-z0-9]+(?:_[a-z0-9]+)+"
)
_CONTROL = (
    (re.compile(r"<(?=[|｜])"), "< "),  # <|...|> of ChatML, Llama 3, Phi, Qwen; ｜ of DeepSeek
    (re.compile(r"(?<=[|｜])>"), " >"),
    (re.compile(rf"<(/?(?:{_NAMES}))>", re.IGNORECASE), r"< \1 >"),
    # Mistral, Llama 2, BERT; GLM; Pangu
    (re.compile(r"\[(/?(?:[A-Z][A-Z_]{2,}|[gs]MASK|unused\d+))\]"), r"[ \1 ]"),
    # EXAONE, Baize; four letters, as E[|X|] is a mean
    (re.compile(r"\[(\|(?:ai|[a-z][a-z_]{3,})\|)\]", re.IGNORECASE), r"[ \1 ]"),
    # MiniMax; a bracket may end one and begin the next, so it is only looked at
    (re.compile(r"\](?=<\]|(?:~!?b|![dp]~)[\[\]])"), "] "),
    (re.compile(r"\[(?=e~\[)"), "[ "),
)
_LABEL = re.compile(r"([^\W\d_][^\W\d_ ]*(?: [^\W\d_]+)*)(?: ?\[?\{(?:number|round)\}\]?)?\s*:")


def one_line(text: str) -> str:
    """The text with each run of white space, line breaks included, as one space."""
    return " ".join(text.split())


def neutral(text: str, templates: Iterable[str], mark: str = "") -> str:
    """The text, unable to fake a control token, a field of the templates or the mark.

    Args:
        templates: those of the prompt; every run of words before a colon in them is a label.
        mark: what stands before key documents; "" for none.
    """
    label, marks = _patterns(tuple(templates), mark)
    if marks is not None:
        text = marks.sub(lambda found: " ".join("".join(found[0].split())), text)
    for pattern, broken in _CONTROL:
        text = pattern.sub(broken, text)
    return text if label is None else label.sub(lambda found: f"{found[1].rstrip()} -", text)


@lru_cache(maxsize=64)
def _patterns(
    templates: tuple[str, ...], mark: str
) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    labels = {found[1] for template in templates for found in _LABEL.finditer(template)}
    spelled = [_GAP.join(map(re.escape, label.split())) for label in sorted(labels)]
    label = (
        rf"(\b(?:{'|'.join(spelled)}){_GAP}[\[(]?{_GAP}\d*+{_GAP}[\])]?){_GAP}[:：]"
        if spelled
        else None
    )
    marks = r"\s*".join(map(re.escape, "".join(mark.split())))
    return (
        re.compile(label, re.IGNORECASE) if label else None,
        re.compile(marks, re.IGNORECASE) if marks else None,
    )


CHARACTERS_A_WORD = 10
"""A budget of n words is also one of ten times n characters, so that text without spaces is
bounded too."""
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？][\"'”’)\]」』]*")


@dataclass(frozen=True, slots=True)
class Cut:
    """A text within its budget."""

    text: str
    dropped: int = 0
    """Characters that were cut off; 0: it is whole."""


def cut_to_words(text: str, words: int | None) -> Cut:
    """The sentences that fit into the budget, or as many words where those are less than half.

    A full stop early in the text may be that of "Dr." or of a short first sentence: to end there
    would lose nearly all that fits.

    Args:
        text: without white space at its ends.
        words: at least 1; None: no limit.
    """
    if words is None or _fits(text, words):
        return Cut(text)
    end = _last_word(text, words)
    sentences = [found.end() for found in SENTENCE_END.finditer(text[: end + 1])]
    late = sentences and 2 * sentences[-1] >= end
    kept = text[: min(sentences[-1], end) if late else end]
    return Cut(kept, len(text) - len(kept))


def _fits(text: str, words: int) -> bool:
    return len(text) <= words * CHARACTERS_A_WORD and len(text.split(None, words)) <= words


def _last_word(text: str, words: int) -> int:
    """Where the last word that fits ends; a first word that does not fit is cut."""
    limit = words * CHARACTERS_A_WORD
    ends = [found.end() for found in islice(re.finditer(r"\S+", text[:limit]), words)]
    split = ends[-1] == limit < len(text) and not text[limit].isspace()
    return ends[-2] if split and len(ends) > 1 else ends[-1]
