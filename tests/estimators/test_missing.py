"""Missing values are latent variables: exact likelihoods, and no bias where rows are missing at random.

Statistical tests compare every parameter with the one that drew the rows, in units of its standard error; seeds are
fixed. About 350 z-scores below 5.5 in all: false alarms 350 x 4e-8 = 1.4e-5 a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from boxloop import (
    BayesianGaussianMixture,
    BayesianMultinomialMixture,
    BernoulliMixture,
    FactorAnalysis,
    GaussianMixture,
    MultinomialMixture,
    PoissonMixture,
    ProbabilisticPCA,
)
from estimators.cases import BAYESIAN, CASES, POSTERIORS, Case, blobs, every, over, parameters

LIMIT = 5.5


def brute_force(estimator: Any, row: np.ndarray) -> float:
    """Log-density of the values present in one row, by the textbook."""
    o = ~np.isnan(row)
    x = row[o]
    if isinstance(estimator, FactorAnalysis | ProbabilisticPCA):
        covariance = estimator.get_covariance()[np.ix_(o, o)]
        return float(stats.multivariate_normal(estimator.mean_[o], covariance).logpdf(x))
    distributions = {
        GaussianMixture: lambda k: gaussian(estimator, k, x, o),
        PoissonMixture: lambda k: stats.poisson(estimator.means_[k, o]).logpmf(x).sum(),
        BernoulliMixture: lambda k: stats.bernoulli(estimator.means_[k, o]).logpmf(x).sum(),
        MultinomialMixture: lambda k: words(estimator.probabilities_[k, o], x),
        BayesianGaussianMixture: lambda k: student(estimator, k, x, o),
        BayesianMultinomialMixture: lambda k: urn(estimator.word_concentration_[k, o], x),
    }
    members = [distributions[type(estimator)](k) for k in range(len(estimator.weights_))]
    return float(logsumexp(members, b=estimator.weights_))


def gaussian(estimator: Any, k: int, x: np.ndarray, o: np.ndarray) -> float:
    d, c = len(o), estimator.covariances_
    shapes = {
        "full": lambda: c[k],
        "tied": lambda: c,
        "diag": lambda: np.diag(c[k]),
        "spherical": lambda: c[k] * np.eye(d),
    }
    covariance = shapes[estimator.covariance_type]()[np.ix_(o, o)]
    return float(stats.multivariate_normal(estimator.means_[k, o], covariance).logpdf(x))


def student(estimator: Any, k: int, x: np.ndarray, o: np.ndarray) -> float:
    """The posterior predictive of one component: Student's t distribution with scale (1 + 1/kappa) Psi / degrees."""
    d, kind, kappa = len(o), estimator.covariance_type, estimator.mean_precision_[k]
    c = estimator.covariances_ if kind == "tied" else estimator.covariances_[k]
    dof = estimator.degrees_of_freedom_ if kind == "tied" else estimator.degrees_of_freedom_[k]
    mean = estimator.means_[k, o]
    if kind == "diag":
        return float(stats.t(dof, mean, np.sqrt((1 + 1 / kappa) * c[o])).logpdf(x).sum())
    if kind == "spherical":
        shape, degrees = c * np.eye(d), dof
    else:
        shape, degrees = c * dof / (dof - d + 1), dof - d + 1
    return float(stats.multivariate_t(mean, (1 + 1 / kappa) * shape[np.ix_(o, o)], degrees).logpdf(x))


def urn(concentration: np.ndarray, x: np.ndarray) -> float:
    return float(stats.dirichlet_multinomial(concentration, int(x.sum())).logpmf(x.astype(int)))


def words(chance: np.ndarray, x: np.ndarray) -> float:
    return float(stats.multinomial(x.sum(), chance / chance.sum()).logpmf(x))


def with_missing(X: np.ndarray, seed: int, share: float = 0.3) -> np.ndarray:
    """A copy with values missing completely at random, at least one left in each row."""
    rng = np.random.default_rng(seed)
    missing = rng.random(X.shape) < share
    missing[np.arange(len(X)), rng.integers(X.shape[1], size=len(X))] = False
    return np.where(missing, np.nan, X)


