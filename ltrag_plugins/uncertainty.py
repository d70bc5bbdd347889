"""How sure was the model of what it wrote? Token probabilities, or repeated answers, to one number.

**An uncertainty lies in [0, 1], and larger is less certain**; a blank answer has 1. `estimate`
gives it for one generation by the name of an estimator (`TOKEN_SIGNALS`). `measured` is a flow that
asks for answers and estimates them, also by `"agreement"`: how far repeated samples agree, for
models that give no probabilities.

The figures behind the estimators have ranges and directions of their own. They raise
`NoTokenProbabilities`, and give a generation without a token the least certain value. A
log-probability under -20 counts as -20: servers write -inf or -9999 for tokens they have no number
for, and one of those must not swamp a mean. The token that ends a text counts nowhere: tokens spell
the text and no more, be the model local or on a server.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ltrag_plugins import errors
from ltrag_plugins.errors import InvalidInput, NoTokenProbabilities
from ltrag_plugins.flow import Flow, sample
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.tokenize import words
from ltrag_plugins.types import Generation, Token

YES_NO_TOKENS = 4
"""Tokens that a reply of yes or no needs, with what may stand before the word."""
AGREEMENT = "agreement"
"""The estimator that reads no probabilities but asks again."""
_LEAST_LOGPROB = -20.0
_MOST_ENTROPY = math.log(262_144)  # nothing known about the largest common vocabulary


def checked_tokens(generation: Generation) -> tuple[Token, ...]:
    """The tokens, if there are any to read and their log-probabilities can be such."""
    if generation.tokens is None:
        raise NoTokenProbabilities(
            f"the model gave no token probabilities for {generation.text[:40]!r}. Ask the provider "
            "for them (ChatOpenAI: logprobs=True; LlamaIndex: LlamaIndexLLM(llm, logprobs=True)), "
            "or read texts alone (gate: tier='text'; SGIC: estimator='agreement')."
        )
    return tuple(t if t.logprob <= 0 else checked_token(t, "the model") for t in generation.tokens)


def mean_probability(generation: Generation) -> float:
    """Mean of the token probabilities, in [0, 1]; larger is more certain (GECE, eq. 2)."""
    return _mean([*map(math.exp, _logprobs(generation))], nothing=0.0)


def mean_logprob(generation: Generation) -> float:
    """Mean log-probability of the tokens, in [-20, 0] (minus the log of the perplexity)."""
    return _mean(_logprobs(generation), nothing=_LEAST_LOGPROB)


def product_uncertainty(generation: Generation) -> float:
    r"""One minus the product of the token probabilities, in [0, 1]; larger is less certain.

    .. math:: u = 1 - \prod_t p_t

    Source: Chen et al. (SGIC), eq. 1 (there: the product itself).
    """
    logprobs = _logprobs(generation)
    return -math.expm1(math.fsum(logprobs)) if logprobs else 1.0


Reading = Literal["maximal", "drawn"]
"""The probability at a token in eq. 1 of SGIC: the largest there is, or the drawn token's own."""


def sampled_uncertainties(
    samples: Sequence[Generation], reading: Reading = "maximal"
) -> list[float]:
    r"""Of answers drawn at random, one minus the product over the tokens, in [0, 1]; a greedy
    answer has the same under both readings.

    .. math:: u = 1 - \prod_t \max_v p_t(v) \quad\text{or}\quad u = 1 - \prod_t p_t

    Where a token of any of them came without alternatives, all are read as "drawn", so that they
    can be compared.

    Source: Chen et al. (SGIC), eq. 1 ("maximal").
    """
    tokens = [checked_tokens(one) for one in samples]
    if reading == "maximal" and all(token.alternatives for one in tokens for token in one):
        best = [
            tuple(replace(t, logprob=max(t.logprob, *_alternatives(t, at_least=1))) for t in one)
            for one in tokens
        ]
        samples = [replace(one, tokens=of) for one, of in zip(samples, best, strict=True)]
    return [estimate(one, "product") for one in samples]


def least_probability(generation: Generation) -> float:
    """Probability of the least likely token, in [0, 1]."""
    return math.exp(min(_logprobs(generation), default=-math.inf))


