"""Factor analysis and principal components: fits from moments, rotations, scores and their uncertainty."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from scipy import stats

from boxloop import FactorAnalysis, ProbabilisticPCA
from estimators.cases import Case, assert_same, factors, fit_with_warnings, linear


def two_factors(n: int = 800, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a simple structure: each column loads on one of two factors, and a little on the other."""
    rng = np.random.default_rng(seed)
    loadings = np.array([[0.9, 0.8, 0.7, 0.1, 0.0, 0.1], [0.0, 0.1, 0.1, 0.8, 0.9, 0.7]])
    noise = np.sqrt([0.3, 0.4, 0.5, 0.35, 0.25, 0.5])
    return rng.normal(size=(n, 2)) @ loadings + noise * rng.normal(size=(n, 6)) + 3.0, loadings


@linear
@pytest.mark.parametrize("weighted", [False, True])
def test_a_covariance_is_as_good_as_the_rows(case: Case, weighted: bool) -> None:
    X, _ = two_factors()
    weight = np.random.default_rng(1).random(800) if weighted else np.ones(800)
    mean, covariance = np.average(X, axis=0, weights=weight), np.cov(X.T, aweights=weight, bias=True)
    options = {"n_components": 2, "tol": 1e-13, "max_iter": 5000}
    rows = case.make(**options).fit(X, sample_weight=weight)
    moments = case.make(**options).fit_covariance(covariance, n_samples=800, mean=mean)
    for name in ("components_", "noise_variance_", "mean_"):
        np.testing.assert_allclose(
            getattr(moments, name), getattr(rows, name), rtol=1e-8, atol=1e-8, err_msg=name
        )
    assert moments.lower_bound_ == pytest.approx(rows.lower_bound_, rel=1e-10)
    np.testing.assert_allclose(moments.transform(X), rows.transform(X), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(moments.score_samples(X), rows.score_samples(X), rtol=1e-8)


@linear
def test_names_of_a_covariance_are_kept(case: Case) -> None:
    X = pandas.DataFrame(factors(200), columns=list("abcde"))
    named = case.make().fit_covariance(X.cov(ddof=0), n_samples=200, mean=X.mean())
    assert named.feature_names_in_.tolist() == list("abcde")
    assert named.transform(X).shape == (200, 1)
    with pytest.raises(ValueError, match="feature names"):
        named.transform(X[list("bacde")])
    plain = case.make().fit_covariance(X.cov(ddof=0).to_numpy(), n_samples=200)
    assert "feature_names_in_" not in vars(plain)
    assert plain.transform(X.to_numpy()).shape == (200, 1)
    np.testing.assert_allclose(plain.mean_, 0.0, atol=1e-12)


@linear
@pytest.mark.parametrize(
    ("covariance", "more", "message"),
    [
        (np.ones((2, 3)), {}, "must be square"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), {}, "finite and symmetric"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), {}, "finite and symmetric"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), {}, "negative eigenvalue, -1"),
        (np.eye(2), {"n_samples": 0}, "n_samples must be at least 1"),
        (np.eye(2), {"mean": np.zeros(3)}, r"mean must be 2 finite numbers, got shape \(3,\)"),
        (np.eye(2), {"mean": [0.0, np.inf]}, "mean must be 2 finite numbers"),
    ],
)
def test_moments_that_are_none(case: Case, covariance: np.ndarray, more: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.make().fit_covariance(covariance, **{"n_samples": 50, **more})


@linear
def test_small_units_of_a_covariance(case: Case) -> None:
    X = factors(300) * 1e-8
    rows = case.make(tol=1e-12).fit(X)
    moments = case.make(tol=1e-12).fit_covariance(np.cov(X.T, bias=True), n_samples=300, mean=X.mean(0))
    np.testing.assert_allclose(moments.components_, rows.components_, rtol=1e-6)


def criterion(loadings: np.ndarray, gamma: float) -> float:
    """The orthomax criterion of loadings (k, d)."""
    square = loadings**2
    return float((square**2).sum() - gamma / loadings.shape[1] * (square.sum(1) ** 2).sum())


@pytest.mark.parametrize(("rotation", "gamma"), [("varimax", 1.0), ("quartimax", 0.0)])
@pytest.mark.parametrize("k", [2, 3])
def test_rotation(rotation: str, gamma: float, k: int) -> None:
    X, _ = two_factors()
    plain, _ = fit_with_warnings(FactorAnalysis(k, tol=1e-9, max_iter=5000), X)
    turned, _ = fit_with_warnings(FactorAnalysis(k, tol=1e-9, max_iter=5000, rotation=rotation), X)
    np.testing.assert_allclose(turned.get_covariance(), plain.get_covariance(), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(turned.communalities_, plain.communalities_, rtol=1e-9)
    np.testing.assert_allclose(turned.score(X), plain.score(X), rtol=1e-12)
    turn = np.linalg.lstsq(plain.components_.T, turned.components_.T, rcond=None)[0]
    np.testing.assert_allclose(turn.T @ turn, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(turned.components_, turn.T @ plain.components_, atol=1e-9)
    deviation = np.sqrt(np.diag(plain.get_covariance()))
    loadings = turned.components_ / deviation
    level = criterion(loadings, gamma)
    assert level > criterion(plain.components_ / deviation, gamma)
    rng = np.random.default_rng(2)
    for size in np.logspace(-4, -0.5, 100):
        skew = rng.normal(size=(k, k)) * size
        step = np.linalg.qr(np.eye(k) + skew - skew.T)[0]
        assert criterion(step.T @ loadings, gamma) <= level + 1e-9


@pytest.mark.parametrize("rotation", ["varimax", "quartimax", None])
def test_rotation_does_not_depend_on_units(rotation: str | None) -> None:
    X, _ = two_factors()
    scale = np.logspace(-3, 3, 6)
    one = FactorAnalysis(2, tol=1e-10, rotation=rotation).fit(X).components_
    other = FactorAnalysis(2, tol=1e-10, rotation=rotation).fit(X * scale).components_
    np.testing.assert_allclose(other / scale, one, atol=1e-5)


def test_varimax_finds_the_simple_structure() -> None:
    """Loadings within 0.15 of those that drew 800 rows: five standard errors of about 0.03 each."""
    X, loadings = two_factors()
    found = FactorAnalysis(2, rotation="varimax", tol=1e-9).fit(X).components_
    order = np.argsort([-abs(row[:3]).sum() for row in found])
    found = found[order]
    assert abs(found - loadings).max() < 0.15


@linear
def test_canonical_form(case: Case) -> None:
    X, _ = two_factors()
    estimator = case.make(n_components=2).fit(X)
    inner = estimator.components_ / estimator.noise_variance_ @ estimator.components_.T
    assert abs(inner[0, 1]) < 1e-8 * inner[0, 0]
    assert inner[0, 0] > inner[1, 1]
    scaled = estimator.components_ / np.sqrt(estimator.noise_variance_)
    assert (np.take_along_axis(scaled, abs(scaled).argmax(1)[:, None], 1) > 0).all()


def test_communalities() -> None:
    X, _ = two_factors()
    estimator = FactorAnalysis(2, tol=1e-10).fit(X)
    explained = (estimator.components_**2).sum(0)
    np.testing.assert_allclose(estimator.communalities_, explained / np.diag(estimator.get_covariance()))
    assert ((estimator.communalities_ > 0) & (estimator.communalities_ < 1)).all()
    frame = estimator.summary()
    np.testing.assert_array_equal(frame["communality"], estimator.communalities_)
    # At the maximum the model has the variances of the rows.
    np.testing.assert_allclose(np.diag(estimator.get_covariance()), X.var(0), rtol=1e-4)


@linear
@pytest.mark.parametrize("missing", [False, True])
def test_scores_and_their_covariance(case: Case, missing: bool) -> None:
    X, _ = two_factors(60)
    estimator = case.make(n_components=2).fit(X)
    if missing:
        X[::3, 1] = np.nan
        X[::5, 4:] = np.nan
    mean, covariance = estimator.posterior(X)
    np.testing.assert_array_equal(mean, estimator.transform(X))
    assert covariance.shape == (60, 2, 2)
    for row, m, c in zip(X, mean, covariance, strict=True):
        o = ~np.isnan(row)
        loadings = estimator.components_[:, o].T
        noise = np.broadcast_to(estimator.noise_variance_, 6)[o]
        inner = np.linalg.inv(np.eye(2) + loadings.T / noise @ loadings)
        np.testing.assert_allclose(c, inner, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            m, inner @ loadings.T / noise @ (row[o] - estimator.mean_[o]), rtol=1e-8, atol=1e-10
        )
    if missing:
        assert np.trace(covariance[0]) > np.trace(covariance[1]), "missing values widen it"


@linear
def test_scores_cover_the_factors_that_drew_the_rows(case: Case) -> None:
    """Squared errors of 4000 pairs of scores in their own covariance are chi-squared with 2 degrees of freedom.

    Their mean has a standard error of 2 / sqrt(4000); |z| < 5: false alarms 6e-7 each.
    """
    estimator = case.make(n_components=2).fit(two_factors()[0])
    X, latent = estimator.set_params(random_state=3).sample(4000)
    mean, covariance = estimator.posterior(X)
    square = np.einsum("ni,nij,nj->n", latent - mean, np.linalg.inv(covariance), latent - mean)
    assert abs(square.mean() - 2.0) < 5 * 2 / np.sqrt(4000)
    assert stats.kstest(square, stats.chi2(2).cdf).pvalue > 1e-6


@linear
def test_rows_from_scores(case: Case) -> None:
    X, _ = two_factors()
    estimator = case.make(n_components=2).fit(X)
    scores = estimator.transform(X)
    back = estimator.inverse_transform(scores)
    np.testing.assert_allclose(back, estimator.mean_ + scores @ estimator.components_)
    assert ((X - back) ** 2).mean() < 0.5 * X.var()
    full = case.make(n_components=6, noise_floor=1e-10)
    whole, _ = fit_with_warnings(full, X)
    if case.kind is ProbabilisticPCA:
        np.testing.assert_allclose(whole.inverse_transform(whole.transform(X)), X, atol=1e-4)


@linear
def test_precision_is_the_inverse(case: Case) -> None:
    estimator = case.make(n_components=2).fit(two_factors()[0])
    np.testing.assert_allclose(estimator.get_precision() @ estimator.get_covariance(), np.eye(6), atol=1e-10)


@linear
def test_all_columns_are_factors_by_default(case: Case) -> None:
    estimator, _ = fit_with_warnings(case.kind(), factors(300))
    assert estimator.components_.shape == (5, 5)
    np.testing.assert_allclose(
        estimator.get_covariance(), np.cov(factors(300).T, bias=True), rtol=0.02, atol=0.02
    )


@linear
def test_wide_tables(case: Case) -> None:
    """More columns than a second-moment matrix is worth: the same fit by passes over the rows."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40)) + rng.normal(size=(60, 40))
    options = {
        "n_components": 2,
        "tol": 1e-12,
        "max_iter": 3000,
        **({"solver": "em"} if case.name == "ppca" else {}),
    }
    by_moments = case.make(**options).fit(X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("boxloop.data.moments.MOMENT_COLUMNS", 10)
        by_rows = case.make(**options).fit(X)
    assert_same(by_moments, by_rows, rtol=1e-3, atol=1e-3)
    assert by_moments.lower_bound_ == pytest.approx(by_rows.lower_bound_, abs=1e-8)


@linear
@pytest.mark.parametrize("k", [1, 2, 3])
def test_information_criteria_count_what_is_free(case: Case, k: int) -> None:
    """Loadings are free up to a rotation: k (k - 1) / 2 fewer than they are numbers."""
    X, _ = two_factors(300)
    estimator, _ = fit_with_warnings(case.make(n_components=k), X)
    free = 6 + 6 * k - k * (k - 1) // 2 + (6 if case.kind is FactorAnalysis else 1)
    total = estimator.score_samples(X).sum()
    assert estimator.aic(X) == pytest.approx(2 * free - 2 * total)
    assert estimator.bic(X) == pytest.approx(free * np.log(300) - 2 * total)
