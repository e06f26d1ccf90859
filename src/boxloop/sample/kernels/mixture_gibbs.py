r"""Gibbs sampling of Bayesian Gaussian mixtures, all chains at once.

.. math:: z_i \sim p(z_i \mid x_i, \theta), \qquad \pi \sim p(\pi \mid z), \qquad
          (\mu_k, \Sigma_k) \sim p(\mu_k, \Sigma_k \mid x, z)

Log-joints of all chains are one matrix product of natural parameters and features of the rows, and the sums that the
conjugate conditionals need are another; the components z of rows exist for one tile at a time. Sums are stored with the
chains, so that one pass over the rows serves the density of new parameters and the next components.

Diebolt and Robert (1994), *Journal of the Royal Statistical Society B* 56.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.distributions import (
    Component,
    DiagonalGaussian,
    FullGaussian,
    MixturePrior,
    NormalInverseWishart,
)
from boxloop.numeric import from_log_factor, log_factor, pack_index
from boxloop.sample.kernels.metropolis import repeat_stream

TILE_ENTRIES = {"cpu": 1 << 17, "cuda": 1 << 26}
"""Log-joints (chains x components x rows) held at once."""

STORED = 1 << 25
"""Features of rows that are computed once; more are computed anew, tile by tile, in every step."""

SEEDS = 2048
"""Rows from which starts are taken."""


class MixtureRows:
    """Rows as features of the components' log-densities."""

    def __init__(self, rows: Tensor, diagonal: bool) -> None:
        self.columns: Tensor = rows.mT.contiguous()
        self.diagonal = diagonal
        d = self.columns.shape[-2]
        self.n: int = self.columns.shape[-1]
        self.p: int = 1 + 2 * d if diagonal else 1 + d + d * (d + 1) // 2
        small = self.columns.numel() // d * self.p <= STORED
        self.stored: Tensor | None = self.compute_features(self.columns) if small else None
        self.total: Tensor = torch.stack(
            [self.select_features(*span).sum(-1) for span in self.list_spans(1)]
        ).sum(0)

    def compute_features(self, columns: Tensor) -> Tensor:
        """Features (..., p, n) of columns (..., d, n)."""
        if self.diagonal:
            squares = columns.square()
        else:
            i, j = pack_index(columns.shape[-2])
            squares = columns[..., i, :] * columns[..., j, :]
        return torch.cat([torch.ones_like(columns[..., :1, :]), columns, squares], dim=-2)

    def select_features(self, start: int, stop: int) -> Tensor:
        """Features of some rows, (..., p, stop - start)."""
        if self.stored is not None:
            return self.stored[..., start:stop]
        return self.compute_features(self.columns[..., start:stop])

    def list_spans(self, width: int) -> list[tuple[int, int]]:
        """Start and stop of tiles, for ``width`` log-joints per row."""
        entries = TILE_ENTRIES.get(self.columns.device.type, TILE_ENTRIES["cuda"])
        size = max(64, entries // max(width, 1))
        if self.stored is None:
            size = min(size, max(64, STORED // self.p))
        return [(start, min(start + size, self.n)) for start in range(0, self.n, size)]


def compute_natural_parameters(family: Component) -> Tensor:
    """Weights of the features in the log-density of every member, (m, p)."""
    if isinstance(family, FullGaussian):
        return family.natural_parameters
    return torch.cat([-family.log_partition().sum(1, keepdim=True), family.natural_parameters()], dim=1)


def sweep_rows(
    rows: MixtureRows, log_weight: Tensor, family: Component, stream: Generator | None
) -> tuple[Tensor, Tensor]:
    """One pass over the rows: draw their components, sum features by component, and compute the log-likelihood."""
    c, k = log_weight.shape
    weight = compute_natural_parameters(family).reshape(c, k, -1).clone()
    weight[..., 0] += log_weight
    # A uniform number selects a row's component among cumulative responsibilities. Sums over the rows *beyond* each
    # component are matrix products, and sums over the rows *of* each are their differences.
    beyond = weight.new_zeros(c, k + 1, rows.p)
    log_likelihood = weight.new_zeros(c)
    for start, stop in rows.list_spans(c * k):
        features = rows.select_features(start, stop)
        share = torch.matmul(weight, features)
        peak = share.amax(1, keepdim=True)
        share = share.sub_(peak).exp_().cumsum(1)
        total = share[:, -1]
        log_likelihood += (peak[:, 0] + total.log()).sum(1)
        if stream is not None and k > 1:
            level = torch.rand(total.shape, generator=stream, dtype=total.dtype, device=total.device) * total
            exceeded = (share[:, :-1] <= level[:, None]).to(total.dtype)
            beyond[:, 1:k] += torch.matmul(exceeded, features.mT)
    if stream is not None:
        beyond[:, 0] = rows.total
    return beyond[:, :-1] - beyond[:, 1:], log_likelihood


def pack_mixture(log_weight: Tensor, family: Component) -> Tensor:
    """Positions of c chains: log-weights, means, and factors of covariances with log-diagonals or log-variances."""
    c = len(log_weight)
    last = log_factor(family.factor) if isinstance(family, FullGaussian) else family.variance.log()
    return torch.cat([log_weight, family.mean.reshape(c, -1), last.reshape(c, -1)], dim=1)


def unpack_mixture(position: Tensor, k: int, d: int, *, diagonal: bool) -> tuple[Tensor, Component]:
    """Log-weights (..., k) and all components of positions (..., p): the inverse of :func:`pack_mixture`."""
    log_weight, mean, last = position.split([k, k * d, position.shape[-1] - k - k * d], dim=-1)
    mean, last = mean.reshape(-1, d), last.reshape(mean.numel() // d, -1)
    if diagonal:
        return log_weight, DiagonalGaussian(mean, last.exp())
    return log_weight, FullGaussian(mean, from_log_factor(last, d))


def make_mixture_kernel(rows: Tensor, prior: MixturePrior) -> Kernel:
    r"""The Gibbs kernel of a Gaussian mixture: components of rows, then weights, means and covariances.

    Every step is accepted. The density stored with a position is that of the parameters with the components of rows
    summed out, :math:`\log p(x \mid \theta) + \log p(\theta)`, with respect to weights, means and covariances: it does
    not depend on the order of components. Rows (n, d), or (c, n, d) with a table for each chain, have coordinates of
    about unit scale, since squares are taken about the origin.
    """
    diagonal = not isinstance(prior.components, NormalInverseWishart)
    k, d = prior.n_components, rows.shape[-1]
    features = MixtureRows(rows, diagonal)

    def init(position: Tensor) -> Chains:
        log_weight, family = unpack_mixture(position, k, d, diagonal=diagonal)
        sums, log_likelihood = sweep_rows(features, log_weight, family, None)
        return Chains(position, log_likelihood + prior.log_prob(log_weight, family), (sums,))

    def step(chains: Chains, stream: Generator) -> tuple[Chains, Info]:
        (sums,) = chains.auxiliary
        if not bool(sums.any()):  # No components have been drawn for these positions.
            parameters = unpack_mixture(chains.position, k, d, diagonal=diagonal)
            sums, _ = sweep_rows(features, *parameters, stream)
        log_weight = prior.weights.posterior(sums[..., 0]).draw(stream)
        family = prior.components.posterior(sums).draw(stream)
        sums, log_likelihood = sweep_rows(features, log_weight, family, stream)
        density = log_likelihood + prior.log_prob(log_weight, family)
        return Chains(pack_mixture(log_weight, family), density, (sums,)), Info()

    return Kernel(init, repeat_stream, step)


def start_mixture(rows: Tensor, prior: MixturePrior, chains: int, stream: Generator) -> Tensor:
    """Dispersed positions: k-means++ seeds, rows assigned to the nearest seed, parameters drawn given these.

    Every chain picks its own seeds among at most 2048 rows: a few candidates, each with probability proportional to its
    squared distance from the seeds so far, of which the one that brings rows nearest to a seed is selected (Arthur and
    Vassilvitskii 2007). Chains hardly ever leave a start that splits one cluster and joins two others.
    """
    k, each = prior.n_components, torch.arange(chains, device=rows.device)
    subset = torch.randperm(len(rows), generator=stream, device=rows.device)[:SEEDS]
    rows = rows[subset]
    nearest = rows.new_full((chains, len(rows)), torch.inf)
    owner = torch.zeros_like(nearest, dtype=torch.long)
    for j in range(k):
        odds = nearest + 1e-12 if j else torch.ones_like(nearest)
        tries = 2 + int(4 * math.log(k)) if j else 1
        candidate = torch.multinomial(odds, tries, replacement=True, generator=stream)
        distance = torch.cdist(rows[candidate], rows.expand(chains, -1, -1)).square()
        best = torch.minimum(distance, nearest[:, None]).sum(2).argmin(1)
        owner = torch.where(distance[each, best] < nearest, j, owner)
        nearest = torch.minimum(nearest, distance[each, best])
    features = MixtureRows(rows, not isinstance(prior.components, NormalInverseWishart))
    assigned = torch.nn.functional.one_hot(owner, k).to(rows.dtype)
    sums = torch.matmul(
        assigned.mT,
        torch.cat([features.select_features(*span) for span in features.list_spans(1)], dim=-1).mT,
    )
    log_weight = prior.weights.posterior(sums[..., 0]).draw(stream)
    return pack_mixture(log_weight, prior.components.posterior(sums).draw(stream))