def _mean_entropy(generation: Generation) -> float:
    """Mean entropy of the next-token distributions, in nats, at least 0; what the alternatives
    leave of the probability counts as one outcome, so this is a lower bound."""
    return _mean([*map(_entropy, checked_tokens(generation))], nothing=_MOST_ENTROPY)


def _mean_margin(generation: Generation) -> float:
    """Mean difference between the two likeliest tokens' probabilities, in [0, 1]."""
    best = [_alternatives(token, at_least=2)[:2] for token in checked_tokens(generation)]
    return _mean([math.exp(first) - math.exp(second) for first, second in best], nothing=0.0)


def percent(share: float) -> str:
    """As a person reads it: "97%", "2.5%", "under 0.1%"."""
    if not 0.001 <= share <= 0.999:
        return "under 0.1%" if share < 0.5 else "over 99.9%"
    return f"{share:.{int(not 0.1 <= share <= 0.99)}%}"


@dataclass(frozen=True, slots=True)
class _TokenSignal:
    """A figure of the token probabilities of one answer."""

    value: Callable[[Generation], float]
    sign: Literal[1, -1]
    """1: larger is less certain; -1: larger is more certain."""
    meaning: str
    """What a person reads beside the value as it is `shown`."""
    scaled: Callable[[float], float] = (1.0).__sub__
    """From the value to an uncertainty in [0, 1]."""
    shown: Callable[[float], str] = percent
    """From the value to text."""


TOKEN_SIGNALS: Mapping[str, _TokenSignal] = {
    "product": _TokenSignal(
        product_uncertainty, 1, "whole answer", float, lambda x: percent(1 - x)
    ),
    "length_normalized": _TokenSignal(  # Malinin & Gales, ICLR 2021
        lambda generation: -math.expm1(mean_logprob(generation)),
        1,
        "typical token",
        float,
        lambda x: percent(1 - x),
    ),
    "mean_logprob": _TokenSignal(
        mean_logprob,
        -1,
        "typical token",
        lambda x: x / _LEAST_LOGPROB,
        lambda x: percent(math.exp(x)),
    ),
    "mean_probability": _TokenSignal(mean_probability, -1, "mean of the tokens"),
    "least_probability": _TokenSignal(least_probability, -1, "least likely token"),
    "entropy": _TokenSignal(
        _mean_entropy,
        1,
        "choice at a token, as among",
        lambda x: -math.expm1(-x),
        lambda x: f"{math.exp(x):,.3g} words",
    ),
    "margin": _TokenSignal(_mean_margin, -1, "lead over the next choice"),
}
"""What is read from token probabilities, by the names that settings, gates, methods and saved files
use. `estimate` scales a signal to an uncertainty; a gate takes `sign` times its `value`."""

