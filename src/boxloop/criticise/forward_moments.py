r"""Forward moments: the expectation of test functions under a model.

.. math:: E[g(x)] = E_z \, E[g(x) \mid z] \approx \sum_j w_j \, E[g(x) \mid z_j]

Exact where z is finite or the model is linear-Gaussian; else by scrambled Sobol nodes, or plain Monte Carlo. Nothing
is drawn from p(x|z) where the inner expectation has a closed form (Beaulac 2023, eq. 8 and appendix); where it has
none, draws take its place and their error counts. Nodes come in blocks, so memory does not grow with their number. A
prior known by independent draws is its own nodes: each is used once.

The error is the standard deviation between independent replicates of the nodes. Where few nodes carry the variance of
:math:`v_j = E[g(x) \mid z_j]`, a handful of replicates all miss the same tail and agree too well: there the error is at
least that of plain Monte Carlo, which scrambled nodes do not exceed, and it is infinite where so few nodes carry the
variance that it cannot be estimated either. With

.. math:: n_\mathrm{eff} = \frac{(\sum_j w_j^2 d_j^2)^2}{\sum_j w_j^4 d_j^4}, \qquad d_j = v_j - \bar v,

these are the moments with :math:`n_\mathrm{eff}` below a twentieth of the nodes, and below 20.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from boxloop.criticise.adapt import as_model
from boxloop.criticise.test_functions import (
    INNER_DRAWS,
    ModelStandardisation,
    NodeSums,
    Statistic,
    draw_point_masses,
)
from boxloop.criticise.torch_distributions import TorchBatch
from boxloop.distributions import Categorical, DiagonalGaussian, Empirical
from boxloop.models import LinearGaussian, Mixture
from boxloop.numeric import seed, single_threaded
from boxloop.types import Distribution, LatentModel

Method = Literal["auto", "exact", "sobol", "monte_carlo", "sample"]
BLOCK = 4096
REPLICATES = 32
"""Independent scramblings, or batches of draws, whose differences give the Monte Carlo error. That of one scrambling
is that of its few nodes in the tails, and far from normal: of 8 replicates the mean of exp(z / 2) is off by more than 3
errors in 4% of runs at 8192 nodes and in 6% at 1024, of 32 in 1%."""

STUDENT = 2.039513 / 1.959964
"""97.5% points of Student's distribution with 31 degrees of freedom and of the normal: 1.96 errors then hold 95%."""

LEAST_SHARE, LEAST_NODES = 0.05, 20.0
"""Share of the nodes that must carry the variance for replicates to measure it; number below which it is unknown. Of
squares of Gaussian columns 7% do: the error of independent draws would be 15 times theirs at 8192 nodes."""


@dataclass(frozen=True)
class ForwardMoment:
    """A forward moment and its Monte Carlo standard error: zero when exact, infinite where it cannot be estimated."""

    value: Tensor
    error: Tensor


def marginal_mixture(model: LatentModel) -> tuple[Distribution, Tensor] | None:
    """The distribution of x as a finite mixture, members and their weights; None where the model is no such mixture."""
    if isinstance(model, LinearGaussian):
        return model.marginal(), model.mean.new_ones(1)
    if isinstance(model, Mixture):
        return model.family, model.log_weight.exp()
    prior = model.prior()
    if isinstance(prior, Categorical):
        return model.emission(prior.support), prior.log_weight[0].exp()
    return None


