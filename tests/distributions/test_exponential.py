"""Exponential families: identities of the log-partition, oracles from SciPy and torch, links to distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from boxloop.distributions import (
    Bernoulli,
    BernoulliFamily,
    DiagonalGaussian,
    ExponentialFamily,
    FullGaussian,
    GammaFamily,
    Multinomial,
    MultinomialFamily,
    MultivariateNormalFamily,
    NormalFamily,
    Poisson,
    PoissonFamily,
    WaitingTimeFamily,
)
from boxloop.numeric import generator, normal

COVARIANCE = [[2.0, 0.3], [0.3, 1.0]]
P = [0.2, 0.5, 0.3]


@dataclass(frozen=True)
class Case:
    """A member, another one, and an oracle that shares no code with them."""

    family: ExponentialFamily
    theta: dict[str, Any]
    other: dict[str, Any]
    rows: Tensor
    oracle: Any
    peer: Any = None
    other_peer: Any = None


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def torch_distribution(name: str, *arguments: Any) -> Any:
    values = [torch.as_tensor(a, dtype=torch.float64) for a in arguments]
    return getattr(torch.distributions, name)(*values)


CASES = {
    "bernoulli": Case(
        BernoulliFamily(),
        {"probability": 0.3},
        {"probability": 0.6},
        column(0, 1, 1),
        lambda x: stats.bernoulli(0.3).logpmf(x[:, 0]),
        torch_distribution("Bernoulli", 0.3),
        torch_distribution("Bernoulli", 0.6),
    ),
    "poisson": Case(
        PoissonFamily(),
        {"rate": 2.5},
        {"rate": 1.5},
        column(0, 1, 4),
        lambda x: stats.poisson(2.5).logpmf(x[:, 0]),
        torch_distribution("Poisson", 2.5),
        torch_distribution("Poisson", 1.5),
    ),
    "waiting": Case(
        WaitingTimeFamily(),
        {"rate": 2.5},
        {"rate": 1.5},
        column(0.1, 1, 4),
        lambda x: stats.expon(scale=0.4).logpdf(x[:, 0]),
        torch_distribution("Exponential", 2.5),
        torch_distribution("Exponential", 1.5),
    ),
    "normal": Case(
        NormalFamily(),
        {"mean": 1.5, "variance": 2.0},
        {"mean": -1.0, "variance": 0.5},
        column(-3, 1, 4),
        lambda x: stats.norm(1.5, 2.0**0.5).logpdf(x[:, 0]),
        torch_distribution("Normal", 1.5, 2.0**0.5),
        torch_distribution("Normal", -1.0, 0.5**0.5),
    ),
    "multivariate": Case(
        MultivariateNormalFamily(2),
        {"mean": [1.5, -1.0], "covariance": COVARIANCE},
        {"mean": [0.5, 1.0], "covariance": [[1.0, -0.2], [-0.2, 0.7]]},
        torch.tensor([[0.0, 1.0], [3.0, -2.0]], dtype=torch.float64),
        lambda x: stats.multivariate_normal([1.5, -1.0], COVARIANCE).logpdf(x),
        torch_distribution("MultivariateNormal", [1.5, -1.0], COVARIANCE),
        torch_distribution("MultivariateNormal", [0.5, 1.0], [[1.0, -0.2], [-0.2, 0.7]]),
    ),
    "multinomial": Case(
        MultinomialFamily(3, total=4),
        {"probability": P},
        {"probability": [0.4, 0.4, 0.2]},
        torch.tensor([[4, 0, 0], [1, 2, 1]], dtype=torch.float64),
        lambda x: stats.multinomial(4, P).logpmf(x),
    ),
    "categorical": Case(
        MultinomialFamily(3),
        {"probability": P},
        {"probability": [0.4, 0.4, 0.2]},
        torch.eye(3, dtype=torch.float64),
        lambda x: stats.multinomial(1, P).logpmf(x),
        torch_distribution("Categorical", P),
        torch_distribution("Categorical", [0.4, 0.4, 0.2]),
    ),
    "gamma": Case(
        GammaFamily(),
        {"shape": 2.5, "rate": 3.0},
        {"shape": 0.7, "rate": 1.0},
        column(0.1, 1, 4),
        lambda x: stats.gamma(2.5, scale=1 / 3.0).logpdf(x[:, 0]),
        torch_distribution("Gamma", 2.5, 3.0),
        torch_distribution("Gamma", 0.7, 1.0),
    ),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def near(one: Any, other: Any, rtol: float = 1e-10) -> None:
    torch.testing.assert_close(
        torch.as_tensor(one, dtype=torch.float64),
        torch.as_tensor(other, dtype=torch.float64),
        rtol=rtol,
        atol=1e-12,
    )


@every
def test_density_is_scipys(case: Case) -> None:
    eta = case.family.to_natural(case.theta)
    near(case.family.log_prob(eta, case.rows), case.oracle(case.rows.numpy()))


@every
def test_conversions_go_round(case: Case) -> None:
    eta = case.family.to_natural(case.theta)
    for name, value in case.family.parameters(eta).items():
        near(value, case.theta[name])
    near(case.family.from_mean(case.family.mean(eta)), eta)


@every
def test_divergence_is_torchs(case: Case) -> None:
    one, other = case.family.to_natural(case.theta), case.family.to_natural(case.other)
    found = case.family.divergence(one, other)
    assert found > 0
    near(case.family.divergence(one, one), 0.0)
    if case.peer is not None:
        near(found, torch.distributions.kl_divergence(case.peer, case.other_peer))


def test_divergence_of_counts_is_that_of_one_times_the_total() -> None:
    many, one = MultinomialFamily(3, total=4), MultinomialFamily(3)
    a, b = one.to_natural({"probability": P}), one.to_natural({"probability": [0.4, 0.4, 0.2]})
    near(many.divergence(a, b), 4.0 * one.divergence(a, b))


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("bernoulli", torch.arange(2.0).double()[:, None]),
        ("poisson", torch.arange(80.0).double()[:, None]),
        ("categorical", torch.eye(3).double()),
    ],
)
def test_derivatives_are_the_moments_of_the_statistic(name: str, points: Tensor) -> None:
    """Over every value of a row; also that the probabilities sum to one, which the slip of example A.8 breaks."""
    case = CASES[name]
    eta = case.family.to_natural(case.theta)
    weight = case.family.log_prob(eta, points).exp()
    near(weight.sum(), 1.0)
    value = case.family.statistic(points)
    mean = weight @ value
    near(case.family.mean(eta), mean)
    near(case.family.covariance(eta), (value - mean).mT @ ((value - mean) * weight[:, None]))


@pytest.mark.parametrize("name", ["waiting", "normal", "gamma"])
def test_derivatives_are_the_moments_of_a_density(name: str) -> None:
    case = CASES[name]
    eta = case.family.to_natural(case.theta)
    low = -20.0 if name == "normal" else 1e-9
    x = torch.linspace(low, 30.0, 400_001, dtype=torch.float64)[:, None]
    weight = case.family.log_prob(eta, x).exp() * float(x[1] - x[0])
    weight[[0, -1]] *= 0.5
    value = case.family.statistic(x)
    mean = weight @ value
    near(weight.sum(), 1.0, rtol=1e-6)
    near(case.family.mean(eta), mean, rtol=1e-5)
    near(case.family.covariance(eta), (value - mean).mT @ ((value - mean) * weight[:, None]), rtol=1e-4)


@every
def test_fit_is_the_maximum(case: Case) -> None:
    """The score is zero at the fit, and every other member is less likely."""
    rows = case.rows.repeat(2, 1)
    rows = torch.cat([rows, torch.tensor([[2.0, 0.0]]).double()]) if rows.shape[1] == 2 else rows
    rows = torch.cat([rows, torch.tensor([[0, 1, 3.0]]).double()]) if rows.sum(1)[0] == 4 else rows
    eta = case.family.fit(rows)
    near(case.family.statistic(rows).mean(0), case.family.mean(eta), rtol=1e-9)
    best = case.family.log_prob(eta, rows).sum()
    for move in torch.eye(len(eta), dtype=eta.dtype) * 1e-3:
        assert case.family.log_prob(eta + move, rows).sum() < best
        assert case.family.log_prob(eta - move, rows).sum() < best


def test_gamma_fit_is_scipys() -> None:
    x = stats.gamma(0.4, scale=2.0).rvs(500, random_state=3)
    shape, _, scale = stats.gamma.fit(x, floc=0)
    found = GammaFamily().parameters(GammaFamily().fit(x[:, None]))
    near(found["shape"], shape, rtol=1e-7)
    near(found["rate"], 1 / scale, rtol=1e-7)


def test_weights_are_repetition() -> None:
    x = normal((30, 2), generator(0))
    weight = torch.arange(30) % 4
    family = MultivariateNormalFamily(2)
    near(family.fit(x, weight), family.fit(x.repeat_interleave(weight, dim=0)), rtol=1e-9)


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "normal", "multivariate", "multinomial"])
def test_the_distributions_are_the_same(name: str) -> None:
    case = CASES[name]
    eta = case.family.to_natural(case.theta)
    distribution = case.family.distribution(eta)
    kinds = (Bernoulli, Poisson, DiagonalGaussian, FullGaussian, Multinomial)
    assert isinstance(distribution, kinds)
    near(distribution.log_prob(case.rows)[0], case.family.log_prob(eta, case.rows))
    near(case.family.from_distribution(distribution), eta)


@pytest.mark.parametrize("name", ["waiting", "gamma"])
def test_families_without_a_distribution_say_so(name: str) -> None:
    assert CASES[name].family.distribution(CASES[name].family.to_natural(CASES[name].theta)) is None


def test_the_documents_partition_of_a_poisson_distribution_does_not_sum_to_one() -> None:
    x = torch.arange(80.0).double()[:, None]
    eta = PoissonFamily().to_natural({"rate": 2.5})
    slip = PoissonFamily().log_prob(eta, x) + 2.0 * 2.5  # B = -theta in place of B = theta
    assert float(slip.exp().sum()) > 100.0


@pytest.mark.parametrize(
    ("family", "rows", "words"),
    [
        (PoissonFamily(), [[1.5]], "outside the support"),
        (PoissonFamily(), [[-1]], "outside the support"),
        (BernoulliFamily(), [[2]], "outside the support"),
        (WaitingTimeFamily(), [[-0.5], [1.0]], "outside the support"),
        (GammaFamily(), [[0.0], [1.0]], "outside the support"),
        (MultinomialFamily(2, 3), [[1, 1]], "outside the support"),
        (BernoulliFamily(), [[1], [1]], "at the edge"),
        (PoissonFamily(), [[0], [0]], "at the edge"),
        (NormalFamily(), [[2.0], [2.0]], "at the edge"),
        (GammaFamily(), [[2.0], [2.0]], "at the edge"),
        (MultivariateNormalFamily(2), [[0.0, 0.0], [1.0, 1.0]], "at the edge"),
    ],
)
def test_rows_that_no_member_fits(family: ExponentialFamily, rows: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        family.fit(rows)


def test_a_distribution_of_many_members_is_refused() -> None:
    with pytest.raises(ValueError, match="one member"):
        PoissonFamily().from_distribution(Poisson(torch.ones(2, 1).double()))
    with pytest.raises(ValueError, match="total 2"):
        MultinomialFamily(2).from_distribution(Multinomial(torch.tensor([[0.5, 0.5]]), total=2))
