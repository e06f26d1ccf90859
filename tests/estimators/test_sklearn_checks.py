"""scikit-learn's own checks, all of them, for every estimator."""

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import boxloop
from estimators.expected_checks import BY_DEFAULT, WITH_GROUPS, expected_of
from estimators.public_cases import estimator_names

# One start suffices where another class of the list, or the slow test, has a race of starts.
ESTIMATORS = [
    boxloop.GaussianMixture(random_state=0),
    boxloop.GaussianMixture(2, covariance_type="diag", random_state=0, dtype="float32", init_params="kmeans"),
    boxloop.FactorAnalysis(1, random_state=0),
    boxloop.ProbabilisticPCA(1, random_state=0),
    boxloop.MultinomialMixture(2, random_state=0),
    boxloop.PoissonMixture(2, random_state=0, init_params="kmeans"),
    boxloop.BernoulliMixture(2, binarize=0.0, random_state=0, init_params="kmeans"),
]


OTHER_COVARIANCES = [
    boxloop.GaussianMixture(2, covariance_type="tied", random_state=0),
    boxloop.GaussianMixture(2, covariance_type="spherical", random_state=0),
]
pytestmark = [
    pytest.mark.filterwarnings("ignore::boxloop.FitWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_of, xfail_strict=True)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHER_COVARIANCES)
def test_scikit_learn_check_of_other_covariances(estimator, check):
    check(estimator)


LONG = ("EnergyBasedModel", "NetworkClassifier", "NetworkRegressor", "VariationalAutoencoder")
LONGER = ("RelevantClassifier", "RelevantFeatures", "RelevantGenerator")
INNER = {
    "OutlierDetector": lambda: boxloop.OutlierDetector(boxloop.GaussianMixture()),
    "ModelSearchCV": lambda: boxloop.ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1]}),
}
"""Estimators that are made of another one have no default."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in (*LONG, *LONGER))) for n in estimator_names()],
)
@pytest.mark.filterwarnings("ignore")
def test_checks_of_default_construction_fail_as_declared(name: str) -> None:
    known = BY_DEFAULT.get(name, {})
    assert_fails_as_declared(INNER.get(name, getattr(boxloop, name))(), known)


def assert_fails_as_declared(estimator: Any, known: dict[str, str]) -> None:
    """No check fails but those that are known, and all of these fail."""
    found = check_estimator(estimator, expected_failed_checks=known, on_fail=None, on_skip=None)
    failed = {one["check_name"]: str(one["exception"])[:200] for one in found if one["status"] == "failed"}
    assert not failed, failed
    assert set(known) - {one["check_name"] for one in found if one["status"] == "xfail"} == set()


class WithGroups:
    """Rows that come without groups belong to four in turn."""

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, offset: Any = None) -> Any:
        if groups is None:
            groups = np.arange(X.shape[0] if hasattr(X, "shape") else len(np.asarray(X))) % 4
        return super().fit(X, y, groups, sample_weight, offset)  # type: ignore[misc]


class GroupedLogistic(WithGroups, boxloop.LogisticRandomEffects):
    pass


class GroupedPoisson(WithGroups, boxloop.PoissonRandomEffects):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GroupedLogistic, GroupedPoisson])
@pytest.mark.filterwarnings("ignore")
def test_checks_of_random_effects_with_groups(kind: type) -> None:
    assert_fails_as_declared(kind(max_iter=3), WITH_GROUPS[kind.__mro__[2].__name__])