@single_threaded
def forward_moments(
    model: object,
    statistics: Sequence[Statistic],
    generator: Generator,
    method: Method = "auto",
    nodes: int = 8192,
) -> list[ForwardMoment]:
    """Expectations of test functions under a model, differentiable in its parameters.

    Args:
        model: anything with ``prior()`` and ``emission(z)``; whatever :func:`as_model` takes.
        statistics: test functions that are prepared for the columns.
        generator: for nodes and inner draws.
        method: ``exact``, ``sobol``, ``monte_carlo``, or ``sample`` (draws of x itself: the sample estimator of
            Beaulac 2023, section 4.3); ``auto`` is the first that is possible.
        nodes: how many latent nodes, or rows, in all; a prior known by its draws has as many as there are draws.
    """
    model = as_model(model)
    for statistic in statistics:
        if not isinstance(statistic, Statistic):
            raise TypeError(
                f"statistics must be prepared test functions, as First().prepare(frame), got {statistic!r}"
            )
    finite = marginal_mixture(model) if method in ("auto", "exact") else None
    if finite is not None:
        return [_average_over_mixture(statistic, *finite, generator) for statistic in statistics]
    if method == "exact":
        raise ValueError(
            "method='exact' needs a finite or linear-Gaussian latent variable, which this model does not have; "
            "method='auto' takes Sobol nodes"
        )
    if nodes < REPLICATES:
        raise ValueError(f"nodes must be at least {REPLICATES}, got {nodes}")
    quasi = method in ("auto", "sobol")
    replicates: list[list[NodeSums]] = []
    about: Sequence[Tensor | None] = [None] * len(statistics)
    for blocks, size in _draw_replicates(model.prior(), nodes, generator, quasi=quasi):
        totals: list[NodeSums] | None = None
        for z in blocks:
            emission = model.emission(z)
            weight = emission.mean.new_full((len(emission.mean),), 1.0 / size, dtype=torch.float64)
            if method == "sample" or not has_closed_form_moments(emission):
                emission, weight = draw_point_masses(emission, weight, 1, generator)
            sums = [
                statistic.sum_nodes(emission, weight, generator, at)
                for statistic, at in zip(statistics, about, strict=True)
            ]
            totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
        assert totals is not None
        replicates.append(totals)
        about = [sums.value.detach() for sums in replicates[0]]
    return [
        _pool_replicates([replicate[i] for replicate in replicates], nodes) for i in range(len(statistics))
    ]


