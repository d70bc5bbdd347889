"""Token probabilities to one number: how sure was the model of what it wrote?

All functions take a `Generation` and raise `NoTokenProbabilities` when it has none. Sums
stay in log space, so long answers do not underflow. A generation without a single token (the
model ended at once) says nothing about certainty: it gets the least certain value. A
log-probability under -20 counts as -20 (one in five hundred million): servers write -inf or
-9999 for tokens they have no number for, and one of those must not swamp a mean.
"""

import math
from collections.abc import Sequence

from ltrag_plugins.errors import InvalidLogProbability, NoTokenProbabilities
from ltrag_plugins.llm.base import checked_token
from ltrag_plugins.types import Generation, Token


def checked_tokens(generation: Generation, model: str = "the model") -> tuple[Token, ...]:
    """The tokens, if there are any to read and their log-probabilities can be such.

    Raises:
        NoTokenProbabilities: the provider gave none.
        InvalidLogProbability: one is NaN or above 0.
    """
    if generation.tokens is None:
        raise NoTokenProbabilities(
            f"{model} gave no token probabilities for {generation.text[:40]!r}. Ask the provider "
            "for them (ChatOpenAI: logprobs=True), or build the gate with tier='text'."
        )
    return tuple(checked_token(token, model) for token in generation.tokens)


def mean_probability(generation: Generation) -> float:
    r"""Mean of the token probabilities, in [0, 1]; larger is more certain.

    .. math:: \frac{1}{n} \sum_{i=1}^n p(t_i)

    References:
        Li et al., ACL 2024 (GECE), eq. 2.
    """
    logprobs = _logprobs(generation)
    return math.fsum(map(math.exp, logprobs)) / len(logprobs) if logprobs else 0.0


def mean_logprob(generation: Generation) -> float:
    """Mean log-probability of the tokens, in [-20, 0] (minus the log of the perplexity)."""
    logprobs = _logprobs(generation)
    return math.fsum(logprobs) / len(logprobs) if logprobs else _LEAST_LOGPROB


def product_uncertainty(generation: Generation) -> float:
    r"""One minus the product of the token probabilities, in [0, 1]; larger is less certain.

    .. math:: u = 1 - \prod_t p_t

    References:
        Chen et al. (SGIC), eq. 1 (there: the product itself).
    """
    logprobs = _logprobs(generation)
    return -math.expm1(math.fsum(logprobs)) if logprobs else 1.0


def least_probability(generation: Generation) -> float:
    """Probability of the least likely token, in [0, 1]."""
    logprobs = _logprobs(generation)
    return math.exp(min(logprobs)) if logprobs else 0.0


def mean_entropy(generation: Generation) -> float:
    """Mean entropy of the next-token distributions, in nats, at least 0.

    Where the model reports only its likeliest tokens, what is left of the probability counts
    as one more outcome: a lower bound.

    Raises:
        NoTokenProbabilities: neither entropies nor alternatives were given.
        InvalidLogProbability: an entropy is not a number from 0 on.
    """
    tokens = checked_tokens(generation)
    return math.fsum(map(_entropy, tokens)) / len(tokens) if tokens else _MOST_ENTROPY


def mean_margin(generation: Generation) -> float:
    """Mean difference between the two likeliest tokens' probabilities, in [0, 1].

    Raises:
        NoTokenProbabilities: fewer than two alternatives were given.
    """
    tokens = checked_tokens(generation)
    return math.fsum(map(_margin, tokens)) / len(tokens) if tokens else 0.0


_LEAST_LOGPROB = -20.0
_MOST_ENTROPY = math.log(262_144)  # nothing known about the largest common vocabulary


def _logprobs(generation: Generation) -> list[float]:
    # above 0 only by rounding, see checked_token
    return [min(0.0, max(_LEAST_LOGPROB, t.logprob)) for t in checked_tokens(generation)]


def _entropy(token: Token) -> float:
    if token.entropy is not None:
        return _checked_entropy(token, token.entropy)
    logprobs = _alternatives(token, at_least=1)
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, logprobs)))
    return _surprise(logprobs) - (rest * math.log(rest) if rest > 0 else 0.0)


def _surprise(logprobs: Sequence[float]) -> float:
    return -math.fsum(math.exp(lp) * lp for lp in logprobs if lp > -math.inf)


def _margin(token: Token) -> float:
    first, second = _alternatives(token, at_least=2)[:2]
    return math.exp(first) - math.exp(second)


def _alternatives(token: Token, *, at_least: int) -> list[float]:
    """Log-probabilities of the likeliest tokens, best first."""
    if len(token.alternatives) < at_least:
        raise _no_alternatives(token)
    for text, logprob in token.alternatives:
        checked_token(Token(text, logprob), "the model")
    return sorted((min(0.0, logprob) for _, logprob in token.alternatives), reverse=True)


def _checked_entropy(token: Token, entropy: float) -> float:
    if not -1e-4 <= entropy < math.inf:
        raise InvalidLogProbability(
            f"the model reported entropy {entropy} for token {token.text!r}; an entropy is a "
            "number from 0 on. Send None where it is not known."
        )
    return max(0.0, entropy)


def _no_alternatives(token: Token) -> NoTokenProbabilities:
    return NoTokenProbabilities(
        f"token {token.text!r} came without alternatives. Ask the provider for them "
        "(top_logprobs=5), or use a signal that needs only the token's own probability."
    )
