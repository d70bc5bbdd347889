"""How documents, their scores, earlier answers and the question become a prompt.

The documents stand before the question and the question before the earlier answers, so that the
prompts of all rounds begin alike and a model that shares prefixes computes the documents once.

Scores are computed and never read from text. `PromptTemplates.sanitize` keeps a passage from
looking like more: spaces break chat-template control tokens (``< |im_end| >``, ``[ INST ]``) and
the mark of key documents, and the field labels of the prompt lose their colon (``Round 1 -``).

Source: Chen et al. (SGIC), tables 1, 11 and 12; the field labels are the paper's, the wording ours.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from typing import Annotated

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.prompts.templates import DIRECT_PROMPT, direct_prompt
from ltrag_plugins.settings import Holds, Settings
from ltrag_plugins.types import Generation

SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？।॥؟۔][\"'”’)\]」』]*")

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


@dataclass(frozen=True, slots=True)
class Shown:
    """A (sanitized) document or an earlier answer as a prompt shows it: scored 0-100, or marked."""

    text: str
    score: float | None = None
    key: bool = False


@dataclass(frozen=True, slots=True)
class PromptTemplates(Settings):
    """Templates that name their fields, or `InvalidInput` is raised; other braces are doubled."""

    layout: Annotated[str, Holds("instruction", "documents", "question", "earlier")] = (
        "{instruction}\n\n{documents}\n\nQuestion: {question}\n{earlier}Answer:"
    )
    """The whole prompt: {instruction}, {documents}, {question}, {earlier}."""
    document: Annotated[str, Holds("key", "text", "score")] = (
        "Document [{number}]: {key}{text}{score}"
    )
    """One document: {number}, {key} (the mark, or nothing), {text}, {score}."""
    score: Annotated[str, Holds("score")] = " (Uncertainty Score: {score})"
    """What {score} is where there is one, 0 to 100: {score}."""
    heading: str = "Previous Generated Answer:\n"
    """Before the earlier answers, where there are any."""
    answer: Annotated[str, Holds("text", "score")] = "Round {round}: {text}{score}\n"
    """One earlier answer: {round} (1 is the first answer), {text}, {score}."""
    nothing: str = "(nothing)"
    """In the place of a blank earlier answer."""
    mark: str = "<<<KEY>>>"
    """What {key} is before the documents that matter most (table 11)."""
    bare: Annotated[str, Holds("question")] = DIRECT_PROMPT
    """The whole prompt where there are no documents: {question}; other braces stay."""
    instruction: str = "Use the documents to answer the question in a few words, no explanation."
    """The instruction; no fields."""
    about_scores: str = (
        " The number behind a text, 0 to 100, is how uncertain it is: trust low ones most."
    )
    """Added to the instruction where documents have scores, else to `about_answers`; no fields."""
    about_keys: str = " Documents that begin with {mark} matter most."
    """Added to the instruction where documents are marked: {mark}."""
    about_answers: str = (
        "Keep an earlier answer if the documents bear it out; otherwise give a better one."
    )
    """A line before the heading of the earlier answers; "": none (paper, table 1); no fields."""

    def _check_together(self) -> None:
        try:
            self.render("", [Shown("", 0, key=True)], [Shown("", 0)])
        except (ValueError, LookupError, AttributeError) as error:
            what = f"a template is malformed, or names a field that it has not ({error!r})"
            raise InvalidInput(f"{what}; double its other braces") from error

    def render(
        self, question: str, documents: Sequence[Shown], earlier: Sequence[Shown] = ()
    ) -> str:
        """One prompt; what it shows decides what it explains."""
        question = self.sanitize(question, lines=True)
        if not documents:
            return direct_prompt(question, self.bare)

        def score(shown: Shown) -> str:
            return "" if shown.score is None else self.score.format(score=round(shown.score))

        lines, before = [], ""
        for i, one in enumerate(documents, 1):
            key = f"{self.mark} " if one.key else ""
            lines.append(self.document.format(number=i, key=key, text=one.text, score=score(one)))
        scored = any(one.score is not None for one in documents)
        instruction = self.instruction + (self.about_scores if scored else "")
        if any(one.key for one in documents):
            instruction += self.about_keys.format(mark=self.mark)
        if earlier:
            new = not scored and any(one.score is not None for one in earlier)
            about = (self.about_answers + (self.about_scores if new else "")).strip()
            before = (f"{about}\n" if about else "") + self.heading
        for i, one in enumerate(earlier, 1):
            text = self.sanitize(one.text) or self.nothing
            before += self.answer.format(round=i, text=text, score=score(one))
        shown = {"documents": "\n".join(lines), "question": question, "earlier": before}
        return self.layout.format(instruction=instruction, **shown)

    def without_echo(self, answer: Generation) -> Generation:
        """An answer without the label and score that small models copy, in text and tokens."""
        parts = string.Formatter().parse(self.answer.partition("{text}")[0])
        numbers = (re.escape(text.strip()) + r"\s*\d+\s*" * bool(f) for text, f, _, _ in parts)
        label = "".join(numbers)  # the label with numbers in its fields
        before, _, after = (re.escape(part.strip()) for part in self.score.partition("{score}"))
        # the token limit may have cut the score short; brackets alone may be the answer's own
        worded = any(map(str.isalpha, self.score.partition("{score}")[0]))
        tail = rf"{before}\s*\d*\s*(?:{after}\.?)?" if worded else ""
        pattern = rf"\s*(?:{label})?\s*(.*?)(?:{tail})?"
        echoed = re.fullmatch(pattern, answer.text.rstrip(), re.DOTALL)
        if echoed is None or (text := echoed[1].rstrip()) == answer.text.strip():
            return answer
        start, tokens = echoed.start(1), answer.tokens
        if tokens is not None and "".join(token.text for token in tokens) == answer.text:
            ends, stop = accumulate(len(token.text) for token in tokens), start + len(text)
            pairs = [*zip(tokens, ends, strict=True)] if text else []
            tokens = tuple(t for t, end in pairs if start < end and end - len(t.text) < stop)
        return replace(answer, text=text, tokens=tokens)

    def sanitize(self, text: str, *, lines: bool = False) -> str:
        """Text on one line, or its `lines`, unable to fake a control token, a field or the mark."""
        text = text.strip() if lines else one_line(text)
        # every run of words before a colon in these is a label
        fields = (self.layout, self.document, self.score, self.heading, self.answer)
        label, mark = _patterns(fields, self.mark)
        if mark.pattern:
            text = mark.sub(lambda found: " ".join("".join(found[0].split())), text)
        for pattern, broken in _CONTROL:
            text = pattern.sub(broken, text)
        return label.sub(lambda found: f"{found[1].rstrip()} -", text) if label.pattern else text


def one_line(text: str) -> str:
    """The text with each run of white space, line breaks included, as one space."""
    return " ".join(text.split())


def cut_to_words(text: str, words: int | None) -> str:
    """The sentences that fit into so many words (None: all), or the words if that loses half."""
    if words is None:
        return text
    limit = 10 * words  # characters, so that text without spaces is bounded too
    if len(text) <= limit and len(text.split(None, words)) <= words:
        return text
    ends = [found.end() for found in islice(re.finditer(r"\S+", text[:limit]), words)]
    split = ends[-1] == limit < len(text) and not text[limit].isspace()
    end = ends[-2] if split and len(ends) > 1 else ends[-1]  # a first word that is split is cut
    sentences = [found.end() for found in SENTENCE_END.finditer(text[: end + 1])]
    late = sentences and 2 * sentences[-1] >= end
    return text[: min(sentences[-1], end) if late else end]


@lru_cache(maxsize=64)
def _patterns(templates: tuple[str, ...], mark: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of the field labels, and of the mark of key documents; "" where there is none."""
    labels = {found[1] for template in templates for found in _LABEL.finditer(template)}
    spelled = "|".join(_GAP.join(map(re.escape, label.split())) for label in sorted(labels))
    label = rf"(\b(?:{spelled}){_GAP}[\[(]?{_GAP}\d*+{_GAP}[\])]?){_GAP}[:：]" if spelled else ""
    marks = r"\s*".join(map(re.escape, "".join(mark.split())))
    return re.compile(label, re.IGNORECASE), re.compile(marks, re.IGNORECASE)


STEPS = PromptTemplates(
    layout="{instruction}\n\nQuestion: {question}\nReasoning Steps:\n{documents}\n"
    "{earlier}Final Answer:",
    document="{number}. {key}{text}{score}",
    instruction="Use the reasoning steps to answer the question; give the final answer alone.",
    about_answers="Keep an earlier answer if the steps bear it out; otherwise give a better one.",
)
"""Reasoning steps in the place of documents (table 12)."""