def _average_over_mixture(
    statistic: Statistic, distribution: Distribution, weight: Tensor, generator: Generator
) -> ForwardMoment:
    """Exact where the test function has a closed form under the members; else by draws from each."""
    weight = weight.double()
    exact = statistic.forward_moment(distribution, weight) if has_closed_form_moments(distribution) else None
    if exact is not None:
        return ForwardMoment(exact, torch.zeros_like(exact))
    n = max(1, INNER_DRAWS // REPLICATES // len(weight))
    found: list[NodeSums] = []
    for _ in range(REPLICATES):
        points, share = draw_point_masses(distribution, weight, n, generator)
        about = found[0].value.detach() if found else None
        found.append(statistic.sum_nodes(points, share, generator, about))
    return _pool_replicates(found, REPLICATES * n * len(weight))


def _pool_replicates(replicates: Sequence[NodeSums], nodes: int) -> ForwardMoment:
    """Mean over replicates, with the larger of the errors that hold where the nodes have heavy tails."""
    values = torch.stack([sums.value for sums in replicates])
    mean = values.mean(0)
    between = values.detach().std(0) * (STUDENT / REPLICATES**0.5)
    square = torch.stack([sums.square for sums in replicates]).sum(0) / REPLICATES**2
    fourth = torch.stack([sums.fourth for sums in replicates]).sum(0) / REPLICATES**4
    carrying = torch.where(square > 0, square.square() / fourth.clamp(min=1e-300), torch.inf)
    error = torch.where(carrying < LEAST_SHARE * nodes, torch.maximum(between, square.sqrt()), between)
    # What rounding leaves of a constant must not count as a tail.
    varies = (square * nodes).sqrt() > 1e-3 * mean.detach().abs()
    return ForwardMoment(mean, torch.where((carrying < LEAST_NODES) & varies, torch.inf, error))


def _draw_replicates(
    prior: Distribution, nodes: int, generator: Generator, *, quasi: bool
) -> Iterator[tuple[Iterator[Tensor], int]]:
    """Blocks of nodes of each replicate, and how many nodes there are in it."""
    if isinstance(prior, Empirical):
        if len(prior.rows) < REPLICATES:
            raise ValueError(f"the prior holds {len(prior.rows)} draws: at least {REPLICATES} are needed")
        for part in prior.rows.tensor_split(REPLICATES):
            yield iter(part.split(BLOCK)), len(part)
        return
    for _ in range(REPLICATES):
        yield draw_latent_nodes(prior, nodes // REPLICATES, generator, quasi=quasi), nodes // REPLICATES


def draw_latent_nodes(
    prior: Distribution, size: int, generator: Generator, *, quasi: bool
) -> Iterator[Tensor]:
    """Blocks of latent draws, scrambled Sobol points where the prior is a Gaussian with independent columns."""
    engine = None
    if quasi and isinstance(prior, DiagonalGaussian):
        engine = SobolEngine(prior.mean.shape[1], scramble=True, seed=seed(generator))
    for start in range(0, size, BLOCK):
        block = min(BLOCK, size - start)
        if engine is None:
            yield prior.draw(block, generator)[0]
        else:
            inside = engine.draw(block, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
            normal = torch.special.ndtri(inside).to(prior.mean)  # in float32 the largest would be 1: infinity
            yield prior.mean[0] + prior.covariance().diagonal()[0].sqrt() * normal


def standardise_by_model(
    model: LatentModel, names: tuple[str, ...], generator: Generator, nodes: int = 8192
) -> ModelStandardisation:
    """Origin and scale from the model's first two moments; fixed numbers from here on."""
    finite = marginal_mixture(model)
    with torch.no_grad():
        if finite is None:
            distributions = [
                model.emission(z) for z in draw_latent_nodes(model.prior(), nodes, generator, quasi=True)
            ]
            parts = [_mean_and_variance(distribution, 1, generator) for distribution in distributions]
            mean, variance = (torch.cat(column) for column in zip(*parts, strict=True))
            weight = mean.new_full((len(mean),), 1.0 / len(mean))
        else:
            distribution, weight = finite
            mean, variance = _mean_and_variance(distribution, max(2, INNER_DRAWS // len(weight)), generator)
            weight = weight.to(mean)
        origin = weight @ mean
        deviation = (weight @ (variance + (mean - origin).square())).sqrt()
    if origin.shape[0] != len(names):
        raise ValueError(f"the model has {origin.shape[0]} columns, the rows have {len(names)}")
    bad = ~(torch.isfinite(origin) & torch.isfinite(deviation))
    if bool(bad.any()):
        column = names[int(bad.nonzero()[0])]
        raise ValueError(f"the model has no finite second moment in column {column!r}")
    scale = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return ModelStandardisation(names, origin.double(), scale.double(), generator)


def has_closed_form_moments(distribution: Distribution) -> bool:
    """Whether mean and covariance have a closed form; else they come from draws, whose error counts."""
    return not isinstance(distribution, TorchBatch) or distribution.has_closed_form_moments


def _mean_and_variance(distribution: Distribution, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Means and variances (m, d) of a batch of distributions; of n draws from each where no formula is known."""
    if has_closed_form_moments(distribution):
        return distribution.mean, distribution.covariance().diagonal().expand_as(distribution.mean)
    drawn = distribution.draw(n, generator)
    return drawn.mean(1), drawn.var(1, correction=0)


def draw_rows(model: LatentModel, n: int, generator: Generator) -> Tensor:
    """n independent rows of a model, (n, d), in random order, in float64; memory beside them does not grow with n."""
    sample = getattr(model, "sample", None)  # a sampler of its own
    if sample is not None:
        rows: Tensor = sample(n, generator)[0]
        return rows[torch.randperm(n, generator=generator, device=generator.device).to(rows.device)].double()
    prior = model.prior()
    parts = []
    for start in range(0, n, BLOCK):
        z = prior.draw(min(BLOCK, n - start), generator)[0]
        parts.append(model.emission(z).draw(1, generator)[:, 0])
    return torch.cat(parts).double()
