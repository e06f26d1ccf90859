r"""The distribution of one view given the other, as signed weights of the rows of the fit, and expectations under it.

.. math:: p(x \mid y) \to \sum_n w_n(y) \, \delta_{x_n}, \qquad
    w_n(y) = \frac{w_n}{W} \left( 1 + \sum_{i=1}^{r} \eta_i v_i(y) u_i(x_n) \right)

Learning relevant features for statistical inference, eq. 10 with the constant apart: the weights add up to 1, and some
may be negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import (
    FIRST_ROWS,
    ConcatenatedRows,
    RowSampler,
    SumAndRows,
    check_kind,
    check_table,
    to_vector,
)
from boxloop.numeric import LowRank, SingleThreaded, generator, normal, product, single_threaded
from boxloop.tree import Tree
from boxloop.twoview.canonical import RelevanceModel
from boxloop.twoview.influence import (
    MOST_VALUES,
    InfluenceSums,
    PairedInfluenceSums,
    VariableBasis,
    VariableCoefficients,
    VariableTile,
    estimate_deviation_error,
)
from boxloop.types import Source

Array = NDArray[Any]
Function = Callable[[Tensor], Tensor]
"""A function of rows (n, d) with p values each, (n, p) or (n,)."""

Cumulate = Callable[[int], tuple[Tensor, Tensor, bool]]
"""Of function j: increasing values (g,), sums of variables up to each (g, r + 1), and whether F is linear between."""

ROUNDING = 1e-13
"""Part of a column's variance below which a conditional variance is rounding error."""

PAIRS = 4096
"""Pairs of a point and a function whose errors are computed in one pass."""

DENSE = 400
"""Largest number of functions whose covariance is formed as a matrix."""

OVERSAMPLING = 8
"""Directions beside those wanted that a Krylov search carries along."""

KRYLOV_BLOCKS, RESTARTS, RESIDUAL = 6, 8, 1e-8
"""Blocks of a Krylov space, restarts, and the residual relative to the largest eigenvalue at which the search ends."""

HELD_VALUES = 1 << 27
"""Largest number of values and variables of all rows to hold in memory; beyond it cut points are used."""

CUTS = 1024
"""Cut points of a function whose values are not held."""

CUT_ROWS = 1 << 14
"""Rows among whose values cut points are chosen."""

LEVEL_ROUNDING = 1e-12
"""Rounding error of a distribution function."""


@dataclass(frozen=True)
class FunctionMoments(Tree):
    """What eq. 10 needs of a function: means of the variables times it, less its origin, and times its square."""

    origin: Tensor  # o, (p,), near the mean, so that squares lose no digits
    coefficients: VariableCoefficients  # b of the p functions, then of their squares


