"""Faults 15 and 16: columns of any scale, and documents of any length."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from boxloop import (
    BayesianFactorAnalysis,
    BayesianGaussianMixture,
    BayesianMultinomialMixture,
    EnergyBasedModel,
    FactorAnalysis,
    GaussianMixture,
    MultinomialMixture,
    ProbabilisticPCA,
)
from estimators.cases import blobs, factors

SIZES = (1e-150, 1e-70, 1e-8, 1e8, 1e70, 1e150)


def fit_quietly(estimator: Any, X: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X)


def shapes() -> Iterator[Any]:
    for kind in ("full", "tied", "diag", "spherical"):
        free = kind != "spherical"
        yield pytest.param(
            GaussianMixture(2, covariance_type=kind, random_state=0), blobs, free, id=f"gmm-{kind}"
        )
        bayesian = BayesianGaussianMixture(2, covariance_type=kind, random_state=0)
        marks = () if kind == "full" else pytest.mark.slow
        yield pytest.param(bayesian, blobs, free, id=f"bgmm-{kind}", marks=marks)
    yield pytest.param(FactorAnalysis(1), factors, True, id="factors")
    yield pytest.param(BayesianFactorAnalysis(2), factors, True, id="bayesian-factors")
    yield pytest.param(ProbabilisticPCA(1), factors, False, id="ppca")
    energy = EnergyBasedModel(max_iter=2, random_state=0)
    yield pytest.param(energy, factors, True, id="energy", marks=pytest.mark.slow)


SHAPES = list(shapes())


@pytest.mark.parametrize(("estimator", "make", "free"), SHAPES)
def test_f15_columns_of_any_scale(estimator: Any, make: Any, free: bool) -> None:
    """Row 15, for all scales that squares leave room for: densities are those of rescaled rows, and all is finite."""
    X = make(120)
    d = X.shape[1]
    scales = [np.full(d, size) for size in SIZES]
    if free:
        scales += [np.resize(SIZES, d), np.resize([1e150, 1e-150, 1.0], d)]
    level = fit_quietly(estimator, X).score_samples(X)
    for scale in scales:
        fitted = fit_quietly(clone(estimator), scale * X)
        np.testing.assert_allclose(
            fitted.score_samples(scale * X) + np.log(scale).sum(), level, rtol=1e-6, atol=1e-6
        )
        for name, value in vars(fitted).items():
            if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
                assert np.isfinite(value).all(), (name, scale)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e-160, 1e160, 1e200, 1e300])
@pytest.mark.parametrize(("estimator", "make", "free"), SHAPES)
def test_f15_a_scale_beyond_float64_names_its_column(
    estimator: Any, make: Any, free: bool, size: float
) -> None:
    """Squares that vanish would make the column look constant."""
    X = make(60)
    X[:, 1] *= size
    with pytest.raises(ValueError, match="column 'x1' holds values so"):
        fit_quietly(clone(estimator), X)


@pytest.mark.parametrize(
    ("kind", "n", "length", "topics", "words", "times", "seed"),
    [
        (MultinomialMixture, 20, 50, 8, 3, 1e9, 116),
        (MultinomialMixture, 200, 3, 2, 5, 1e9, 507),
        (BayesianMultinomialMixture, 1000, 3, 2, 3, 1e9, 3),
        (BayesianMultinomialMixture, 200, 50, 8, 3, 1e9, 150),
        (MultinomialMixture, 200, 50, 8, 3, 1e6, 1),
        (BayesianMultinomialMixture, 200, 50, 8, 3, 1e6, 1),
    ],
)
def test_f16_one_document_far_longer_than_the_others(
    kind: type, n: int, length: int, topics: int, words: int, times: float, seed: int
) -> None:
    """Its likelihood is a sum of terms 1e9 times larger than those of the others: none may lose their digits."""
    for shift in range(2):
        rng = np.random.default_rng([seed, shift])
        chance = rng.dirichlet(np.full(words, 0.05), size=topics)
        each = rng.integers(0, topics, n)
        X = np.array([rng.multinomial(length, chance[c]) for c in each]).astype(float)
        for first in (X[0] * times, rng.multinomial(int(length * times), chance[each[0]])):
            X[0] = first
            fitted = fit_quietly(kind(min(topics, 6), tol=1e-8, random_state=seed), X)
            heights = np.array(fitted.lower_bounds_)
            digits = (
                1e-9 * np.abs(heights).max() + 1e-15 * X.sum() / n
            )  # what EM climbs has the words' own entropy
            assert np.diff(heights).min(initial=0.0) >= -digits
            assert not any("fell" in event for event in fitted.events_)
            assert np.isfinite(fitted.score_samples(X)).all()
