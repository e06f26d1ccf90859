r"""Forward moments: the expectation of test functions under a model.

.. math:: E[g(x)] = E_z \, E[g(x) \mid z] \approx \sum_j w_j \, E[g(x) \mid z_j]

Exact where z is finite or the model is linear-Gaussian; else by scrambled Sobol nodes, or plain Monte Carlo. Nothing
is drawn from p(x|z) where the inner expectation has a closed form (document 000, eq. 8 and appendix). Nodes come in
blocks, so memory does not grow with their number. A law known by independent draws is its own nodes: each is used
once, so that the spread between batches of them is the error of the mean over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from boxloop.criticise.probes import Probe
from boxloop.laws import Categorical, DiagonalGaussian
from boxloop.models.drawn import Drawn
from boxloop.models.linear import LinearGaussian
from boxloop.numeric.random import seed
from boxloop.numeric.threads import single_threaded
from boxloop.types import LatentModel, Law

Method = Literal["auto", "exact", "sobol", "monte_carlo", "sample"]
BLOCK = 4096
REPLICATES = 8
"""Independent scramblings, or batches of draws, from whose spread the Monte Carlo error is computed."""


@dataclass(frozen=True)
class Forward:
    """A forward moment and its Monte Carlo standard error (zero when exact)."""

    value: Tensor
    error: Tensor


def marginal(model: LatentModel) -> tuple[Law, Tensor] | None:
    """A row's law as a finite mixture: laws and their weights, where the model has that form."""
    if isinstance(model, LinearGaussian):
        return model.law(), model.mean.new_ones(1)
    prior = model.prior()
    if isinstance(prior, Categorical):
        return model.emission(prior.support), prior.log_weight[0].exp()
    return None


@single_threaded
def forward_moments(
    model: LatentModel,
    probes: Sequence[Probe],
    generator: Generator,
    method: Method = "auto",
    nodes: int = 8192,
) -> list[Forward]:
    """Expectations of test functions under a model, differentiable in its parameters.

    Args:
        model: anything with ``prior()`` and ``emission(z)``.
        probes: test functions that are ready.
        generator: for nodes and inner draws.
        method: ``exact``, ``sobol``, ``monte_carlo``, or ``sample`` (draws of x itself: the sample estimator of
            document 000, section 4.3); ``auto`` is the first that is possible.
        nodes: how many latent nodes, or rows, in all; a prior known by its draws has as many as there are draws.
    """
    finite = marginal(model) if method in ("auto", "exact") else None
    if finite is not None:
        law, weight = finite
        values = [probe.forward(law, weight, generator) for probe in probes]
        return [Forward(value, torch.zeros_like(value)) for value in values]
    if method == "exact":
        raise ValueError(
            "this model has no exact moments: its latent variable is neither finite nor linear-Gaussian"
        )
    if nodes < REPLICATES:
        raise ValueError(f"at least {REPLICATES} nodes are needed, got {nodes}")
    chosen = "sobol" if method == "auto" else method
    replicates = _replicates(model.prior(), nodes, generator, quasi=chosen == "sobol")
    batches = [_batch(model, probes, generator, chosen, *part) for part in replicates]
    results = []
    for i in range(len(probes)):
        stack = torch.stack([batch[i] for batch in batches])
        results.append(Forward(stack.mean(0), stack.detach().std(0) / REPLICATES**0.5))
    return results


def _replicates(
    prior: Law, nodes: int, generator: Generator, *, quasi: bool
) -> Iterator[tuple[Iterator[Tensor], int]]:
    """Blocks of nodes of each replicate, and how many nodes there are in it."""
    if isinstance(prior, Drawn):
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
) -> list[Tensor]:
    totals: list[Tensor] | None = None
    for z in blocks:
        law = model.emission(z)
        weight = law.mean.new_full((len(law.mean),), 1.0 / size)
        if method == "sample":
            rows = law.draw(1, generator)[:, 0]
            values = [probe.tally(rows, weight).first for probe in probes]
        else:
            values = [probe.forward(law, weight, generator) for probe in probes]
        totals = values if totals is None else [a + b for a, b in zip(totals, values, strict=True)]
    assert totals is not None
    return totals


def latent_nodes(prior: Law, size: int, generator: Generator, *, quasi: bool) -> Iterator[Tensor]:
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
