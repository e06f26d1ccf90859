"""Row 33 of the faults, and the rest that two views can be given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from boxloop import FitWarning, RelevantFeatures

LINEAR = {"x_features": "linear", "y_features": "linear"}


def views(n: int = 200) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, x[:, :2] + rng.normal(size=(n, 2))


def test_a_singular_view_has_relevances_within_bounds() -> None:
    x, y = views()
    plain = RelevantFeatures(2, **LINEAR).fit(x, y)
    double = np.hstack([x, x[:, :1] + x[:, 1:2], np.full((len(x), 1), 7.0)])
    found = RelevantFeatures(2, **LINEAR).fit(double, y)
    np.testing.assert_allclose(found.correlation_, plain.correlation_, rtol=1e-8)
    np.testing.assert_allclose(found.predict(double), plain.predict(x), atol=1e-8)


def test_identical_views_are_reported() -> None:
    x, _ = views()
    with pytest.warns(FitWarning, match="exact function of the other view"):
        fit = RelevantFeatures(3, **LINEAR).fit(x, x)
    assert (fit.relevance_ <= 1.0).all()
    np.testing.assert_allclose(fit.relevance_, 1.0, atol=1e-9)


def test_a_perfect_relation_can_be_learned_through() -> None:
    x, _ = views(400)
    fit = RelevantFeatures(2, hidden=(8,), max_iter=3, patience=None, random_state=0).fit(x, x)
    assert np.isfinite(fit.predict(x)).all()
    assert ((fit.relevance_ >= 0.0) & (fit.relevance_ <= 1.0)).all()


def test_a_constant_view_has_no_variable() -> None:
    x, y = views()
    with pytest.warns(FitWarning, match="0 canonical variables"):
        fit = RelevantFeatures(1, **LINEAR).fit(np.ones((len(x), 2)), y)
    np.testing.assert_allclose(fit.predict(np.ones((3, 2))), np.tile(y.mean(0), (3, 1)))


def test_fewer_rows_than_features_are_reported() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(FitWarning, match="20 rows for 30 features of X: any rows are then related perfectly"):
        fit = RelevantFeatures(2, **LINEAR).fit(rng.normal(size=(20, 30)), rng.normal(size=(20, 2)))
    assert (fit.relevance_ <= 1.0).all()
    damped = RelevantFeatures(2, ridge=1.0, **LINEAR).fit(
        rng.normal(size=(20, 30)), rng.normal(size=(20, 2))
    )  # the ridge is the answer: nothing is said
    assert (damped.relevance_ < 0.99).all()


def test_a_small_batch_is_reported() -> None:
    x, y = views(300)
    with pytest.warns(FitWarning, match="below 10 rows per feature"):
        RelevantFeatures(10, hidden=(8,), batch_size=50, max_iter=1, patience=None, random_state=0).fit(x, y)


def test_a_batch_that_cannot_be_large_enough_is_reported() -> None:
    x, y = views(60)
    with pytest.warns(FitWarning, match="use more rows"):
        RelevantFeatures(10, hidden=(8,), max_iter=1, patience=None, random_state=0).fit(x, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y[:-1]), "200 rows and the second 199"),
        (lambda x, y: (np.where(x > 2.0, np.nan, x), y), "X has a missing value .NaN. in column"),
        (lambda x, y: (x, np.where(y > 2.0, np.nan, y)), "Y has a missing value .NaN. in column"),
        (lambda x, y: (x, np.where(y > 2.0, np.inf, y)), "infinite"),
        (lambda x, y: (x, pd.DataFrame({"a": y[:, 0], "b": ["u"] * len(y)})), "'b' of Y is not numeric"),
        (lambda x, y: (x, np.array(["u", None] * 100, dtype=object)), "Y has a missing value in row 1"),
        (lambda x, y: (x, None), "y is None"),
        (lambda x, y: (x[:2], y[:2]), "at least 3 rows"),
    ],
)
def test_what_cannot_be_used_is_named(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RelevantFeatures(2, x_features="linear").fit(*change(*views()))


def test_a_value_that_the_fit_has_not_seen_is_named() -> None:
    x, _ = views()
    fit = RelevantFeatures(1, y_features="linear").fit(np.where(x[:, 0] > 0, "a", "b"), x)
    with pytest.raises(ValueError, match="X holds 'c', which the fit has not seen: its values are 'a', 'b'"):
        fit.transform(["a", "c"])


def test_a_module_of_the_wrong_shape_is_named() -> None:
    from torch import nn

    x, y = views()
    with pytest.raises(ValueError, match=r"maps rows \(n, 3\) to \(n, k\)"):
        RelevantFeatures(1, x_features=nn.Sequential(nn.Linear(3, 4), nn.Flatten(0))).fit(x, y)
