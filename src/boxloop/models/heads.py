r"""Heads: what the columns that a decoder gives mean, as laws of a row.

A head tells how many raw columns it wants for d columns of data, and turns them into laws over *standardised* columns
(counts, zeros and ones, and categories have no other units than their own). Parameters that all rows share are tensors
of the head, trained with the networks.

A Gaussian variance is :math:`\sigma^2 = \epsilon + e^{r}` for a raw number r: smooth, and never below the floor
:math:`\epsilon`. Without one the likelihood of an autoencoder is unbounded: it grows without limit as the noise of a
row that is met exactly goes to zero. The floor is in standard coordinates, hence relative to the variance of a column;
its default 1e-4 is noise of one hundredth of a column's standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions import (
    CategoricalColumns,
    DiagonalGaussian,
    LogitBernoulli,
    LogPoisson,
    PairedLaw,
    TiedLowRankGaussian,
)
from boxloop.numeric import normal
from boxloop.tree import Tree

FLOOR = 1e-4
"""Smallest variance of a Gaussian head, in units of a column's own."""

Variance = Literal["diagonal", "shared", "spherical"]


class Head(Protocol):
    """What a decoder's raw columns mean."""

    continuous: ClassVar[bool]
    """Whether its columns may be shifted and scaled."""

    def width(self, columns: int) -> int:
        """Raw columns that it wants for so many columns of data."""

    def law(self, raw: Tensor) -> PairedLaw:
        """m laws over standardised columns from raw columns (m, width), in their precision."""


@dataclass(frozen=True)
class GaussianHead(Tree):
    r"""Independent Gaussian columns, :math:`x_j \mid z \sim N(\mu_j(z), \epsilon + e^{r_j})`.

    Args:
        variance: ``diagonal`` takes r from the decoder, a number for every row and column; ``shared`` learns one a
            column, ``spherical`` one for all.
        log_variance: r where it is learned, (d,) or (1,).
        floor: epsilon.

    Example:
        >>> import torch
        >>> GaussianHead().width(3), GaussianHead.start("shared", 3).width(3)
        (6, 3)
        >>> GaussianHead().law(torch.zeros(1, 2)).covariance().dense()
        tensor([[[1.0001]]])
    """

    variance: Variance = "diagonal"
    log_variance: Tensor | None = None
    floor: float = FLOOR
    continuous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.variance not in ("diagonal", "shared", "spherical"):
            raise ValueError(f"variance must be 'diagonal', 'shared' or 'spherical', got {self.variance!r}")
        if (self.log_variance is None) != (self.variance == "diagonal"):
            raise ValueError(
                "log_variance belongs to a shared or a spherical variance, and to these always: use GaussianHead.start"
            )
        _check_floor(self.floor)

    @classmethod
    def start(
        cls,
        variance: Variance,
        columns: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        floor: float = FLOOR,
    ) -> Self:
        """A head for so many columns, whose learned variances start at 1."""
        if variance == "diagonal":
            return cls(variance, None, floor)
        size = columns if variance == "shared" else 1
        return cls(variance, torch.zeros(size, dtype=dtype, device=device), floor)

    def width(self, columns: int) -> int:
        """Means, and raw log-variances where the decoder gives them."""
        return 2 * columns if self.log_variance is None else columns

    def law(self, raw: Tensor) -> DiagonalGaussian:
        """Means first, then raw log-variances."""
        if self.log_variance is None:
            mean, level = raw.chunk(2, dim=1)
            return DiagonalGaussian(mean, self.floor + level.exp())
        variance = self.floor + self.log_variance.to(raw.dtype).exp()
        return DiagonalGaussian(raw, variance.expand_as(raw))


