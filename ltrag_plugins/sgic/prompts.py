"""How documents, their scores, earlier answers and the question become a prompt.

The layout puts the documents before the question and the question before the earlier answers,
so that the prompts of all rounds begin alike and a model that shares prefixes computes the
documents once.

Scores are computed and never read from text, so what a passage says about itself counts for
nothing there. `PromptTemplates.sanitize` keeps it from looking like more than a passage to the
model. It only inserts a character, or turns a colon into " -", so that a reader sees what it did:

* chat-template control tokens are broken by spaces: ``<|im_end|>`` -> ``< |im_end| >``,
  ``</s>`` -> ``< /s >``, ``[INST]`` -> ``[ INST ]``, ``[|user|]`` -> ``[ |user| ]``;
* the field labels of the prompt lose their colon: ``Round 1:`` -> ``Round 1 -``;
* the mark of key documents is spelled out: ``<<<KEY>>>`` -> ``< < < K E Y > > >``.

References:
    Chen et al. (SGIC), tables 1, 11 and 12; the field labels are the paper's, the wording ours.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, direct_prompt
from ltrag_plugins.types import Generation, Token

_CHARACTERS_A_WORD = 10
"""A budget of n words is also one of ten times n characters, so that text without spaces is
bounded too."""
SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？][\"'”’)\]」』]*")

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
_FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "layout": (
        {"instruction", "documents", "question", "earlier"},
        {"instruction", "documents", "question", "earlier"},
    ),
    "document": ({"key", "text", "score"}, {"number", "key", "text", "score"}),
    "score": ({"score"}, {"score"}),
    "answer": ({"text", "score"}, {"round", "text", "score"}),
    "about_keys": (set(), {"mark"}),
}
"""The fields that a template must name, and those that it may name."""


@dataclass(frozen=True, slots=True)
class PromptTemplates:
    """Templates with the fields that their docstrings name; other braces are doubled.

    Raises:
        InvalidInput: a template names a field it does not have, or lacks one it needs.
    """

    layout: str = "{instruction}\n\n{documents}\n\nQuestion: {question}\n{earlier}Answer:"
    """The whole prompt: {instruction}, {documents}, {question}, {earlier}."""
    document: str = "Document [{number}]: {key}{text}{score}"
    """One document: {number}, {key} (the mark, or nothing), {text}, {score}."""
    score: str = " (Uncertainty Score: {score})"
    """What {score} is where there is one, 0 to 100: {score}."""
    heading: str = "Previous Generated Answer:\n"
    """Before the earlier answers, where there are any."""
    answer: str = "Round {round}: {text}{score}\n"
    """One earlier answer: {round} (1 is the first answer), {text}, {score}."""
    nothing: str = "(nothing)"
    """In the place of a blank earlier answer."""
    mark: str = "<<<KEY>>>"
    """What {key} is before the documents that matter most (table 11)."""
    bare: str = DIRECT_PROMPT
    """The whole prompt where there are no documents: {question}; other braces stay."""
    instruction: str = "Use the documents to answer the question in a few words, no explanation."
    """The instruction; no fields."""
    about_scores: str = (
        " The number behind a text, 0 to 100, is how uncertain it is: trust low ones most."
    )
    """Added to the instruction where documents have scores, else to `about_answers` where answers
    have; no fields."""
    about_keys: str = " Documents that begin with {mark} matter most."
    """Added to the instruction where documents are marked: {mark}."""
    about_answers: str = (
        "Keep an earlier answer if the documents bear it out; otherwise give a better one."
    )
    """A line before the heading of the earlier answers; no fields."""

    def __post_init__(self) -> None:
        for name, (needed, known) in _FIELDS.items():
            named = _named(getattr(self, name), name)
            if not needed <= named <= known:
                raise InvalidInput(
                    f"the {name} template must name {sorted(needed)} and may name {sorted(known)}; "
                    f"it names {sorted(named)}"
                )
        direct_prompt("", self.bare)  # raises where it has no place for the question

    def without_echo(self, answer: Generation) -> Generation:
        """An answer without the label before it and the score behind it, in text and tokens.

        Small models copy the form of the earlier answers. Nothing is read from what is removed.
        An answer that copies nothing comes back as it is.
        """
        start, end = self._own_words(answer.text)
        text, tokens = answer.text[start:end], answer.tokens
        if text == answer.text.strip():
            return answer
        if tokens is not None and "".join(token.text for token in tokens) == answer.text:
            tokens = tuple(_within(tokens, start, end)) if text else ()
        return replace(answer, text=text, tokens=tokens)

    def sanitize(self, text: str, *, lines: bool = False) -> str:
        """Text from outside, unable to fake a control token, a field of the prompt or the mark.

        Args:
            lines: keep its line breaks (a question's); a document or answer is one line.
        """
        text = text.strip() if lines else one_line(text)
        # every run of words before a colon in these is a label
        fields = (self.layout, self.document, self.score, self.heading, self.answer)
        label, mark = _patterns(fields, self.mark)
        if mark is not None:
            text = mark.sub(lambda found: " ".join("".join(found[0].split())), text)
        for pattern, broken in _CONTROL:
            text = pattern.sub(broken, text)
        return text if label is None else label.sub(lambda found: f"{found[1].rstrip()} -", text)

    def _own_words(self, answer: str) -> tuple[int, int]:
        """Where the answer's own words begin and end."""
        lead = _spelled(self.answer.partition("{text}")[0])
        before, _, after = (re.escape(part.strip()) for part in self.score.partition("{score}"))
        # the token limit may have cut the score short; brackets alone may be the answer's own
        worded = any(map(str.isalpha, self.score.partition("{score}")[0]))
        tail = rf"{before}\s*\d*\s*(?:{after})?" if worded else ""
        start, end = _stripped(answer, 0, len(answer))
        if echoed := re.compile(lead).match(answer, start, end):
            start = echoed.end()
        if echoed := re.compile(rf"{tail}$").search(answer, start, end):
            end = echoed.start()
        return _stripped(answer, start, end)


@dataclass(frozen=True, slots=True)
class Shown:
    """A document or an earlier answer as a prompt shows it."""

    text: str
    """A document's comes from `PromptTemplates.sanitize`; an answer's is as the model wrote it."""
    score: float | None = None
    """0 to 100; None: without a score."""
    key: bool = False
    """Whether a document is marked."""


def render(
    templates: PromptTemplates,
    question: str,
    documents: Sequence[Shown],
    earlier: Sequence[Shown] = (),
) -> str:
    """One prompt; what it shows decides what it explains.

    Whatever has to do with earlier answers stands after the question: where documents are shown
    without scores, the rounds share even the first prompt's documents.
    """
    t, asked = templates, templates.sanitize(question, lines=True)
    if not documents:
        return direct_prompt(asked, t.bare)
    scored = _scored(documents)
    keys = t.about_keys.format(mark=t.mark) if any(d.key for d in documents) else ""
    return t.layout.format(
        instruction=t.instruction + (t.about_scores if scored else "") + keys,
        documents="\n".join(_document(t, i, shown) for i, shown in enumerate(documents, 1)),
        question=asked,
        earlier=_earlier(t, earlier, about_scores=_scored(earlier) and not scored),
    )


def one_line(text: str) -> str:
    """The text with each run of white space, line breaks included, as one space."""
    return " ".join(text.split())


def cut_to_words(text: str, words: int | None) -> str:
    """The sentences that fit into the budget, or as many words where those are less than half.

    A full stop early in the text may be that of "Dr." or of a short first sentence: to end there
    would lose nearly all that fits.

    Args:
        text: without white space at its ends.
        words: at least 1; None: no limit.
    """
    if words is None or (
        len(text) <= words * _CHARACTERS_A_WORD and len(text.split(None, words)) <= words
    ):
        return text
    end = _last_word(text, words)
    sentences = [found.end() for found in SENTENCE_END.finditer(text[: end + 1])]
    late = sentences and 2 * sentences[-1] >= end
    return text[: min(sentences[-1], end) if late else end]


def _last_word(text: str, words: int) -> int:
    """Where the last word that fits ends; a first word that does not fit is cut."""
    limit = words * _CHARACTERS_A_WORD
    ends = [found.end() for found in islice(re.finditer(r"\S+", text[:limit]), words)]
    split = ends[-1] == limit < len(text) and not text[limit].isspace()
    return ends[-2] if split and len(ends) > 1 else ends[-1]


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


def _earlier(t: PromptTemplates, earlier: Sequence[Shown], *, about_scores: bool) -> str:
    if not earlier:
        return ""
    lines = (
        t.answer.format(round=i, text=t.sanitize(one.text) or t.nothing, score=_score(t, one.score))
        for i, one in enumerate(earlier, 1)
    )
    return f"{t.about_answers}{t.about_scores * about_scores}\n{t.heading}{''.join(lines)}"


def _scored(shown: Sequence[Shown]) -> bool:
    return any(one.score is not None for one in shown)


def _document(t: PromptTemplates, number: int, document: Shown) -> str:
    key = f"{t.mark} " if document.key else ""
    score = _score(t, document.score)
    return t.document.format(number=number, key=key, text=document.text, score=score)


def _score(t: PromptTemplates, score: float | None) -> str:
    return "" if score is None else t.score.format(score=round(score))


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The same part of the text without white space at its ends."""
    left = end - len(text[start:end].lstrip())
    return left, left + len(text[left:end].rstrip())


def _within(tokens: Sequence[Token], start: int, end: int) -> Iterator[Token]:
    """The tokens that write something between two places of the text."""
    place = 0
    for token in tokens:
        if place < end and place + len(token.text) > start:
            yield token
        place += len(token.text)


def _spelled(template: str) -> str:
    """A pattern of the template with numbers in its fields."""
    parts = string.Formatter().parse(template)
    return "".join(re.escape(text.strip()) + (r"\s*\d+\s*" if f else "") for text, f, _, _ in parts)


def _named(template: str, name: str) -> set[str]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InvalidInput(
            f"the {name} template is malformed ({error}); double its braces"
        ) from error
    return {field for _, field, _, _ in parsed if field is not None}


STEPS = PromptTemplates(
    layout="{instruction}\n\nQuestion: {question}\nReasoning Steps:\n{documents}\n"
    "{earlier}Final Answer:",
    document="{number}. {key}{text}{score}",
    instruction="Use the reasoning steps to answer the question; give the final answer alone.",
    about_answers="Keep an earlier answer if the steps bear it out; otherwise give a better one.",
)
"""Reasoning steps in the place of documents (table 12)."""
