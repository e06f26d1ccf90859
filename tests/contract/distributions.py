"""Small random members of every distribution that ``boxloop.distributions`` exports, each with oracles that share none
of its code.

This is the one place where a new distribution is named: without an entry here the contract tests fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Generator, Tensor

from boxloop import distributions
from boxloop.distributions import PooledSums, Sums

Density = Callable[[int, Tensor], Tensor]
REAL = torch.linspace(-14.0, 14.0, 281, dtype=torch.float64)
COUNTS = torch.arange(60, dtype=torch.float64)
BITS = torch.arange(2, dtype=torch.float64)
NAN = math.nan


@dataclass(frozen=True)
class DistributionCase:
    """A distribution and what is known of it independently.

    Args:
        distribution: k members over d columns.
        rows: (n, d), plausible, complete.
        reference: log-density of one member at complete rows, by SciPy.
        support: every value of a row, (N, d), or a fine grid of them.
        cell: volume that each point of ``support`` stands for.
        axis: every value of one column, where columns vary freely.
        features: sufficient statistics of complete rows, (n, p).
        scale: change of units that stays inside the family; None where a family must refuse.
        pooled: whether members share their second moment.
        gaps: log-density and expected features, (k,) and (k, p), of one row with NaN, where quadrature cannot tell.
    """

    distribution: Any
    rows: Tensor
    reference: Density
    support: Tensor
    cell: float = 1.0
    axis: Tensor | None = None
    features: Callable[[Tensor], Tensor] = lambda rows: rows
    scale: Tensor | None = None
    pooled: bool = False
    gaps: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None

    @property
    def k(self) -> int:
        return int(self.distribution.mean.shape[0])

    def gappy(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density of the values present in one row and expected features, under every member."""
        if self.gaps is not None:
            return self.gaps(row)
        missing = torch.isnan(row)
        n_missing = int(missing.sum())
        filled = row[None]
        if n_missing:
            values = torch.cartesian_prod(*[self.axis] * n_missing).reshape(-1, n_missing)
            filled = row.repeat(len(values), 1)
            filled[:, missing] = values
        log_density = torch.stack([self.reference(k, filled) for k in range(self.k)])
        width = self.cell ** (n_missing / len(row))
        return log_density.logsumexp(1) + math.log(width), log_density.softmax(1) @ self.features(filled)

    def statistics(self, share: Tensor, expected: Tensor) -> Sums | PooledSums:
        """Statistics from expected features (k, n, p) and shares (k, n), summed the slow way."""
        total = torch.einsum("kn,knp->kp", share, expected)
        if not self.pooled:
            return Sums(total)
        d = self.rows.shape[1]
        i, j = torch.triu_indices(d, d)
        second = total.new_zeros(d, d)
        second[i, j] = total[:, 1 + d :].sum(0)
        return PooledSums(total[:, : 1 + d], second + second.triu(1).mT)


