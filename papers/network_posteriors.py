"""The posteriors over weights that the experiments on networks compare, and the training runs behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from boxloop import networks
from boxloop.networks import (
    Component,
    LastLayerPosterior,
    Layout,
    Method,
    MultiPosterior,
    Posterior,
    WeightPosterior,
)

SURE = 2.0
"""Standard errors by which a difference must exceed zero."""

SGD, ANNEALED, SWA, SWAG, FACTOR = "SGD", "SGD, rate to 0", "SWA", "SWAG", "factor EM"
LAPLACE, ENSEMBLE, ENSEMBLE_0 = "last-layer Laplace", "deep ensemble", "deep ensemble, rate to 0"
MULTI_SWA, MULTI_SWAG, MULTI_FACTOR = "MultiSWA", "MultiSWAG", "mixture of factor analysers"
SINGLE = (SGD, ANNEALED, SWA, SWAG, FACTOR, LAPLACE)
"""Methods of one run."""
SEVERAL = (ENSEMBLE, ENSEMBLE_0, MULTI_SWA, MULTI_SWAG, MULTI_FACTOR)
"""Methods of several runs."""
WITH_COVARIANCE = (SWAG, FACTOR, LAPLACE, MULTI_SWAG, MULTI_FACTOR)
"""Methods whose posterior has a covariance, and so a scale to tune."""


@dataclass(frozen=True)
class Point:
    """A trained network, as a posterior with all its mass at one weight vector."""

    net: nn.Module
    layout: Layout
    vector: Tensor

    @classmethod
    def of(cls, net: nn.Module, layout: Layout) -> Point:
        """The present weights of a network.

        Raises:
            FloatingPointError: weights that are not finite.
        """
        like = next(net.parameters())
        vector = layout.read(net, torch.empty(layout.size, dtype=like.dtype, device=like.device))
        if not bool(vector.isfinite().all()):
            raise FloatingPointError("weights are not finite: the learning rate is too large")
        return cls(net, layout, vector)

    def components(self) -> tuple[Component, ...]:
        """One component."""
        return (Component(1.0, self.net, self.layout, networks.WeightDistribution.point(self.vector)),)


@dataclass(frozen=True)
class Run:
    """One training run.

    Args:
        last: the last iterate of SGD.
        annealed: the last iterate with a rate that falls to 0 instead, from the end of the burn-in on.
        posteriors: of the trajectory, by the keys of :func:`build_posteriors`.
        laplace: of the last layer of ``last``; of the first run of a split or group only.
    """

    last: Point
    annealed: Point
    posteriors: dict[str, WeightPosterior]
    laplace: LastLayerPosterior | None


def build_posteriors(net: nn.Module, rank: int, stream: Generator) -> dict[str, WeightPosterior]:
    """Posteriors that observe a training run; factor analysis refreshes psi at every vector, as in Algorithm 2."""
    methods: dict[str, Method] = {
        "swa": networks.SWA(),
        "swag": networks.SWAG(rank),
        "factor": networks.FactorEM(rank, refresh=1),
    }
    return {key: WeightPosterior(net, method, random_state=stream) for key, method in methods.items()}


def _first_laplace(runs: Sequence[Run]) -> Posterior:
    posterior = runs[0].laplace
    assert posterior is not None
    return posterior


METHODS: dict[str, Callable[[Sequence[Run]], Posterior]] = {
    SGD: lambda runs: runs[0].last,
    ANNEALED: lambda runs: runs[0].annealed,
    SWA: lambda runs: runs[0].posteriors["swa"],
    SWAG: lambda runs: runs[0].posteriors["swag"],
    FACTOR: lambda runs: runs[0].posteriors["factor"],
    LAPLACE: _first_laplace,
    ENSEMBLE: lambda runs: MultiPosterior([run.last for run in runs]),
    ENSEMBLE_0: lambda runs: MultiPosterior([run.annealed for run in runs]),
    MULTI_SWA: lambda runs: MultiPosterior([run.posteriors["swa"] for run in runs]),
    MULTI_SWAG: lambda runs: MultiPosterior([run.posteriors["swag"] for run in runs]),
    MULTI_FACTOR: lambda runs: MultiPosterior([run.posteriors["factor"] for run in runs]),
}
"""Posterior of each method from the runs of a split or group; methods of one run take the first."""
