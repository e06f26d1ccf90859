"""What is known of a function of one view given points of the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.numeric import LowRank, SingleThreaded
from boxloop.twoview.directions import directions, projected_errors
from boxloop.twoview.influence import Side
from boxloop.twoview.order import quantiles

if TYPE_CHECKING:
    from boxloop.twoview.conditional import Conditional, Function

Array = NDArray[Any]


@dataclass(frozen=True)
class Estimated:
    """Numbers with their standard errors.

    Args:
        value: the numbers.
        standard_error: as many.
    """

    value: Array
    standard_error: Array


@dataclass(frozen=True)
class Ambiguity:
    """The direction in which a conditional law spreads most.

    Args:
        direction: unit vectors, (m, p), largest entry positive.
        deviation: standard deviation along it, (m,); 0 where no direction has a positive variance.
        deviation_error: its standard error, (m,).
        low: mean less one deviation, (m, p).
        high: mean plus one deviation, (m, p).
    """

    direction: Array
    deviation: Array
    deviation_error: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Expectation(SingleThreaded):
    r"""Means and standard deviations of p functions given m points, each with a standard error.

    A conditional law made of signed weights may give a variance below 0: it is reported as such and taken for 0.
    What the errors contain, and what not: :class:`boxloop.twoview.Conditional`. They shrink with the square root of
    the number of rows; a weight of 2 moves the mean as two equal rows would, but is one observation.

    Args:
        mean: (m, p).
        standard_error: of the mean, (m, p).
        deviation: conditional standard deviation, (m, p).
        deviation_error: its standard error, (m, p); where the variance is not clear of 0, the square root of its error.
        negative_variance: which variances were below 0, (m, p).
        negative_mass: sum of negative weights of rows, (m,), as a positive number: 0 for a law.
        names: of the functions.
        inflation: factor by which standard errors of means were lengthened for what learned features owe to chance; 1
            where they were not.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, RelevanceModel, ViewPair
        >>> from boxloop.twoview.conditional import Conditional
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]).double()
        >>> die, coin = FiniteView(torch.arange(3.0).double()), FiniteView(torch.arange(2.0).double())
        >>> model = RelevanceModel.solve(ViewPair(die, coin), ArraySource(rows), most=1)
        >>> found = Conditional(model, ArraySource(rows)).expect(None, torch.tensor([[1.0]]))
        >>> found.quantile(0.25).value.round(6), found.tail(1.0).value.round(6)
        (array([[1.]]), array([[0.5]]))
    """

    mean: Array
    standard_error: Array
    deviation: Array
    deviation_error: Array
    negative_variance: Array
    negative_mass: Array
    names: tuple[str, ...]
    conditional: Conditional = field(repr=False)
    theta: Function | None = field(repr=False)
    given: Side = field(repr=False)
    origin: Tensor = field(repr=False)
    inflation: float = 1.0

    def quantile(self, q: float) -> Estimated:
        r"""Conditional quantile of each function.

        The conditional distribution function F need not rise, so it is put in order (Chernozhukov, Fernandez-Val and
        Galichon 2010), which brings it nearer to the true one: with values in order,

        .. math:: Q(q) = \theta_{(1)} + \sum_n (\theta_{(n+1)} - \theta_{(n)}) \, 1[F(\theta_{(n)}) < q]

        which is the smallest value with :math:`F \ge q` wherever F rises. The error is Woodruff's (1952): half the
        distance of the quantiles at q minus and plus the standard error of F; it is 0 where they fall on one value.

        Exact where values and variables of all rows fit a gigabyte; else F is found at 1024 cut points of each
        function by one more pass, and taken as straight between them (as steps where a function has fewer values).

        Args:
            q: between 0 and 1, both excluded.

        Returns:
            (m, p).
        """
        if np.ndim(q) or not 0.0 < q < 1.0:
            raise ValueError(f"q must be one number between 0 and 1, got {q!r}")
        with torch.no_grad():
            value, error = quantiles(self.conditional, self.theta, self.given, q)
        return Estimated(value.cpu().numpy(), error.cpu().numpy())

    def tail(self, threshold: float | Array) -> Estimated:
        """Probability that each function exceeds a threshold, clamped to [0, 1].

        Args:
            threshold: one number, or one for each function, (p,).

        Returns:
            (m, p).
        """
        edge = torch.as_tensor(threshold, dtype=torch.float64, device=self.conditional.device)
        if edge.dim() > 1 or (edge.dim() == 1 and len(edge) != len(self.names)):
            raise ValueError(
                f"threshold must be a number or {len(self.names)} of them, got {tuple(edge.shape)}"
            )
        if bool(edge.isnan().any()):
            raise ValueError("threshold has a missing value")
        found = self.conditional.expect_at(
            lambda rows: (self.conditional.values(self.theta, rows) > edge).double(), self.given
        )
        return Estimated(found.mean.clip(0.0, 1.0), found.standard_error)

    def covariance(self, rank: int) -> LowRank:
        """Conditional covariance of the functions: its main directions and a diagonal.

        The matrix of signed weights may have negative eigenvalues: they are left out. The diagonal is that of
        ``deviation``; where the directions alone exceed it in a function, they are shrunk there.

        Args:
            rank: directions to keep, at most; those with positive variance.

        Returns:
            Loadings (m, p, rank) and noise (m, p), on the device of the model.
        """
        p = len(self.names)
        if rank != int(rank) or not 1 <= rank <= p:
            raise ValueError(f"rank must be a whole number between 1 and {p}, got {rank}")
        with torch.no_grad():
            values, vectors = directions(self.conditional, self.theta, self.given, rank)
        loadings = vectors * values.clamp(min=0.0).sqrt()[:, None, :]
        variance = torch.from_numpy(self.deviation).to(loadings).square()
        most = loadings.square().sum(-1)
        shrink = torch.where(most > variance, (variance / most.clamp(min=1e-300)).sqrt(), 1.0)
        loadings = loadings * shrink[..., None]
        return LowRank(loadings, (variance - loadings.square().sum(-1)).clamp(min=0.0))

    def ambiguity(self) -> Ambiguity:
        """The main direction of the conditional covariance, and one standard deviation along it both ways.

        Document 003, section 5.1 and Fig. 1. The error of the deviation is that along the direction as found: how the
        direction itself moves is of second order, as for any eigenvalue that stands alone.
        """
        with torch.no_grad():
            values, vectors = directions(self.conditional, self.theta, self.given, 1)
            direction = vectors[..., 0]
            size = direction.abs()
            near = size >= (1.0 - 1e-6) * size.amax(
                1, keepdim=True
            )  # the first of those that rounding cannot order
            largest = direction.gather(1, near.int().argmax(1, keepdim=True))
            direction = direction * torch.where(largest < 0.0, -1.0, 1.0)
            variance = values[:, 0].clamp(min=0.0)
            error = projected_errors(self, direction, variance)
        one = direction.cpu().numpy()
        deviation = variance.sqrt().cpu().numpy()
        step = deviation[:, None] * one
        return Ambiguity(one, deviation, error.cpu().numpy(), self.mean - step, self.mean + step)

    def __str__(self) -> str:
        m, p = self.mean.shape
        share = float(np.mean(self.negative_variance))
        return (
            f"{p} functions given {m} points: standard error of the mean {np.median(self.standard_error):.3g}, "
            f"conditional deviation {np.median(self.deviation):.3g} (medians); {share:.1%} of variances "
            f"negative, taken for 0; negative mass {self.negative_mass.mean():.3g} on average, "
            f"{self.negative_mass.max():.3g} at worst"
        )
