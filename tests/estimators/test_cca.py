"""Canonical correlation analysis: the numbers, names and shapes of scikit-learn's, from an exact solution."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.cross_decomposition import CCA as Peer
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from boxloop import CCA, FitWarning, RelevantFeatures, load

Array = NDArray[np.float64]
FITTED = (
    "x_weights_",
    "y_weights_",
    "x_loadings_",
    "y_loadings_",
    "x_rotations_",
    "y_rotations_",
    "coef_",
    "intercept_",
)


def tables(n: int = 300, p: int = 5, q: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Two views with three shared variables, columns of unlike scales and means far from 0."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 3)) * [2.0, 1.2, 0.7]
    X, Y = (
        np.hstack([shared + rng.normal(size=(n, 3)), rng.normal(size=(n, 3))])[:, :k]
        @ rng.normal(size=(k, k))
        for k in (p, q)
    )
    return X * np.geomspace(0.01, 100.0, p) + 7.0, Y * np.geomspace(10.0, 0.1, q) - 3.0


def converged(k: int, X: Array, Y: Array, scale: bool = True) -> Peer:
    """scikit-learn's, iterated until it moves no more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Peer(k, scale=scale, tol=1e-28, max_iter=50_000).fit(X, Y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
@parametrize_with_checks([CCA(1), CCA(1, scale=False)])
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(("p", "q", "k"), [(5, 4, 3), (5, 4, 4), (3, 6, 3), (4, 1, 1), (1, 1, 1)])
def test_attributes_are_those_of_scikit_learn(p: int, q: int, k: int, scale: bool) -> None:
    X, Y = tables(p=p, q=q)
    ours, theirs = CCA(k, scale=scale).fit(X, Y), converged(k, X, Y, scale)
    for name in FITTED:
        wanted = getattr(theirs, name)
        np.testing.assert_allclose(
            getattr(ours, name), wanted, rtol=1e-8, atol=1e-9 * np.abs(wanted).max(), err_msg=name
        )
    assert len(ours.n_iter_) == len(theirs.n_iter_)
    assert set(Peer().get_params()) == set(CCA().get_params())
    assert CCA().get_params() == Peer().get_params()
    public = {name for name in vars(theirs) if name.endswith("_") and not name.startswith("_")}
    assert public <= set(vars(ours))


@pytest.mark.parametrize("vector", [True, False])
def test_methods_give_what_those_of_scikit_learn_give(vector: bool) -> None:
    X, Y = tables(q=1 if vector else 4)
    k, y = (1, Y[:, 0]) if vector else (3, Y)
    new, other = tables(50, q=1 if vector else 4, seed=1)
    ours, theirs = CCA(k).fit(X, y), converged(k, X, y)
    left, right = ours.transform(new, other)
    for found, wanted in zip((left, right), theirs.transform(new, other), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(ours.transform(new), left, rtol=1e-12)
    back, wanted_back = ours.inverse_transform(left, right), theirs.inverse_transform(left, right)
    for found, wanted in zip(back, wanted_back, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7)
    np.testing.assert_allclose(ours.inverse_transform(left), back[0], rtol=1e-12)
    assert ours.predict(new).shape == theirs.predict(new).shape
    np.testing.assert_allclose(ours.predict(new), theirs.predict(new), rtol=1e-7)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), rel=1e-7)
    for found, wanted in zip(CCA(k).fit_transform(X, y), theirs.transform(X, y), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-9)
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())


def test_scores_have_the_canonical_correlations_and_no_others() -> None:
    X, Y = tables()
    fit = CCA(4).fit(X, Y)
    u, v = fit.transform(X, Y)
    np.testing.assert_allclose(
        np.corrcoef(u.T, v.T),
        np.block([
            [np.eye(4), np.diag(fit.correlation_)],
            [np.diag(fit.correlation_), np.eye(4)],
        ]),
        atol=1e-9,
    )  # fmt: skip
    linear = RelevantFeatures(4, x_features="linear", y_features="linear").fit(X, Y)
    np.testing.assert_allclose(fit.correlation_, linear.correlation_, rtol=1e-10)


def test_as_many_components_as_columns_are_inverted_exactly() -> None:
    X, Y = tables(p=4, q=4)
    fit = CCA(4).fit(X, Y)
    for found, wanted in zip(fit.inverse_transform(*fit.transform(X, Y)), (X, Y), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_default_tolerance_of_scikit_learn_stops_short_of_the_solution() -> None:
    """Two nearly equal correlations: the power method stops at a mixture of both pairs."""
    rng = np.random.default_rng(3)
    shared = rng.normal(size=(400, 2))
    X, Y = (shared + 0.5 * rng.normal(size=(400, 2)) for _ in range(2))
    exact, short = CCA(2).fit(X, Y), Peer(2).fit(X, Y)
    first = [np.corrcoef(*(s[:, 0] for s in fit.transform(X, Y)))[0, 1] for fit in (exact, short)]
    assert first[0] == pytest.approx(exact.correlation_[0], abs=1e-12)
    assert first[1] < first[0] - 1e-9


def test_files_give_the_same_estimator(tmp_path: Path) -> None:
    X, Y = tables()
    frame = pd.DataFrame(X, columns=list("abcde"))
    fit = CCA(2, scale=False).fit(frame, Y)
    fit.save(tmp_path / "cca.boxloop")
    for again in (load(tmp_path / "cca.boxloop"), CCA.load(tmp_path / "cca.boxloop")):
        assert isinstance(again, CCA)
        assert again.get_params() == fit.get_params()
        for name in (*FITTED, "correlation_"):
            np.testing.assert_array_equal(getattr(again, name), getattr(fit, name), err_msg=name)
        np.testing.assert_array_equal(again.predict(frame), fit.predict(frame))
        assert list(again.feature_names_in_) == list("abcde")
    vector = CCA(1).fit(X, Y[:, 0])
    vector.save(tmp_path / "vector.boxloop")
    assert load(tmp_path / "vector.boxloop").predict(X).shape == (300,)


def test_pipelines_and_frames() -> None:
    X, Y = tables()
    pipeline = make_pipeline(StandardScaler(), CCA(2).set_output(transform="pandas"))
    scores = pipeline.fit(X, Y).transform(X)
    assert list(scores.columns) == ["cca0", "cca1"]
    np.testing.assert_allclose(np.abs(scores), np.abs(CCA(2).fit(X, Y).transform(X)), rtol=1e-9)


def test_input_is_not_changed() -> None:
    X, Y = tables()
    before = X.copy(), Y.copy()
    fit = CCA(2, copy=False).fit(X, Y)
    fit.transform(X, Y, copy=False)
    fit.predict(X, copy=False)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(Y, before[1])


def test_what_the_tables_cannot_give_is_said() -> None:
    X, Y = tables()
    with pytest.raises(ValueError, match=r"upper bound is 4\. Got 5"):
        CCA(5).fit(X, Y)
    with pytest.raises(ValueError, match="column 0 of y holds text"):
        CCA(1).fit(X, np.array([["a"]] * len(X), dtype=object))
    with pytest.raises(NotFittedError):
        CCA().transform(X)
    constant = np.column_stack([Y[:, 0], np.ones(len(Y))])
    with pytest.warns(FitWarning, match="have 1 pair of canonical variables, fewer than n_components=2"):
        fit = CCA(2).fit(X, constant)
    assert fit.x_rotations_.shape == (5, 2)
    assert not fit.x_rotations_[:, 1].any()
    assert np.isfinite(fit.predict(X)).all()
    with pytest.warns(FitWarning, match="8 rows for 9 columns"):
        CCA(1).fit(X[:8], Y[:8])
