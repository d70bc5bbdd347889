r"""The GECE formula, pure.

.. math:: GECE = \frac{|M(pred, ref) - \frac{1}{n}\sum_i p(t_i)|}
                      {\alpha \cdot \langle E[\nabla_{ins}], \nabla_{ins} \rangle}

References:
    Li et al., ACL 2024, "On the Role of Long-tail Knowledge in Retrieval Augmented Large
    Language Models", eq. 2; ablations of table 3.
"""

from dataclasses import dataclass

from ltrag_plugins.gece.settings import GECESettings


@dataclass(frozen=True, slots=True)
class GECEScore:
    """A GECE value with what went into it."""

    value: float
    """Larger means more long-tail; at least 0, finite."""
    meteor: float
    """M(pred, ref), in [0, 1]; chrF or 1 - TER where the settings say so."""
    mean_probability: float
    """Mean probability of the predicted tokens, in [0, 1]."""
    word_frequency: float
    """alpha: mean relative frequency of the question's words, in (0, 1]."""
    gradient_agreement: float | None
    """Agreement of the instance's gradient with the mean gradient; None when it was left out."""
    floored: bool
    """Whether the denominator met the floor: the instance pulls against the data set."""


def gece_score(
    *,
    meteor: float,
    mean_probability: float,
    word_frequency: float,
    gradient_agreement: float | None,
    settings: GECESettings | None = None,
) -> GECEScore:
    """Put the ingredients together as the settings say.

    The product of the denominator can be zero or negative; it is floored at
    `settings.floor`, so the score is finite and largest there.
    """
    settings = settings or GECESettings()
    denominator = word_frequency if settings.statistics else 1.0
    if settings.semantics and gradient_agreement is not None:
        denominator *= gradient_agreement
    return GECEScore(
        value=abs(meteor - mean_probability) / max(denominator, settings.floor),
        meteor=meteor,
        mean_probability=mean_probability,
        word_frequency=word_frequency,
        gradient_agreement=gradient_agreement,
        floored=denominator <= settings.floor,
    )
