"""Test functions made ready for a table: values on rows, expectations under laws."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from boxloop.criticise.closed import GAUSSIAN, count_below, count_power, power, projected_variance
from boxloop.criticise.tally import NodeSums, Scene, Tally, tally_values
from boxloop.distributions import PointMasses
from boxloop.numeric import significant_digits
from boxloop.types import Distribution

INNER = 1 << 16
"""Rows drawn from a batch of laws, in all, where an expectation has no closed form."""


def drawn_points(
    law: Distribution, weight: Tensor, n: int, generator: Generator
) -> tuple[PointMasses, Tensor]:
    """N rows drawn from each of a batch of laws, with their weights."""
    rows = law.draw(n, generator)
    return PointMasses(rows.flatten(0, 1)), (weight / n).repeat_interleave(n)


class Probe(Protocol):
    """A test function that is ready: it knows its columns, origin, scale and directions."""

    @property
    def scene(self) -> Scene:
        """Where it looks from."""

    @property
    def name(self) -> str:
        """What it is called in tables."""

    @property
    def moment(self) -> str:
        """What its values are: of which quantity, in which units, about which point."""

    def labels(self) -> list[str]:
        """A name for every entry, in the order of ``flat``."""

    def in_data_units(self, value: Tensor) -> Tensor:
        """A value as it is shown: about zero where it is held about the origin to keep its digits."""

    def flat(self, value: Tensor) -> Tensor:
        """The distinct entries of a value, (..., p)."""

    def tally(self, rows: Tensor, weight: Tensor) -> Tally:
        """Sums over rows (n, d) with weights (n,) or B sets of weights (B, n); or over B sets of rows (B, n, d)."""

    def multiplicity(self) -> Tensor:
        """How often each distinct entry occurs in a value, (p,)."""

    def entries(self, rows: Tensor) -> Tensor:
        """The value of every distinct entry at every row, (n, p)."""

    def has_closed_form(self, law: Distribution) -> bool:
        """Whether ``forward`` is exact."""

    def forward(self, law: Distribution, weight: Tensor, generator: Generator) -> Tensor:
        """Weighted sum over m laws of the expectation of g; differentiable in the laws."""

    def node_sums(
        self, law: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        """The same, with the sums over laws that tell its error; about a point, or their own mean."""


@runtime_checkable
class AnyProbe(Probe, Protocol):
    """A test function of any make that is ready, told by its methods."""


@dataclass(frozen=True)
class Vector:
    """Base of test functions with one value for each of p entries."""

    scene: Scene

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in tables."""

    @property
    @abstractmethod
    def moment(self) -> str:
        """What its values are."""

    @abstractmethod
    def labels(self) -> list[str]:
        """A name for every entry."""

    def in_data_units(self, value: Tensor) -> Tensor:
        """The same."""
        return value

    @abstractmethod
    def values(self, rows: Tensor) -> Tensor:
        """(..., n, d) -> (..., n, p)."""

    @abstractmethod
    def exact(self, law: Distribution) -> Tensor | None:
        """Expectation under each of m laws, (m, p), where it has a closed form."""

    def flat(self, value: Tensor) -> Tensor:
        """All entries."""
        return value

    def multiplicity(self) -> Tensor:
        """Once each."""
        return torch.ones(len(self.labels()), dtype=torch.float64, device=self.scene.origin.device)

    def entries(self, rows: Tensor) -> Tensor:
        """The values."""
        return self.values(rows)

    def tally(self, rows: Tensor, weight: Tensor) -> Tally:
        """Sums over rows, see :class:`Probe`."""
        return tally_values(self.values(rows), weight)

    def has_closed_form(self, law: Distribution) -> bool:
        """Whether there is one for these laws, or they are single rows."""
        return isinstance(law, PointMasses) or self.exact(law) is not None

    def by_law(self, law: Distribution, generator: Generator) -> Tensor:
        """Closed form, or the mean over draws from each law, (m, p)."""
        if isinstance(law, PointMasses):
            return self.values(law.mean).double()
        found = self.exact(law)
        if found is not None:
            return found.double()
        draws = law.draw(max(1, INNER // len(law.mean)), generator)
        values = self.values(draws.reshape(-1, draws.shape[-1]))
        return values.reshape(len(draws), -1, values.shape[-1]).mean(1).double()

    def forward(self, law: Distribution, weight: Tensor, generator: Generator) -> Tensor:
        """Mean over laws."""
        return weight @ self.by_law(law, generator)

    def node_sums(
        self, law: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        """Sums over laws, see :class:`Probe`."""
        return NodeSums.of(self.by_law(law, generator), weight, about)

    def standard(self, rows: Tensor) -> Tensor:
        """Rows about the origin, in units of the scale."""
        return (rows - self.scene.origin) / self.scene.scale


@dataclass(frozen=True)
class FirstProbe(Vector):
    """Column means."""

    @property
    def name(self) -> str:
        """first."""
        return "first"

    @property
    def moment(self) -> str:
        """Mean, in the units of the column."""
        return "mean"

    def in_data_units(self, value: Tensor) -> Tensor:
        """With the origin added back."""
        return value + self.scene.origin

    def labels(self) -> list[str]:
        """Column names."""
        return list(self.scene.names)

    def values(self, rows: Tensor) -> Tensor:
        """About the origin: the gap is the same and keeps its digits."""
        return rows - self.scene.origin

    def exact(self, law: Distribution) -> Tensor:
        """The means of the laws."""
        return law.mean - self.scene.origin


@dataclass(frozen=True)
class PowerProbe(Vector):
    """Powers of projections of standardised rows; columns are projections on axes."""

    order: int
    directions: Tensor
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """third, fourth, ..."""
        return {3: "third", 4: "fourth"}.get(self.order, f"power {self.order}")

    @property
    def moment(self) -> str:
        """A standardised power, without units."""
        return f"mean of ((x - model mean) / model sd)^{self.order}"

    def labels(self) -> list[str]:
        """Names of columns or projections."""
        return list(self.names)

    def values(self, rows: Tensor) -> Tensor:
        """(a . y) to the order."""
        y = self.standard(rows)
        known = (torch.nan_to_num(y, nan=0.0) @ self.directions.mT) ** self.order
        lost = torch.isnan(y).to(y.dtype) @ (self.directions != 0).to(y.dtype).mT
        return torch.where(lost > 0, torch.nan, known)

    def exact(self, law: Distribution) -> Tensor | None:
        """Moments of a normal variable, or of the counts of single columns."""
        if not isinstance(law, GAUSSIAN):
            return self._of_counts(law)
        mean, variance = _projected(law, self.scene, self.directions)
        return power(mean, variance, self.order)

    def _of_counts(self, law: Distribution) -> Tensor | None:
        if bool(((self.directions != 0).sum(1) > 1).any()):
            return None
        found = count_power(law, self.scene.origin, self.order)
        return (
            None
            if found is None
            else (found / self.scene.scale**self.order) @ (self.directions**self.order).mT
        )


@dataclass(frozen=True)
class FourierProbe(Vector):
    """Cosines of random projections."""

    frequencies: Tensor
    phase: Tensor

    @property
    def name(self) -> str:
        """fourier."""
        return "fourier"

    @property
    def moment(self) -> str:
        """Between -1 and 1."""
        return "mean of a cosine of standardised columns"

    def labels(self) -> list[str]:
        """Numbered waves."""
        return [f"wave {i}" for i in range(len(self.phase))]

    def values(self, rows: Tensor) -> Tensor:
        """cos(a . y + b)."""
        return torch.cos(self.standard(rows) @ self.frequencies.mT + self.phase)

    def exact(self, law: Distribution) -> Tensor | None:
        """Real part of the characteristic function, turned by the phase."""
        if not isinstance(law, GAUSSIAN):
            return None
        mean, variance = _projected(law, self.scene, self.frequencies)
        return torch.cos(mean + self.phase) * torch.exp(-0.5 * variance)


@dataclass(frozen=True)
class BelowProbe(Vector):
    """Whether columns are at most thresholds: entry p is about column ``places[p]``."""

    places: Tensor
    thresholds: Tensor

    @property
    def name(self) -> str:
        """below."""
        return "below"

    @property
    def moment(self) -> str:
        """Between 0 and 1."""
        return "share of rows"

    def labels(self) -> list[str]:
        """Column and threshold, which is written as finely as the column is spread."""
        scale = self.scene.scale.tolist()
        pairs = zip(self.places.tolist(), self.thresholds.tolist(), strict=True)
        return [f"{self.scene.names[j]} <= {t:.{significant_digits(t, scale[j])}g}" for j, t in pairs]

    def values(self, rows: Tensor) -> Tensor:
        """0 or 1, NaN where the column is missing."""
        chosen = rows[..., self.places]
        return torch.where(torch.isnan(chosen), torch.nan, (chosen <= self.thresholds).to(rows.dtype))

    def exact(self, law: Distribution) -> Tensor | None:
        """Normal distribution functions, or those of counts."""
        if not isinstance(law, GAUSSIAN):
            return count_below(law, self.places, self.thresholds)
        spread = law.covariance().diagonal().sqrt()[:, self.places]
        return torch.special.ndtr((self.thresholds - law.mean[:, self.places]) / spread)


def _projected(law: Distribution, scene: Scene, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of projections of standardised rows under each of m laws, both (m, p)."""
    mean = ((law.mean - scene.origin) / scene.scale) @ directions.mT
    return mean, projected_variance(law.covariance(), directions / scene.scale)
