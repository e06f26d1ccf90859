"""Every class of ``torch.distributions`` as a model of rows: exact moments or counted draws, level, power."""

from __future__ import annotations

import inspect
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import distributions as D
from torch.distributions import transforms as T

from boxloop.criticise import (
    First,
    Power,
    Second,
    TorchBatch,
    as_model,
    from_torch,
    has_closed_form_moments,
    mega,
)
from boxloop.numeric import generator


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


MIX = torch.tensor([0.3, 0.7], dtype=torch.float64)
COVARIANCE = torch.tensor([[2.0, 0.9, 0.0], [0.9, 1.0, -0.4], [0.0, -0.4, 1.5]], dtype=torch.float64)
CENTRES = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 1.0]], dtype=torch.float64)
SQUARE = torch.eye(2, dtype=torch.float64)

SCALARS = {
    "Bernoulli": D.Bernoulli(t(0.3, 0.6)),
    "Beta": D.Beta(t(2, 3), t(3, 1)),
    "Binomial": D.Binomial(10, t(0.3, 0.6)),
    "Categorical": D.Categorical(t(0.2, 0.3, 0.5).expand(2, 3)),
    "Chi2": D.Chi2(t(6, 8)),
    "ContinuousBernoulli": D.ContinuousBernoulli(t(0.3, 0.6)),
    "Exponential": D.Exponential(t(1, 3)),
    "FisherSnedecor": D.FisherSnedecor(t(5, 6), t(30, 40)),
    "Gamma": D.Gamma(t(2, 3), t(1, 2)),
    "GeneralizedPareto": D.GeneralizedPareto(t(0, 1), t(1, 2), t(0.05, 0.1)),
    "Geometric": D.Geometric(t(0.3, 0.6)),
    "Gumbel": D.Gumbel(t(0, 1), t(1, 2)),
    "HalfNormal": D.HalfNormal(t(1, 2)),
    "InverseGamma": D.InverseGamma(t(12, 15), t(1, 2)),
    "Kumaraswamy": D.Kumaraswamy(t(2, 3), t(3, 1)),
    "Laplace": D.Laplace(t(0, 1), t(1, 2)),
    "LogNormal": D.LogNormal(t(0, 1), t(0.3, 0.4)),
    "NegativeBinomial": D.NegativeBinomial(5, t(0.3, 0.6)),
    "Normal": D.Normal(t(0, 1), t(1, 2)),
    "Pareto": D.Pareto(t(1, 2), t(12, 15)),
    "Poisson": D.Poisson(t(2, 5)),
    "RelaxedBernoulli": D.RelaxedBernoulli(t(0.5)[0], t(0.3, 0.6)),
    "StudentT": D.StudentT(t(12, 15)),
    "TransformedDistribution": D.TransformedDistribution(D.Normal(t(0, 1), t(1, 1)), [T.SigmoidTransform()]),
    "Uniform": D.Uniform(t(0, 1), t(1, 3)),
    "VonMises": D.VonMises(t(2.5, -1), t(1, 2)),
    "Weibull": D.Weibull(t(1, 2), t(2, 3)),
}
EVENTS = {
    "Dirichlet": D.Dirichlet(t(1, 2, 3)),
    "Independent": D.Independent(D.MultivariateNormal(CENTRES, COVARIANCE), 1),
    "Independent of Laplace": D.Independent(D.Laplace(CENTRES[1], 1.0), 1),
    "Independent image": D.Independent(D.Normal(CENTRES, 1.0), 2),
    "LKJCholesky": D.LKJCholesky(2, t(1.5)[0]),
    "LogisticNormal": D.LogisticNormal(t(0, 1), t(1, 1)),
    "LowRankMultivariateNormal": D.LowRankMultivariateNormal(CENTRES[1], CENTRES[1:].mT * 0.7, t(1, 0.5, 1)),
    "MixtureSameFamily": D.MixtureSameFamily(
        D.Categorical(MIX), D.MultivariateNormal(CENTRES, COVARIANCE.expand(2, 3, 3))
    ),
    "mixture of independent columns": D.MixtureSameFamily(
        D.Categorical(MIX), D.Independent(D.Laplace(CENTRES, 1.0), 1)
    ),
    "mixture of von Mises": D.MixtureSameFamily(
        D.Categorical(MIX), D.Independent(D.VonMises(CENTRES, t(2, 2, 2)), 1)
    ),
    "Multinomial": D.Multinomial(8, t(0.2, 0.3, 0.5)),
    "MultivariateNormal": D.MultivariateNormal(CENTRES[1], COVARIANCE),
    "OneHotCategorical": D.OneHotCategorical(t(0.2, 0.3, 0.5)),
    "OneHotCategoricalStraightThrough": D.OneHotCategoricalStraightThrough(t(0.2, 0.3, 0.5)),
    "RelaxedOneHotCategorical": D.RelaxedOneHotCategorical(t(0.7)[0], t(0.2, 0.3, 0.5)),
    "transformed normal": D.TransformedDistribution(
        D.MultivariateNormal(CENTRES[1], COVARIANCE), [T.AffineTransform(1.0, t(1, 2, 3))]
    ),
    "Wishart": D.Wishart(t(20)[0], SQUARE),
}
ALL = {**SCALARS, **EVENTS}
BASES = {"Distribution", "ExponentialFamily"}
WITHOUT_MOMENTS = {"Cauchy", "HalfCauchy"}


