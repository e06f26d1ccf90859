"""Every public estimator, quickly fitted: what the tests that ask the same of all of them share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from inspect import isclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

import boxloop
from boxloop import FitWarning
from boxloop.networks import WeightWarning
from boxloop.select import SelectionWarning
from boxloop.twoview import GaussianNoise
from estimators.cases import bits, counts, documents, factors

NETWORK = {"hidden": (6,), "epochs": 3, "collect": 3, "n_draws": 3, "rank": 2, "collect_rate": 0.01}
VIEWS = {"n_fourier": 20, "random_state": 0}


@dataclass(frozen=True)
class Public:
    """A public estimator with quick settings, rows that suit it and what else its ``fit`` needs."""

    name: str
    make: Callable[[], Any]
    rows: Callable[..., np.ndarray] = factors
    target: str | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def data(self, n: int = 60, seed: int = 0) -> tuple[np.ndarray, Any]:
        """Rows and what belongs to them, None where the fit takes rows alone."""
        X = self.rows(n, seed)
        rng = np.random.default_rng(seed + 1)
        level = X[:, 0] - X[:, 0].mean()
        match self.target:
            case "numbers":
                return X, level + 0.1 * rng.normal(size=n)
            case "labels":
                return X, np.where(level + 0.3 * rng.normal(size=n) > 0.0, "high", "low")
            case "counts":
                return X, rng.poisson(np.exp(0.1 * level)).astype(float)
            case "view":
                return X, X[:, :2] + rng.normal(size=(n, 2))
        return X, None

    def settings(self, n: int = 60) -> dict[str, Any]:
        """Further arguments of ``fit``."""
        return {name: value(n) for name, value in self.more.items()}

    def fitted(self, n: int = 60) -> Any:
        """Fitted without warnings to rows of :meth:`data`."""
        X, y = self.data(n)
        return quietly(lambda: self.make().fit(X, *(() if y is None else (y,)), **self.settings(n)))


def quietly(call: Callable[[], Any]) -> Any:
    """The result of a call whose warnings about few rows and short fits are of no interest."""
    with warnings.catch_warnings():
        for kind in (FitWarning, WeightWarning, SelectionWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", kind)
        return call()


def _groups(n: int) -> np.ndarray:
    return np.arange(n) % 6


def _mixture(name: str, rows: Callable[..., np.ndarray] = factors) -> Public:
    return Public(name, lambda: getattr(boxloop, name)(2, random_state=0, max_iter=5), rows)


def _quick(name: str, **params: Any) -> Callable[[], Any]:
    return lambda: getattr(boxloop, name)(**params)


SHORT = {"max_iter": 2, "random_state": 0}
PUBLIC = [
    _mixture("GaussianMixture"),
    _mixture("BayesianGaussianMixture"),
    _mixture("PoissonMixture", counts),
    _mixture("BernoulliMixture", bits),
    _mixture("MultinomialMixture", documents),
    _mixture("BayesianMultinomialMixture", documents),
    Public("FactorAnalysis", _quick("FactorAnalysis", n_components=1, max_iter=5)),
    Public("ProbabilisticPCA", _quick("ProbabilisticPCA", n_components=1, max_iter=5)),
    Public("BayesianFactorAnalysis", _quick("BayesianFactorAnalysis", n_components=1, max_iter=5)),
    Public("VariationalAutoencoder", _quick("VariationalAutoencoder", hidden=(4,), score_draws=4, **SHORT)),
    Public(
        "EnergyBasedModel",
        _quick(
            "EnergyBasedModel",
            hidden=(4,),
            chains=8,
            buffer=16,
            steps=1,
            partition_chains=16,
            kernel="random_walk",
            **SHORT,
        ),
    ),
    Public("BayesianLinearRegression", _quick("BayesianLinearRegression"), target="numbers"),
    Public("NetworkRegressor", _quick("NetworkRegressor", random_state=0, **NETWORK), target="numbers"),
    Public("NetworkClassifier", _quick("NetworkClassifier", random_state=0, **NETWORK), target="labels"),
    Public(
        "LogisticRandomEffects",
        _quick("LogisticRandomEffects", chains=2, **SHORT),
        target="labels",
        more={"groups": _groups},
    ),
    Public(
        "PoissonRandomEffects",
        _quick("PoissonRandomEffects", chains=2, **SHORT),
        target="counts",
        more={"groups": _groups},
    ),
    Public(
        "RelevantFeatures",
        _quick("RelevantFeatures", n_features=2, x_features="linear", y_features="linear", random_state=0),
        target="view",
    ),
    Public("CCA", _quick("CCA", n_components=2), target="view"),
    Public("RelevantClassifier", _quick("RelevantClassifier", features="fourier", **VIEWS), target="labels"),
    Public(
        "RelevantGenerator",
        lambda: boxloop.RelevantGenerator(
            2,
            hidden=(4,),
            features=boxloop.RelevantFeatures(
                3, x_features="linear", y_features="linear", channel=GaussianNoise(0.5), random_state=0
            ),
            **SHORT,
        ),
    ),
    Public("OutlierDetector", lambda: boxloop.OutlierDetector(boxloop.GaussianMixture(random_state=0))),
    Public(
        "ModelSearchCV",
        lambda: boxloop.ModelSearchCV(
            boxloop.GaussianMixture(random_state=0), {"n_components": [1, 2]}, cv=2
        ),
    ),
]


@cache
def estimator_names() -> tuple[str, ...]:
    """Every estimator that ``boxloop`` offers."""
    found = {name: getattr(boxloop, name) for name in boxloop.__all__}
    return tuple(sorted(n for n, v in found.items() if isclass(v) and issubclass(v, BaseEstimator)))