_OLD_NAMES = {"least_token": "least_probability"}


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer, and how uncertain the model was of it."""

    generation: Generation
    uncertainty: float
    samples: tuple[Generation, ...] = ()
    """What the model said when asked again; for the estimator "agreement"."""


def estimate(
    answer: Generation, estimator: str = "product", samples: Sequence[Generation] = ()
) -> float:
    """The uncertainty of one answer, in [0, 1]. "agreement" is one minus the mean word F1 of the
    samples with the answer (Wang et al., ICLR 2023, self-consistency; Lin et al., TMLR 2024,
    lexical similarity)."""
    if (name := checked_estimator(estimator)) == AGREEMENT and not samples:
        raise InvalidInput("'agreement' reads samples, not one answer; run the flow measured(...)")
    if not answer.text.strip():
        return 1.0
    if name == AGREEMENT:
        return 1.0 - math.fsum(word_overlap(answer.text, s.text) for s in samples) / len(samples)
    signal = TOKEN_SIGNALS[name]
    return min(1.0, max(0.0, signal.scaled(signal.value(answer))))


def measured(
    *prompts: str,
    estimator: str = "product",
    max_tokens: int = 64,
    stop: Sequence[str] = (),
    samples: int = 5,
    temperature: float = 0.7,
    seed: int = 0,
    may_repeat: Callable[[], bool] | None = None,
) -> Flow[list[Measured]]:
    """Ask for greedy answers and estimate how uncertain each is; `calls_for` tells what it costs.
    All prompts go to the model in one request, with the samples of "agreement".

    Args:
        samples, temperature, seed: of "agreement": how often each prompt is asked again, how
            (above 0), and the seed of its first sample, from which the others count on.
        may_repeat: see `Ask`.
    """
    checked_estimator(estimator)
    if estimator == AGREEMENT and not (samples >= 1 and temperature > 0):
        wanted = "at least 1 sample at a temperature above 0"
        raise InvalidInput(f"agreement needs {wanted}, got {samples} at {temperature}")
    found = yield from sample(
        *prompts,
        samples=samples if estimator == AGREEMENT else 0,
        temperature=temperature,
        seed=seed,
        draft=True,
        max_tokens=max_tokens,
        stop=stop,
        may_repeat=may_repeat,
    )
    return [Measured(one[0], estimate(one[0], estimator, one[1:]), one[1:]) for one in found]


def calls_for(prompts: int, estimator: str, samples: int) -> int:
    """Prompts that `measured` sends."""
    return prompts * (1 + samples) if estimator == AGREEMENT else prompts


def word_overlap(a: str, b: str) -> float:
    """F1 of the words two texts share, in [0, 1]; texts without words are compared as they are."""
    first, second = Counter(words(a)), Counter(words(b))
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if total else float(a.strip() == b.strip())


def yes_probability(reply: Generation) -> float:
    r"""Probability of yes against no, in [0, 1].

    .. math:: p_{yes} / (p_{yes} + p_{no})

    summed over the spellings among the alternatives of the first token that is not blank. Where
    neither is among them, the first "yes" or "no" of the text counts as 1 or 0, and 0.5 without.

    Source: Kadavath et al., 2022, https://arxiv.org/abs/2207.05221 (there: of "True").
    """
    first = next((token for token in reply.tokens or () if token.text.strip()), Token("", 0.0))
    shares = {"yes": 0.0, "no": 0.0}
    for text, logprob in first.alternatives or ((first.text, first.logprob),):
        word = re.sub(r"\W", "", text).lower()
        if word in shares:
            checked_token(Token(text, logprob), "the model")
            shares[word] += math.exp(min(0.0, logprob))
    if (total := shares["yes"] + shares["no"]) > 0:
        return shares["yes"] / total
    said = re.search(r"\b(yes|no)\b", reply.text, re.IGNORECASE)
    return 0.5 if said is None else float(said[1].lower() == "yes")


def checked_estimator(estimator: str) -> str:
    """The estimator's name; an earlier version's name becomes today's."""
    name = _OLD_NAMES.get(estimator, estimator)
    if name != AGREEMENT and name not in TOKEN_SIGNALS:
        raise errors.unknown_name("estimator", name, [*TOKEN_SIGNALS, AGREEMENT])
    return name


def _mean(values: Sequence[float], *, nothing: float) -> float:
    return math.fsum(values) / len(values) if values else nothing


def _logprobs(generation: Generation) -> list[float]:
    # above 0 only by rounding, see checked_token
    return [min(0.0, max(_LEAST_LOGPROB, t.logprob)) for t in checked_tokens(generation)]


def _entropy(token: Token) -> float:
    if token.entropy is not None:
        if not -1e-4 <= token.entropy < math.inf:
            what = f"entropy {token.entropy} for token {token.text!r}"
            raise errors.InvalidLogProbability(f"the model reported {what}, not one of 0 or above")
        return max(0.0, token.entropy)
    logprobs = _alternatives(token, at_least=1)
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, logprobs)))
    known = -math.fsum(math.exp(lp) * lp for lp in logprobs if lp > -math.inf)
    return known - (rest * math.log(rest) if rest > 0 else 0.0)


def _alternatives(token: Token, *, at_least: int) -> list[float]:
    """Log-probabilities of the likeliest tokens, best first."""
    if len(token.alternatives) < at_least:
        raise NoTokenProbabilities(
            f"token {token.text!r} came without alternatives. Ask the provider for them "
            "(top_logprobs=5), or use a signal that needs only the token's own probability."
        )
    for text, logprob in token.alternatives:
        checked_token(Token(text, logprob), "the model")
    return sorted((min(0.0, logprob) for _, logprob in token.alternatives), reverse=True)
