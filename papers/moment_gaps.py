"""Moments of fitted mixtures and their gaps from data: exact, and as Beaulac (2023) estimates them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.criticise import marginal_mixture, second_moment
from boxloop.estimators import FitWarning, GaussianMixture
from boxloop.models import Mixture
from boxloop.numeric import generator, gram, normal
from boxloop.select import PenaltyPath
from boxloop.types import LatentModel

CENTRES = ((-4.0, -2.0), (4.0, -2.0), (0.0, 5.0))
LARGEST_ALPHA, NODES = 500.0, 5000
"""Largest weight of the penalty, and m of its moments."""


def draw_clusters(n: int, seed: int) -> Tensor:
    """Rows of three clusters with unit variance, (n, 2)."""
    stream = generator(seed)
    label = torch.randint(3, (n,), generator=stream)
    return torch.tensor(CENTRES, dtype=torch.float64)[label] + normal((n, 2), stream)


def fit_mixture(rows: Tensor, k: int, seed: int, covariance_type: str = "full") -> LatentModel:
    """A Gaussian mixture by EM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        fit = GaussianMixture(k, covariance_type=covariance_type, random_state=seed).fit(rows.numpy())
    return fit.model_


def exact_gaps(model: LatentModel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """First and second moment gap without Monte Carlo: the rows' moments are means, not eq. 7."""
    finite = marginal_mixture(model)
    assert finite is not None
    emission, weight = finite
    return rows.mean(0) - weight @ emission.mean, gram(rows) / len(rows) - second_moment(emission, weight)


def data_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 7."""
    mean, n = rows.mean(0), len(rows)
    return mean, (gram(rows) - n * mean[:, None] * mean) / (n - 1) + mean[:, None] * mean


def gap_norms(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Norms of the differences of both moments: 1MEGA-F and 2MEGA-F."""
    return float((one[0] - other[0]).norm()), float((one[1] - other[1]).norm())


@dataclass(frozen=True)
class ComponentMoments:
    """Moments of each component, from which an estimate by m nodes follows by counting them.

    Args:
        weight: (k,).
        mean: (k, d).
        second: E[x x^T] of each component, (k, d, d).
    """

    weight: Tensor
    mean: Tensor
    second: Tensor

    @classmethod
    def of(cls, model: Mixture[Any]) -> ComponentMoments:
        """Of a fitted mixture."""
        mean = model.family.mean
        covariance = model.emission(model.prior().support).covariance().dense()
        return cls(model.log_weight.exp(), mean, covariance + mean[:, :, None] * mean[:, None])

    def combine(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """First and second moment when components have these weights."""
        return share @ self.mean, torch.tensordot(share, self.second, 1)

    def estimate_forward(self, m: int, stream: Generator) -> tuple[Tensor, Tensor]:
        """Forward estimate of the paper with m nodes: the conditional moments of a node are its component's."""
        nodes = torch.multinomial(self.weight, m, replacement=True, generator=stream)
        return self.combine(torch.bincount(nodes, minlength=len(self.weight)).to(torch.float64) / m)


def chosen_along(path: PenaltyPath) -> tuple[int, ...]:
    """Numbers of components chosen as alpha grows from 0 to its largest value."""
    last = int((path.breakpoints <= LARGEST_ALPHA).sum())
    return tuple(int(str(name)) for name in path.chosen[: last + 1])
