r"""Test functions: g has a value on rows and an expectation under a distribution.

A model is compared with data by its gaps

.. math:: \frac1n \sum_i g(x_i) - E_z \, E[g(x) \mid z];

Beaulac (2023), eq. 7 to 11, and the generalisation to any g that section 9 announces. A test function, such as
``Power(4)``, says which g is meant; prepared for the columns of a table it is a statistic, with directions, thresholds
and units that are fixed before the rows are read, the same for data and model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from boxloop.data import check_choice, column_index
from boxloop.distributions import (
    Bernoulli,
    DiagonalGaussian,
    FullGaussian,
    LogitBernoulli,
    LogPoisson,
    LowRankGaussian,
    PointMasses,
    Poisson,
    SphericalGaussian,
    TiedGaussian,
    TiedLowRankGaussian,
)
from boxloop.numeric import (
    average_covariance,
    count_significant_digits,
    covariance as forms,
    normal,
    projected_variance,
)
from boxloop.tree import Tree
from boxloop.types import Covariance, Distribution

GAUSSIAN = (
    FullGaussian,
    TiedGaussian,
    DiagonalGaussian,
    SphericalGaussian,
    LowRankGaussian,
    TiedLowRankGaussian,
)
BINARY, COUNTS = (Bernoulli, LogitBernoulli), (Poisson, LogPoisson)

MAX_PAIRED_COLUMNS = 4096
"""Most columns of which all pairs are formed."""


HELD_VALUES = 1 << 22
"""Values (distributions x pairs of columns) that are held at once."""


INNER_DRAWS = 1 << 16
"""Rows drawn from a batch of distributions, in all, where an expectation has no closed form."""


@dataclass(frozen=True)
class MomentSums(Tree):
    """Weighted sums over rows of a test function g; missing values are left out entry by entry."""

    count: Tensor  # weight of the rows in which each entry is present
    first: Tensor  # sum of g
    square: Tensor  # sum of g squared
    squared_weight: Tensor  # sum of squared weights of these rows

    @property
    def mean(self) -> Tensor:
        """Weighted mean of g; NaN where no row has it."""
        return torch.where(self.count > 0, self.first / self.count.clamp(min=1e-300), torch.nan)

    @property
    def variance(self) -> Tensor:
        """Variance of g over rows, by the divisor count - 1 for unit weights."""
        rows = self.count.square() / self.squared_weight.clamp(min=1e-300)
        between = (self.square / self.count.clamp(min=1e-300) - self.mean.square()).clamp(min=0.0)
        return torch.where(rows > 1, between * rows / (rows - 1).clamp(min=1e-300), torch.nan)

    @property
    def error(self) -> Tensor:
        """Standard error of the mean, for independent rows with known weights."""
        share = self.squared_weight / self.count.clamp(min=1e-300).square()
        return (self.variance * share).sqrt()


@dataclass(frozen=True)
class NodeSums(Tree):
    r"""Sums over nodes of their weighted :math:`v_j = E[g(x) \mid z_j]`, and how much single nodes contribute."""

    value: Tensor  # sum of w_j v_j
    square: Tensor  # of w_j^2 (v_j - a)^2 about a point a near the mean
    fourth: Tensor  # of w_j^4 (v_j - a)^4

    @staticmethod
    def from_values(values: Tensor, weight: Tensor, about: Tensor | None) -> NodeSums:
        """Of values (m, p), about their own mean where no point is given."""
        value, by = weight @ values, weight.detach().square()
        near = value.detach() / weight.detach().sum() if about is None else about
        apart = (values.detach() - near).square()
        return NodeSums(value, by @ apart, by.square() @ apart.square())


@dataclass(frozen=True)
class ModelStandardisation:
    """Origin and scale of each column under the model: fixed numbers, the same for data and model."""

    names: tuple[str, ...]
    origin: Tensor  # (d,), near the mean of the rows
    scale: Tensor  # (d,), positive, about their standard deviation
    generator: Generator  # for directions and frequencies


@runtime_checkable
class TestFunction(Protocol):
    """A test function, before it knows the columns."""

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """The statistic of these columns."""


@dataclass(frozen=True)
class Statistic(ABC):
    """A test function of the columns of one table, here with a vector of values: it knows names, origin and scale."""

    frame: ModelStandardisation

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in tables."""

    @property
    @abstractmethod
    def moment(self) -> str:
        """What its values are: of which quantity, in which units, about which point."""

    @abstractmethod
    def label_entries(self) -> list[str]:
        """A name for every distinct entry, in the order of ``flatten``."""

    @abstractmethod
    def evaluate(self, rows: Tensor) -> Tensor:
        """The value of every distinct entry at every row, (..., n, d) -> (..., n, p)."""

    def expect(self, distribution: Distribution) -> Tensor | None:
        """Expectation under each of m distributions, (m, p), where it has a closed form."""
        return None

    def to_data_units(self, value: Tensor) -> Tensor:
        """A value in the units of the data: about zero where it is held about the origin to keep its digits."""
        return value

    def flatten(self, value: Tensor) -> Tensor:
        """The distinct entries of a value, (..., p)."""
        return value

    def entry_multiplicity(self) -> Tensor:
        """How often each distinct entry occurs in a value, (p,)."""
        return torch.ones(len(self.label_entries()), dtype=torch.float64, device=self.frame.origin.device)

    def sum_rows(self, rows: Tensor, weight: Tensor) -> MomentSums:
        """Sums over rows (n, d) with weights (n,) or B sets of weights (B, n); or over B sets of rows (B, n, d)."""
        values = self.evaluate(rows)
        weight = weight[..., : values.shape[-2]]  # of lagged values there are fewer

        def weighted_sum(part: Tensor, by: Tensor) -> Tensor:
            return by @ part if part.dim() == 2 else (by[..., None, :] @ part)[..., 0, :]

        seen = ~torch.isnan(values)
        known = torch.nan_to_num(values, nan=0.0)
        if bool(seen.all()):
            one = torch.ones_like(values[..., 0, :])
            count, squared = one * weight.sum(-1, keepdim=True), one * weight.square().sum(-1, keepdim=True)
        else:
            present = seen.to(values.dtype)
            count, squared = weighted_sum(present, weight), weighted_sum(present, weight.square())
        first, square = weighted_sum(known, weight), weighted_sum(known.square(), weight)
        return MomentSums(count, first, square, squared)

    def expect_exactly(self, distribution: Distribution) -> Tensor | None:
        """The expectation under each of m distributions, (m, p), in closed form or of single rows."""
        single = isinstance(distribution, PointMasses)
        exact = self.evaluate(distribution.mean) if single else self.expect(distribution)
        return None if exact is None else exact.double()

    def forward_moment(self, distribution: Distribution, weight: Tensor) -> Tensor | None:
        """Weighted sum over m distributions of E[g(x)], differentiable in them; None where it has no closed form."""
        exact = self.expect_exactly(distribution)
        return None if exact is None else weight @ exact

    def sum_nodes(
        self, distribution: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        """The same for all distributions, with the sums that give its error; about a point, or their own mean."""
        expected = self.expect_exactly(distribution)
        if expected is None:
            draws = distribution.draw(max(1, INNER_DRAWS // len(distribution.mean)), generator)
            values = self.evaluate(draws.reshape(-1, draws.shape[-1]))
            expected = values.reshape(len(draws), -1, values.shape[-1]).mean(1).double()
        return NodeSums.from_values(expected, weight, about)

    def standardise(self, rows: Tensor) -> Tensor:
        """Rows about the origin, in units of the scale."""
        return (rows - self.frame.origin) / self.frame.scale


def draw_point_masses(
    distribution: Distribution, weight: Tensor, n: int, generator: Generator
) -> tuple[PointMasses, Tensor]:
    """N rows drawn from each of a batch of distributions, with their weights."""
    rows = distribution.draw(n, generator)
    return PointMasses(rows.flatten(0, 1)), (weight / n).repeat_interleave(n)


@dataclass(frozen=True)
class First:
    r"""Column means (1MEGA; Beaulac 2023, eq. 11).

    .. math:: g(x) = x

    Example:
        >>> First()
        First()
    """

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """The statistic of these columns."""
        return FirstStatistic(frame)


@dataclass(frozen=True)
class FirstStatistic(Statistic):
    """Column means."""

    name: ClassVar[str] = "first"
    moment: ClassVar[str] = "mean"

    def to_data_units(self, value: Tensor) -> Tensor:
        return value + self.frame.origin

    def label_entries(self) -> list[str]:
        return list(self.frame.names)

    def evaluate(self, rows: Tensor) -> Tensor:
        """About the origin: the gap is the same and keeps its digits."""
        return rows - self.frame.origin

    def expect(self, distribution: Distribution) -> Tensor:
        return distribution.mean - self.frame.origin


@dataclass(frozen=True)
class Second:
    r"""All products of two columns (2MEGA; Beaulac 2023, eq. 10), as matrix products.

    .. math:: g(x) = (x - o)(x - o)^\top

    Args:
        about: o: ``mean`` takes products about the model's mean, so that they are variances and covariances; ``zero``
            is the paper's.

    Example:
        >>> Second(about="zero")
        Second(about='zero')
    """

    about: Literal["mean", "zero"] = "mean"

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """Products about the model's mean, or about zero."""
        if len(frame.names) > MAX_PAIRED_COLUMNS:
            raise ValueError(
                f"Second() supports at most {MAX_PAIRED_COLUMNS} columns; X has {len(frame.names)}: use Power(2, "
                "columns=True, projections=...) for variances of columns and of random directions, or second_gap_norm "
                "for the norm"
            )
        check_choice(self.about, "about", ("mean", "zero"))
        return SecondStatistic(frame, self.about == "mean")


@dataclass(frozen=True)
class SecondStatistic(Statistic):
    """All products of two columns, as matrix products, with values about the origin, :math:`y = x - o`.

    Those about zero are :math:`x_i x_j - o_i o_j = y_i y_j + o_i y_j + y_i o_j`, which keeps the digits of gaps and of
    their errors where the origin is far from zero.
    """

    name: ClassVar[str] = "second"

    centred: bool

    @property
    def moment(self) -> str:
        return "covariance about the model's mean" if self.centred else "mean product"

    def to_data_units(self, value: Tensor) -> Tensor:
        """With the product of the origins added back to mean products."""
        origin = self.frame.origin
        return value if self.centred else value + origin[:, None] * origin

    def label_entries(self) -> list[str]:
        """Pairs of column names, first column first."""
        names = self.frame.names
        pairs = torch.triu_indices(len(names), len(names)).mT.tolist()
        return [f"{names[i]} x {names[j]}" for i, j in pairs]

    def flatten(self, value: Tensor) -> Tensor:
        i, j = torch.triu_indices(*value.shape[-2:], device=value.device)
        return value[..., i, j]

    def entry_multiplicity(self) -> Tensor:
        """1 on the diagonal, 2 off it."""
        return self.flatten(2.0 - torch.diag(torch.ones_like(self.frame.origin)))

    def evaluate(self, rows: Tensor) -> Tensor:
        """Every product of every row, (n, p)."""
        origin = self.frame.origin
        y = rows - origin
        i, j = torch.triu_indices(len(origin), len(origin), device=y.device)
        product = y[:, i] * y[:, j]
        return product if self.centred else product + origin[i] * y[:, j] + y[:, i] * origin[j]

    def sum_rows(self, rows: Tensor, weight: Tensor) -> MomentSums:
        """Matrix products; a missing value leaves out its own pairs only."""
        y = rows - self.frame.origin
        if not bool(torch.isnan(y.sum())):
            seen = torch.ones_like(y)
            one = torch.ones_like(y[..., 0, :, None] * y[..., 0, None, :])
            count = one * weight.sum(-1)[..., None, None]
            squared_weight = one * weight.square().sum(-1)[..., None, None]
        else:
            seen = (~torch.isnan(y)).to(y.dtype)
            y = torch.nan_to_num(y, nan=0.0)
            count = _sum_weighted_products(seen, weight, seen)
            squared_weight = _sum_weighted_products(seen, weight.square(), seen)
        square = y.square()
        product, fourth = _sum_weighted_products(y, weight, y), _sum_weighted_products(square, weight, square)
        if self.centred:
            return MomentSums(count, product, fourth, squared_weight)
        at, by = self.frame.origin, self.frame.origin[:, None]
        alone = _sum_weighted_products(y, weight, seen) * at
        squares = _sum_weighted_products(square, weight, seen) * at.square()
        cubes = _sum_weighted_products(square, weight, y) * at
        cross = 2.0 * (by * at) * product
        fourth = fourth + squares + squares.mT + 2.0 * (cubes + cubes.mT) + cross
        return MomentSums(count, product + alone + alone.mT, fourth, squared_weight)

    def forward_moment(self, distribution: Distribution, weight: Tensor) -> Tensor:
        """Mean covariance plus mean product of means (Beaulac 2023, eq. 8, with outer products)."""
        mean = distribution.mean - self.frame.origin
        about = average_covariance(distribution.covariance(), weight.to(distribution.mean.dtype))
        about = about + (mean * weight[:, None]).mT @ mean
        return about if self.centred else about + self._origin_cross_products(weight.to(mean) @ mean)

    def _origin_cross_products(self, mean: Tensor) -> Tensor:
        """What means about the origin (..., d) add to products about zero, minus the product of the origins."""
        alone = mean[..., :, None] * self.frame.origin.to(mean)
        return alone + alone.mT

    def sum_nodes(
        self, distribution: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        value = self.forward_moment(distribution, weight)
        near = value.detach() / weight.detach().sum() if about is None else about
        with torch.no_grad():
            mean, by = distribution.mean - self.frame.origin, weight.square()
            covariance = distribution.covariance()
            if self.centred and isinstance(covariance, forms.Diagonal):
                return NodeSums(value, *_sum_independent_products(mean, covariance.variance, by, near))
            square, fourth = torch.zeros_like(value), torch.zeros_like(value)
            step = max(1, HELD_VALUES // value.numel())
            for start in range(0, len(mean), step):
                part = slice(start, start + step)
                products = mean[part, :, None] * mean[part, None, :]
                if not self.centred:
                    products = products + self._origin_cross_products(mean[part])
                apart = (_dense_covariances(covariance, part) + products - near).square()
                square += torch.einsum("m,mij->ij", by[part], apart)
                fourth += torch.einsum("m,mij->ij", by[part].square(), apart.square())
        return NodeSums(value, square, fourth)


def _sum_weighted_products(left: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """Weighted sums over rows of products of a value of the left and one of the right."""
    return (left * weight[..., None]).mT @ right


def _dense_covariances(covariance: Covariance, part: slice) -> Tensor:
    """The covariances of a slice of a batch, dense."""
    if isinstance(covariance, forms.Shared):
        return covariance.one.dense()
    if isinstance(covariance, forms.Diagonal | forms.LowRank | forms.Dense):
        return covariance.map(lambda leaf: leaf[part]).dense()
    return covariance.dense()[part]


def _sum_independent_products(
    mean: Tensor, variance: Tensor, by: Tensor, near: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums for independent columns, whose pairs are products of means, as matrix products."""

    def sum_powers(order: int, weight: Tensor) -> Tensor:
        raised = mean**order
        return (raised * weight[:, None]).mT @ raised

    quad = by.square()
    square = sum_powers(2, by) - 2.0 * near * sum_powers(1, by) + near.square() * by.sum()
    fourth = (
        sum_powers(4, quad) - 4.0 * near * sum_powers(3, quad) + 6.0 * near.square() * sum_powers(2, quad)
    )
    fourth += near**4 * quad.sum() - 4.0 * near**3 * sum_powers(1, quad)
    own = (mean.square() + variance - near.diagonal()).square()
    square.diagonal().copy_(by @ own)
    fourth.diagonal().copy_(quad @ own.square())
    return square.clamp(min=0.0), fourth.clamp(min=0.0)


@dataclass(frozen=True)
class Power:
    r"""A power of columns, of pairs of columns or of random projections, in units of the model's standard deviation.

    .. math:: g(x) = \left( a^\top \frac{x - \mu}{\sigma} \right)^r

    Args:
        order: r; 3 detects skewness, 4 heavy tails.
        pairs: for these pairs of columns, by name or index, the power of their sum and of their difference.
        projections: number of random directions a.
        columns: whether to take each column by itself; None only where neither pairs nor projections are given.

    Example:
        >>> Power(4, pairs=[("height", "weight")])
        Power(order=4, pairs=[('height', 'weight')], projections=0, columns=None)
    """

    order: int
    pairs: Sequence[tuple[str | int, str | int]] = ()
    projections: int = 0
    columns: bool | None = None

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """Powers along axes, diagonals of pairs and random directions."""
        if self.order < 1:
            raise ValueError(f"order must be at least 1, got {self.order}")
        if self.projections < 0:
            raise ValueError(f"projections must be at least 0, got {self.projections}")
        d = len(frame.names)
        eye = torch.eye(d, dtype=frame.origin.dtype, device=frame.origin.device)
        parts: list[Tensor] = []
        names: list[str] = []
        if self.columns or (self.columns is None and not self.pairs and not self.projections):
            parts.append(eye)
            names += frame.names
        for pair in self.pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(f"pairs must be pairs of columns, as [('height', 'weight')], got {pair!r}")
            i, j = (column_index(frame.names, key) for key in pair)
            parts.append(torch.stack([eye[i] + eye[j], eye[i] - eye[j]]) / math.sqrt(2.0))
            names += [f"{frame.names[i]} {sign} {frame.names[j]}" for sign in "+-"]
        if self.projections:
            drawn = normal((self.projections, d), frame.generator).to(eye)
            parts.append(drawn / drawn.norm(dim=1, keepdim=True))
            names += [f"direction {i}" for i in range(self.projections)]
        return PowerStatistic(frame, self.order, torch.cat(parts), tuple(names))


@dataclass(frozen=True)
class PowerStatistic(Statistic):
    """Powers of projections of standardised rows; columns are projections on axes."""

    order: int
    directions: Tensor
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return {3: "third", 4: "fourth"}.get(self.order, f"power {self.order}")

    @property
    def moment(self) -> str:
        return f"mean of ((x - model mean) / model sd)^{self.order}"

    def label_entries(self) -> list[str]:
        return list(self.names)

    def evaluate(self, rows: Tensor) -> Tensor:
        y = self.standardise(rows)
        known = (torch.nan_to_num(y, nan=0.0) @ self.directions.mT) ** self.order
        lost = torch.isnan(y).to(y.dtype) @ (self.directions != 0).to(y.dtype).mT
        return torch.where(lost > 0, torch.nan, known)

    def expect(self, distribution: Distribution) -> Tensor | None:
        """Moments of a normal variable, or of the counts of single columns."""
        if isinstance(distribution, GAUSSIAN):
            mean, variance = _project_distribution(distribution, self.frame, self.directions)
            return moment_of_normal(mean, variance, self.order)
        if bool(((self.directions != 0).sum(1) > 1).any()):
            return None
        found = moment_of_counts(distribution, self.frame.origin, self.order)
        if found is None:
            return None
        return (found / self.frame.scale**self.order) @ (self.directions**self.order).mT


@dataclass(frozen=True)
class Fourier:
    r"""Random Fourier features :math:`\cos(a^\top y + b)` of standardised rows: bounded, and sensitive to any
    deviation.

    Rahimi and Recht (2007): a is normal with standard deviation 1 / width, b uniform.

    Args:
        count: how many.
        width: of the Gaussian kernel they come from, in units of the model's standard deviation; sqrt(d) when None.

    Example:
        >>> Fourier(20)
        Fourier(count=20, width=None)
    """

    count: int = 50
    width: float | None = None

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """The statistic of these columns."""
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        d = len(frame.names)
        width = math.sqrt(d) if self.width is None else self.width
        if not width > 0:
            raise ValueError(f"width must be positive, got {width}")
        stream = frame.generator
        frequencies = normal((self.count, d), stream).to(frame.origin) / width
        uniform = torch.rand(self.count, generator=stream, device=stream.device, dtype=torch.float64)
        return FourierStatistic(frame, frequencies, (2 * math.pi * uniform).to(frame.origin))


@dataclass(frozen=True)
class FourierStatistic(Statistic):
    """Cosines of random projections."""

    name: ClassVar[str] = "fourier"
    moment: ClassVar[str] = "mean of a cosine of standardised columns"

    frequencies: Tensor
    phase: Tensor

    def label_entries(self) -> list[str]:
        return [f"wave {i}" for i in range(len(self.phase))]

    def evaluate(self, rows: Tensor) -> Tensor:
        return torch.cos(self.standardise(rows) @ self.frequencies.mT + self.phase)

    def expect(self, distribution: Distribution) -> Tensor | None:
        """Real part of the characteristic function, turned by the phase."""
        if not isinstance(distribution, GAUSSIAN):
            return None
        mean, variance = _project_distribution(distribution, self.frame, self.frequencies)
        return torch.cos(mean + self.phase) * torch.exp(-0.5 * variance)


def _project_distribution(
    distribution: Distribution, frame: ModelStandardisation, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of projections of standardised rows under each of m distributions, both (m, p)."""
    mean = ((distribution.mean - frame.origin) / frame.scale) @ directions.mT
    return mean, projected_variance(distribution.covariance(), directions / frame.scale)


@dataclass(frozen=True)
class Below:
    r"""Whether a column is at most a threshold: gaps between distribution functions.

    .. math:: g(x) = 1_{x_j \le t}

    To test quantiles, give those of rows other than X as thresholds: a model with the same quantiles has the same share
    of rows below each.

    Args:
        levels: thresholds are where a normal distribution with the model's mean and variance has these probabilities.
        thresholds: values by column name or index, in the units of the data, instead of ``levels``; other columns are
            left out.

    Example:
        >>> Below((0.05, 0.95))
        Below(levels=(0.05, 0.95), thresholds=None)
        >>> Below(thresholds={"height": [150, 180]}).thresholds
        {'height': [150, 180]}
    """

    levels: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)
    thresholds: Mapping[str | int, Sequence[float]] | None = None

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """Thresholds of every column, or of the columns in ``thresholds``."""
        if self.thresholds is not None:
            return self._prepare_thresholds(frame, self.thresholds)
        if not all(isinstance(level, Real) for level in self.levels):
            raise TypeError(f"levels must be numbers between 0 and 1, got {self.levels!r}")
        if not self.levels or not all(0.0 < level < 1.0 for level in self.levels):
            raise ValueError(f"levels must lie between 0 and 1, got {tuple(self.levels)}")
        at = torch.special.ndtri(torch.tensor(list(self.levels), dtype=torch.float64)).to(frame.origin)
        places = torch.arange(len(frame.names), device=at.device).repeat_interleave(len(at))
        return BelowStatistic(frame, places, (frame.origin[:, None] + frame.scale[:, None] * at).flatten())

    def _prepare_thresholds(
        self, frame: ModelStandardisation, thresholds: Mapping[str | int, Sequence[float]]
    ) -> Statistic:
        if not isinstance(thresholds, Mapping):
            raise TypeError(
                f"thresholds must map columns to values, as {{'height': [150, 180]}}, got {type(thresholds).__name__}"
            )
        names, origin = frame.names, frame.origin
        pairs = [(column_index(names, key), float(at)) for key, values in thresholds.items() for at in values]
        if not pairs or not all(math.isfinite(at) for _, at in pairs):
            raise ValueError(f"thresholds must be finite numbers, at least one, got {dict(thresholds)}")
        places, values = zip(*pairs, strict=True)
        at = torch.tensor(values, dtype=torch.float64).to(origin)
        return BelowStatistic(frame, torch.tensor(places, device=origin.device), at)


@dataclass(frozen=True)
class BelowStatistic(Statistic):
    """Whether columns are at most thresholds: entry p is about column ``places[p]``."""

    name: ClassVar[str] = "below"
    moment: ClassVar[str] = "share of rows"

    places: Tensor
    thresholds: Tensor

    def label_entries(self) -> list[str]:
        """Column and threshold, with digits for the column's standard deviation."""
        scale = self.frame.scale.tolist()
        pairs = zip(self.places.tolist(), self.thresholds.tolist(), strict=True)
        return [f"{self.frame.names[j]} <= {t:.{count_significant_digits(t, scale[j])}g}" for j, t in pairs]

    def evaluate(self, rows: Tensor) -> Tensor:
        """0 or 1, NaN where the column is missing."""
        chosen = rows[..., self.places]
        return torch.where(torch.isnan(chosen), torch.nan, (chosen <= self.thresholds).to(rows.dtype))

    def expect(self, distribution: Distribution) -> Tensor | None:
        """Normal distribution functions, or those of counts."""
        if not isinstance(distribution, GAUSSIAN):
            return cdf_of_counts(distribution, self.places, self.thresholds)
        deviation = distribution.covariance().diagonal().sqrt()[:, self.places]
        return torch.special.ndtr((self.thresholds - distribution.mean[:, self.places]) / deviation)


@dataclass(frozen=True)
class Lagged:
    r"""Products of a column with itself ``lag`` rows before: for rows that are a sequence.

    .. math:: g(x)_i = x_i \, x_{i - l}

    The model has independent rows, so its side is the squared mean. Pairs across two tiles of a large source are left
    out.

    Example:
        >>> Lagged(1)
        Lagged(lag=1)
    """

    lag: int = 1

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """The statistic of these columns."""
        if self.lag < 1:
            raise ValueError(f"lag must be at least 1, got {self.lag}")
        return LaggedStatistic(frame, self.lag)


@dataclass(frozen=True)
class LaggedStatistic(Statistic):
    """Products of standardised values that are ``lag`` rows apart, within a tile, for models of independent rows."""

    lag: int

    @property
    def name(self) -> str:
        return f"lag {self.lag}"

    @property
    def moment(self) -> str:
        return f"mean product of standardised values {self.lag} rows apart"

    def label_entries(self) -> list[str]:
        return list(self.frame.names)

    def evaluate(self, rows: Tensor) -> Tensor:
        y = self.standardise(rows)
        return y[..., self.lag :, :] * y[..., : -self.lag, :]

    def forward_moment(self, distribution: Distribution, weight: Tensor) -> Tensor:
        return (weight @ self.standardise(distribution.mean)).square()

    def sum_nodes(
        self, distribution: Distribution, weight: Tensor, generator: Generator, about: Tensor | None
    ) -> NodeSums:
        """To first order in the mean row."""
        rows = self.standardise(distribution.mean)
        mean = weight.detach() @ rows.detach() / weight.detach().sum()
        sums = NodeSums.from_values(2.0 * mean * (rows - mean), weight, None)
        return NodeSums(self.forward_moment(distribution, weight), sums.square, sums.fourth)


@dataclass(frozen=True)
class Custom:
    """Any function of rows.

    Args:
        function: rows (n, d) -> (n,) or (n, p), a tensor.
        expectation: a batch of m distributions -> (m,) or (m, p), its expectation under each; when omitted, the mean
            over rows drawn from each distribution.
        name: in tables.

    Example:
        >>> Custom(lambda rows: rows.amax(1), name="largest").name
        'largest'
    """

    function: Callable[[Tensor], Tensor]
    expectation: Callable[[Distribution], Tensor] | None = None
    name: str = "custom"

    def prepare(self, frame: ModelStandardisation) -> Statistic:
        """The function, tried on one row to learn its size."""
        value = self.function(frame.origin[None])
        if not isinstance(value, Tensor) or len(value.reshape(-1)) < 1:
            raise TypeError(
                f"the function of Custom must give a tensor (n,) or (n, p) for rows (n, d), got {type(value).__name__}"
            )
        return CustomStatistic(frame, self.function, self.expectation, self.name, value.numel())


@dataclass(frozen=True)
class CustomStatistic(Statistic):
    """A user's function."""

    function: Callable[[Tensor], Tensor]
    expectation: Callable[[Distribution], Tensor] | None
    title: str
    size: int

    @property
    def name(self) -> str:
        return self.title

    @property
    def moment(self) -> str:
        return f"mean of {self.title}"

    def label_entries(self) -> list[str]:
        """Its name, numbered if it has several values."""
        return [self.title] if self.size == 1 else [f"{self.title} {i}" for i in range(self.size)]

    def evaluate(self, rows: Tensor) -> Tensor:
        return self.function(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:-1], -1)

    def expect(self, distribution: Distribution) -> Tensor | None:
        if self.expectation is None:
            return None
        found = self.expectation(distribution)
        if not isinstance(found, Tensor) or len(found) != len(distribution.mean):
            raise TypeError(
                f"expectation of {self.title} must give a tensor (m,) or (m, p) for m distributions"
            )
        return found.reshape(len(distribution.mean), -1)


def moment_of_normal(mean: Tensor, variance: Tensor, order: int) -> Tensor:
    """E[y^order] of normal variables, by E[y^r] = mean E[y^(r-1)] + (r - 1) variance E[y^(r-2)]."""
    previous, current = torch.ones_like(mean), mean
    for r in range(2, order + 1):
        previous, current = current, mean * current + (r - 1) * variance * previous
    return current


def moment_of_counts(distribution: Distribution, origin: Tensor, order: int) -> Tensor | None:
    r"""E[(x - origin)^order] of every column of independent counts, (m, d); None for other distributions.

    Poisson moments about zero are Touchard's polynomials, :math:`T_{r+1} = \lambda \sum_k \binom{r}{k} T_k`.
    """
    if isinstance(distribution, BINARY):
        return (1.0 - distribution.mean) * (-origin) ** order + distribution.mean * (1.0 - origin) ** order
    if not isinstance(distribution, COUNTS):
        return None
    raw = [torch.ones_like(distribution.mean)]
    for r in range(order):
        raw.append(distribution.mean * torch.stack([math.comb(r, k) * raw[k] for k in range(r + 1)]).sum(0))
    parts = [math.comb(order, r) * raw[r] * (-origin) ** (order - r) for r in range(order + 1)]
    return torch.stack(parts).sum(0)


def cdf_of_counts(distribution: Distribution, places: Tensor, thresholds: Tensor) -> Tensor | None:
    """P(x <= threshold) of these columns of independent counts, (m, p); None for other distributions."""
    at, mean = thresholds.floor(), distribution.mean[:, places]
    if isinstance(distribution, BINARY):
        return torch.where(at < 0.0, 0.0, torch.where(at < 1.0, 1.0 - mean, 1.0))
    if not isinstance(distribution, COUNTS):
        return None
    upper = torch.special.gammaincc((at + 1.0).clamp(min=1.0).expand_as(mean), mean)
    return torch.where(at < 0.0, 0.0, upper)
