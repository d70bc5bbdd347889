"""Longer answers against references; each metric is the best over the references.

Values lie in [0, 1], larger is better, save `ter`, which counts errors. METEOR and ROUGE see
`words`; BLEU, chrF and TER are sacrebleu's, so BLEU and chrF tell capitals from small letters.

The libraries are imported by the first call that needs them: nltk alone takes seconds.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from threading import Lock
from types import SimpleNamespace
from typing import Any

from ltrag_plugins.errors import require
from ltrag_plugins.metrics.answer import checked
from ltrag_plugins.tokenize import words


def meteor(prediction: str, references: Sequence[str]) -> float:
    r"""METEOR: word matches, exact, by stem and by synonym, penalized for broken order.

    .. math:: \frac{10 P R}{R + 9 P} \left(1 - \frac{1}{2} (chunks / matches)^3\right) \in [0, 1)

    A right answer of one word, which is one chunk, scores 0.5 and not 1, of two words 0.9375.
    Synonyms match by their stems, where WordNet is installed (`meteor_stages`).

    Source: Banerjee & Lavie, ACL workshop 2005; weights of Lavie & Agarwal, WMT 2007, as in nltk.
    """
    said, wanted = words(prediction), [words(r) for r in checked(references)]
    nltk = _nltk()
    synonyms = nltk.wordnet if _has_wordnet() else _NO_SYNONYMS
    with _WORDNET_LOCK:  # its reader seeks in files that all threads share
        return nltk.score(wanted, said, stemmer=nltk.stemmer, wordnet=synonyms)


def meteor_stages() -> tuple[str, ...]:
    """The matching stages of `meteor` here: "synonym" is among them if nltk finds WordNet, which
    `python -m nltk.downloader wordnet` brings."""
    return ("exact", "stem", "synonym") if _has_wordnet() else ("exact", "stem")


def rouge_1(prediction: str, references: Sequence[str]) -> float:
    """F-measure of shared words (Lin, ACL workshop 2004), without stemming."""
    return _rouge("rouge1", prediction, references)


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """F-measure of the longest common subsequence of words (Lin, 2004), without stemming."""
    return _rouge("rougeL", prediction, references)


def bleu(prediction: str, references: Sequence[str]) -> float:
    """BLEU-4 of one sentence, exponential smoothing (Papineni et al., ACL 2002; sacrebleu), its
    order cut to the prediction's length: a right answer under four words scores 1."""
    return _best(_sacrebleu().bleu, prediction, references)


def chrf(prediction: str, references: Sequence[str]) -> float:
    """chrF2: F-score of character 1- to 6-grams, recall weighted twice (Popović, WMT 2015)."""
    return _best(_sacrebleu().chrf, prediction, references)


def ter(prediction: str, references: Sequence[str]) -> float:
    """Edits and shifts per reference word (Snover et al., AMTA 2006), any case; 0 = equal, and
    above 1 with more edits than words."""
    score = _sacrebleu().ter.sentence_score
    return min(score(prediction, [r]).score / 100 for r in checked(references))


def _best(metric: Any, prediction: str, references: Sequence[str]) -> float:
    # sacrebleu's 100 can come out as 100.00000000000004
    scores = [metric.sentence_score(prediction, [r]).score / 100 for r in checked(references)]
    return min(1.0, max(scores))


def _rouge(kind: str, prediction: str, references: Sequence[str]) -> float:
    return float(_rouge_scorer(kind).score_multi(checked(references), prediction)[kind].fmeasure)


@cache
def _has_wordnet() -> bool:
    try:
        with _WORDNET_LOCK:
            _nltk().wordnet.synsets("word")
    except LookupError:
        return False
    return True


@cache
def _nltk() -> SimpleNamespace:
    require("evaluate")
    from nltk.corpus import wordnet
    from nltk.stem import PorterStemmer
    from nltk.translate.meteor_score import meteor_score

    stemmer = SimpleNamespace(stem=lru_cache(maxsize=65_536)(PorterStemmer().stem))
    return SimpleNamespace(score=meteor_score, stemmer=stemmer, wordnet=wordnet)


@cache
def _rouge_scorer(kind: str) -> Any:
    require("evaluate")
    from rouge_score.rouge_scorer import RougeScorer

    # rouge-score's own tokenizer drops every letter outside a-z
    return RougeScorer([kind], tokenizer=SimpleNamespace(tokenize=words))


@cache
def _sacrebleu() -> SimpleNamespace:
    require("evaluate")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    return SimpleNamespace(bleu=BLEU(effective_order=True), chrf=CHRF(), ter=TER())


_WORDNET_LOCK = Lock()
_NO_SYNONYMS: Any = SimpleNamespace(synsets=lambda word: [])
