"""Small distributions over the parameters of factor analysis, and their evidence bound derived a second time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Gamma, MultivariateNormal, kl_divergence

from boxloop.data import ArraySource
from boxloop.fit import elbo, em
from boxloop.models import LinearStatistics, RelevancePrior, VariationalFactor
from boxloop.numeric import generator, normal


@dataclass(frozen=True)
class Case:
    """A distribution that knows some rows a little, and the rows."""

    model: Any
    rows: Tensor
    weight: Tensor

    @property
    def source(self) -> ArraySource:
        return ArraySource(self.rows, self.weight)


def make_case(
    gone: float = 0.0, n: int = 30, d: int = 4, k: int = 2, kind: type = VariationalFactor, **more: Any
) -> Case:
    """One iteration from arbitrary factors: nothing of the distribution is at its best."""
    stream = generator(5)
    uniform = {"generator": stream, "dtype": torch.float64}
    rows = normal((n, k), stream) @ normal((k, d), stream) + 0.5 * normal((n, d), stream) + 1.0
    rows = torch.where(torch.rand(n, d, **uniform) < gone, torch.nan, rows)
    prior = RelevancePrior(torch.rand(d, **uniform), 0.2 + torch.rand(d, **uniform), 1.7, 0.05, 0.6, 0.3)
    weight = 0.3 + 2.0 * torch.rand(n, **uniform)
    total = float(weight.sum())
    plain = VariationalFactor.from_prior(prior, k, total)
    model = kind(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    return Case(replace(model.solve(known_factors(rows, weight, k)), **more), rows, weight)


def known_factors(rows: Tensor, weight: Tensor, k: int, seed: int = 6) -> LinearStatistics:
    """Statistics of rows whose factors are known."""
    u = torch.cat([normal((len(rows), k), generator(seed)), torch.ones(len(rows), 1).double()], 1)
    filled, gone = torch.nan_to_num(rows), torch.isnan(rows).double()
    inner = torch.einsum("n,na,nb->nab", weight, u, u)
    absent = torch.einsum("nj,nab->jab", gone, inner)
    cross = torch.einsum("n,nj,na->ja", weight, filled, u)
    return LinearStatistics(weight @ filled.square(), cross, inner.sum(0), absent)


def second_bound(case: Case, factors: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """E[log p(x, z, F, tau, alpha)] less E[log q], term by term; with any Gaussian distributions of the factors."""
    model, distribution = case.model, case.model.parameter_prior
    d, size = model.coefficients.shape
    mean, spread = model.posterior(case.rows) if factors is None else factors
    u = torch.cat([mean, torch.ones(len(mean), 1).double()], 1)
    outer = u[:, :, None] * u[:, None, :]
    outer[:, :-1, :-1] += spread
    noise = Gamma(model.shape.expand(d), model.rate)
    log_noise = torch.digamma(noise.concentration) - noise.rate.log()
    alpha = Gamma(torch.full_like(model.relevance_rate, distribution.shape(d)), model.relevance_rate)
    log_alpha = torch.digamma(alpha.concentration) - alpha.rate.log()
    seen = (~torch.isnan(case.rows)).double() * case.weight[:, None]
    wide = model.coefficient_covariance.expand(d, size, size)
    log_2pi = math.log(2 * math.pi)
    total = -kl_divergence(
        noise, Gamma(torch.full_like(model.rate, distribution.noise_shape), distribution.noise_rate)
    ).sum()
    before = Gamma(
        torch.full_like(alpha.rate, distribution.relevance_shape),
        torch.full_like(alpha.rate, distribution.relevance_rate),
    )
    total = total - kl_divergence(alpha, before).sum()
    for j in range(d):
        m, v, t = model.coefficients[j], wide[j], noise.mean[j]
        second = t * torch.outer(m, m) + v
        fitted = torch.einsum("nab,ab->n", outer, second)
        x = torch.nan_to_num(case.rows[:, j])
        misfit = t * x.square() - 2 * t * x * (u @ m) + fitted
        total = total + 0.5 * (seen[:, j] @ (log_noise[j] - log_2pi - misfit))
        away = m.clone()
        away[-1] -= distribution.centre[j]
        squares = t * away.square() + v.diagonal()
        precision = torch.cat([alpha.mean, torch.full((1,), distribution.strength, dtype=torch.float64)])
        level = log_alpha.sum() + math.log(distribution.strength) + size * (log_noise[j] - log_2pi)
        total = total + 0.5 * (level - precision @ squares)
        total = total + MultivariateNormal(m, v).entropy() - 0.5 * size * log_noise[j]
    plain = MultivariateNormal(torch.zeros(size - 1).double(), torch.eye(size - 1).double())
    apart = torch.stack(
        [kl_divergence(MultivariateNormal(a, b), plain) for a, b in zip(mean, spread, strict=True)]
    )
    return total - case.weight @ apart


def bound(model: Any, case: Case) -> float:
    """The bound of all rows, as the engine sees it."""
    return elbo(model, case.source.reduce(model.expect)) * float(case.weight.sum())


def sweeps(case: Case, iterations: int) -> tuple[Any, list[float]]:
    """The distribution after some iterations, and the bound before each."""
    from boxloop.fit import EMState

    state, levels, step = EMState(case.model), [], em(case.source, elbo)
    for _ in range(iterations):
        done = step(state)
        state = done.state
        levels.append(done.objective * float(case.weight.sum()))
    return state.model, levels


def check_bound(case: Case) -> None:
    """The bound is that of a second derivation."""
    torch.testing.assert_close(bound(case.model, case), float(second_bound(case)), rtol=1e-10, atol=1e-10)


def check_monotone(case: Case, iterations: int = 40) -> None:
    """No sweep lowers the bound, and the first ones raise it."""
    levels = torch.tensor(sweeps(case, iterations)[1]).double()
    assert float((levels[:-1] - levels[1:]).max()) <= 1e-10 * float(levels.abs().max()), "the bound fell"
    assert float(levels[2] - levels[0]) > 1e-3


def check_regression(case: Case) -> None:
    """With known factors and relevances every column has the normal-gamma posterior of a regression."""
    model = replace(case.model, expand=False)
    k, distribution = model.loadings.shape[1], model.parameter_prior
    found = model.solve(known_factors(case.rows, case.weight, k) * 0.01)  # averages: only ratios matter
    u = torch.cat([normal((len(case.rows), k), generator(6)), torch.ones(len(case.rows), 1).double()], 1)
    precision = torch.diag(
        torch.cat([model.precision, torch.full((1,), distribution.strength, dtype=torch.float64)])
    )
    for j, x in enumerate(case.rows.mT):
        seen = ~torch.isnan(x)
        design, y, w = u[seen], x[seen], case.weight[seen]
        before = torch.zeros(k + 1).double()
        before[-1] = distribution.centre[j]
        spread = torch.linalg.inv(precision + design.mT @ (design * w[:, None]))
        mean = spread @ (precision @ before + design.mT @ (w * y))
        misfit = w @ (y - design @ mean).square() + (mean - before) @ precision @ (mean - before)
        close = {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close(found.coefficients[j], mean, **close)
        torch.testing.assert_close(
            found.coefficient_covariance.expand(len(case.rows.mT), -1, -1)[j], spread, **close
        )
        torch.testing.assert_close(found.rate[j], distribution.noise_rate[j] + 0.5 * misfit, **close)
        torch.testing.assert_close(
            found.shape.expand(len(found.rate))[j], distribution.noise_shape + 0.5 * w.sum(), **close
        )
