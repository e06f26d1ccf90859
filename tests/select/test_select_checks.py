"""scikit-learn's own checks of what selects and of what detects."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone
from sklearn.utils import estimator_checks as checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import boxloop
from boxloop.select import ModelSearchCV, OutlierDetector

ESTIMATORS = [
    OutlierDetector(boxloop.GaussianMixture(1, random_state=0)),
    OutlierDetector(boxloop.GaussianMixture(1, random_state=0), contamination=0.1),
    ModelSearchCV(
        boxloop.GaussianMixture(random_state=0, init_params="kmeans"), {"n_components": [1, 2]}, cv=2
    ),
]
EXTRA = [
    checks.check_dataframe_column_names_consistency,
    checks.check_param_validation,
    checks.check_readonly_memmap_input,
]
EXPECTED_WARNINGS = (
    "ignore::boxloop.FitWarning",
    "ignore::boxloop.select.SelectionWarning",
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
    "ignore:X does not have valid feature names",
    "ignore:X has feature names",
)
pytestmark = [pytest.mark.filterwarnings(expected) for expected in EXPECTED_WARNINGS]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("check", EXTRA, ids=lambda check: check.__name__)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=["conformal", "share", "select"])
def test_check_that_is_not_run_by_default(estimator: Any, check: Any) -> None:
    check(type(estimator).__name__, clone(estimator))