def censored(X: np.ndarray, seed: int) -> np.ndarray:
    """All but the first column missing, mostly where the first is large: missing at random, not completely so."""
    rng = np.random.default_rng(seed)
    high = X[:, 0] > X[:, 0].mean()
    gone = rng.random(len(X)) < np.where(high, 0.7, 0.1)
    X = X.copy()
    X[gone, 1:] = np.where(rng.random((gone.sum(), X.shape[1] - 1)) < 0.7, np.nan, X[gone, 1:])
    return X


@over([*CASES, *POSTERIORS, *(case for case in BAYESIAN if case.counting)])
def test_likelihood_by_brute_force(case: Case) -> None:
    X = with_missing(case.rows(60), seed=1)
    estimator = case.quick().fit(X)
    np.testing.assert_allclose(
        estimator.score_samples(X), [brute_force(estimator, row) for row in X], rtol=1e-9
    )


@every
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_objective_is_that_likelihood(case: Case) -> None:
    X = with_missing(case.rows(60), seed=2)
    estimator = case.quick(max_iter=3, tol=0.0, accelerate=False).fit(X)
    twice = case.quick(max_iter=2, tol=0.0, accelerate=False).fit(X)
    wanted = np.mean([brute_force(twice, row) for row in X])
    assert estimator.lower_bounds_[2] == pytest.approx(wanted, rel=1e-9), (
        "that of the model of the round before"
    )


@over([*(case for case in CASES if not case.counting), *POSTERIORS])
def test_posterior_of_a_row_with_missing_values_is_that_of_fewer_columns(case: Case) -> None:
    X = case.rows(100)
    estimator = case.quick().fit(X)
    part = X.copy()
    part[:, 1] = np.nan
    other = estimator.transform(part)
    if case.mixing:
        joint = np.array([[brute_force_member(estimator, k, row) for k in range(2)] for row in part])
        np.testing.assert_allclose(other, np.exp(joint - logsumexp(joint, axis=1)[:, None]), atol=1e-9)
        return
    keep = np.arange(X.shape[1]) != 1
    inverse = np.linalg.inv(estimator.get_covariance()[np.ix_(keep, keep)])
    scores = (X[:, keep] - estimator.mean_[keep]) @ inverse @ estimator.components_[:, keep].T
    np.testing.assert_allclose(other, scores, atol=1e-9)


def brute_force_member(estimator: Any, k: int, row: np.ndarray) -> float:
    o = ~np.isnan(row)
    if isinstance(
        estimator, BayesianGaussianMixture
    ):  # E[log weight], and what E[log-density] adds to the plug-in
        return float(estimator.model_.plug_in_mixture.log_weight[k]) + gaussian(estimator, k, row[o], o)
    return np.log(estimator.weights_[k]) + gaussian(estimator, k, row[o], o)


def z_scores(case: Case, estimator: Any, X: np.ndarray, truth: dict[str, np.ndarray]) -> np.ndarray:
    """Errors of all parameters in units of their standard errors, components and signs matched to the truth."""
    errors, found, z = estimator.standard_errors(X), parameters(estimator), []
    for name, error in errors.items():
        value, wanted = found[name], truth[name]
        if case.mixing and not (name == "covariances" and case.name == "gaussian-tied"):
            order = np.argsort(found["weights"])
            value, error, wanted = value[order], error[order], wanted[np.argsort(truth["weights"])]
        if name == "components":
            value = value * np.sign((value * wanted).sum())
        z.append(((value - wanted) / error).ravel())
    return np.concatenate(z)


