r"""Features of one view: a view is a tree that maps its rows (n, d) to features (n, k).

:class:`LinearView`, :class:`FourierView` and :class:`FiniteView` are fixed, and their canonical variables are solved
exactly from one pass; the features of :class:`NetworkView` are learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Generator, Tensor

from boxloop.models import Part
from boxloop.numeric import normal
from boxloop.tree import Tree


class View(Protocol):
    """A function from the rows of one view to features."""

    @property
    def n_columns(self) -> int:
        """Columns d of the rows."""

    @property
    def n_features(self) -> int:
        """Features k; the constant is not one of them."""

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) -> (n, k)."""

    def trainable(self) -> tuple[Tensor, ...]:
        """The learned tensors; none where features are fixed."""

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The view at other values of them."""

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The view on a device."""


@dataclass(frozen=True)
class FixedFeatures(Tree):
    """Features with nothing to learn."""

    def trainable(self) -> tuple[Tensor, ...]:
        """Nothing."""
        return ()

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The same view."""
        return self


@dataclass(frozen=True)
class LinearView(FixedFeatures):
    """The columns themselves, in standard units: classical canonical correlation analysis.

    Args:
        origin: (d,).
        scale: (d,).

    Example:
        >>> import torch
        >>> LinearView(torch.ones(2), torch.full((2,), 2.0))(torch.full((1, 2), 5.0))
        tensor([[2., 2.]])
    """

    origin: Tensor
    scale: Tensor

    @property
    def n_columns(self) -> int:
        """Columns of the rows."""
        return self.origin.shape[0]

    @property
    def n_features(self) -> int:
        """As many as columns."""
        return self.origin.shape[0]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return (rows - self.origin) / self.scale


@dataclass(frozen=True)
class FourierView(FixedFeatures):
    r"""Random features of a Gaussian kernel: kernel canonical correlation analysis without its n x n matrices.

    .. math:: f_j(x) = \sqrt{2/k} \, \cos(\omega_j^\top z + b_j), \quad z = (x - o)/s, \quad
        \omega_j \sim N(0, \ell^{-2} I), \; b_j \sim U(0, 2\pi)

    Rahimi and Recht (2008): :math:`f(x)^\top f(x') \approx \exp(-\|z - z'\|^2 / 2\ell^2)`.

    Args:
        origin: o, (d,).
        scale: s, (d,).
        frequency: omega, (d, k).
        phase: b, (k,).

    Example:
        >>> import torch
        >>> view = FourierView.start(torch.zeros(2).double(), torch.ones(2).double(), 4000, 1.0, torch.Generator())
        >>> f = view(torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double())
        >>> bool(((f @ f.T)[0, 1] - torch.tensor(-0.5).exp()).abs() < 0.05)
        True
    """

    origin: Tensor
    scale: Tensor
    frequency: Tensor
    phase: Tensor

    @classmethod
    def start(cls, origin: Tensor, scale: Tensor, n_features: int, length: float, stream: Generator) -> Self:
        """Draw the features; the same on every device.

        Args:
            origin: (d,).
            scale: (d,).
            n_features: k.
            length: of the kernel, in standard units.
            stream: on the CPU.
        """
        frequency = normal((origin.shape[0], n_features), stream) / length
        phase = torch.rand(n_features, generator=stream, dtype=torch.float64) * (2.0 * math.pi)
        return cls(origin, scale, frequency.to(origin), phase.to(origin))

    @property
    def n_columns(self) -> int:
        """Columns of the rows."""
        return self.frequency.shape[0]

    @property
    def n_features(self) -> int:
        """Number of frequencies."""
        return self.frequency.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) -> (n, k)."""
        angle = torch.addmm(self.phase, (rows - self.origin) / self.scale, self.frequency)
        return angle.cos_().mul_(math.sqrt(2.0 / self.n_features))


@dataclass(frozen=True)
class FiniteView(FixedFeatures):
    """One column with finitely many values, as indicators: labels, or a contingency table.

    Args:
        codes: the values, (k,), in the order of the features.

    Example:
        >>> import torch
        >>> FiniteView(torch.tensor([0.0, 1.0, 2.0]))(torch.tensor([[1.0], [7.0]]))
        tensor([[0., 1., 0.],
                [0., 0., 0.]])
    """

    codes: Tensor

    @property
    def n_columns(self) -> int:
        """One."""
        return 1

    @property
    def n_features(self) -> int:
        """Number of values."""
        return self.codes.shape[0]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, 1) -> (n, k); all indicators of any other value are 0."""
        return (rows == self.codes).to(self.codes.dtype)


@dataclass(frozen=True)
class NetworkView(Tree):
    r"""Features that a network learns, :math:`f(x) = \tanh(\text{network}((x - o)/s))`.

    Learning relevant features for statistical inference, appendix A.2: the loss does not change with the size of a
    feature, so an unbounded last layer may drift; hence the hyperbolic tangent.

    Args:
        origin: o, (d,).
        scale: s, (d,).
        part: the network with its parameters.
        n_features: width of its output.
        bounded: with the hyperbolic tangent; the output of a user's module is used as it is.
    """

    origin: Tensor
    scale: Tensor
    part: Part
    n_features: int
    bounded: bool = True

    @property
    def n_columns(self) -> int:
        """Columns of the rows."""
        return self.origin.shape[0]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) -> (n, k), in the precision of the network."""
        output = self.part((rows - self.origin) / self.scale)
        return output.tanh() if self.bounded else output

    def trainable(self) -> tuple[Tensor, ...]:
        """Parameters of the network."""
        return self.part.parameters

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The view with other parameters."""
        return replace(self, part=replace(self.part, parameters=tuple(learned)))


@dataclass(frozen=True)
class ViewPair(Tree):
    """The features of both views of rows that hold one view beside the other.

    Args:
        left: features of x, the first columns.
        right: features of y, the rest.

    Example:
        >>> import torch
        >>> linear = LinearView(torch.zeros(1), torch.ones(1))
        >>> ViewPair(linear, FiniteView(torch.tensor([0.0, 1.0])))(torch.tensor([[5.0, 1.0]]))
        (tensor([[5.]]), tensor([[0., 1.]]))
    """

    left: View
    right: View

    def split_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of each view."""
        return rows[:, : self.left.n_columns], rows[:, self.left.n_columns :]

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """F, (n, k), and G, (n, l)."""
        x, y = self.split_rows(rows)
        return self.left(x), self.right(y)

    def trainable(self) -> tuple[Tensor, ...]:
        """The learned tensors of both views, those of the first view first."""
        return (*self.left.trainable(), *self.right.trainable())

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The pair with other parameters."""
        first = len(self.left.trainable())
        left, right = self.left.with_trainable(learned[:first]), self.right.with_trainable(learned[first:])
        return replace(self, left=left, right=right)

    @property
    def max_variables(self) -> float:
        """Largest number of canonical variables that the features can have; infinite where they are learned."""
        if self.trainable():
            return math.inf
        return min(view.n_features - isinstance(view, FiniteView) for view in (self.left, self.right))
