"""Token probabilities to one number: how sure was the model of what it wrote?

All functions take a `Generation` and raise `NoTokenProbabilities` when it has none. Sums
stay in log space, so long answers do not underflow. A generation without a single token (the
model ended at once) says nothing about certainty: it gets the least certain value.
"""

import math
from collections.abc import Sequence

from ltrag_plugins.errors import NoTokenProbabilities
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
    tokens = checked_tokens(generation)
    return math.fsum(math.exp(t.logprob) for t in tokens) / len(tokens) if tokens else 0.0


def mean_logprob(generation: Generation) -> float:
    """Mean log-probability of the tokens, at most 0 (the negative log of the perplexity)."""
    tokens = checked_tokens(generation)
    return math.fsum(t.logprob for t in tokens) / len(tokens) if tokens else _LOG_NOTHING


def product_uncertainty(generation: Generation) -> float:
    r"""One minus the product of the token probabilities, in [0, 1]; larger is less certain.

    .. math:: u = 1 - \prod_t p_t

    References:
        Chen et al. (SGIC), eq. 1 (there: the product itself).
    """
    tokens = checked_tokens(generation)
    return -math.expm1(min(0.0, math.fsum(t.logprob for t in tokens))) if tokens else 1.0


def least_probability(generation: Generation) -> float:
    """Probability of the least likely token, in [0, 1]."""
    tokens = checked_tokens(generation)
    return math.exp(min(t.logprob for t in tokens)) if tokens else 0.0


def mean_entropy(generation: Generation) -> float:
    """Mean entropy of the next-token distributions, in nats, at least 0.

    Where the model reports only its likeliest tokens, what is left of the probability counts
    as one more outcome: a lower bound.

    Raises:
        NoTokenProbabilities: neither entropies nor alternatives were given.
    """
    tokens = checked_tokens(generation)
    return math.fsum(map(_entropy, tokens)) / len(tokens) if tokens else -_LOG_NOTHING


def mean_margin(generation: Generation) -> float:
    """Mean difference between the two likeliest tokens' probabilities, in [0, 1].

    Raises:
        NoTokenProbabilities: fewer than two alternatives were given.
    """
    tokens = checked_tokens(generation)
    return math.fsum(map(_margin, tokens)) / len(tokens) if tokens else 0.0


_LOG_NOTHING = math.log(1e-6)


def _entropy(token: Token) -> float:
    if token.entropy is not None:
        return token.entropy
    if not token.alternatives:
        raise _no_alternatives(token)
    logprobs = [logprob for _, logprob in token.alternatives]
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, logprobs)))
    return _surprise(logprobs) - (rest * math.log(rest) if rest > 0 else 0.0)


def _surprise(logprobs: Sequence[float]) -> float:
    return -math.fsum(math.exp(lp) * lp for lp in logprobs if lp > -math.inf)


def _margin(token: Token) -> float:
    if len(token.alternatives) < 2:
        raise _no_alternatives(token)
    (_, first), (_, second) = token.alternatives[:2]
    return math.exp(first) - math.exp(second)


def _no_alternatives(token: Token) -> NoTokenProbabilities:
    return NoTokenProbabilities(
        f"token {token.text!r} came without alternatives. Ask the provider for them "
        "(top_logprobs=5), or use a signal that needs only the token's own probability."
    )