def drawn(case: Case, n: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows from a model of the case's own kind, in random order, and its parameters."""
    source = case.quick(tol=1e-8, max_iter=2000).fit(case.rows(2000, seed=3))
    rows = source.set_params(random_state=4).sample(n)[0]
    return rows[np.random.default_rng(5).permutation(n)], parameters(source)


@every
def test_rows_missing_completely_at_random(case: Case) -> None:
    X, truth = drawn(case, 2000)
    X = with_missing(X, seed=7, share=0.2)
    z = z_scores(case, case.quick(tol=1e-9, max_iter=5000).fit(X), X, truth)
    assert np.isfinite(z).all()
    assert abs(z).max() < LIMIT


@over([case for case in CASES if case.kind is not MultinomialMixture])
def test_rows_missing_at_random_are_no_bias(case: Case) -> None:
    """Ours finds the truth; a fit to the rows without missing values does not.

    Documents are left out: theirs is the distribution of the words seen given their number, which is right only when
    words are missing completely at random.
    """
    X, truth = drawn(case, 3000)
    X = censored(X, seed=6)
    estimator = case.quick(tol=1e-9, max_iter=5000).fit(X)
    z = z_scores(case, estimator, X, truth)
    assert np.isfinite(z).all()
    assert abs(z).max() < LIMIT
    whole = X[~np.isnan(X).any(1)]
    complete = case.quick(tol=1e-9, max_iter=5000).fit(whole)
    assert abs(z_scores(case, complete, whole, truth)).max() > 2 * LIMIT


@over(POSTERIORS)
@pytest.mark.parametrize("gaps", [with_missing, censored])
def test_posterior_means_are_those_of_maximum_likelihood(
    case: Case, gaps: Callable[[np.ndarray, int], np.ndarray]
) -> None:
    """Apart by 1/n, so by a small part of the standard errors; a missing value counts as seen in the deviations."""
    ml = Case("gaussian", GaussianMixture, case.params, blobs)
    X = gaps(drawn(ml, 3000)[0], 6)
    one, other = (c.quick(tol=1e-10, max_iter=5000).fit(X) for c in (ml, case))
    errors = one.standard_errors(X)
    order = [np.argsort(-estimator.weights_) for estimator in (one, other)]
    for name, most in (("weights", 0.03), ("means", 0.03), ("covariances", 0.4)):
        value, wanted, error = getattr(other, f"{name}_"), getattr(one, f"{name}_"), errors[name]
        if value.shape[0] == 2:
            value, wanted, error = value[order[1]], wanted[order[0]], error[order[0]]
        assert abs((value - wanted) / error).max() < most, name
    ratio = other.standard_errors()["means"][order[1]] / errors["means"][order[0]]
    assert ratio.max() < 1.01
    assert ratio.min() > 0.95 * np.sqrt(1.0 - np.isnan(X).mean(0).max() / other.weights_.min())


@pytest.mark.parametrize("kind", ["full", "tied"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_iteration_with_many_patterns_by_the_textbook(kind: str) -> None:
    """Rows filled in with their conditional means, plus conditional covariances (Little and Rubin, chapter 11)."""
    rng = np.random.default_rng(8)
    X = with_missing(rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)), seed=9, share=0.4)
    mean, root = rng.normal(size=6), rng.normal(size=(6, 12))
    covariance = root @ root.T / 12
    filled, second = X.copy(), np.zeros((6, 6))
    for row in filled:
        m, o = np.isnan(row), ~np.isnan(row)
        slope = covariance[np.ix_(m, o)] @ np.linalg.inv(covariance[np.ix_(o, o)])
        row[m] = mean[m] + slope @ (row[o] - mean[o])
        second[np.ix_(m, m)] += covariance[np.ix_(m, m)] - slope @ covariance[np.ix_(o, m)]
    precision = np.linalg.inv(covariance)
    start = {
        "weights_init": [1.0],
        "means_init": [mean],
        "precisions_init": precision if kind == "tied" else [precision],
    }
    estimator = GaussianMixture(1, covariance_type=kind, reg_covar=0.0, max_iter=1, tol=0.0, **start).fit(X)
    np.testing.assert_allclose(estimator.means_[0], filled.mean(0), rtol=1e-9)
    wanted = np.cov(filled.T, bias=True) + second / 400
    np.testing.assert_allclose(estimator.covariances_.reshape(6, 6), wanted, rtol=1e-8, atol=1e-10)
    assert len(np.unique(np.isnan(X), axis=0)) > 50, "many patterns, most of them with few rows"