def uniform(generator: Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def covariances(generator: Generator, k: int, d: int) -> Tensor:
    root = uniform(generator, k, d, d, low=-0.8, high=0.8)
    return root @ root.mT + 0.5 * torch.eye(d, dtype=torch.float64)


def quadratic(rows: Tensor) -> Tensor:
    d = rows.shape[1]
    products = [rows[:, i] * rows[:, j] for i in range(d) for j in range(i, d)]
    return torch.cat([torch.ones(len(rows), 1, dtype=rows.dtype), rows, torch.stack(products, 1)], 1)


def squares(rows: Tensor) -> Tensor:
    return torch.cat([torch.ones(len(rows), 1, dtype=rows.dtype), rows, rows**2], 1)


def plain(rows: Tensor) -> Tensor:
    return torch.cat([torch.ones(len(rows), 1, dtype=rows.dtype), rows], 1)


def _drawn(distribution: Any, generator: Generator, n: int = 14) -> Tensor:
    return distribution.draw(n, generator).reshape(-1, distribution.mean.shape[1])


def _normal(mean: Tensor, covariance: Tensor) -> Density:
    def density(k: int, rows: Tensor) -> Tensor:
        distribution = stats.multivariate_normal(mean[k].numpy(), covariance[k].numpy())
        return torch.as_tensor(distribution.logpdf(rows.numpy())).reshape(-1)

    return density


def _gaussian(
    distribution: Any,
    covariance: Tensor,
    generator: Generator,
    features: Callable[[Tensor], Tensor],
    **more: Any,
) -> DistributionCase:
    grid = torch.cartesian_prod(REAL, REAL)
    scale = more.pop("scale", torch.tensor([0.3, 20.0], dtype=torch.float64))
    reference = _normal(distribution.mean, covariance)
    return DistributionCase(
        distribution, _drawn(distribution, generator), reference, grid, 0.01, REAL, features, scale, **more
    )


def full(generator: Generator) -> DistributionCase:
    mean, covariance = uniform(generator, 3, 2, low=-2, high=2), covariances(generator, 3, 2)
    distribution = distributions.FullGaussian(mean, torch.linalg.cholesky(covariance))
    return _gaussian(distribution, covariance, generator, quadratic)


def tied(generator: Generator) -> DistributionCase:
    mean, covariance = uniform(generator, 3, 2, low=-2, high=2), covariances(generator, 1, 2)
    distribution = distributions.TiedGaussian(mean, torch.linalg.cholesky(covariance)[0])
    return _gaussian(distribution, covariance.expand(3, 2, 2), generator, quadratic, pooled=True)


def diagonal(generator: Generator) -> DistributionCase:
    mean, variance = uniform(generator, 3, 2, low=-2, high=2), uniform(generator, 3, 2, low=0.5, high=2)
    distribution = distributions.DiagonalGaussian(mean, variance)
    return _gaussian(distribution, torch.diag_embed(variance), generator, squares)


def spherical(generator: Generator) -> DistributionCase:
    mean, variance = uniform(generator, 3, 2, low=-2, high=2), uniform(generator, 3, 1, low=0.5, high=2)
    distribution = distributions.SphericalGaussian(mean, variance)
    scale = torch.tensor([3.0, 3.0], dtype=torch.float64)
    return _gaussian(distribution, torch.diag_embed(variance.expand(3, 2)), generator, squares, scale=scale)


def poisson(generator: Generator) -> DistributionCase:
    rate = uniform(generator, 3, 2, low=0.4, high=6)
    distribution = distributions.Poisson(rate)
    grid = torch.cartesian_prod(COUNTS, COUNTS)
    return DistributionCase(
        distribution,
        _drawn(distribution, generator),
        lambda k, rows: torch.from_numpy(stats.poisson(rate[k].numpy()).logpmf(rows.numpy())).sum(1),
        grid,
        axis=COUNTS,
        features=plain,
    )


def bernoulli(generator: Generator) -> DistributionCase:
    p = uniform(generator, 3, 2, low=0.1, high=0.9)
    distribution = distributions.Bernoulli(p)
    return DistributionCase(
        distribution,
        _drawn(distribution, generator),
        lambda k, rows: torch.from_numpy(stats.bernoulli(p[k].numpy()).logpmf(rows.numpy())).sum(1),
        torch.cartesian_prod(BITS, BITS),
        axis=BITS,
        features=plain,
    )


def multinomial(generator: Generator) -> DistributionCase:
    p = uniform(generator, 3, 3, low=0.1, high=1.0)
    p = p / p.sum(1, keepdim=True)
    distribution = distributions.Multinomial(p, total=5, smoothing=0.0)
    short = distributions.Multinomial(p, total=2)
    every = torch.cartesian_prod(*[torch.arange(6, dtype=torch.float64)] * 3)

    def gaps(row: Tensor) -> tuple[Tensor, Tensor]:
        """The distribution of the words seen given their number; an unseen word's count is negative binomial."""
        seen = ~torch.isnan(row)
        length = float(row[seen].sum())
        density, counts = [], []
        for member in p:
            shown = member[seen] / member[seen].sum()
            density.append(float(_multinomial(row[None, seen], shown)) if length else 0.0)
            # Words drawn one by one until ``length`` of them are seen ones: how often word j came up meanwhile.
            mass = member[seen].sum()
            unseen = [_failures(length, p_j, mass) for p_j in member]
            counts.append([1.0, *torch.where(seen, row, torch.tensor(unseen, dtype=row.dtype)).tolist()])
        return torch.tensor(density, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)

    return DistributionCase(
        distribution,
        torch.cat([_drawn(distribution, generator, 10), _drawn(short, generator, 4)]),
        lambda k, rows: _multinomial(rows, p[k]),
        every[every.sum(1) == 5],
        features=plain,
        gaps=gaps,
    )


def _multinomial(counts: Tensor, p: Tensor) -> Tensor:
    distribution = stats.multinomial(counts.sum(1).long().numpy(), p.numpy())
    return torch.as_tensor(distribution.logpmf(counts.long().numpy()))


def _failures(length: float, unseen: Tensor, seen: Tensor) -> float:
    if length == 0:
        return 0.0
    counts = torch.arange(2000, dtype=torch.float64)
    chance = stats.nbinom(length, float(seen / (seen + unseen))).pmf(counts.numpy())
    return float(counts @ torch.from_numpy(chance))


def low_rank(generator: Generator) -> DistributionCase:
    centre, loadings = uniform(generator, 2, low=-2, high=2), uniform(generator, 2, 1, low=-1, high=1)
    noise = uniform(generator, 2, low=0.5, high=1.5)
    distribution = distributions.LowRankGaussian(centre, loadings, noise)
    return _gaussian(
        distribution, (loadings @ loadings.mT + torch.diag(noise))[None], generator, quadratic, scale=None
    )


def categorical(generator: Generator) -> DistributionCase:
    p = uniform(generator, 3, 4, low=0.1, high=1.0)
    p = p / p.sum(1, keepdim=True)
    distribution = distributions.Categorical(p.log())
    values = torch.arange(4, dtype=torch.float64)[:, None]
    rows = distribution.draw(14, generator).reshape(-1, 1).double()
    return DistributionCase(distribution, rows, lambda k, rows: p[k].log()[rows[:, 0].long()], values)


def logit_bernoulli(generator: Generator) -> DistributionCase:
    logits = uniform(generator, 3, 2, low=-2, high=2)
    p, distribution = logits.sigmoid(), distributions.LogitBernoulli(logits)
    return DistributionCase(
        distribution,
        _drawn(distribution, generator),
        lambda k, rows: torch.from_numpy(stats.bernoulli(p[k].numpy()).logpmf(rows.numpy())).sum(1),
        torch.cartesian_prod(BITS, BITS),
    )


def log_poisson(generator: Generator) -> DistributionCase:
    rate = uniform(generator, 3, 2, low=0.4, high=6)
    distribution = distributions.LogPoisson(rate.log())
    return DistributionCase(
        distribution,
        _drawn(distribution, generator),
        lambda k, rows: torch.from_numpy(stats.poisson(rate[k].numpy()).logpmf(rows.numpy())).sum(1),
        torch.cartesian_prod(COUNTS, COUNTS),
    )


def categorical_columns(generator: Generator) -> DistributionCase:
    logits, sizes = uniform(generator, 3, 5, low=-1, high=1), torch.tensor([2, 3])
    distribution = distributions.CategoricalColumns(logits, sizes)
    first, second = (part.softmax(1).log() for part in logits.split([2, 3], 1))
    return DistributionCase(
        distribution,
        _drawn(distribution, generator),
        lambda k, rows: first[k][rows[:, 0].long()] + second[k][rows[:, 1].long()],
        torch.cartesian_prod(BITS, torch.arange(3, dtype=torch.float64)),
    )


def tied_low_rank(generator: Generator) -> DistributionCase:
    mean, loadings = uniform(generator, 3, 2, low=-2, high=2), uniform(generator, 2, 1, low=-1, high=1)
    noise = uniform(generator, 2, low=0.5, high=1.5)
    distribution = distributions.TiedLowRankGaussian(mean, loadings, noise)
    covariance = (loadings @ loadings.mT + torch.diag(noise)).expand(3, 2, 2)
    return _gaussian(distribution, covariance, generator, quadratic)


def normal_mixture(generator: Generator) -> DistributionCase:
    mean, variance = uniform(generator, 3, 2, low=-2, high=2), uniform(generator, 3, 2, low=0.5, high=2)
    weight = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    distribution = distributions.NormalMixture(weight.log(), distributions.DiagonalGaussian(mean, variance))
    parts = _normal(mean, torch.diag_embed(variance))

    def density(k: int, rows: Tensor) -> Tensor:
        return torch.stack([weight[c].log() + parts(c, rows) for c in range(3)]).logsumexp(0)

    grid = torch.cartesian_prod(REAL, REAL)
    return DistributionCase(distribution, _drawn(distribution, generator), density, grid, 0.01)


FAMILIES: dict[type, Callable[[Generator], DistributionCase]] = {
    distributions.Bernoulli: bernoulli,
    distributions.DiagonalGaussian: diagonal,
    distributions.FullGaussian: full,
    distributions.Multinomial: multinomial,
    distributions.Poisson: poisson,
    distributions.SphericalGaussian: spherical,
    distributions.TiedGaussian: tied,
}
OTHERS: dict[type, Callable[[Generator], DistributionCase]] = {
    distributions.Categorical: categorical,
    distributions.CategoricalColumns: categorical_columns,
    distributions.LogPoisson: log_poisson,
    distributions.LogitBernoulli: logit_bernoulli,
    distributions.NormalMixture: normal_mixture,
    distributions.TiedLowRankGaussian: tied_low_rank,
    distributions.LowRankGaussian: low_rank,
}
EXPORTED = {
    value for name in distributions.__all__ if isinstance(value := getattr(distributions, name), type)
}
EXPORTED_FAMILIES = {
    distribution for distribution in EXPORTED if callable(getattr(distribution, "view", None))
}


def distribution_case(distribution: type, seed: int = 0) -> DistributionCase:
    """The small random members of a distribution."""
    return {**FAMILIES, **OTHERS}[distribution](Generator().manual_seed(seed))
