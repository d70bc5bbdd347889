"""The documents of one question: cut, neutralized, and shown with what is known of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.sgic.answer import ScoredDocument
from ltrag_plugins.sgic.cutting import cut_to_words
from ltrag_plugins.sgic.neutral import one_line
from ltrag_plugins.sgic.prompts import Shown
from ltrag_plugins.sgic.settings import SGICSettings
from ltrag_plugins.types import Passage


@dataclass(frozen=True, slots=True)
class Documents:
    """Passages as prompts show them; `texts[i]` is `scored[i]`'s."""

    texts: tuple[str, ...]
    scored: tuple[ScoredDocument, ...]

    @property
    def plain(self) -> list[Shown]:
        """All of them, with nothing beside them."""
        return [Shown(text) for text in self.texts]

    def shown(self, settings: SGICSettings) -> list[Shown]:
        """Those that a round shows, with their scores or marks; plain if they have no scores."""
        rows = [i for i, document in enumerate(self.scored) if document.shown]
        marked = self._marked(rows, settings.keys) if settings.documents == "keys" else ()
        scores = settings.documents == "scores"
        return [
            Shown(self.texts[i], self.scored[i].score if scores else None, key=i in marked)
            for i in rows
        ]

    def with_scores(self, scores: Sequence[float], cut_to: int | None) -> "Documents":
        """The same with a score each; all but the `cut_to` lowest will not be shown."""
        best = sorted(range(len(scores)), key=scores.__getitem__)[:cut_to]
        scored = [
            replace(document, score=scores[i], shown=i in best)
            for i, document in enumerate(self.scored)
        ]
        return replace(self, scored=tuple(scored))

    def _marked(self, rows: Sequence[int], most: int) -> set[int]:
        scores = {i: score for i in rows if (score := self.scored[i].score) is not None}
        return set(sorted((i for i in scores if scores[i] < 50), key=scores.__getitem__)[:most])


def prepared(passages: Sequence[Passage], settings: SGICSettings) -> Documents:
    """Passages on one line each, cut at sentence ends, unable to fake the prompt's structure.

    Raises:
        InvalidInput: something is not a `Passage`.
    """
    if isinstance(passages, str):
        raise InvalidInput("passages is a str; give a list of Passage(text)")
    texts, scored = [], []
    for i, passage in enumerate(passages, 1):
        if not isinstance(passage, Passage):
            raise InvalidInput(
                f"passage {i} is a {type(passage).__name__}; give a text as Passage(text)"
            )
        whole = one_line(f"{passage.title}: {passage.text}" if passage.title else passage.text)
        cut = cut_to_words(whole, settings.document_words)
        texts.append(settings.templates.outside(cut.text))
        scored.append(ScoredDocument(passage, dropped=cut.dropped))
    return Documents(tuple(texts), tuple(scored))
