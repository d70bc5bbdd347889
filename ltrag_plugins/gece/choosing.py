"""Which scorer the settings name, and its fit."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from ltrag_plugins.errors import CalibrationError
from ltrag_plugins.gece.features import Features
from ltrag_plugins.gece.labels import Labels
from ltrag_plugins.gece.learners import GainModel, Linear
from ltrag_plugins.gece.scorers import Formula, OneSignal, Scorer
from ltrag_plugins.gece.settings import GECESettings
from ltrag_plugins.gece.training import Fit, fit_failure, fit_gain


def fit_scorer(
    features: Features, labels: Labels, names: list[str], settings: GECESettings
) -> Fit[Scorer]:
    """Fit what `settings.scorer` names.

    Raises:
        CalibrationError: the named signal is not at hand on this tier.
    """
    if settings.scorer == "fitted":
        learned = fit_failure(features, labels.fails, settings.seed)
        return Fit(learned.model, learned.unseen)
    if settings.scorer == "gece":
        gradient = _column(names, f"gradient_{settings.agreement}") if settings.semantics else -1
        columns = (_column(names, "mean_probability"), _column(names, "word_frequency"), gradient)
        return _as_it_is(
            Formula(_quality_model(features, labels.quality), columns, settings), features
        )
    return _as_it_is(OneSignal(_column(names, settings.scorer)), features)


def fit_gain_scorer(features: Features, labels: Labels, settings: GECESettings) -> Fit[GainModel]:
    """Fit what retrieval is expected to change."""
    return fit_gain(features, labels.gain, settings.seed)


def _as_it_is(scorer: Formula | OneSignal, features: Features) -> Fit[Scorer]:
    return Fit(scorer, scorer(features))


def _quality_model(features: Features, quality: Float[np.ndarray, " questions"]) -> Linear:
    bare = replace(features, vectors=features.vectors[:, :0])
    return fit_gain(bare, quality, seed=0).model.scalars


def _column(names: list[str], name: str) -> int:
    if name not in names:
        raise CalibrationError(
            f"the scorer needs the signal {name!r}; at hand here are {names}. Use a model that "
            "gives token probabilities (or local weights, for gradients), or another scorer."
        )
    return names.index(name)
