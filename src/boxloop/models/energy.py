r"""Energy-based models: a density up to its normalising constant.

.. math:: p(x) = \frac{e^{-E(x)}}{Z}, \qquad E(x) = V_\theta(u) - \log b(u) + \sum_j \log s_j,
          \qquad u = (x - o) / s

Le Corff, *Introduction to computational statistics*, section 1.1. V is any network; b is a normalised
base density, by default a Gaussian that the network tilts.

Why a base: :math:`\int e^{-V}` is infinite for most networks, whose output grows at most linearly in some direction.
A Gaussian base falls off as :math:`e^{-|u|^2/2}`, so that for every Lipschitz V, :math:`|V(u)| \le a + c|u|`,

.. math:: Z = E_b\left[e^{-V(u)}\right] \le e^a \, E_b\left[e^{c |u|}\right] < \infty .

The model starts at b itself (V = 0, Z = 1), chains can be restarted from b, and annealing begins there. Without a base
(``base=None``) the network must confine itself, as an exponential family with a quartic term does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from boxloop.distributions import Empirical, PointMasses
from boxloop.models.networks import Network
from boxloop.numeric import normal
from boxloop.tree import Tree
from boxloop.types import Distribution


@dataclass(frozen=True)
class Perceptron:
    r"""The default energy, :math:`V(u) = w^\top h_L`, :math:`h_l = \mathrm{silu}(A_l h_{l-1} + a_l)`, without a
    constant. It is Lipschitz, so any Gaussian base keeps it normalisable."""

    columns: int  # d
    hidden: tuple[int, ...] = (64, 64)  # width of each layer

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must name at least one positive width, got {self.hidden}")

    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """Of the parameters."""
        pairs = pairwise((self.columns, *self.hidden))
        return [*(shape for pair in pairs for shape in (pair, pair[1:])), (self.hidden[-1],)]

    def draw_parameters(self, generator: Generator, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Random layers under a last one of zeros: the model is its base distribution."""
        parameters: list[Tensor] = []
        before = self.columns
        for width in self.hidden:
            parameters.append(normal((before, width), generator, dtype) * (2.0 / before) ** 0.5)
            parameters.append(normal((width,), generator, dtype))
            before = width
        return (*parameters, torch.zeros(before, dtype=dtype, device=generator.device))

    def __call__(self, parameters: Sequence[Tensor], rows: Tensor) -> Tensor:
        """(n, d) -> (n,)."""
        *layers, last = parameters
        for slope, shift in zip(layers[::2], layers[1::2], strict=True):
            rows = functional.silu(torch.addmm(shift, rows, slope))
        return rows @ last


@dataclass(frozen=True)
class EnergyModel(Tree):
    """A density known up to a constant, with an estimate of the constant and draws where there are any."""

    network: Any  # V, a function of parameters and standardised rows
    parameters: tuple[Tensor, ...]
    base: Any  # b, one normalised distribution over standardised rows; None for b = 1
    origin: Tensor  # o, (d,)
    scale: Tensor  # s, (d,), positive
    log_partition: Tensor | None = None  # log Z, where it was estimated
    log_partition_error: Tensor | None = None  # its standard error
    draws: Tensor | None = None  # independent draws of the model (N, d), for criticism

    @classmethod
    def from_network(
        cls,
        network: Network,
        parameters: tuple[Tensor, ...],
        base: Distribution | None = None,
        columns: int | None = None,
    ) -> Self:
        """A model of standardised rows; the number of columns is that of the base where there is one."""
        d = columns if base is None else base.mean.shape[1]
        if d is None:
            raise ValueError(
                "columns must be given when base is None: pass the number of columns of the rows"
            )
        zero = parameters[0].new_zeros(d)
        return cls(network, parameters, base, zero, zero + 1.0)

    def trainable(self) -> tuple[Tensor, ...]:
        """The parameters of the network."""
        return self.parameters

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The model with other parameters of the network."""
        return replace(self, parameters=learned)

    def log_density(self, standard: Tensor) -> Tensor:
        """log b(u) - V(u) of standardised rows, (n,): what chains climb, and what Z normalises."""
        potential = self.potential(standard)
        return -potential if self.base is None else self.base.log_prob(standard)[0] - potential

    def potential(self, standard: Tensor) -> Tensor:
        """V(u) of standardised rows, (n,): the part that depends on parameters."""
        energies: Tensor = self.network(self.parameters, standard)
        if energies.shape != standard.shape[:1]:
            raise ValueError(
                f"an energy must give one number per row: {len(standard)} rows need shape ({len(standard)},), "
                f"got {tuple(energies.shape)}"
            )
        return energies

    def standardise(self, rows: Tensor) -> Tensor:
        """u = (x - o) / s, in the precision of the parameters."""
        return ((rows.to(self.origin.dtype) - self.origin) / self.scale).to(self.parameters[0].dtype)

    def energy(self, rows: Tensor) -> Tensor:
        """E(x) of each row, (n,): minus the log-density, but for log Z."""
        return self.scale.log().sum() - self.log_density(self.standardise(rows)).to(self.scale.dtype)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,), where the partition function was estimated."""
        if self.log_partition is None:
            raise ValueError("the partition function of this model is not known: estimate it first")
        return -self.energy(rows) - self.log_partition

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``; Z does not change, as it is that of standardised rows."""
        return replace(
            self,
            origin=origin + scale * self.origin,
            scale=scale * self.scale,
            draws=None if self.draws is None else origin + scale * self.draws,
        )

    def prior(self) -> Empirical:
        """The distribution of a row, known by draws."""
        if self.draws is None:
            raise ValueError("this model has no draws to be criticised by: sample it first")
        return Empirical(self.draws)

    def emission(self, z: Tensor) -> PointMasses:
        """A row given itself."""
        return PointMasses(z)
