"""What fitted attributes claim: convergence that was tested, priors that were given, values that were taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import mixture
from sklearn.datasets import load_wine

import boxloop
from boxloop.cli import main
from boxloop.criticise import calibration, information_criteria
from estimators.cases import EVERYONE, Case, blobs, everyone, factors, over
from estimators.public_cases import quietly

COUNTING = [case for case in EVERYONE if case.counting]
PRIORS = (
    "weight_concentration_prior_",
    "mean_precision_prior_",
    "mean_prior_",
    "degrees_of_freedom_prior_",
    "covariance_prior_",
)


@everyone
def test_a_stream_has_not_converged(case: Case) -> None:
    stream = quietly(lambda: case.quick().partial_fit(case.rows(300)))
    assert not stream.converged_


@over([case for case in EVERYONE if case.kind is not boxloop.ProbabilisticPCA])
def test_one_iteration_has_not_converged(case: Case) -> None:
    """Probabilistic PCA is solved, not iterated."""
    assert not quietly(lambda: case.quick(max_iter=1, tol=0.0).fit(case.rows(60))).converged_


@pytest.mark.parametrize(
    "settings", [{"patience": None}, {"schedule": "cosine"}, {"validation_fraction": 0.0}]
)
def test_a_training_of_planned_length_has_not_converged(settings: dict[str, Any]) -> None:
    """Nothing is tested at its end; nor is there a warning, as it went as planned."""
    params = {"hidden": (4,), "max_iter": 3, "random_state": 0, **settings}
    assert not boxloop.VariationalAutoencoder(1, **params).fit(factors(60)).converged_
    views = boxloop.RelevantFeatures(1, x_features="network", y_features="linear", batch_size=30, **params)
    assert not quietly(lambda: views.fit(factors(60), factors(60, seed=1))).converged_


@pytest.mark.parametrize("kind", ["dirichlet_process", "dirichlet_distribution"])
@pytest.mark.parametrize("shape", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("k", [1, 3])
def test_priors_are_those_that_scikit_learn_reports(k: int, shape: str, kind: str) -> None:
    X = blobs(60)
    scale = {"full": 2.0 * np.eye(3), "tied": 2.0 * np.eye(3), "diag": np.full(3, 2.0), "spherical": 2.0}[
        shape
    ]
    params = {
        "n_components": k,
        "covariance_type": shape,
        "weight_concentration_prior_type": kind,
        "weight_concentration_prior": 0.3,
        "mean_precision_prior": 0.7,
        "mean_prior": [1.0, 2.0, 3.0],
        "degrees_of_freedom_prior": 5.0,
        "covariance_prior": scale,
        "random_state": 0,
        "max_iter": 2,
    }
    ours, theirs = (
        quietly(lambda c=c: c(**params).fit(X))  # type: ignore[misc]
        for c in (boxloop.BayesianGaussianMixture, mixture.BayesianGaussianMixture)
    )
    for name in PRIORS:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12, err_msg=name)
        assert np.shape(getattr(ours, name)) == np.shape(getattr(theirs, name))


def test_the_default_concentration_is_scikit_learns() -> None:
    for k in (1, 3):
        fit = quietly(lambda k=k: boxloop.BayesianGaussianMixture(k, max_iter=2).fit(blobs(60)))  # type: ignore[misc]
        assert fit.weight_concentration_prior_ == pytest.approx(1.0 / k)


@pytest.mark.parametrize("case", COUNTING, ids=lambda case: case.name)
def test_measurements_are_no_counts(case: Case) -> None:
    X = load_wine(as_frame=True).data
    with pytest.raises(ValueError, match=r"column 'alcohol' holds 14\.23; .*GaussianMixture"):
        case.make().fit(X)
    rows = case.rows(60)
    fitted = case.make().fit(rows)
    rows[3, 1] = 0.5
    with pytest.raises(ValueError, match=r"needs whole numbers, but column 'x1' holds 0\.5"):
        fitted.score(rows)


def test_measurements_are_cut_where_it_is_asked_for() -> None:
    X = load_wine().data
    fitted = boxloop.BernoulliMixture(1, binarize=13.0).fit(X)
    np.testing.assert_allclose(fitted.means_[0], (X > 13.0).mean(0), atol=1e-9)


@pytest.mark.parametrize("model", ["bernoulli-mixture", "poisson-mixture", "multinomial-mixture"])
def test_the_command_refuses_measurements(model: str, tmp_path: Any) -> None:
    out = str(tmp_path / "m.boxloop")
    found = CliRunner().invoke(main, ["fit", "wine", "--model", model, "-k", "2", "-o", out])
    assert found.exit_code != 0
    assert "column 'alcohol' holds 14.23" in found.output


def test_the_command_cuts_measurements(tmp_path: Any) -> None:
    out = str(tmp_path / "m.boxloop")
    more = ["--model", "bernoulli-mixture", "--binarize", "13", "-k", "1", "-o", out, "--quiet"]
    assert CliRunner().invoke(main, ["fit", "wine", *more]).exit_code == 0
    assert boxloop.load(out).binarize == 13.0


def test_criticism_sees_the_zeros_and_ones_that_were_fitted() -> None:
    """A mixture with ``binarize`` is held against the rows as it cut them, and knows those of its fit again."""
    X = np.random.default_rng(0).normal(size=(400, 3)) + np.repeat([[0.0], [1.5]], 200, axis=0)
    X = X[np.random.default_rng(1).permutation(400)]
    cut = (X > 0.5).astype(float)
    fitted = boxloop.BernoulliMixture(2, binarize=0.5, random_state=0).fit(X[:200])
    direct = boxloop.BernoulliMixture(2, random_state=0).fit(cut[:200])
    one = boxloop.mega(fitted, X[200:], train=X[:200], draws=99)
    other = boxloop.mega(direct, cut[200:], train=cut[:200], draws=99)
    assert one.p_value == other.p_value > 0.01
    np.testing.assert_array_equal(one.table()["gap"], other.table()["gap"])
    assert information_criteria(fitted, X[:200]).aic == pytest.approx(fitted.aic(X[:200]))
    np.testing.assert_array_equal(
        calibration(fitted, X[200:], nodes=64).transform, calibration(direct, cut[200:], nodes=64).transform
    )
    counted = boxloop.PoissonMixture(1).fit(np.arange(20.0).reshape(10, 2))
    with pytest.raises(ValueError, match=r"needs whole numbers, but column 'x1' holds 0\.5"):
        boxloop.mega(counted, np.array([[1.0, 0.5], [2.0, 1.0]]))