@dataclass(frozen=True)
class LowRankHead(Tree):
    r"""Gaussian columns whose noise is correlated, :math:`x \mid z \sim N(\mu(z), W W^\top + \mathrm{diag}(\psi))`.

    W and psi are shared by all rows: what is left over by the mean is correlated where columns depend on one another in
    the same way whatever z is. No d x d matrix is formed.

    Args:
        loadings: W, (d, r).
        log_noise: raw numbers of psi = floor + exp(raw), (d,).
        floor: of psi.

    Example:
        >>> import torch
        >>> head = LowRankHead.start(4, 2, torch.Generator())
        >>> head.width(4), head.law(torch.zeros(5, 4).double()).mean.shape
        (4, torch.Size([5, 4]))
    """

    loadings: Tensor
    log_noise: Tensor
    floor: float = FLOOR
    continuous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    @classmethod
    def start(
        cls,
        columns: int,
        rank: int,
        generator: Generator,
        dtype: torch.dtype = torch.float64,
        floor: float = FLOOR,
    ) -> Self:
        """A head for so many columns: small random loadings, which zeros could never leave, and noise near 1."""
        if rank < 1:
            raise ValueError(f"the rank of a low-rank head must be at least 1, got {rank}")
        loadings = normal((columns, rank), generator, dtype) * 0.1
        return cls(loadings, torch.zeros(columns, dtype=dtype, device=generator.device), floor)

    def width(self, columns: int) -> int:
        """The means."""
        return columns

    def law(self, raw: Tensor) -> TiedLowRankGaussian:
        """Means, with the shared covariance."""
        noise = self.floor + self.log_noise.to(raw.dtype).exp()
        return TiedLowRankGaussian(raw, self.loadings.to(raw.dtype), noise)


@dataclass(frozen=True)
class BernoulliHead(Tree):
    """Zeros and ones by their log-odds; see :class:`boxloop.distributions.counts.LogitBernoulli` for grey values.

    Example:
        >>> import torch
        >>> BernoulliHead().law(torch.zeros(1, 2)).mean
        tensor([[0.5000, 0.5000]])
    """

    continuous: ClassVar[bool] = False

    def width(self, columns: int) -> int:
        """The log-odds."""
        return columns

    def law(self, raw: Tensor) -> LogitBernoulli:
        """Log-odds."""
        return LogitBernoulli(raw)


@dataclass(frozen=True)
class PoissonHead(Tree):
    """Counts by their log-rates.

    Example:
        >>> import torch
        >>> PoissonHead().law(torch.zeros(1, 2)).mean
        tensor([[1., 1.]])
    """

    continuous: ClassVar[bool] = False

    def width(self, columns: int) -> int:
        """The log-rates."""
        return columns

    def law(self, raw: Tensor) -> LogPoisson:
        """Log-rates."""
        return LogPoisson(raw)


@dataclass(frozen=True)
class CategoricalHead(Tree):
    """Columns of codes 0 to c_j - 1, by the logits of all columns side by side.

    Args:
        sizes: c, (d,), whole numbers; a tensor, so that it is where the logits are.

    Example:
        >>> import torch
        >>> head = CategoricalHead.of([2, 3])
        >>> head.width(2), head.law(torch.zeros(1, 5)).mean
        (5, tensor([[0.5000, 1.0000]]))
    """

    sizes: Tensor
    continuous: ClassVar[bool] = False

    @classmethod
    def of(cls, sizes: Sequence[int], device: torch.device | str = "cpu") -> Self:
        """A head for columns with so many categories each.

        Raises:
            ValueError: a column with fewer than one category.
        """
        if not len(sizes) or min(sizes) < 1:
            raise ValueError(f"every column needs at least one category, got {list(sizes)}")
        return cls(torch.tensor(list(sizes), dtype=torch.int64, device=device))

    def width(self, columns: int) -> int:
        """One logit a category of each of these columns."""
        if columns != len(self.sizes):
            raise ValueError(f"the head is for {len(self.sizes)} columns of categories, not for {columns}")
        return int(self.sizes.sum())

    def law(self, raw: Tensor) -> CategoricalColumns:
        """Logits."""
        return CategoricalColumns(raw, self.sizes)


def _check_floor(floor: float) -> None:
    if not floor > 0.0:
        raise ValueError(
            f"the floor of a variance must be positive, got {floor}: without it there is no best fit"
        )
