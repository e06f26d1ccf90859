"""What a mask hides is missing: scikit-learn's own check would read the number under it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import boxloop
from boxloop.data import fill_masked

DRAWS = np.random.default_rng(0)
ROWS = DRAWS.normal(size=(120, 3)) @ DRAWS.normal(size=(3, 3))
IS_MISSING = DRAWS.random((120, 3)) < 0.1
HIDDEN = np.ma.array(np.where(IS_MISSING, 1e6, ROWS), mask=IS_MISSING)
MISSING = np.where(IS_MISSING, np.nan, ROWS)

TAKE = {
    "mixture": boxloop.GaussianMixture(2, random_state=0),
    "factors": boxloop.FactorAnalysis(1, random_state=0),
    "bayesian": boxloop.BayesianGaussianMixture(2, random_state=0, max_iter=400),
    "outliers": boxloop.OutlierDetector(boxloop.GaussianMixture(2, random_state=0), random_state=0),
    "selection": boxloop.ModelSearchCV(
        boxloop.GaussianMixture(random_state=0), {"n_components": [1, 2]}, random_state=0
    ),
}


@pytest.mark.parametrize("name", TAKE)
def test_a_mask_is_as_good_as_nan(name: str) -> None:
    from sklearn.base import clone

    here, there = (clone(TAKE[name]).fit(rows) for rows in (HIDDEN, MISSING))
    np.testing.assert_array_equal(here.score_samples(HIDDEN), there.score_samples(MISSING))


@pytest.mark.parametrize(
    "estimator",
    [
        boxloop.NetworkRegressor(random_state=0),
        boxloop.BayesianLinearRegression(),
    ],
    ids=lambda given: type(given).__name__,
)
def test_where_nothing_may_be_missing_a_mask_is_refused(estimator: Any) -> None:
    target = ROWS[:, 0]
    with pytest.raises(ValueError, match=r"NaN|missing|not finite"):
        estimator.fit(HIDDEN, target)
    with pytest.raises(ValueError, match=r"NaN|missing|not finite"):
        estimator.fit(ROWS, np.ma.array(target, mask=IS_MISSING[:, 0]))


def test_whole_numbers_have_room_for_nan() -> None:
    found = fill_masked(np.ma.array([[1, 2]], mask=[[False, True]]))
    np.testing.assert_array_equal(found, [[1.0, np.nan]])
    assert fill_masked([1, 2]) == [1, 2]
