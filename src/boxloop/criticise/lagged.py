"""Products of a column with itself some rows before."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from boxloop.criticise.probes import Vector
from boxloop.criticise.tally import NodeSums
from boxloop.types import Distribution


@dataclass(frozen=True)
class LaggedProbe(Vector):
    """Products of standardised values that are ``lag`` rows apart, within a tile, for models of independent rows."""

    lag: int

    @property
    def name(self) -> str:
        """lag 1, ..."""
        return f"lag {self.lag}"

    @property
    def moment(self) -> str:
        """Without units."""
        return f"mean product of standardised values {self.lag} rows apart"

    def labels(self) -> list[str]:
        """Column names."""
        return list(self.scene.names)

    def values(self, rows: Tensor) -> Tensor:
        """(n - lag, d)."""
        y = self.standard(rows)
        return y[..., self.lag :, :] * y[..., : -self.lag, :]

    def exact(self, law: Distribution) -> None:
        """None: the mean is over pairs of independent rows, not over one."""

    def has_closed_form(self, law: Distribution) -> bool:
        """Always: the means of laws are known."""
        return True

    def forward(self, law: Distribution, weight: Tensor, generator: Generator) -> Tensor:
        """The square of the mean row."""
        return (weight @ self.standard(law.mean)).square()

    def node_sums(
        self, law: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        """To first order in the mean row."""
        rows = self.standard(law.mean)
        mean = weight.detach() @ rows.detach() / weight.detach().sum()
        sums = NodeSums.of(2.0 * mean * (rows - mean), weight, None)
        return NodeSums(self.forward(law, weight, generator), sums.square, sums.fourth)
