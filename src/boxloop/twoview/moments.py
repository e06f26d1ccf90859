"""Averages of products of features over all rows, in coordinates that keep their digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.data import FIRST_ROWS, summarise_moments
from boxloop.numeric import mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.views import LinearView, ViewPair
from boxloop.types import Source

CANCELLED = 1e-13
"""A variance below this part of the squared mean is what rounding leaves of a difference."""

ROUNDED = 16.0
"""Units in the last place of a mean, in which a feature that is computed from constants may vary."""


@dataclass(frozen=True)
class Products(Tree):
    """Sums over rows of products of features: all that canonical variables need of the data.

    Args:
        weight: of the rows.
        first: sums of [f g], (k + l,).
        second: sums of [f g] [f g]', (k + l, k + l), right in the upper triangle.
    """

    weight: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, pair: ViewPair, rows: Tensor, weight: Tensor) -> Self:
        """Of a tile of rows that hold both views."""
        return cls.of_features(torch.cat([part.double() for part in pair(rows)], 1), weight)

    @classmethod
    def of_features(cls, both: Tensor, weight: Tensor, dtype: torch.dtype = torch.float64) -> Self:
        """Of features [f g] of a tile, (n, k + l).

        Args:
            both: in float64.
            weight: (n,).
            dtype: of products of two features; their sums over tiles are in float64.
        """
        mass = weight.double()
        second = upper_gram(both.to(dtype), mass.to(dtype)).double()
        return cls(mass.sum(), product(mass[None], both)[0], second)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means (k + l,) and covariances (k + l, k + l) of features."""
        mean = self.first / self.weight
        return mean, mirrored(self.second) / self.weight - mean[:, None] * mean


@dataclass(frozen=True)
class Sight:
    """What a pass sees of a tile: both views' features about a rough origin, linear ones in the units of the data.

    Args:
        pair: of views.
        origin: (k + l,).
        scale: (k + l,).
        linear: whether both views are linear, so that their features are not made.
        precision: smallest relative difference that a feature resolves.
    """

    pair: ViewPair
    origin: Tensor
    scale: Tensor | None
    linear: bool
    precision: float

    def __call__(self, rows: Tensor, some: Tensor | None = None) -> Tensor:
        """(n, d) -> (n, k + l), in float64; or of some features only, by their indices."""
        found = rows if self.linear else torch.cat([part.double() for part in self.pair(rows)], 1)
        on: Tensor | slice = slice(None) if some is None else some
        apart = found[:, on] - self.origin[on]
        return apart if self.scale is None else apart.div_(self.scale[on])

    def back(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Means of features from means seen, and the factor from coefficients of what is seen to those of features."""
        one = torch.ones_like(mean) if self.scale is None else self.scale
        if not self.linear:
            return self.origin + one * mean, 1.0 / one
        views = self.pair.left, self.pair.right
        origin = torch.cat([view.origin.double() for view in views if isinstance(view, LinearView)])
        scale = torch.cat([view.scale.double() for view in views if isinstance(view, LinearView)])
        return (self.origin - origin + one * mean) / scale, scale / one


@dataclass(frozen=True)
class Moments:
    """Means and covariances of what is seen of the features of two views.

    Args:
        mean: (k + l,).
        covariance: (k + l, k + l).
        far: (k + l,), distance of the means from zero in the coordinates of the features: what rounding is relative to.
        precision: smallest relative difference that a feature resolves.
    """

    mean: Tensor
    covariance: Tensor
    far: Tensor
    precision: float = torch.finfo(torch.float64).eps

    @classmethod
    def of(cls, products: Products) -> Self:
        """Of sums over rows."""
        mean, covariance = products.moments()
        return cls(mean, covariance, mean.abs())

    @property
    def size(self) -> Tensor:
        """Standard deviations, (k + l,); 0 where rounding is all the spread there is."""
        variance = self.covariance.diagonal()
        floor = CANCELLED * self.mean.square() + (ROUNDED * self.precision * self.far).square()
        return torch.where(variance > floor, variance, 0.0).sqrt()

    @property
    def noise(self) -> float:
        """Spread, beside its standard deviation, that rounding gives a feature: the largest of all."""
        size = self.size
        lost = torch.where(size > 0.0, self.far / size.clamp(min=1e-300), 0.0)
        return ROUNDED * self.precision * (1.0 + float(lost.max()))


def feature_moments(
    pair: ViewPair, source: Source, dtype: torch.dtype = torch.float64
) -> tuple[Sight, Moments]:
    """One pass over the rows.

    Columns of linear views are multiplied as they are and their moments mapped to standard units afterwards.

    Args:
        pair: the features.
        source: rows that hold both views.
        dtype: of the products; sums over tiles are in float64.
    """
    linear = isinstance(pair.left, LinearView) and isinstance(pair.right, LinearView)
    head, _ = next(iter(source.chunks(FIRST_ROWS)))
    shown = pair(head)
    kinds = [part.dtype for part in (head, *shown) if part.is_floating_point()]
    precision = max(torch.finfo(kind).eps for kind in kinds)
    summary = summarise_moments(source, dtype) if linear else None
    if summary is not None:
        plain = bool((summary.scale == 1.0).all())
        sight = Sight(pair, summary.origin, None if plain else summary.scale, linear, precision)
        mean, covariance = summary.mean, summary.covariance
        return sight, Moments(mean, covariance, (summary.origin / summary.scale + mean).abs(), precision)
    some = torch.cat([part.double() for part in shown], 1)
    origin, spread = some.mean(0), some.std(0, correction=0)
    scale = torch.where(spread > 1e-13 * origin.abs(), spread, 1.0)
    sight = Sight(pair, origin, None if dtype == torch.float64 else scale, False, precision)
    sums = source.reduce(lambda rows, weight: Products.of_features(sight(rows), weight, dtype))
    mean, covariance = sums.moments()
    far = origin if sight.scale is None else origin / scale
    return sight, Moments(mean, covariance, (far + mean).abs(), precision)
