"""Two views whose features are polynomials, and what a fit of them says, for tests of conditional expectations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.data import ArraySource
from boxloop.twoview import ConditionalDistribution, FixedFeatures, RelevanceModel, ViewPair, density_ratio

POINTS = torch.tensor([[-1.0], [0.2], [1.1]]).double()


@dataclass(frozen=True)
class Powers(FixedFeatures):
    """x, x^2, ... of one column; orthogonal for the standard normal distribution."""

    degree: int
    scale: float = 1.0

    @property
    def n_columns(self) -> int:
        return 1

    @property
    def n_features(self) -> int:
        return self.degree

    def __call__(self, rows: Tensor) -> Tensor:
        x = rows / self.scale
        found = [torch.ones_like(x), x]
        for n in range(1, self.degree):
            found.append(x * found[-1] - n * found[-2])
        return torch.cat(found[1:], 1)


@dataclass(frozen=True)
class Waves(Powers):
    """Legendre polynomials of tanh: bounded, so that few rows suffice."""

    def __call__(self, rows: Tensor) -> Tensor:
        t = (rows / 1.5).tanh()
        found = [torch.ones_like(t), t]
        for n in range(1, self.degree):
            found.append(((2 * n + 1) * t * found[-1] - n * found[-2]) / (n + 1))
        return torch.cat(found[1:], 1)


def theta(x: Tensor) -> Tensor:
    return torch.cat([x**3 / 3.0, x, (2.0 * x).cos()], 1)


def rows_of(n: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = x + 0.7 * rng.normal(size=n) + 0.3 * np.sin(2.0 * x)
    return torch.from_numpy(np.c_[x, y])


def fitted(
    rows: Tensor, shape: tuple[int, int, int], weight: Tensor | None = None, ridge: float = 0.0
) -> ConditionalDistribution:
    k, other, r = shape
    source = ArraySource(rows, weight)
    model = RelevanceModel.solve(ViewPair(Waves(k), Waves(other)), source, r, ridge)
    return ConditionalDistribution(model, source, ridge)


def everything(conditional: ConditionalDistribution) -> dict[str, tuple[Any, Any]]:
    """Each kind of number with its standard error."""
    found = conditional.expect(theta, POINTS)
    tail, quantile, main = found.tail(0.1), found.quantile(0.6), found.ambiguity()
    ratio = density_ratio(conditional, POINTS * 0.5, POINTS)
    return {
        "mean": (found.mean, found.standard_error),
        "deviation": (found.deviation, found.deviation_error),
        "tail": (tail.value, tail.standard_error),
        "quantile": (quantile.value[:, 1], quantile.standard_error[:, 1]),
        "ambiguity": (main.deviation, main.deviation_error),
        "ratio": (ratio.value, ratio.standard_error),
    }
