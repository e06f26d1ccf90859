"""scikit-learn's own checks, all of them, for every estimator."""

import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import boxloop
from estimators.expected_checks import BY_DEFAULT, expected_of
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
    "Select": lambda: boxloop.Select(boxloop.GaussianMixture(), {"n_components": [1]}),
}
"""Estimators that are made of another one have no default."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in (*LONG, *LONGER))) for n in estimator_names()],
)
@pytest.mark.filterwarnings("ignore")
def test_checks_of_default_construction_fail_as_declared(name: str) -> None:
    known = BY_DEFAULT.get(name, {})
    estimator = INNER.get(name, getattr(boxloop, name))()
    found = check_estimator(estimator, expected_failed_checks=known, on_fail=None, on_skip=None)
    failed = {one["check_name"]: str(one["exception"])[:200] for one in found if one["status"] == "failed"}
    assert not failed, failed
    assert set(known) - {one["check_name"] for one in found if one["status"] == "xfail"} == set()
