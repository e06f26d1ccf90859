"""Second moments: all pairs of columns, as matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.criticise.closed import averaged
from boxloop.criticise.tally import NodeSums, Scene, Tally
from boxloop.numeric import covariance as forms
from boxloop.types import Covariance, Law

HELD_VALUES = 1 << 22
"""Values (laws x pairs of columns) that are held at once."""


@dataclass(frozen=True)
class SecondProbe:
    """All products of two columns, as matrix products."""

    scene: Scene
    centred: bool

    @property
    def about(self) -> Tensor:
        """The model's mean for data and model alike, or zero."""
        return self.scene.origin if self.centred else torch.zeros_like(self.scene.origin)

    @property
    def name(self) -> str:
        """second."""
        return "second"

    @property
    def moment(self) -> str:
        """In products of the units of both columns."""
        return "covariance about the model's mean" if self.centred else "mean product"

    def in_data_units(self, value: Tensor) -> Tensor:
        """The same."""
        return value

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
        return self.flat(2.0 - torch.eye(d, dtype=torch.float64, device=self.about.device))

    def entries(self, rows: Tensor) -> Tensor:
        """Every product of every row, (n, p)."""
        y = rows - self.about
        i, j = torch.triu_indices(y.shape[1], y.shape[1], device=y.device)
        return y[:, i] * y[:, j]

    def tally(self, rows: Tensor, weight: Tensor) -> Tally:
        """Matrix products; a missing value leaves out its own pairs only."""
        y = rows - self.about

        def pairs(part: Tensor, by: Tensor) -> Tensor:
            return (part * by[..., None]).mT @ part

        if not bool(torch.isnan(y.sum())):
            one = torch.ones_like(y[..., 0, :, None] * y[..., 0, None, :])
            count, squared = (
                one * weight.sum(-1)[..., None, None],
                one * weight.square().sum(-1)[..., None, None],
            )
            return Tally(count, pairs(y, weight), pairs(y.square(), weight), squared)
        seen = (~torch.isnan(y)).to(y.dtype)
        y = torch.nan_to_num(y, nan=0.0)
        return Tally(
            pairs(seen, weight), pairs(y, weight), pairs(y.square(), weight), pairs(seen, weight.square())
        )

    def forward(self, law: Law, weight: Tensor, generator: Generator) -> Tensor:
        """Mean covariance plus mean product of means (document 000, eq. 8, with outer products)."""
        mean = law.mean - self.about
        return averaged(law.covariance(), weight.to(law.mean.dtype)) + (mean * weight[:, None]).mT @ mean

    def has_closed_form(self, law: Law) -> bool:
        """Always: laws know their covariances."""
        return True

    def node_sums(self, law: Law, weight: Tensor, generator: Generator, about: Tensor | None) -> NodeSums:
        """Sums over laws, see :class:`Probe`."""
        value = self.forward(law, weight, generator)
        near = value.detach() / weight.detach().sum() if about is None else about
        with torch.no_grad():
            mean, covariance, by = law.mean - self.about, law.covariance(), weight.square()
            if self.centred and isinstance(covariance, forms.Diagonal):
                return NodeSums(value, *_of_products(mean, covariance.variance, by, near))
            square, fourth = torch.zeros_like(value), torch.zeros_like(value)
            step = max(1, HELD_VALUES // value.numel())
            for start in range(0, len(mean), step):
                part = slice(start, start + step)
                products = mean[part, :, None] * mean[part, None, :]
                apart = (_members(covariance, part) + products - near).square()
                square += torch.einsum("m,mij->ij", by[part], apart)
                fourth += torch.einsum("m,mij->ij", by[part].square(), apart.square())
        return NodeSums(value, square, fourth)


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
