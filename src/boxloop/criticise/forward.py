r"""Forward moments: the expectation of test functions under a model.

.. math:: E[g(x)] = E_z \, E[g(x) \mid z] \approx \sum_j w_j \, E[g(x) \mid z_j]

Exact where z is finite or the model is linear-Gaussian; else by scrambled Sobol nodes, or plain Monte Carlo. Nothing
is drawn from p(x|z) where the inner expectation has a closed form (document 000, eq. 8 and appendix); where it has
none, draws take its place and their error counts. Nodes come in blocks, so memory does not grow with their number. A
law known by independent draws is its own nodes: each is used once.

The error is the spread between independent replicates of the nodes. Where few nodes carry the variance of
:math:`v_j = E[g(x) \mid z_j]`, a handful of replicates all miss the same tail and agree too well: there the error is at
least that of plain Monte Carlo, which scrambled nodes do not exceed, and it is infinite where so few nodes carry the
variance that it cannot be estimated either. With

.. math:: n_\mathrm{eff} = \frac{(\sum_j w_j^2 d_j^2)^2}{\sum_j w_j^4 d_j^4}, \qquad d_j = v_j - \bar v,

these are the moments with :math:`n_\mathrm{eff}` below a tenth of the nodes, and below 20.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from boxloop.criticise.adapt import as_model
from boxloop.criticise.distributions import has_moments
from boxloop.criticise.probes import INNER, AnyProbe, Probe, drawn_points
from boxloop.criticise.tally import NodeSums
from boxloop.distributions import Categorical, DiagonalGaussian, Empirical
from boxloop.models import LinearGaussian
from boxloop.numeric import seed, single_threaded
from boxloop.types import Distribution, LatentModel

Method = Literal["auto", "exact", "sobol", "monte_carlo", "sample"]
BLOCK = 4096
REPLICATES = 32
"""Independent scramblings, or batches of draws, from whose spread the Monte Carlo error is computed. The error of one
scrambling is that of its few nodes in the tails, and far from normal: of 8 replicates the mean of exp(z / 2) is off by
more than 3 errors in 4% of runs at 8192 nodes and in 6% at 1024, of 32 in 1%."""

STUDENT = 2.039513 / 1.959964
"""97.5% points of Student's distribution with 31 degrees of freedom and of the normal: 1.96 errors then hold 95%."""

LIGHT, FEWEST = 0.05, 20.0
"""Share of the nodes that must carry the variance for replicates to tell it; number below which nothing does. Of
squares of Gaussian columns 7% do: the error of independent draws would be 15 times theirs at 8192 nodes."""


@dataclass(frozen=True)
class Forward:
    """A forward moment and its Monte Carlo standard error: zero when exact, infinite where it cannot be estimated."""

    value: Tensor
    error: Tensor


def marginal(model: LatentModel) -> tuple[Distribution, Tensor] | None:
    """A row's law as a finite mixture: laws and their weights, where the model has that form."""
    if isinstance(model, LinearGaussian):
        return model.marginal(), model.mean.new_ones(1)
    prior = model.prior()
    if isinstance(prior, Categorical):
        return model.emission(prior.support), prior.log_weight[0].exp()
    return None


@single_threaded
def forward_moments(
    model: object,
    probes: Sequence[Probe],
    generator: Generator,
    method: Method = "auto",
    nodes: int = 8192,
) -> list[Forward]:
    """Expectations of test functions under a model, differentiable in its parameters.

    Args:
        model: anything with ``prior()`` and ``emission(z)``; whatever :func:`as_model` takes.
        probes: test functions that are ready.
        generator: for nodes and inner draws.
        method: ``exact``, ``sobol``, ``monte_carlo``, or ``sample`` (draws of x itself: the sample estimator of
            document 000, section 4.3); ``auto`` is the first that is possible.
        nodes: how many latent nodes, or rows, in all; a prior known by its draws has as many as there are draws.
    """
    model = as_model(model)
    for probe in probes:
        if not isinstance(probe, AnyProbe):
            raise TypeError(
                f"probes must be test functions that are ready, got {probe!r}: First().ready(scene)"
            )
    finite = marginal(model) if method in ("auto", "exact") else None
    if finite is not None:
        return [_of_finite(probe, *finite, generator) for probe in probes]
    if method == "exact":
        raise ValueError(
            "this model has no exact moments: its latent variable is neither finite nor linear-Gaussian"
        )
    if nodes < REPLICATES:
        raise ValueError(f"at least {REPLICATES} nodes are needed, got {nodes}")
    chosen = "sobol" if method == "auto" else method
    replicates = _replicates(model.prior(), nodes, generator, quasi=chosen == "sobol")
    batches, about = [], None
    for blocks, size in replicates:
        batches.append(_batch(model, probes, generator, chosen, blocks, size, about))
        about = about or [sums.value.detach() for sums in batches[0]]
    return [_together([batch[i] for batch in batches], nodes) for i in range(len(probes))]


