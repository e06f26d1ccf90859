"""Registry of the estimators that model files may hold, and ``load``, which reads any of them."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import Any

from boxloop.persist import FileMixin, load_registered

SAVED = (
    "BayesianFactorAnalysis",
    "BayesianGaussianMixture",
    "BayesianLinearRegression",
    "BayesianMultinomialMixture",
    "BernoulliMixture",
    "CCA",
    "EnergyBasedModel",
    "FactorAnalysis",
    "GaussianMixture",
    "LogisticRandomEffects",
    "MultinomialMixture",
    "NetworkClassifier",
    "NetworkRegressor",
    "PoissonMixture",
    "PoissonRandomEffects",
    "ProbabilisticPCA",
    "RelevantClassifier",
    "RelevantFeatures",
    "RelevantGenerator",
    "VariationalAutoencoder",
)
"""Names of classes; each declares what its file holds, and is imported when a file names it."""

META_ESTIMATORS = ("ModelSearchCV", "OutlierDetector")
"""Classes of ``boxloop.select`` whose files hold an estimator of those above."""


def find_estimator(name: str) -> type[FileMixin] | None:
    """The class of this name; None where no file may name it."""
    if name not in (*SAVED, *META_ESTIMATORS):
        return None
    room = "boxloop.select" if name in META_ESTIMATORS else "boxloop.estimators"
    found: type[FileMixin] = getattr(import_module(room), name)
    return found


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
    return load_registered(path, find_estimator)
