"""Models of other makes: the same density and the same moments as the objects they come from."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import boxloop
from boxloop.criticise import (
    First,
    Lagged,
    Second,
    as_model,
    calibration,
    forward_moments,
    information_criteria,
    mega,
    standardise_by_model,
)
from boxloop.distributions import DiagonalGaussian
from boxloop.models import Mixture
from boxloop.numeric import generator


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 4))
    return mixed + 3.0 * (rng.random((400, 1)) < 0.4)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("make", [GaussianMixture, BayesianGaussianMixture])
def test_mixtures_of_scikit_learn(rows, make, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = make(n_components=2, covariance_type=kind, random_state=0).fit(rows)
    model = as_model(fitted)
    if make is GaussianMixture:
        np.testing.assert_allclose(
            model.log_prob(torch.from_numpy(rows)), fitted.score_samples(rows), rtol=1e-10
        )
    np.testing.assert_allclose(model.family.mean, fitted.means_)
    np.testing.assert_allclose(model.log_weight.exp(), fitted.weights_)


@pytest.mark.parametrize("fitted", [FactorAnalysis(2), PCA(2)], ids=str)
def test_linear_models_of_scikit_learn(rows, fitted):
    fitted.fit(rows)
    model = as_model(fitted)
    np.testing.assert_allclose(model.log_prob(torch.from_numpy(rows)), fitted.score_samples(rows), rtol=1e-9)
    np.testing.assert_allclose(model.moments()[1].dense()[0], fitted.get_covariance(), rtol=1e-9)


def test_whitening_does_not_change_the_distribution_of_the_rows(rows):
    plain, white = (as_model(PCA(2, whiten=whiten).fit(rows)) for whiten in (False, True))
    torch.testing.assert_close(plain.loadings, white.loadings)


def test_a_full_pca_has_no_density(rows):
    with pytest.raises(ValueError, match="no noise"):
        as_model(PCA().fit(rows))


def test_our_own_estimators_and_models(rows):
    fit = boxloop.GaussianMixture(2, random_state=0).fit(rows)
    assert as_model(fit) is fit.model_
    assert as_model(fit.model_) is fit.model_


def test_a_hidden_markov_model_in_the_long_run():
    class GaussianHMM:
        transmat_ = np.array([[0.9, 0.1], [0.3, 0.7]])
        means_ = np.array([[0.0, 0.0], [4.0, 1.0]])
        covars_ = np.stack([np.eye(2), 2 * np.eye(2)])

    GaussianHMM.__module__ = "hmmlearn.hmm"
    model = as_model(GaussianHMM())
    assert isinstance(model, Mixture)
    np.testing.assert_allclose(model.log_weight.exp(), [0.75, 0.25], rtol=1e-12)


def hidden_markov(change: list[list[float]]) -> Any:
    """A fitted model as hmmlearn leaves it."""

    class GaussianHMM(BaseEstimator):
        def fit(self, X: Any) -> Any:
            """What makes it an estimator."""

    GaussianHMM.__module__ = "hmmlearn.hmm"
    made = GaussianHMM()
    if change:
        made.transmat_, made.means_ = np.array(change), np.array([[0.0, 0.0], [4.0, 1.0]])
        made.covars_ = np.stack([np.eye(2), 2 * np.eye(2)])
    return made


def test_dependent_rows_have_no_errors_and_no_p_values():
    """A true chain that stays with probability 0.95 was rejected at 5% in 57% of tables."""
    sticky = hidden_markov([[0.95, 0.05], [0.05, 0.95]])
    rows = np.random.default_rng(0).normal(size=(100, 2))
    for refused in (
        lambda: mega(sticky, rows),
        lambda: mega(sticky, rows, train=rows, draws=0),
        lambda: mega(sticky, rows, functions=[Lagged(1)], draws=0),
        lambda: calibration(sticky, rows),
        lambda: information_criteria(sticky, rows),
    ):
        with pytest.raises(ValueError, match="rows of a hidden Markov model depend on one another"):
            refused()
    found = mega(sticky, rows, draws=0)
    assert found["first"].norm() > 1.0
    assert found.p_value is None
    assert np.isnan(found.table()[["error", "z", "low", "high"]]).all(axis=None)
    for judged in (found.misfits, found.plot):  # an empty table would read as "none"
        with pytest.raises(
            ValueError,
            match="misfits need standard errors, and there are none: rows of a hidden Markov model",
        ):
            judged()
    assert "no errors and no p-values: rows of a hidden Markov model depend on one another" in repr(found)
    assert "nan" not in repr(found)


def test_a_chain_without_memory_has_independent_rows():
    free = hidden_markov([[0.75, 0.25], [0.75, 0.25]])
    rows, _ = as_model(free).sample(400, generator(0))
    assert mega(free, rows, draws=99).p_value > 0.01


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (hidden_markov([]), NotFittedError, "not fitted yet: call fit"),
        (hidden_markov([[1.0, 0.0], [0.0, 1.0]]), ValueError, "never reach one another"),
        (GaussianMixture(2), NotFittedError, "GaussianMixture is not fitted yet: call fit"),
        (FactorAnalysis(2), NotFittedError, "FactorAnalysis is not fitted yet: call fit"),
        (PCA(2), NotFittedError, "PCA is not fitted yet: call fit"),
        (boxloop.GaussianMixture(2), NotFittedError, "GaussianMixture is not fitted yet: call fit"),
    ],
)
def test_what_is_not_ready_says_why(given, error, says):
    with pytest.raises(error, match=says):
        as_model(given)


LOADINGS = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]]).double()
EMISSIONS = {
    "mean and variance": lambda z: (z @ LOADINGS, torch.tensor(0.25).double()),
    "normal": lambda z: torch.distributions.Normal(z @ LOADINGS, torch.tensor(0.5).double()),
    "independent": lambda z: torch.distributions.Independent(
        torch.distributions.Normal(z @ LOADINGS, 0.5), 1
    ),
    "multivariate": lambda z: torch.distributions.MultivariateNormal(
        z @ LOADINGS, 0.25 * torch.eye(3).double()
    ),
    "laplace": lambda z: torch.distributions.Laplace(z @ LOADINGS, torch.tensor(0.125**0.5).double()),
}
PRIORS = {
    "number": 2,
    "normal": torch.distributions.Normal(torch.zeros(2).double(), torch.ones(2).double()),
    "independent": torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros(2).double(), 1.0), 1
    ),
    "uniform": torch.distributions.Uniform(
        -(3.0**0.5) * torch.ones(2).double(), 3.0**0.5 * torch.ones(2).double()
    ),
}


@pytest.mark.parametrize("emission", EMISSIONS.values(), ids=EMISSIONS.keys())
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
def test_pairs_of_distributions(prior, emission):
    """All have mean 0 and covariance L'L + I/4, within 12 of their errors with 7 degrees of freedom."""
    model = as_model(prior, emission)
    frame = standardise_by_model(model, ("a", "b", "c"), generator(0))
    statistics = [First().prepare(frame), Second("zero").prepare(frame)]
    first, second = forward_moments(model, statistics, generator(1))
    assert bool(((first.value + frame.origin).abs() <= 12 * first.error + 1e-9).all())
    wanted = LOADINGS.mT @ LOADINGS + 0.25 * torch.eye(3).double()
    products = statistics[1].to_data_units(second.value)
    assert bool(((products - wanted).abs() <= 12 * second.error + 1e-9).all())


