"""scikit-learn's own checks, all of them, for network estimators."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from boxloop import FitWarning
from boxloop.estimators import NetworkClassifier, NetworkRegressor
from boxloop.networks import WeightWarning
from estimators.expected_checks import BY_DEFAULT

QUICK = {"hidden": (10,), "epochs": 10, "collect": 4, "n_draws": 3, "rank": 2, "collect_rate": 0.01}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [NetworkRegressor(**QUICK), NetworkClassifier(**QUICK)],
    expected_failed_checks=lambda estimator: BY_DEFAULT[type(estimator).__name__],
)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", WeightWarning)
        check(estimator)
