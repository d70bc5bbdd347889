"""How common are a text's words?"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from wordfreq import word_frequency

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.words import words

UNSEEN = 1e-9
"""Relative frequency given to words that were never seen: one in a billion."""


@dataclass(frozen=True)
class WordFrequencies:
    """Relative frequencies of words: of a language (`wordfreq`), or of your own corpus."""

    language: str = "en"
    """Language code, where no corpus was counted."""
    counts: tuple[tuple[str, int], ...] = ()
    """Words of a corpus with their counts; empty for the language's own frequencies."""

    @classmethod
    def of_corpus(cls, texts: Iterable[str]) -> "WordFrequencies":
        """Count the words of your own texts.

        Raises:
            InvalidInput: there are no words in them.
        """
        counts = Counter(word for text in texts for word in words(text))
        if not counts:
            raise InvalidInput("the corpus has no words; pass the texts your retriever searches")
        return cls("", tuple(sorted(counts.items())))

    def of_word(self, word: str) -> float:
        """Share of all words that are this one, in (0, 1]; at least `UNSEEN`.

        Raises:
            InvalidInput: `wordfreq` does not know the language.
        """
        if self.counts:
            return max(UNSEEN, self._table.get(word.lower(), 0) / self._total)
        try:
            return max(UNSEEN, word_frequency(word, self.language))
        except ImportError as error:  # how words are told apart is another package's work
            raise InvalidInput(
                f"word frequencies for {self.language!r} need more: pip install "
                f"'wordfreq[cjk]' ({error}); or count your own texts: "
                "WordFrequencies.of_corpus(texts)"
            ) from error
        except (LookupError, ValueError) as error:  # no such list; no such code
            raise InvalidInput(
                f"no word frequencies for the language {self.language!r}; give a code such as "
                "'en' or 'de', or count your own texts: WordFrequencies.of_corpus(texts)"
            ) from error

    def mean(self, text: str) -> float:
        """Mean relative frequency of the words of a text: the alpha of GECE, eq. 2.

        A text without words counts as unseen.
        """
        return float(np.mean([self.of_word(word) for word in words(text)] or [UNSEEN]))

    def rarities(self, text: str) -> list[float]:
        """Minus log10 of each word's frequency: 1 for "the", 9 for a word never seen."""
        return [float(-np.log10(self.of_word(word))) for word in words(text)]

    @cached_property
    def _table(self) -> dict[str, int]:
        return dict(self.counts)

    @cached_property
    def _total(self) -> int:
        return sum(count for _, count in self.counts)
