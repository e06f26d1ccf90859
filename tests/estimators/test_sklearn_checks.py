"""scikit-learn's own checks, all of them, for every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import boxloop

# One start suffices where another class of the list, or the slow test, has a race of starts.
ESTIMATORS = [
    boxloop.GaussianMixture(random_state=0),
    boxloop.GaussianMixture(2, covariance_type="diag", random_state=0, dtype="float32", init_params="kmeans"),
    boxloop.FactorAnalysis(1, random_state=0),
    boxloop.ProbabilisticPCA(1, random_state=0),
    boxloop.MultinomialMixture(2, random_state=0),
    boxloop.PoissonMixture(2, random_state=0, init_params="kmeans"),
    boxloop.BernoulliMixture(2, random_state=0, init_params="kmeans"),
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


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHER_COVARIANCES)
def test_scikit_learn_check_of_other_covariances(estimator, check):
    check(estimator)
