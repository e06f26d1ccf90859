"""scikit-learn's own checks for the Bayesian mixtures, those that it runs by default and those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.utils import estimator_checks as checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from boxloop.estimators import BayesianGaussianMixture, BayesianMultinomialMixture
from estimators.cases import blobs, documents
from estimators.expected_checks import expected_of
from estimators.test_sklearn_extra import EXPECTED_WARNINGS, EXTRA, MIXED

pytestmark = [pytest.mark.filterwarnings(expected) for expected in (*EXPECTED_WARNINGS, *MIXED)]

# One start: the race of several is that of other mixtures, and of the slow test below.
ESTIMATORS = [
    BayesianGaussianMixture(random_state=0),
    BayesianGaussianMixture(2, covariance_type="diag", random_state=0, dtype="float32", init_params="kmeans"),
    BayesianMultinomialMixture(2, random_state=0, init_params="kmeans"),
]
OTHER_COVARIANCES = [
    BayesianGaussianMixture(2, covariance_type="tied", random_state=0),
    BayesianGaussianMixture(
        2,
        covariance_type="spherical",
        weight_concentration_prior_type="dirichlet_distribution",
        random_state=0,
    ),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_of, xfail_strict=True)
def test_scikit_learn_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(OTHER_COVARIANCES)
def test_scikit_learn_check_of_other_covariances(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("check", EXTRA, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [BayesianGaussianMixture, BayesianMultinomialMixture])
def test_check_that_is_not_run_by_default(kind: type, check: Callable[..., None]) -> None:
    check(kind.__name__, kind(1, random_state=0))


@pytest.mark.parametrize("form", ["NotAnArray", "PandasDataframe"])
@pytest.mark.parametrize(
    ("kind", "rows"), [(BayesianGaussianMixture, blobs), (BayesianMultinomialMixture, documents)]
)
def test_what_is_not_an_array(kind: type, rows: Callable[..., np.ndarray], form: str) -> None:
    estimator = kind(2, random_state=0)
    checks.check_estimators_data_not_an_array(kind.__name__, estimator, abs(rows(20)), np.zeros(20), form)