def rows_of(given: D.Distribution, n: int, seed: int) -> np.ndarray:
    distribution = TorchBatch(given)
    return distribution.draw(n, generator(seed))[0].numpy()


def shuffled_columns(rows: np.ndarray, seed: int) -> np.ndarray:
    """The same marginals, no correlation."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.permutation(column) for column in rows.T])


def test_no_class_of_torch_is_forgotten() -> None:
    known = {
        name
        for name in D.__all__
        if inspect.isclass(getattr(D, name)) and issubclass(getattr(D, name), D.Distribution)
    }
    assert known <= {type(given).__name__ for given in ALL.values()} | BASES | WITHOUT_MOMENTS


@pytest.mark.parametrize("name", ALL)
def test_moments_that_are_called_exact_are_those_of_draws(name: str) -> None:
    """z-scores of 40,000 draws: below 5 for some 200 entries, a false alarm in 1e4 runs of all."""
    distribution = from_torch(ALL[name])
    if not has_closed_form_moments(distribution):
        return
    rows = distribution.draw(40_000, generator(5))[0]
    apart = rows - distribution.mean
    products = apart[:, :, None] * apart[:, None, :]
    for found, exact in (
        (apart, torch.zeros_like(distribution.mean[0])),
        (products, distribution.covariance().dense()[0]),
    ):
        error = found.std(0) / len(rows) ** 0.5
        assert bool(((found.mean(0) - exact).abs() <= 5.0 * error + 1e-9).all())


@pytest.mark.filterwarnings("ignore:Singular sample")
@pytest.mark.parametrize("name", ALL)
def test_true_rows_are_not_rejected(name: str) -> None:
    """Two tables of 400 rows each, fixed seeds; of other seeds p is 0.002 once in 6 runs of all 44 models."""
    given = ALL[name]
    for seed in range(2):
        functions = [First(), Second()]
        assert (
            mega(as_model(given), rows_of(given, 400, seed), functions=functions, draws=499).p_value > 0.002
        )


CORRELATED = [
    name for name in EVENTS if name not in ("Independent of Laplace", "Independent image", "LKJCholesky")
]


@pytest.mark.filterwarnings("ignore:Singular sample")
@pytest.mark.parametrize("name", CORRELATED)
def test_rows_of_the_same_marginals_and_other_correlations_are_rejected(name: str) -> None:
    given = EVENTS[name]
    n = 4000 if name in ("Wishart", "mixture of von Mises") else 1000
    rows = shuffled_columns(rows_of(given, n, 3), 4)
    assert mega(as_model(given), rows, functions=[Second()], draws=99).p_value == 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Singular sample")
@pytest.mark.parametrize("name", ALL)
def test_levels_over_many_tables(name: str) -> None:
    """400 tables each: the share rejected at 5% is at most 5% and 4.5 of its errors (3e-6; 1.5e-4 for all classes)."""
    given, chances = ALL[name], []
    model = as_model(given)
    for seed in range(400):
        rows = rows_of(given, 100, 1000 + seed)
        chances.append(mega(model, rows, draws=59, random_state=seed).p_value)
    share = np.mean(np.array(chances) <= 0.05)
    assert share <= 0.05 + 4.5 * (0.05 * 0.95 / 400) ** 0.5


@pytest.mark.filterwarnings("ignore:Singular sample")  # torch's, of a Wishart distribution
@pytest.mark.parametrize("name", EVENTS)
def test_as_an_emission_it_is_the_model_of_its_rows(name: str) -> None:
    """A batch of one distribution for each z, here the same for all: a mixture that does not depend on z."""
    given = EVENTS[name]
    model = as_model(2, lambda z: given.expand((len(z),)))
    rows = rows_of(given, 300, 0)
    assert mega(model, rows, functions=[First(), Second()], draws=99, nodes=2048).p_value > 0.002


def test_draws_in_place_of_a_closed_form_have_errors_that_hold() -> None:
    """Kurtoses of uniform columns, 1.8 exactly: within 1.96 errors at least 95% less 4 deviations (3e-5)."""
    given, inside = D.Uniform(t(0, 0), t(1, 1)), []
    for seed in range(200):
        model = as_model(given)
        gap = mega(model, np.ones((3, 2)), functions=[Power(4)], draws=0, random_state=seed)["fourth"]
        assert bool((gap.node_error > 0).all())
        inside += ((gap.model - 1.8).abs() <= 1.96 * gap.node_error).tolist()
    assert np.mean(inside) >= 0.95 - 4 * (0.05 * 0.95 / len(inside)) ** 0.5


@pytest.mark.parametrize("given", [D.Cauchy(t(0, 1), t(1, 1)), D.HalfCauchy(t(1, 1))], ids=repr)
def test_without_a_second_moment_it_is_refused(given: D.Distribution) -> None:
    with pytest.raises(ValueError, match="no finite second moment in column 'x0'"):
        mega(as_model(given), np.ones((5, 2)), draws=0)


def test_draws_of_heavy_tails_have_no_error_and_no_p_value() -> None:
    given = D.TransformedDistribution(D.StudentT(t(1.2, 1.2)), [T.AffineTransform(0.0, 1.0)])
    with pytest.warns(UserWarning, match="Monte Carlo errors cannot be estimated.*Fourier"):
        found = mega(as_model(given), np.zeros((50, 2)) + np.eye(50, 2), functions=[Second()], draws=19)
    assert found.p_value is None
    assert bool(torch.isinf(found["second"].node_error).any())


class Silent(D.Distribution):
    """A density without a sampler."""

    arg_constraints: ClassVar = {}

    def __init__(self) -> None:
        super().__init__(event_shape=torch.Size((2,)), validate_args=False)


def test_what_has_neither_moments_nor_draws_is_refused() -> None:
    with pytest.raises(TypeError, match="Silent draws no samples"):
        mega(as_model(Silent()), np.zeros((5, 2)), draws=0)
    distribution = TorchBatch(EVENTS["LogisticNormal"])
    with pytest.raises(ValueError, match="no covariance in closed form"):
        distribution.covariance()


@pytest.mark.parametrize("name", ["MultivariateNormal", "Dirichlet", "Independent image", "Laplace"])
def test_densities_of_rows_are_those_of_the_distribution(name: str) -> None:
    given = ALL[name]
    rows = torch.from_numpy(rows_of(given, 7, 0))
    value = given.log_prob(rows.reshape(7, *given.event_shape) if given.event_shape else rows)
    wanted = value if given.event_shape else value.sum(-1)
    torch.testing.assert_close(from_torch(given).log_prob(rows), wanted[None])


def test_batches_that_are_not_one_distribution_for_each_row_of_z_are_refused() -> None:
    many = D.MultivariateNormal(torch.zeros(2, 3, 2), torch.eye(2))
    with pytest.raises(ValueError, match=r"batch shape \(2, 3\) and event shape \(2,\)"):
        as_model(many)
    with pytest.raises(ValueError, match="got a batch of 2"):
        as_model(D.MultivariateNormal(torch.zeros(2, 2), torch.eye(2)))
    scalars = as_model(1, lambda z: D.Normal(z[:, 0], 1.0))
    with pytest.raises(ValueError, match="it must give one for each"):
        mega(scalars, np.zeros((5, 1)), draws=0)


def test_distributions_in_float32_are_judged_on_rows_in_float64() -> None:
    """What torch makes by default."""
    one = D.Independent(D.Laplace(torch.zeros(2), torch.ones(2)), 1)
    rows = rows_of(one, 300, 0).astype(np.float64)
    decoder = as_model(2, lambda z: D.Laplace(torch.zeros(len(z), 2), torch.ones(len(z), 2)))
    for model in (
        as_model(one),
        as_model(D.Normal(torch.zeros(2), torch.ones(2)), lambda z: D.Laplace(0.0 * z, 1.0)),
        decoder,
    ):
        assert mega(model, rows, draws=99, nodes=512).p_value > 0.01
