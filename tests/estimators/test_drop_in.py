"""The estimators against scikit-learn's: the same words, the same shapes, the same answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import decomposition, mixture

from boxloop import FactorAnalysis, GaussianMixture, ProbabilisticPCA
from estimators.cases import GAUSSIAN, blobs, factors

kinds = pytest.mark.parametrize("kind", GAUSSIAN)


def standardised(n: int = 400, gap: float = 3.0) -> np.ndarray:
    X = blobs(n, seed=11, gap=gap)
    return (X - X.mean(0)) / X.std(0)


def start_of(X: np.ndarray, kind: str, k: int = 3) -> dict[str, np.ndarray]:
    """A start that is no optimum: rows as means, unlike weights and precisions."""
    rng = np.random.default_rng(12)
    d = X.shape[1]
    draws = rng.normal(size=(k, d, 2 * d))
    precisions = np.einsum("kij,klj->kil", draws, draws) / (2 * d)
    shapes = {
        "full": precisions,
        "tied": precisions[0],
        "diag": np.diagonal(precisions, axis1=1, axis2=2),
        "spherical": precisions[:, 0, 0],
    }
    weights = np.array([0.5, 0.3, 0.2][:k]) / sum([0.5, 0.3, 0.2][:k])
    far = X[np.argsort(X[:, 0])[:: len(X) // k][:k]]
    return {"weights_init": weights, "means_init": far, "precisions_init": shapes[kind]}


def public(estimator: Any) -> set[str]:
    return {name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")}


@kinds
def test_mixture_has_the_same_attributes_and_shapes(kind: str) -> None:
    X = standardised()
    theirs = mixture.GaussianMixture(3, covariance_type=kind, random_state=0).fit(X)
    ours = GaussianMixture(3, covariance_type=kind, random_state=0).fit(X)
    assert public(theirs) - public(ours) == set()
    for name in public(theirs) - {"lower_bounds_"}:
        assert np.shape(getattr(ours, name)) == np.shape(getattr(theirs, name)), name
        assert np.asarray(getattr(ours, name)).dtype.kind == np.asarray(getattr(theirs, name)).dtype.kind, (
            name
        )
    wanted = set(mixture.GaussianMixture().get_params()) - {"verbose_interval"}
    assert wanted <= set(GaussianMixture().get_params())


@kinds
@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_mixture_gives_the_same_answer_from_the_same_start(kind: str, accelerate: bool) -> None:
    X = standardised(gap=5.0)
    options = {"covariance_type": kind, "max_iter": 200, "tol": 0.0, **start_of(X, kind, k=2)}
    theirs = mixture.GaussianMixture(2, reg_covar=0.0, **options).fit(X)
    ours = GaussianMixture(2, reg_covar=0.0, accelerate=accelerate, **options).fit(X)
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-8, err_msg=name
        )
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-8, atol=1e-8)
    assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, abs=1e-12)


@kinds
@pytest.mark.parametrize("iterations", [1, 2, 7])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_mixture_takes_the_same_steps(kind: str, iterations: int) -> None:
    X = standardised()
    options = {"covariance_type": kind, "max_iter": iterations, "tol": 0.0, **start_of(X, kind)}
    theirs = mixture.GaussianMixture(3, reg_covar=0.0, **options).fit(X)
    ours = GaussianMixture(3, reg_covar=0.0, accelerate=False, **options).fit(X)
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-10, err_msg=name
        )
    np.testing.assert_allclose(ours.lower_bounds_, theirs.lower_bounds_, rtol=1e-10)
    assert ours.n_iter_ == theirs.n_iter_


@kinds
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_mixture_says_the_same_of_new_rows(kind: str) -> None:
    X, new = standardised(), standardised(gap=2.0)[:50] * 1.1
    options = {"covariance_type": kind, "max_iter": 5, "tol": 0.0, **start_of(X, kind)}
    theirs = mixture.GaussianMixture(3, reg_covar=0.0, **options).fit(X)
    ours = GaussianMixture(3, reg_covar=0.0, accelerate=False, **options).fit(X)
    for name in ("score_samples", "predict_proba", "score", "aic", "bic"):
        value, wanted = getattr(ours, name)(new), getattr(theirs, name)(new)
        np.testing.assert_allclose(value, wanted, rtol=1e-8, atol=1e-10, err_msg=name)
    np.testing.assert_array_equal(ours.predict(new), theirs.predict(new))


@kinds
@pytest.mark.parametrize("given", ["weights_init", "means_init", "precisions_init"])
def test_part_of_a_start(kind: str, given: str) -> None:
    X = blobs(600, seed=13)
    best = GaussianMixture(2, covariance_type=kind, random_state=0, tol=1e-8, max_iter=1000).fit(X)
    part = {
        given: getattr(best, given.removesuffix("init"))[::-1]
        if kind != "tied" or given != "precisions_init"
        else best.precisions_
    }
    ours = GaussianMixture(2, covariance_type=kind, random_state=1, tol=1e-8, max_iter=1000, **part).fit(X)
    assert ours.lower_bound_ == pytest.approx(best.lower_bound_, abs=1e-6)
    if given == "means_init":
        np.testing.assert_allclose(
            ours.means_, best.means_[::-1], atol=1e-3, err_msg="members keep their places"
        )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"weights_init": [0.5, 0.6, -0.1]}, "weights_init must be non-negative and sum to 1"),
        ({"weights_init": [0.5, 0.5]}, r"weights_init should have the shape \(3,\), but got \(2,\)"),
        ({"means_init": np.zeros((3, 2))}, r"means_init should have the shape \(3, 3\)"),
        ({"means_init": np.full((3, 3), np.nan)}, "means_init holds a value that is not finite"),
        ({"precisions_init": np.ones((3, 3, 3))}, "precisions_init must be positive definite"),
        (
            {"precisions_init": np.tile(np.eye(3) + np.eye(3, k=1) / 9, (3, 1, 1))},
            "precisions_init must be symmetric",
        ),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_start_that_is_none(bad: dict[str, Any], message: str, whole: bool) -> None:
    X = standardised()
    with pytest.raises(ValueError, match=message):
        GaussianMixture(3, **{**(start_of(X, "full") if whole else {}), **bad}).fit(X)


@pytest.mark.parametrize("k", [1, 2])
def test_factor_analysis_is_the_same(k: int) -> None:
    X = factors(500, seed=14)
    theirs = decomposition.FactorAnalysis(k, tol=1e-12, max_iter=20_000, svd_method="lapack").fit(X)
    ours = FactorAnalysis(k, tol=1e-13, max_iter=20_000).fit(X)
    assert public(theirs) - public(ours) == set()
    for name in ("components_", "noise_variance_", "mean_"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape, name
    if k == 2:  # a Heywood case, where the likelihood is flat: ours may only be better
        assert ours.score(X) > theirs.score(X) - 1e-8
        return
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-5)
    np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_, atol=1e-5)
    sign = np.sign((ours.components_ * theirs.components_).sum(1))
    np.testing.assert_allclose(ours.components_, sign[:, None] * theirs.components_, atol=1e-5)
    np.testing.assert_allclose(ours.transform(X), sign * theirs.transform(X), atol=1e-5)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), atol=1e-5)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), atol=1e-4)
    np.testing.assert_allclose(ours.loglike_[-1], theirs.loglike_[-1], rtol=1e-8)


def test_ppca_is_the_probabilistic_model_of_scikit_learns_pca() -> None:
    X = factors(500, seed=15)
    theirs = decomposition.PCA(2, svd_solver="full").fit(X)
    ours = ProbabilisticPCA(2).fit(X)
    shrink = 1 - 1 / len(X)  # scikit-learn divides by n - 1
    np.testing.assert_allclose(ours.get_covariance(), shrink * theirs.get_covariance(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.noise_variance_, shrink * theirs.noise_variance_, rtol=1e-10)
    np.testing.assert_allclose(ours.explained_variance_, shrink * theirs.explained_variance_, rtol=1e-10)
    cosines = (ours.components_ * theirs.components_).sum(1) / np.linalg.norm(ours.components_, axis=1)
    np.testing.assert_allclose(abs(cosines), 1.0, rtol=1e-10)
    em = ProbabilisticPCA(2, solver="em", tol=1e-13, max_iter=5000).fit(X)
    np.testing.assert_allclose(em.get_covariance(), ours.get_covariance(), atol=1e-5)