@dataclass(frozen=True)
class ConditionalDistribution(SingleThreaded):
    r"""Expectations over the first view given the second, for any function, without another fit.

    .. math:: E[\theta \mid y] \approx \sum_{i=0}^{r} \eta_i \, \overline{u_i \theta} \, v_i(y)

    Learning relevant features for statistical inference, eq. 9 and 10. For the other direction give
    ``model.swap_views()`` and rows with their columns exchanged.

    Standard errors are those of K, L, A and the means of :math:`u_i \theta`, by the delta method for given features
    (:mod:`boxloop.twoview.influence`): how far a result is from what infinitely many rows would give with the same
    features and number of variables. They do not contain what features learned from the same rows owe to chance; the
    distance of that limit from the true conditional distribution, which grows as variables are omitted (in the tests,
    with 2000 rows, the mean of a cosine is over 20 errors off with 1 of 6 variables and within 3 with 3); and terms of
    second order, which matter where features are many relative to rows, where the last variable kept and the first
    omitted are about equally relevant, or where a ridge is relative to estimated variances.

    Args:
        model: canonical variables.
        source: the rows of the fit, both views, with their weights.
        ridge: with which the variables were solved.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, ViewPair
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).double()
        >>> coin = FiniteView(torch.tensor([0.0, 1.0]).double())
        >>> source = ArraySource(rows)
        >>> model = RelevanceModel.solve(ViewPair(coin, coin), source, most=1)
        >>> found = ConditionalDistribution(model, source).expect(None, torch.tensor([[0.0], [1.0]]))
        >>> found.mean[:, 0].round(6), found.deviation[:, 0].round(6)
        (array([0.5, 1. ]), array([0.5, 0. ]))
    """

    model: RelevanceModel
    source: Source
    ridge: float = 0.0

    @cached_property
    def basis(self) -> VariableBasis:
        """Every variable of the features, by one pass over the rows."""
        columns = self.model.pair.left.n_columns + self.model.pair.right.n_columns
        if self.source.n_columns != columns:
            raise ValueError(f"rows have {self.source.n_columns} columns, and both views together {columns}")
        return VariableBasis.solve(self.model, self.source, self.ridge)

    @cached_property
    def first_rows(self) -> Tensor:
        """Some rows of the first view, in the precision of the source and on the device of the model."""
        rows = next(iter(self.source.chunks(FIRST_ROWS)))[0]
        return self.model.pair.split_rows(rows.to(self.device))[0]

    @property
    def device(self) -> torch.device:
        """Where everything is computed."""
        return self.model.canonical.correlation.device

    def check_rows(self, rows: Any, columns: int, name: str) -> Tensor:
        """Rows of one view as the features take them: finite, real, and of so many columns."""
        if not isinstance(rows, Tensor):
            check_table(rows, name)
            rows = torch.from_numpy(to_vector(rows, name))
        elif rows.is_complex():
            raise ValueError(f"{name} must hold real numbers, not complex ones")
        rows = rows.to(device=self.device, dtype=self.first_rows.dtype)
        if rows.dim() != 2 or rows.shape[1] != columns or len(rows) == 0:
            raise ValueError(f"{name} must be rows of {columns} columns, got shape {tuple(rows.shape)}")
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(f"{name} has missing or infinite values; features need every column")
        return rows

    def condition_on(self, rows: Any) -> VariableCoefficients:
        """v of the points to condition on: (m, d_y) -> m coefficients."""
        with torch.no_grad():
            points = self.check_rows(rows, self.model.pair.right.n_columns, "given")
            return VariableCoefficients(*self.basis.compute_variables("right", points))

    def evaluate(self, theta: Function | None, rows: Tensor) -> Tensor:
        """The function at rows of the first view, (n, p) in float64."""
        output: Any = rows if theta is None else theta(rows)
        if not isinstance(output, Tensor):
            array = np.array(output)
            if array.dtype.kind not in "biuf":
                raise ValueError(
                    f"theta must give numbers, a tensor or an array; it gave {type(output).__name__}"
                )
            output = torch.from_numpy(array)
        value: Tensor = output.to(rows.device)
        if value.dim() == 1:
            value = value[:, None]
        if value.dim() != 2 or len(value) != len(rows) or value.shape[1] == 0:
            raise ValueError(
                f"theta must give (n, p) or (n,) for n rows; for {len(rows)} it gave {tuple(value.shape)}"
            )
        if value.is_complex():
            raise ValueError("theta gave complex numbers: give real and imaginary parts as two columns")
        value = value.double()
        if not bool(torch.isfinite(value).all()):
            raise ValueError("theta gave a missing or infinite value")
        return value

    def to_variables(self, rows: Tensor, weight: Tensor, value: Function) -> VariableTile:
        """Rows of both views as variables, with values of functions of the first."""
        x, y = self.model.pair.split_rows(rows.to(self.device))
        basis, share = self.basis, weight.to(self.device).double() / self.basis.total
        return VariableTile(
            basis,
            share,
            *basis.compute_variables("left", x),
            *basis.compute_variables("right", y),
            value(x),
        )

    def function_moments(self, theta: Function | None) -> FunctionMoments:
        """What eq. 10 needs of a function, in one pass; serves any number of points."""
        with torch.no_grad():
            origin = self.evaluate(theta, self.first_rows).mean(0)
            return FunctionMoments(
                origin, self.average_products(partial(self._evaluate_with_square, theta, origin))
            )

    def average_products(self, value: Function) -> VariableCoefficients:
        """Means of variables times values, by a pass over the rows."""

        def sum_products(rows: Tensor, weight: Tensor) -> VariableCoefficients:
            tile = self.to_variables(rows, weight, value)
            weighted = (tile.value * tile.share[:, None]).mT
            return VariableCoefficients(product(weighted, tile.u), product(weighted, tile.u_omitted))

        with torch.no_grad():
            return self.source.reduce(sum_products)

    def _evaluate_with_square(self, theta: Function | None, origin: Tensor, rows: Tensor) -> Tensor:
        """The function less its origin, then the square of that, (n, 2 p)."""
        value = self.evaluate(theta, rows) - origin
        return torch.cat([value, value.square()], 1)

    def mean(self, theta: Function | None, given: Any, moments: FunctionMoments | None = None) -> Array:
        """Conditional means alone, (m, p): one pass over the rows, or none where :meth:`function_moments` are known."""
        known = moments or self.function_moments(theta)
        weight = self.condition_on(given).kept * self.basis.correlations
        return (known.origin + product(weight, known.coefficients.kept[: len(known.origin)].mT)).cpu().numpy()

    def expect(self, theta: Function | None, given: Any) -> Expectation:
        """Conditional mean and standard deviation of a function, with standard errors: two passes over the rows.

        Args:
            theta: rows (n, d_x) -> (n, p) or (n,); None for the columns themselves.
            given: rows of the second view, (m, d_y).

        Returns:
            The expectation, from which quantiles, tails and covariances follow later.
        """
        return self.expect_at_points(theta, self.condition_on(given))

    def expect_at_points(self, theta: Function | None, a: VariableCoefficients) -> Expectation:
        """The same at points whose variables are known."""
        with torch.no_grad():
            moments = self.function_moments(theta)
            p, b = len(moments.origin), moments.coefficients
            value, ridged = partial(self._evaluate_with_square, theta, moments.origin), self.ridge > 0.0
            sums = self.source.reduce(
                lambda rows, weight: InfluenceSums.from_tile(
                    self.to_variables(rows, weight, value), a, b, ridged
                )
            )
            both = product(a.kept * self.basis.correlations, b.kept.mT)
            first, second = both[:, :p], both[:, p:]
            of_mean, of_variance = sums.estimate_variances(first)
            variance = second - first.square()
            tiny = ROUNDING * b.kept[p:, 0] + (1e-14 * moments.origin).square()
            positive = torch.where(variance.abs() > tiny, variance, 0.0).clamp(min=0.0)
        names = (f"theta{j}" for j in range(p)) if theta is not None else self.source.names[:p]
        return Expectation(
            mean=(first + moments.origin).cpu().numpy(),
            standard_error=of_mean.sqrt().cpu().numpy(),
            deviation=positive.sqrt().cpu().numpy(),
            deviation_error=estimate_deviation_error(positive, of_variance.sqrt()).cpu().numpy(),
            negative_variance=(variance < -tiny).cpu().numpy(),
            negative_mass=sums.negative.cpu().numpy(),
            names=tuple(names),
            conditional=self,
            theta=theta,
            given=a,
            origin=moments.origin,
        )

    def estimate_paired_errors(
        self, a: VariableCoefficients, value: Function, b: VariableCoefficients | None = None
    ) -> Tensor:
        """Standard errors of the expectation of function i given point i, (m,): two passes, one where b is known."""
        known = self.average_products(value) if b is None else b
        return self.source.reduce(
            lambda rows, weight: PairedInfluenceSums.from_tile(
                self.to_variables(rows, weight, value), a, known
            )
        ).compute_standard_errors()