def _of_finite(probe: Probe, law: Distribution, weight: Tensor, generator: Generator) -> Forward:
    """Exact where the test function has a closed form under the laws; else by draws from each."""
    weight = weight.double()
    if has_moments(law) and probe.has_closed_form(law):
        value = probe.forward(law, weight, generator)
        return Forward(value, torch.zeros_like(value))
    n = max(1, INNER // REPLICATES // len(weight))
    found: list[NodeSums] = []
    for _ in range(REPLICATES):
        points, share = drawn_points(law, weight, n, generator)
        found.append(probe.node_sums(points, share, generator, found[0].value.detach() if found else None))
    return _together(found, REPLICATES * n * len(weight))


def _together(replicates: Sequence[NodeSums], nodes: int) -> Forward:
    """Mean over replicates, with the larger of the errors that hold where the nodes have heavy tails."""
    values = torch.stack([sums.value for sums in replicates])
    mean = values.mean(0)
    between = values.detach().std(0) * (STUDENT / REPLICATES**0.5)
    square = torch.stack([sums.square for sums in replicates]).sum(0) / REPLICATES**2
    fourth = torch.stack([sums.fourth for sums in replicates]).sum(0) / REPLICATES**4
    carrying = torch.where(square > 0, square.square() / fourth.clamp(min=1e-300), torch.inf)
    error = torch.where(carrying < LIGHT * nodes, torch.maximum(between, square.sqrt()), between)
    # What rounding leaves of a constant must not count as a tail.
    varies = (square * nodes).sqrt() > 1e-3 * mean.detach().abs()
    return Forward(mean, torch.where((carrying < FEWEST) & varies, torch.inf, error))


def _replicates(
    prior: Distribution, nodes: int, generator: Generator, *, quasi: bool
) -> Iterator[tuple[Iterator[Tensor], int]]:
    """Blocks of nodes of each replicate, and how many nodes there are in it."""
    if isinstance(prior, Empirical):
        if len(prior.rows) < REPLICATES:
            raise ValueError(f"at least {REPLICATES} draws are needed, got {len(prior.rows)}")
        for part in prior.rows.tensor_split(REPLICATES):
            yield iter(part.split(BLOCK)), len(part)
        return
    for _ in range(REPLICATES):
        yield latent_nodes(prior, nodes // REPLICATES, generator, quasi=quasi), nodes // REPLICATES


def _batch(
    model: LatentModel,
    probes: Sequence[Probe],
    generator: Generator,
    method: str,
    blocks: Iterator[Tensor],
    size: int,
    about: Sequence[Tensor] | None,
) -> list[NodeSums]:
    totals: list[NodeSums] | None = None
    for z in blocks:
        law = model.emission(z)
        weight = law.mean.new_full((len(law.mean),), 1.0 / size, dtype=torch.float64)
        if method == "sample" or not has_moments(law):
            law, weight = drawn_points(law, weight, 1, generator)
        near = [None] * len(probes) if about is None else about
        sums = [p.node_sums(law, weight, generator, at) for p, at in zip(probes, near, strict=True)]
        totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
    assert totals is not None
    return totals


def latent_nodes(prior: Distribution, size: int, generator: Generator, *, quasi: bool) -> Iterator[Tensor]:
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
