"""Every estimator with data that suit it; what the tests of estimators share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import boxloop

GAUSSIAN = ("full", "tied", "diag", "spherical")


def blobs(n: int = 300, seed: int = 0, gap: float = 6.0) -> np.ndarray:
    """Two Gaussian clusters of unlike shapes in three columns, rows in random order."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0, 0.0], [gap, -gap / 2, gap / 3]])
    shapes = np.array([[1.0, 0.5, 1.5], [0.7, 1.2, 1.0]])
    z = (rng.random(n) < 0.4).astype(int)
    rows = centres[z] + shapes[z] * rng.normal(size=(n, 3))
    rows[:, 2] += 0.5 * rows[:, 0]
    return rows


def factors(n: int = 300, seed: int = 0) -> np.ndarray:
    """Five columns with one strong factor and unlike noise."""
    rng = np.random.default_rng(seed)
    loadings = np.array([[1.5, 1.0, -1.2, 0.8, 0.6]])
    noise = np.sqrt([0.5, 0.3, 0.8, 0.4, 1.0])
    return 2.0 + rng.normal(size=(n, 1)) @ loadings + noise * rng.normal(size=(n, 5))


def documents(n: int = 300, seed: int = 0) -> np.ndarray:
    """Word counts of two topics over six words, 30 words a document."""
    rng = np.random.default_rng(seed)
    topics = np.array([[0.3, 0.3, 0.2, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.2, 0.3, 0.3]])
    z = (rng.random(n) < 0.4).astype(int)
    return np.array([rng.multinomial(30, topics[c]) for c in z], dtype=float)


def counts(n: int = 300, seed: int = 0) -> np.ndarray:
    """Poisson counts of two groups in four columns."""
    rng = np.random.default_rng(seed)
    rates = np.array([[2.0, 9.0, 4.0, 1.0], [8.0, 3.0, 5.0, 6.0]])
    return rng.poisson(rates[(rng.random(n) < 0.4).astype(int)]).astype(float)


def bits(n: int = 300, seed: int = 0) -> np.ndarray:
    """Zeros and ones of two groups in eight columns."""
    rng = np.random.default_rng(seed)
    chance = np.array([[0.9, 0.8, 0.85, 0.2, 0.1, 0.3, 0.9, 0.2], [0.2, 0.1, 0.3, 0.8, 0.9, 0.8, 0.2, 0.85]])
    return (rng.random((n, 8)) < chance[(rng.random(n) < 0.4).astype(int)]).astype(float)


@dataclass(frozen=True)
class Case:
    """An estimator class with its parameters and a maker of rows, ``rows(n, seed)``."""

    name: str
    kind: type
    params: dict[str, Any]
    rows: Callable[..., np.ndarray]

    def make(self, **more: Any) -> Any:
        """A new estimator, seeded."""
        return self.kind(**{"random_state": 0, **self.params, **more})

    def quick(self, **more: Any) -> Any:
        """The same from one start instead of the winner of a race, for tests of what comes after it."""
        return self.make(**({"init_params": "kmeans"} if self.mixing else {}), **more)

    def for_measurements(self, **more: Any) -> Any:
        """A new estimator that takes rows of any numbers, where its own rows are zeros and ones."""
        binary = issubclass(self.kind, boxloop.BernoulliMixture)
        return self.make(**({"binarize": 0.0} if binary else {}), **more)

    @property
    def counting(self) -> bool:
        """Whether rows are counts, which have no other units."""
        return issubclass(
            self.kind,
            boxloop.MultinomialMixture
            | boxloop.BayesianMultinomialMixture
            | boxloop.PoissonMixture
            | boxloop.BernoulliMixture,
        )

    @property
    def bayesian(self) -> bool:
        """Whether it fits a distribution over parameters: its objective is a bound, and it has no gradient engine."""
        return self.kind.__name__.startswith("Bayesian")

    @property
    def mixing(self) -> bool:
        """Whether it is a mixture."""
        return not issubclass(
            self.kind, boxloop.FactorAnalysis | boxloop.ProbabilisticPCA | boxloop.BayesianFactorAnalysis
        )


CASES = [
    *(
        Case(f"gaussian-{kind}", boxloop.GaussianMixture, {"n_components": 2, "covariance_type": kind}, blobs)
        for kind in GAUSSIAN
    ),
    Case("factor", boxloop.FactorAnalysis, {"n_components": 1}, factors),
    Case("ppca", boxloop.ProbabilisticPCA, {"n_components": 1}, factors),
    Case("multinomial", boxloop.MultinomialMixture, {"n_components": 2}, documents),
    Case("poisson", boxloop.PoissonMixture, {"n_components": 2}, counts),
    Case("bernoulli", boxloop.BernoulliMixture, {"n_components": 2}, bits),
]

# As many components as there are clusters: with more, the number in use is for the rows and the start to say.
BAYESIAN = [
    Case("bayesian-full", boxloop.BayesianGaussianMixture, {"n_components": 2}, blobs),
    Case("bayesian-factor", boxloop.BayesianFactorAnalysis, {"n_components": 1}, factors),
    Case("bayesian-multinomial", boxloop.BayesianMultinomialMixture, {"n_components": 2}, documents),
]
EVERYONE = [*CASES, *BAYESIAN]
POSTERIORS = [
    Case(
        f"bayesian-{kind}",
        boxloop.BayesianGaussianMixture,
        {"n_components": 2, "covariance_type": kind},
        blobs,
    )
    for kind in GAUSSIAN
]


LATER = {"gaussian-tied", "gaussian-spherical", "bayesian-tied", "bayesian-spherical"}
"""Run with the slow tests: they differ from the others in their distribution alone, which has tests of its own."""


def given(case: Case, *values: str) -> Any:
    """A case, with its values, as a parameter of a test."""
    marks = [pytest.mark.slow] if case.name in LATER else []
    return pytest.param(case, *values, marks=marks, id="-".join([*values, case.name]))


def over(cases: list[Case]) -> pytest.MarkDecorator:
    """Run a test for each of ``cases``."""
    return pytest.mark.parametrize("case", [given(case) for case in cases])


def paired(cases: list[Case], name: str, values: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test for each of ``cases`` with each of ``values``, but no gradient engine where there is none."""
    pairs = [
        given(case, value)
        for case in cases
        for value in values
        if not (case.bayesian and value == "gradient")
    ]
    return pytest.mark.parametrize(("case", name), pairs)


every = over(CASES)
everyone = over(EVERYONE)
mixtures = over([case for case in CASES if case.mixing])
measured = over([case for case in CASES if not case.counting])
counted = over([case for case in CASES if case.counting])
gaussians = over([case for case in CASES if case.kind is boxloop.GaussianMixture])
linear = over([case for case in CASES if not case.mixing])


def parameters(estimator: Any) -> dict[str, np.ndarray]:
    """The fitted parameters by their public names."""
    return {name: value.numpy() for name, value in estimator.model_.named_parameters().items()}


def assert_same(one: Any, other: Any, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Two fitted estimators have the same parameters."""
    for name, value in parameters(one).items():
        np.testing.assert_allclose(parameters(other)[name], value, rtol=rtol, atol=atol, err_msg=name)


def fit_with_warnings(estimator: Any, X: Any, **more: Any) -> tuple[Any, list[str]]:
    """The estimator, fitted, and what it warned of."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        estimator.fit(X, **more)
    return estimator, [str(w.message) for w in record]
