"""Second moments: all pairs of columns, as matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.criticise.closed import averaged
from boxloop.criticise.tally import NodeSums, Scene, Tally
from boxloop.numeric import covariance as forms
from boxloop.types import Covariance, Distribution

HELD_VALUES = 1 << 22
"""Values (laws x pairs of columns) that are held at once."""


@dataclass(frozen=True)
class SecondProbe:
    r"""All products of two columns, as matrix products.

    Values are taken about the origin, :math:`y = x - o`, as products there or, where they are meant about zero, as

    .. math:: x_i x_j - o_i o_j = y_i y_j + o_i y_j + y_i o_j,

    which keeps the digits of gaps and of their errors where the origin is far from zero.
    """

    scene: Scene
    centred: bool

    @property
    def name(self) -> str:
        """second."""
        return "second"

    @property
    def moment(self) -> str:
        """In products of the units of both columns."""
        return "covariance about the model's mean" if self.centred else "mean product"

    def in_data_units(self, value: Tensor) -> Tensor:
        """With the product of the origins added back to mean products."""
        origin = self.scene.origin
        return value if self.centred else value + origin[:, None] * origin

    def labels(self) -> list[str]:
        """Pairs of column names, first column first."""
        names = self.scene.names
        return [f"{names[i]} x {names[j]}" for i, j in zip(*self._pairs(), strict=True)]

    def _pairs(self) -> list[list[int]]:
        pairs: list[list[int]] = torch.triu_indices(len(self.scene.names), len(self.scene.names)).tolist()
        return pairs

    def flat(self, value: Tensor) -> Tensor:
        """The upper triangle, row by row."""
        i, j = torch.triu_indices(*value.shape[-2:], device=value.device)
        return value[..., i, j]

    def multiplicity(self) -> Tensor:
        """1 on the diagonal, 2 off it."""
        d = len(self.scene.names)
        return self.flat(2.0 - torch.eye(d, dtype=torch.float64, device=self.scene.origin.device))

    def entries(self, rows: Tensor) -> Tensor:
        """Every product of every row, (n, p)."""
        y = rows - self.scene.origin
        i, j = torch.triu_indices(y.shape[1], y.shape[1], device=y.device)
        product = y[:, i] * y[:, j]
        if self.centred:
            return product
        origin = self.scene.origin
        return product + origin[i] * y[:, j] + y[:, i] * origin[j]

    def tally(self, rows: Tensor, weight: Tensor) -> Tally:
        """Matrix products; a missing value leaves out its own pairs only."""
        y = rows - self.scene.origin
        if not bool(torch.isnan(y.sum())):
            one = torch.ones_like(y[..., 0, :, None] * y[..., 0, None, :])
            count, squared = (
                one * weight.sum(-1)[..., None, None],
                one * weight.square().sum(-1)[..., None, None],
            )
            return Tally(count, *self._sums(y, torch.ones_like(y), weight), squared)
        seen = (~torch.isnan(y)).to(y.dtype)
        y = torch.nan_to_num(y, nan=0.0)
        return Tally(
            _crossed(seen, weight, seen), *self._sums(y, seen, weight), _crossed(seen, weight.square(), seen)
        )

    def _sums(self, y: Tensor, seen: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the products and of their squares, over the rows in which both columns are present."""
        square = y.square()
        product, fourth = _crossed(y, weight, y), _crossed(square, weight, square)
        if self.centred:
            return product, fourth
        at, by = self.scene.origin, self.scene.origin[:, None]
        alone, spread = _crossed(y, weight, seen) * at, _crossed(square, weight, seen) * at.square()
        bent = _crossed(square, weight, y) * at
        cross = 2.0 * (by * at) * product
        return product + alone + alone.mT, fourth + spread + spread.mT + 2.0 * (bent + bent.mT) + cross

    def forward(self, law: Distribution, weight: Tensor, generator: Generator) -> Tensor:
        """Mean covariance plus mean product of means (document 000, eq. 8, with outer products)."""
        mean = law.mean - self.scene.origin
        about = averaged(law.covariance(), weight.to(law.mean.dtype)) + (mean * weight[:, None]).mT @ mean
        return about if self.centred else about + self._shifts(weight.to(mean) @ mean)

    def _shifts(self, mean: Tensor) -> Tensor:
        """What means about the origin (..., d) add to products about zero, less the product of the origins."""
        alone = mean[..., :, None] * self.scene.origin.to(mean)
        return alone + alone.mT

    def has_closed_form(self, law: Distribution) -> bool:
        """Always: laws know their covariances."""
        return True

    def node_sums(
        self, law: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        """Sums over laws, see :class:`Probe`."""
        value = self.forward(law, weight, generator)
        near = value.detach() / weight.detach().sum() if about is None else about
        with torch.no_grad():
            mean, covariance, by = law.mean - self.scene.origin, law.covariance(), weight.square()
            if self.centred and isinstance(covariance, forms.Diagonal):
                return NodeSums(value, *_of_products(mean, covariance.variance, by, near))
            square, fourth = torch.zeros_like(value), torch.zeros_like(value)
            step = max(1, HELD_VALUES // value.numel())
            for start in range(0, len(mean), step):
                part = slice(start, start + step)
                products = mean[part, :, None] * mean[part, None, :]
                if not self.centred:
                    products = products + self._shifts(mean[part])
                apart = (_members(covariance, part) + products - near).square()
                square += torch.einsum("m,mij->ij", by[part], apart)
                fourth += torch.einsum("m,mij->ij", by[part].square(), apart.square())
        return NodeSums(value, square, fourth)


def _crossed(left: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """Weighted sums over rows of products of a value of the left and one of the right."""
    return (left * weight[..., None]).mT @ right


def _members(covariance: Covariance, part: slice) -> Tensor:
    """Some covariances of a batch, dense."""
    if isinstance(covariance, forms.Shared):
        return covariance.one.dense()
    if isinstance(covariance, forms.Diagonal | forms.LowRank | forms.Dense):
        return covariance.map(lambda leaf: leaf[part]).dense()
    return covariance.dense()[part]


def _of_products(mean: Tensor, variance: Tensor, by: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The sums for independent columns, whose pairs are products of means, as matrix products."""

    def pairs(order: int, weight: Tensor) -> Tensor:
        raised = mean**order
        return (raised * weight[:, None]).mT @ raised

    quad = by.square()
    square = pairs(2, by) - 2.0 * near * pairs(1, by) + near.square() * by.sum()
    fourth = pairs(4, quad) - 4.0 * near * pairs(3, quad) + 6.0 * near.square() * pairs(2, quad)
    fourth += near**4 * quad.sum() - 4.0 * near**3 * pairs(1, quad)
    own = (mean.square() + variance - near.diagonal()).square()
    square.diagonal().copy_(by @ own)
    fourth.diagonal().copy_(quad @ own.square())
    return square.clamp(min=0.0), fourth.clamp(min=0.0)