def test_distributions_leave_the_global_stream_alone():
    model = as_model(PRIORS["uniform"], EMISSIONS["laplace"])
    before = torch.random.get_rng_state()
    first = model.prior().draw(5, generator(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(model.prior().draw(5, generator(3)), first)


def test_a_categorical_prior_is_exact(rows):
    centres = torch.tensor([[0.0, 0.0], [3.0, 1.0]]).double()
    model = as_model(
        torch.distributions.Categorical(torch.tensor([0.25, 0.75]).double()),
        lambda z: (centres[z.reshape(-1).long()], torch.ones(len(z), 2).double()),
    )
    result = mega(model, np.tile([2.25, 0.75], (5, 1)), functions=[First()], draws=0)
    np.testing.assert_allclose(result["first"].gap, 0.0, atol=1e-12)


@pytest.mark.parametrize("thing", [3.5, "model", object()])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(TypeError, match="cannot take"):
        as_model(thing)


@pytest.mark.parametrize("whole", [True, False])
def test_a_network_works_in_its_own_precision(whole):
    """Nodes are float64, most networks float32: the network itself, or a method of it, is met half-way."""

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(2, 3)

        def forward(self, z):
            assert z.dtype == torch.float32
            mean = self.net(z)
            return mean, torch.ones_like(mean)

    net = Decoder()
    model = as_model(2, net if whole else net.forward)
    z = torch.zeros(4, 2, dtype=torch.float64)
    assert model.emission(z).mean.dtype == torch.float64
    wanted = net.net.bias.detach().double().expand(4, 3)
    torch.testing.assert_close(model.emission(z).mean.detach(), wanted)
    rows = wanted[:1] + torch.randn(50, 3, generator=generator(0)).double()
    assert mega(model, rows, draws=0)["first"].norm() > 0


def test_normal_columns_have_a_closed_form():
    """Whether they come as a batch of rows and columns or as independent events; other distributions keep their own."""
    z = torch.zeros(4, 2).double()
    plain = torch.distributions.Normal(z, z + 2.0)
    for given in (plain, torch.distributions.Independent(plain, 1)):
        distribution = as_model(2, lambda z, given=given: given).emission(z)
        assert isinstance(distribution, DiagonalGaussian)
        torch.testing.assert_close(distribution.variance, z + 4.0)
    other = as_model(2, lambda z: torch.distributions.Laplace(z, z + 2.0)).emission(z)
    assert not isinstance(other, DiagonalGaussian)
    single = as_model(
        1, lambda z: torch.distributions.Normal(torch.zeros(3).double(), torch.ones(3).double())
    )
    with pytest.raises(ValueError, match="gave 1 distributions for 4 rows of z"):
        single.emission(z[:, :1])
