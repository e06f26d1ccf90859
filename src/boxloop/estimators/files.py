"""Estimators on disk: parameters, columns and the fitted model in one safe file."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
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
from boxloop.estimators.network_files import NETWORK_CONSTRAINTS, NETWORK_PARTS
from boxloop.estimators.network_regressor import NetworkRegressor
from boxloop.estimators.plain import (
    DIGEST,
    KNOWN_ROWS,
    PROGRESS,
    column_names,
    read_columns,
    read_facts,
    read_params,
    rebuild,
    told_of,
)
from boxloop.estimators.poisson_mixture import PoissonMixture
from boxloop.estimators.probabilistic_pca import ProbabilisticPCA
from boxloop.estimators.relevant_classifier import RelevantClassifier
from boxloop.estimators.relevant_features import RelevantFeatures
from boxloop.estimators.relevant_files import VIEW_PARTS
from boxloop.estimators.relevant_generator import RelevantGenerator
from boxloop.laws import (
    Bernoulli,
    DiagonalGaussian,
    FullGaussian,
    Multinomial,
    Poisson,
    SphericalGaussian,
    TiedGaussian,
)
from boxloop.laws.conjugate import (
    NormalInverseGamma,
    NormalInverseWishart,
    SphericalNormalInverseGamma,
    TiedInverseWishart,
    WordDirichlet,
)
from boxloop.models import FactorModel, Mixture, PrincipalModel
from boxloop.models.variational_factor import VariationalFactor
from boxloop.models.variational_mixture import VariationalMixture
from boxloop.persist import Saved, load_tree, save_tree
from boxloop.twoview.constraints import CONSTRAINTS as VIEW_CONSTRAINTS

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

FACTS: dict[str, Any] = {
    **{name: kind for name, kind in PROGRESS.items() if name != "n_features_in_"},
    "n_samples_seen_": float,
    "lower_bound_": float,
    "lower_bounds_": list[float],
}
COVARIANCES: dict[str, tuple[type, type]] = {
    "full": (FullGaussian, NormalInverseWishart),
    "tied": (TiedGaussian, TiedInverseWishart),
    "diag": (DiagonalGaussian, NormalInverseGamma),
    "spherical": (SphericalGaussian, SphericalNormalInverseGamma),
}
"""Components of Gaussian mixtures and of distributions over them, by ``covariance_type``."""
PARTS: dict[type[LatentEstimator], tuple[type, type | None]] = {
    BayesianFactorAnalysis: (VariationalFactor, None),
    BayesianGaussianMixture: (VariationalMixture, None),
    BayesianMultinomialMixture: (VariationalMixture, WordDirichlet),
    BernoulliMixture: (Mixture, Bernoulli),
    FactorAnalysis: (FactorModel, None),
    GaussianMixture: (Mixture, None),
    MultinomialMixture: (Mixture, Multinomial),
    PoissonMixture: (Mixture, Poisson),
    ProbabilisticPCA: (PrincipalModel, None),
}
"""Models of estimators, and the components of these where no parameter decides."""
ALL_PARTS = {**SAVED, **SAVED_PARTS, **VIEW_PARTS, **LINEAR_PARTS, **NETWORK_PARTS}
ALL_CONSTRAINTS = {**VIEW_CONSTRAINTS, **NETWORK_CONSTRAINTS}


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
    saved = load_tree(path, ALL_PARTS, ALL_CONSTRAINTS)
    name = saved.extra.get("estimator")
    if not isinstance(name, str) or name not in {**OWN_FILES, **ESTIMATORS}:
        raise saved.refusal(f"holds the estimator {name!r}, which this version of boxloop does not know")
    if name in OWN_FILES:
        return OWN_FILES[name].load(path)
    n_columns = saved.extra.get("n_features_in")
    if type(n_columns) is not int:
        raise saved.refusal(f"n_features_in is {n_columns!r:.40}, not int")
    known = read_facts(saved, FACTS, optional=KNOWN_ROWS)
    facts = {DIGEST: None, **known, "n_features_in_": n_columns, **read_columns(saved, n_columns)}
    estimator = rebuild(path, ESTIMATORS[name], read_params(saved), facts)
    _check_model(saved, estimator)
    estimator.model_ = saved.tree
    try:
        estimator._publish(saved.tree)
    except (ArithmeticError, ValueError, RuntimeError) as error:
        raise saved.refusal(f"its model has no parameters that can be shown: {error}") from error
    return estimator


def _check_model(saved: Saved, estimator: LatentEstimator) -> None:
    """Whether the model is one of this estimator with these parameters."""
    kind, part = PARTS[type(estimator)]
    model: Any = saved.tree
    if not isinstance(model, kind):
        raise saved.refusal(
            f"{type(estimator).__name__} has a {kind.__name__}, the file a {type(model).__name__}"
        )
    if saved.axes["dtype"] != torch.float64:
        raise saved.refusal(f"its model holds {saved.axes['dtype']}, not torch.float64")
    if isinstance(estimator, GaussianMixture | BayesianGaussianMixture):
        part = COVARIANCES[estimator.covariance_type][isinstance(model, VariationalMixture)]
    held: Any = model.found.components if isinstance(model, VariationalMixture) else vars(model).get("family")
    if part is not None and not isinstance(held, part):
        raise saved.refusal(
            f"its components are {type(held).__name__}, not {part.__name__} as its parameters say"
        )
