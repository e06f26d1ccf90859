"""Second moments: all pairs of columns, as matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.criticise.closed import averaged
from boxloop.criticise.tally import Scene, Tally
from boxloop.types import Law


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
        return averaged(law.covariance(), weight) + (mean * weight[:, None]).mT @ mean