@dataclass(frozen=True)
class EstimatedValues:
    """Numbers with their standard errors."""

    value: Array
    standard_error: Array


@dataclass(frozen=True)
class Ambiguity:
    """The direction in which a conditional distribution varies most.

    Args:
        direction: unit vectors, (m, p), largest entry positive.
        deviation: standard deviation along it, (m,); 0 where no direction has a positive variance.
        deviation_error: its standard error, (m,).
        low: mean less one standard deviation, (m, p).
        high: mean plus one standard deviation, (m, p).
    """

    direction: Array
    deviation: Array
    deviation_error: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Expectation(SingleThreaded):
    r"""Means and standard deviations of p functions given m points, each with a standard error.

    A conditional distribution of signed weights may give a negative variance: it is reported and replaced by 0. What
    the errors contain: :class:`ConditionalDistribution`. They shrink with the square root of the number of rows; a
    weight of 2 moves the mean as two equal rows would, but is one observation.

    Args:
        mean: (m, p).
        standard_error: of the mean, (m, p).
        deviation: conditional standard deviation, (m, p).
        deviation_error: its standard error, (m, p); where the variance is not clear of 0, the square root of its error.
        negative_variance: which variances were negative, (m, p).
        negative_mass: sum of negative weights of rows, (m,), as a positive number: 0 for a distribution.
        names: of the functions.
        inflation: factor by which standard errors of means were multiplied for what learned features owe to chance; 1
            where they were not.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, RelevanceModel, ViewPair
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]).double()
        >>> die, coin = FiniteView(torch.arange(3.0).double()), FiniteView(torch.arange(2.0).double())
        >>> model = RelevanceModel.solve(ViewPair(die, coin), ArraySource(rows), most=1)
        >>> found = ConditionalDistribution(model, ArraySource(rows)).expect(None, torch.tensor([[1.0]]))
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
    conditional: ConditionalDistribution = field(repr=False)
    theta: Function | None = field(repr=False)
    given: VariableCoefficients = field(repr=False)
    origin: Tensor = field(repr=False)
    inflation: float = 1.0

    def quantile(self, q: float) -> EstimatedValues:
        r"""Conditional quantile of each function.

        The conditional distribution function F need not increase, so it is rearranged (Chernozhukov, Fernandez-Val and
        Galichon 2010), which brings it nearer to the true one: with values in increasing order,

        .. math:: Q(q) = \theta_{(1)} + \sum_n (\theta_{(n+1)} - \theta_{(n)}) \, 1[F(\theta_{(n)}) < q]

        which is the smallest value with :math:`F \ge q` wherever F increases. The error is Woodruff's (1952): half the
        distance of the quantiles at q minus and plus the standard error of F; it is 0 where both are one value.

        Exact where values and variables of all rows fit a gigabyte; else F is computed at 1024 cut points of each
        function by one more pass, and interpolated linearly between them (as steps where a function has fewer values).

        Args:
            q: between 0 and 1, both excluded.

        Returns:
            (m, p).
        """
        if np.ndim(q) or not 0.0 < q < 1.0:
            raise ValueError(f"q must be one number between 0 and 1, got {q!r}")
        with torch.no_grad():
            value, error = compute_quantiles(self.conditional, self.theta, self.given, q)
        return EstimatedValues(value.cpu().numpy(), error.cpu().numpy())

    def tail(self, threshold: float | Array) -> EstimatedValues:
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
        above = self.conditional.expect_at_points(
            lambda rows: (self.conditional.evaluate(self.theta, rows) > edge).double(), self.given
        )
        return EstimatedValues(above.mean.clip(0.0, 1.0), above.standard_error)

    def covariance(self, rank: int) -> LowRank:
        """Conditional covariance of the functions: its principal directions and a diagonal.

        The matrix of signed weights may have negative eigenvalues: they are left out. The diagonal is that of
        ``deviation``; where the directions alone exceed it in a function, they are shrunk there.

        Args:
            rank: largest number of directions, which have positive variance.

        Returns:
            Loadings (m, p, rank) and noise (m, p), on the device of the model.
        """
        p = len(self.names)
        if rank != int(rank) or not 1 <= rank <= p:
            raise ValueError(f"rank must be a whole number between 1 and {p}, got {rank}")
        with torch.no_grad():
            values, vectors = principal_directions(self.conditional, self.theta, self.given, rank)
        loadings = vectors * values.clamp(min=0.0).sqrt()[:, None, :]
        variance = torch.from_numpy(self.deviation).to(loadings).square()
        most = loadings.square().sum(-1)
        shrink = torch.where(most > variance, (variance / most.clamp(min=1e-300)).sqrt(), 1.0)
        loadings = loadings * shrink[..., None]
        return LowRank(loadings, (variance - loadings.square().sum(-1)).clamp(min=0.0))

    def ambiguity(self) -> Ambiguity:
        """The first principal direction of the conditional covariance, and one standard deviation along it both ways.

        Learning relevant features for statistical inference, section 5.1 and Fig. 1. The error of the standard
        deviation takes the direction as given: how the direction itself moves is of second order, as for any isolated
        eigenvalue.
        """
        of = self.conditional
        with torch.no_grad():
            values, vectors = principal_directions(of, self.theta, self.given, 1)
            direction = vectors[..., 0]
            size = direction.abs()
            # The first of entries that are equal but for rounding.
            near = size >= (1.0 - 1e-6) * size.amax(1, keepdim=True)
            largest = direction.gather(1, near.int().argmax(1, keepdim=True))
            direction = direction * torch.where(largest < 0.0, -1.0, 1.0)
            variance = values[:, 0].clamp(min=0.0)
            centre, errors = torch.from_numpy(self.mean).to(direction) - self.origin, []
            for i in range(0, len(direction), PAIRS):
                here = slice(i, i + PAIRS)
                line, middle = direction[here], (centre[here] * direction[here]).sum(1)

                def square_along(rows: Tensor, line: Tensor = line, middle: Tensor = middle) -> Tensor:
                    along = product(of.evaluate(self.theta, rows) - self.origin, line.mT)
                    return (along - middle).square()

                errors.append(of.estimate_paired_errors(self.given[here], square_along))
            error = estimate_deviation_error(variance, torch.cat(errors))
        one = direction.cpu().numpy()
        deviation = variance.sqrt().cpu().numpy()
        step = deviation[:, None] * one
        return Ambiguity(one, deviation, error.cpu().numpy(), self.mean - step, self.mean + step)

    def __str__(self) -> str:
        m, p = self.mean.shape
        share = float(np.mean(self.negative_variance))
        return (
            f"{p} functions given {m} points: standard error of the mean {np.median(self.standard_error):.3g}, "
            f"conditional standard deviation {np.median(self.deviation):.3g} (medians); {share:.1%} of variances "
            f"negative, replaced by 0; negative mass {self.negative_mass.mean():.3g} on average, "
            f"{self.negative_mass.max():.3g} at worst"
        )


@single_threaded
def density_ratio(conditional: ConditionalDistribution, x: Any, y: Any) -> EstimatedValues:
    r"""Joint density over the product of the marginal densities, for pairs of rows, with standard errors.

    .. math:: \frac{p(x, y)}{p(x) p(y)} \approx 1 + \sum_{i=1}^{r} \eta_i u_i(x) v_i(y)

    Learning relevant features for statistical inference, eq. 1. It averages to 1 over either view, and may be negative
    where few variables are kept. The error is that of an expectation (:class:`ConditionalDistribution`) whose function
    is known at x alone.

    Args:
        conditional: the fit with its rows.
        x: rows of the first view, (m, d_x).
        y: rows of the second view, (m, d_y), one for each x.

    Returns:
        (m,).

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, RelevanceModel, ViewPair
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).double()
        >>> coin = FiniteView(torch.tensor([0.0, 1.0]).double())
        >>> model = RelevanceModel.solve(ViewPair(coin, coin), ArraySource(rows), most=1)
        >>> found = density_ratio(ConditionalDistribution(model, ArraySource(rows)), [[0.0], [1.0]], [[0.0], [1.0]])
        >>> found.value.round(6)
        array([2.      , 1.333333])
    """
    check_conditional(conditional)
    with torch.no_grad():
        a = conditional.condition_on(y)
        rows = conditional.check_rows(x, conditional.model.pair.left.n_columns, "x")
        if len(rows) != len(a):
            raise ValueError(f"a ratio needs one y for each x, got {len(rows)} and {len(a)}")
        b = VariableCoefficients(*conditional.basis.compute_variables("left", rows))
        value = (a.kept * conditional.basis.correlations * b.kept).sum(1)
        errors = []
        for i in range(0, len(a), PAIRS):
            here = slice(i, i + PAIRS)

            def return_zeros(rows: Tensor, m: int = len(a[here])) -> Tensor:
                return torch.zeros(len(rows), m, dtype=torch.float64, device=rows.device)

            errors.append(conditional.estimate_paired_errors(a[here], return_zeros, b[here]))
    return EstimatedValues(value.cpu().numpy(), torch.cat(errors).cpu().numpy())


def check_conditional(conditional: Any) -> None:
    """Refuse what is no conditional distribution."""
    remedy = "ConditionalDistribution(model, source) makes one"
    check_kind(conditional, "conditional", ConditionalDistribution, remedy)


def principal_directions(
    of: ConditionalDistribution, theta: Function | None, a: VariableCoefficients, rank: int
) -> tuple[Tensor, Tensor]:
    r"""Largest eigenvalues and eigenvectors of each conditional covariance, (m, rank) and (m, p, rank).

    .. math:: C(y) = \sum_n w_n(y) (\theta_n - \bar\theta)(\theta_n - \bar\theta)^\top, \qquad
        \bar\theta = \sum_n w_n(y) \theta_n

    which signed weights may make indefinite. A matrix and its decomposition up to 400 functions; beyond, a block Krylov
    space with Rayleigh-Ritz values, which finds the largest eigenvalues of an indefinite matrix as well, in a few
    passes over the rows per block.
    """
    origin = of.evaluate(theta, of.first_rows).mean(0)

    def centre_function(rows: Tensor) -> Tensor:
        return of.evaluate(theta, rows) - origin

    weight = a.kept * of.basis.correlations
    p = len(origin)
    mean = product(weight, of.average_products(centre_function).kept.mT)
    solve = _dense_eigenpairs if p <= DENSE else _krylov_eigenpairs
    values_per_point = p * p if p <= DENSE else p * (rank + OVERSAMPLING) * KRYLOV_BLOCKS
    step = max(1, 4 * MOST_VALUES // values_per_point)
    parts = [
        solve(_CovarianceOperator(of, centre_function, weight[i : i + step], mean[i : i + step]), rank)
        for i in range(0, len(a), step)
    ]
    values, vectors = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(vectors)


@dataclass(frozen=True)
class _TensorSums(Tree):
    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class _CovarianceOperator:
    """The conditional covariances at some points, applied by passes over the rows."""

    of: ConditionalDistribution
    value: Function
    weight: Tensor
    mean: Tensor

    def _sum_over_rows(self, function: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
        """Sums of ``function(values, weights of the rows given point i, i)``, (m, ...)."""

        def sum_tile(rows: Tensor, weight: Tensor) -> _TensorSums:
            tile = self.of.to_variables(rows, weight, self.value)
            signed = product(tile.u, self.weight.mT) * tile.share[:, None]
            return _TensorSums((torch.stack([function(tile.value, w, i) for i, w in enumerate(signed.mT)]),))

        return self.of.source.reduce(sum_tile).parts[0]

    def form_matrices(self) -> Tensor:
        """(m, p, p)."""
        second = self._sum_over_rows(lambda value, weight, i: product((value * weight[:, None]).mT, value))
        return second - self.mean[:, :, None] * self.mean[:, None, :]

    def __call__(self, block: Tensor) -> Tensor:
        """C times (m, p, s), without C."""
        image = self._sum_over_rows(
            lambda value, weight, i: product(value.mT, product(value, block[i]) * weight[:, None])
        )
        return image - self.mean[:, :, None] * (self.mean[:, None, :] @ block)


def _dense_eigenpairs(matrix: _CovarianceOperator, rank: int) -> tuple[Tensor, Tensor]:
    dense = matrix.form_matrices()
    values, vectors = torch.linalg.eigh(0.5 * (dense + dense.mT))
    return values[:, -rank:].flip(1), vectors[..., -rank:].flip(2)


def _krylov_eigenpairs(matrix: _CovarianceOperator, rank: int) -> tuple[Tensor, Tensor]:
    """Largest eigenpairs by a block Krylov space, restarted from its best vectors until they converge."""
    (m, p), size = matrix.mean.shape, rank + OVERSAMPLING
    start = normal((p, size), generator(0)).to(matrix.mean).expand(m, p, size)
    block = torch.linalg.qr(start.contiguous()).Q
    for _ in range(RESTARTS):
        basis, image = block, matrix(block)
        images = [image]
        for _ in range(1, min(KRYLOV_BLOCKS, p // size)):
            fresh = _orthogonalise(_orthogonalise(images[-1], basis), basis)
            block = torch.linalg.qr(fresh).Q
            block = torch.linalg.qr(_orthogonalise(block, basis)).Q
            images.append(matrix(block))
            basis = torch.cat([basis, block], 2)
        image = torch.cat(images, 2)
        small = basis.mT @ image
        values, inner = torch.linalg.eigh(0.5 * (small + small.mT))
        best = inner[..., -size:].flip(2)
        block = basis @ best
        values = values[:, -size:].flip(1)
        residual = (image @ best - block * values[:, None, :])[..., :rank].norm(dim=1)
        largest = small.diagonal(dim1=1, dim2=2).abs().amax(1).clamp(min=1e-300)
        positive = values[:, :rank] > 0.0
        if not bool(((residual > RESIDUAL * largest[:, None]) & positive).any()):
            break
        block = torch.linalg.qr(block).Q
    else:
        error = float((residual / largest[:, None]).max())
        warn_caller(
            f"principal directions of a conditional covariance have converged only to {error:.1g} of its largest "
            "variance: neighbouring variances are nearly equal",
            UserWarning,
        )
    return values[:, :rank], block[..., :rank]


def _orthogonalise(block: Tensor, basis: Tensor) -> Tensor:
    return block - basis @ (basis.mT @ block)


@dataclass(frozen=True)
class _ValueRange(Tree):
    """Smallest and largest value of each function, (p,)."""

    low: Tensor
    high: Tensor

    def __add__(self, other: _ValueRange) -> _ValueRange:
        return _ValueRange(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))


def compute_quantiles(
    of: ConditionalDistribution, theta: Function | None, a: VariableCoefficients, q: float
) -> tuple[Tensor, Tensor]:
    """Quantiles at q of every function given every point, and their standard errors, (m, p) both."""
    p = of.evaluate(theta, of.first_rows[:1]).shape[1]
    fits = of.source.n_rows * (p + len(of.basis.correlations)) <= HELD_VALUES
    cumulate = _collect_values(of, theta) if fits else _bin_values(of, theta)
    weight = (a.kept * of.basis.correlations).mT
    level = weight.new_full((len(a), p), q)
    value = _invert_distribution(cumulate, weight, level)
    error = _estimate_level_errors(of, theta, a, value)
    low, high = (
        _invert_distribution(cumulate, weight, (level + side * error).clamp(0.0, 1.0)) for side in (-1.0, 1.0)
    )
    return value, 0.5 * (high - low)


def _invert_distribution(cumulate: Cumulate, weight: Tensor, level: Tensor) -> Tensor:
    """Where the rearranged distribution function reaches a level: (r + 1, m) and (m, p) -> (m, p)."""
    quantile = torch.empty_like(level)
    for j in range(level.shape[1]):
        value, sums, linear = cumulate(j)
        width = value.diff()[None]
        step = max(1, MOST_VALUES // len(value))
        for i in range(0, len(level), step):
            below = product(sums, weight[:, i : i + step])
            at = level[i : i + step, j] - LEVEL_ROUNDING
            if linear:
                low, high = torch.minimum(below[:-1], below[1:]), torch.maximum(below[:-1], below[1:])
                part = ((at - low) / (high - low).clamp(min=LEVEL_ROUNDING)).clamp(0.0, 1.0)
            else:
                part = (below[:-1] < at).to(below)
            quantile[i : i + step, j] = value[0] + (width @ part)[0]
    return quantile


def _collect_values(of: ConditionalDistribution, theta: Function | None) -> Cumulate:
    """The distribution functions, exactly, from the values and variables of all rows."""

    def collect_tile(rows: Tensor, weight: Tensor) -> SumAndRows[ConcatenatedRows]:
        tile = of.to_variables(rows, weight, lambda x: of.evaluate(theta, x))
        weighted = tile.u * tile.share[:, None]
        return SumAndRows(ConcatenatedRows.of(tile.value), ConcatenatedRows.of(weighted))

    both = of.source.reduce(collect_tile)
    values, weighted = both.sum.concatenate(), both.rows.concatenate()

    def sort_and_cumulate(j: int) -> tuple[Tensor, Tensor, bool]:
        value, order = values[:, j].sort()
        return value, weighted[order].cumsum(0), False

    return sort_and_cumulate


def _bin_values(of: ConditionalDistribution, theta: Function | None) -> Cumulate:
    """The distribution functions at cut points."""
    cuts, linear = _choose_cut_points(of, theta)

    def bin_tile(rows: Tensor, weight: Tensor) -> _TensorSums:
        tile = of.to_variables(rows, weight, lambda x: of.evaluate(theta, x))
        weighted = tile.u * tile.share[:, None]
        sums = []
        for edges, column in zip(cuts, tile.value.mT, strict=True):
            place = torch.bucketize(column.contiguous(), edges).clamp(max=len(edges) - 1)
            sums.append(weighted.new_zeros(len(edges), weighted.shape[1]).index_add_(0, place, weighted))
        return _TensorSums(tuple(sums))

    sums = of.source.reduce(bin_tile).parts
    return lambda j: (cuts[j], sums[j].cumsum(0), linear[j])


def _choose_cut_points(
    of: ConditionalDistribution, theta: Function | None
) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
    """Cut points of each function: its smallest and largest value, and quantiles of a sample of rows between."""
    sampler = RowSampler.draw(of.source.n_rows, CUT_ROWS, generator(0))

    def sample_tile(rows: Tensor, weight: Tensor, start: int) -> SumAndRows[_ValueRange]:
        value = of.evaluate(theta, of.model.pair.split_rows(rows.to(of.device))[0]).cpu()
        indices = sampler.indices_between(start, start + len(weight))
        return SumAndRows(_ValueRange(value.amin(0), value.amax(0)), ConcatenatedRows.of(value[indices]))

    sampled = of.source.reduce_at(sample_tile)
    cuts, linear = [], []
    for j, column in enumerate(sampled.rows.concatenate().mT):
        known = torch.cat([column, sampled.sum.low[j : j + 1], sampled.sum.high[j : j + 1]]).unique()
        linear.append(len(known) > CUTS)
        if linear[-1]:
            order = torch.cat([known[:1], column, known[-1:]]).sort().values
            known = order[torch.linspace(0, len(order) - 1, CUTS).round().long()].unique()
        cuts.append(known.to(of.device))
    return tuple(cuts), tuple(linear)


def _estimate_level_errors(
    of: ConditionalDistribution, theta: Function | None, a: VariableCoefficients, value: Tensor
) -> Tensor:
    """Standard errors of the distribution function at values (m, p)."""
    m, p = value.shape
    points, columns = torch.arange(m, device=value.device), torch.arange(p, device=value.device)
    point, column = (part.reshape(-1) for part in torch.meshgrid(points, columns, indexing="ij"))
    scale = value.abs().amax(0) + (value - value.mean(0)).abs().amax(0)
    edge = (value + 1e-10 * scale).reshape(-1)  # differences were added up to the value, which rounds it
    parts = []
    for i in range(0, m * p, PAIRS):
        here = slice(i, i + PAIRS)

        def is_at_most(rows: Tensor, here: slice = here) -> Tensor:
            return (of.evaluate(theta, rows)[:, column[here]] <= edge[here]).double()

        parts.append(of.estimate_paired_errors(a[point[here]], is_at_most))
    return torch.cat(parts).reshape(m, p)
