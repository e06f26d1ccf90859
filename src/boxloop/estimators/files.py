"""Estimators on disk: parameters, columns and the fitted model in one safe file."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from boxloop.estimators.autoencoder import VariationalAutoencoder
from boxloop.estimators.autoencoder_files import SAVED_PARTS
from boxloop.estimators.base import LatentEstimator
from boxloop.estimators.bayesian_factor_analysis import BayesianFactorAnalysis
from boxloop.estimators.bayesian_gaussian_mixture import BayesianGaussianMixture
from boxloop.estimators.bayesian_linear_regression import LINEAR_PARTS, BayesianLinearRegression
from boxloop.estimators.bayesian_multinomial_mixture import BayesianMultinomialMixture
from boxloop.estimators.bernoulli_mixture import BernoulliMixture
from boxloop.estimators.energy_files import SAVED
from boxloop.estimators.energy_model import EnergyBasedModel
from boxloop.estimators.factor_analysis import FactorAnalysis
from boxloop.estimators.gaussian_mixture import GaussianMixture
from boxloop.estimators.multinomial_mixture import MultinomialMixture
from boxloop.estimators.network_classifier import NetworkClassifier
from boxloop.estimators.network_files import NETWORK_PARTS
from boxloop.estimators.network_regressor import NetworkRegressor
from boxloop.estimators.plain import column_names, read_params, told_of
from boxloop.estimators.poisson_mixture import PoissonMixture
from boxloop.estimators.probabilistic_pca import ProbabilisticPCA
from boxloop.estimators.relevant_classifier import RelevantClassifier
from boxloop.estimators.relevant_features import RelevantFeatures
from boxloop.estimators.relevant_files import VIEW_PARTS
from boxloop.estimators.relevant_generator import RelevantGenerator
from boxloop.persist import ModelFileError, load_tree, save_tree

ESTIMATORS: dict[str, type[LatentEstimator]] = {
    c.__name__: c
    for c in (
        BayesianFactorAnalysis,
        BayesianGaussianMixture,
        BayesianMultinomialMixture,
        BernoulliMixture,
        FactorAnalysis,
        GaussianMixture,
        MultinomialMixture,
        PoissonMixture,
        ProbabilisticPCA,
    )
}
OWN_FILES: dict[str, Any] = {
    c.__name__: c
    for c in (
        BayesianLinearRegression,
        EnergyBasedModel,
        NetworkClassifier,
        NetworkRegressor,
        RelevantClassifier,
        RelevantFeatures,
        RelevantGenerator,
        VariationalAutoencoder,
    )
}
"""Estimators that know how to read their files."""

FACTS = (
    "n_iter_",
    "n_samples_seen_",
    "converged_",
    "interrupted_",
    "lower_bound_",
    "lower_bounds_",
    "events_",
)

DIGEST = "training_digest_"


def save(estimator: LatentEstimator, path: str | PathLike[str]) -> None:
    """Write a fitted estimator; parameters that are not plain values (generators, starting arrays) are left out."""
    facts = vars(estimator)
    if "model_" not in facts:
        raise NotFittedError(f"this {type(estimator).__name__} is not fitted yet: call fit before save")
    more = {DIGEST: facts.get(DIGEST)}
    extra = {**told_of(estimator, FACTS, more=more), "n_features_in": int(facts["n_features_in_"])}
    save_tree(path, estimator.model_, columns=column_names(estimator), extra=extra)


def load(path: str | PathLike[str]) -> Any:
    """Read an estimator written by ``save``. Nothing in the file can run.

    Args:
        path: the file.

    Returns:
        The fitted estimator.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from boxloop import FactorAnalysis, load
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(50, 1)) + rng.normal(size=(50, 3))
        >>> with TemporaryDirectory() as folder:
        ...     FactorAnalysis(1).fit(X).save(f"{folder}/fa.boxloop")
        ...     load(f"{folder}/fa.boxloop").components_.shape
        (1, 3)
    """
    saved = load_tree(path, {**SAVED, **SAVED_PARTS, **VIEW_PARTS, **LINEAR_PARTS, **NETWORK_PARTS})
    name = saved.extra.get("estimator")
    if name in OWN_FILES:
        return OWN_FILES[name].load(path)
    if name not in ESTIMATORS:
        raise ModelFileError(
            f"{path}: holds the estimator {name!r}, which this version of boxloop does not know"
        )
    try:
        estimator = ESTIMATORS[name](**read_params(saved.extra["params"]))
        estimator.n_features_in_ = int(saved.extra["n_features_in"])
        for fact in FACTS:
            setattr(estimator, fact, saved.extra["facts"][fact])
        digest = saved.extra["facts"].get(DIGEST)  # files written before it was kept have none
        setattr(estimator, DIGEST, None if digest is None else str(digest))
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: not what save writes about a {name}: {error}") from error
    if saved.columns:
        estimator.feature_names_in_ = np.asarray(saved.columns, dtype=object)
    estimator.model_ = saved.tree
    estimator._publish(saved.tree)
    return estimator
