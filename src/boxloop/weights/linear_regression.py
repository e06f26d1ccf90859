r"""Bayesian linear regression, exact, from sums over rows (document 004, section 2.2).

.. math:: p(\theta \mid X, y) = N(m, S), \qquad S^{-1} = A = \alpha I + \beta X^\top X, \qquad
          m = A^{-1} b, \quad b = \beta X^\top y

(eq. 2.11 to 2.14) for a prior :math:`N(0, \alpha^{-1} I)` and noise of variance :math:`\beta^{-1}`. Only
:math:`X^\top X`, :math:`X^\top y`, :math:`y^\top y` and n are needed, so rows are seen once, in any number of pieces;
one eigendecomposition then gives m, S and the evidence for every alpha and beta. Directions that the rows do not touch
keep their prior, so fewer rows than columns, or columns that are combinations of others, are no trouble.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.data import check_kind
from boxloop.numeric import normal, single_threaded
from boxloop.tree import Tree
from boxloop.weights.linear_evidence import ROUNDING, Precisions, Spectrum, highest, positive
from boxloop.weights.regression_moments import Centre, RegressionMoments

EPS = torch.finfo(torch.float64).eps
UNSEEN = 8.0 * EPS
"""A column times this, over the largest eigenvalue of XᵀX: below it an eigenvalue is rounding, and taken for zero."""


@dataclass(frozen=True)
class LinearPrediction:
    """What is expected of n rows.

    Args:
        mean: (n, k).
        spread: standard deviation that not knowing the weights adds, (n, k).
        noise: standard deviation of an observation about the line, (k,).
    """

    mean: Tensor
    spread: Tensor
    noise: Tensor

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of an observation, both together, (n, k)."""
        return (self.spread.square() + self.noise.square()).sqrt()


@dataclass(frozen=True)
class LinearPosterior(Tree):
    """N(m, S) for the weights of each of k outputs, in centred and scaled columns.

    Args:
        mean: m, (k, d).
        vectors: axes of S, as columns, the same for all outputs, (d, d).
        variance: along them, (k, d).
        centre: what was taken out of the rows.
        level_variance: of the level, (k,); zero where there is none.
        alpha: precision of the prior, (k,).
        beta: precision of the noise, (k,).
        log_evidence: log p(y | X, alpha, beta), (k,); with a flat prior of unit density for a level.
        effective: directions that the rows determine, (k,).
        rank: of X.
    """

    mean: Tensor
    vectors: Tensor
    variance: Tensor
    centre: Centre
    level_variance: Tensor
    alpha: Tensor
    beta: Tensor
    log_evidence: Tensor
    effective: Tensor
    rank: int

    def coefficients(self) -> Tensor:
        """Of the columns as they came, (k, d)."""
        return self.mean / self.centre.scale

    def intercept(self) -> Tensor:
        """Expected output of a row of zeros, (k,)."""
        return self.centre.level - self.coefficients() @ self.centre.origin

    def covariance(self, output: int = 0) -> Tensor:
        """Of the coefficients of one output, (d, d)."""
        half = self.root(output) / self.centre.scale[:, None]
        return half @ half.mT

    def root(self, output: int = 0) -> Tensor:
        """A square root of S in centred and scaled columns, (d, d)."""
        return self.vectors * self.variance[output].sqrt()

    def predict(self, rows: Tensor) -> LinearPrediction:
        """Mean and deviations at rows (n, d)."""
        local = (rows.double() - self.centre.origin) / self.centre.scale
        variance = (local @ self.vectors).square() @ self.variance.mT + self.level_variance
        return LinearPrediction(self.centre.level + local @ self.mean.mT, variance.sqrt(), self.beta.rsqrt())

    def draw(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n coefficients (n, k, d) and intercepts (n, k) from the posterior."""
        k, d = self.mean.shape
        standard = normal((n, k, d), generator, self.mean.dtype) * self.variance.sqrt()
        weights = (self.mean + standard @ self.vectors.mT) / self.centre.scale
        level = self.centre.level + normal((n, k), generator, self.mean.dtype) * self.level_variance.sqrt()
        return weights, level - weights @ self.centre.origin


@single_threaded
def linear_regression(
    moments: RegressionMoments,
    alpha: float | Sequence[float] | None = None,
    beta: float | Sequence[float] | None = None,
    centre: Centre | None = None,
) -> tuple[LinearPosterior, tuple[str, ...]]:
    r"""The posterior of the weights of each output.

    Args:
        moments: sums over rows; small, so they are solved on the CPU, wherever they were formed.
        alpha: precision of the prior, one or one for each output; found by the highest evidence when None.
        beta: precision of the noise; likewise.
        centre: what was taken out of the rows first. A level without a prior is integrated out: it costs one row, and
            adds :math:`1 / (\beta n)` to the variance of predictions.

    Returns:
        The posterior, and what is worth knowing of it.

    Example:
        >>> import torch
        >>> x, y = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[1.0], [2.0]]).double()
        >>> found, _ = linear_regression(RegressionMoments.of(x, y), alpha=1.0, beta=1.0)
        >>> found.mean, found.covariance()  # 5 / 6 and 1 / 6
        (tensor([[0.8333]], dtype=torch.float64), tensor([[0.1667]], dtype=torch.float64))
    """
    made = "RegressionMoments.of(rows, targets) or regression_moments(source) makes one"
    check_kind(moments, "moments", RegressionMoments, made)
    if centre is not None:
        check_kind(centre, "centre", Centre, "regression_moments(source) gives it")
    moments = moments.to("cpu")
    d, k = moments.cross.shape
    centre = Centre.none(d, k) if centre is None else centre
    count = float(moments.weight) - (1.0 if centre.free else 0.0)
    if not count > 0.0:
        raise ValueError(
            f"a regression on {float(moments.weight):g} row(s) has nothing to learn from: 1 sample is too few"
        )
    alphas, betas = _given("alpha", alpha, k), _given("beta", beta, k)
    # In units near the sizes of columns and outputs no square leaves the range of float64.
    column = _unit(moments.gram.diagonal()[None], moments.weight)
    output = _unit(moments.square[:, None], moments.weight)
    ratio = (output / column).tolist()
    alphas = [None if a is None else a * r * r for a, r in zip(alphas, ratio, strict=True)]
    betas = [None if b is None else b * u * u for b, u in zip(betas, output.tolist(), strict=True)]
    moments = RegressionMoments(
        moments.gram / column / column,
        moments.cross / column / output,
        moments.square / output / output,
        moments.weight,
    )
    values, vectors = torch.linalg.eigh(moments.gram)
    top = float(values.max()) if d else 0.0
    seen = values > max(d, 32) * UNSEEN * top
    values = torch.where(seen, values, 0.0)
    cross = torch.where(seen[:, None], vectors.mT @ moments.cross, 0.0)
    lost = ROUNDING * moments.square + float(moments.weight) * (EPS * centre.level / output).square()
    spectra = [_spectrum(values[seen], cross[seen, j], moments.square[j], lost[j], count) for j in range(k)]
    best = [highest(found, a, b) for found, a, b in zip(spectra, alphas, betas, strict=True)]
    told = tuple(dict.fromkeys(found.edge for found in best if found.edge))
    found = _posterior(values, vectors, cross, moments, centre, spectra, best)
    return _in_units(found, column, output, count), told


def _unit(squares: Tensor, weight: Tensor) -> Tensor:
    """A power of two near the root of the largest mean square of each row of ``squares``, (k, p) -> (k,)."""
    if not bool(torch.isfinite(squares).all()):
        raise ValueError(
            "sums of squares of the rows are not finite: divide columns and outputs by their standard deviations"
        )
    size = (squares.amax(1) if squares.shape[1] else squares.new_zeros(len(squares))) / weight
    return torch.where(size > 0.0, torch.exp2((0.5 * size.log2()).round()), 1.0)


def _in_units(found: LinearPosterior, column: Tensor, output: Tensor, count: float) -> LinearPosterior:
    """A posterior found in units of columns (1,) and outputs (k,), for the columns and outputs as they came."""
    ratio = output / column
    moved = replace(
        found,
        mean=found.mean * ratio[:, None],
        variance=found.variance * ratio[:, None] * ratio[:, None],
        level_variance=found.level_variance * output * output,
        alpha=found.alpha / ratio / ratio,
        beta=found.beta / output / output,
        log_evidence=found.log_evidence - count * output.log(),
    )
    positive = torch.stack([moved.alpha, moved.beta, *moved.variance.unbind(1)])
    if bool((torch.isfinite(positive) & (positive > torch.finfo(positive.dtype).tiny)).all()):
        return moved
    raise ValueError(
        f"the columns (about {float(column):.0e}) and the outputs (about {float(output.max()):.0e}) are of sizes at "
        "which float64 cannot hold the precisions alpha and beta: divide both by their standard deviations"
    )


def _spectrum(values: Tensor, cross: Tensor, square: Tensor, lost: Tensor, count: float) -> Spectrum:
    """``lost``: what rounding may be of the sum of squares: of the sum itself, and of values far from zero."""
    squares = cross.square() / values
    least = max(float(lost) / (count + 1.0), 1e-200)
    return Spectrum(values, squares, (square - squares.sum()).clamp(min=count * least), count, least)


def _posterior(
    values: Tensor,
    vectors: Tensor,
    cross: Tensor,
    moments: RegressionMoments,
    centre: Centre,
    spectra: list[Spectrum],
    best: list[Precisions],
) -> LinearPosterior:
    alpha = values.new_tensor([found.alpha for found in best])
    beta = values.new_tensor([found.beta for found in best])
    variance = 1.0 / (alpha[:, None] + beta[:, None] * values)
    mean = (beta[:, None] * variance * cross.mT) @ vectors.mT
    evidence = [found.log_evidence(a, b) for found, a, b in zip(spectra, alpha, beta, strict=True)]
    level = 0.5 * math.log(float(moments.weight)) if centre.free else 0.0
    return LinearPosterior(
        mean,
        vectors.contiguous(),  # as a file gives it back, so that products agree to the last bit
        variance,
        centre,
        1.0 / (beta * moments.weight) if centre.free else torch.zeros_like(beta),
        alpha,
        beta,
        torch.stack(evidence) - level if evidence else alpha,
        torch.stack([found.effective(a, b) for found, a, b in zip(spectra, alpha, beta, strict=True)]),
        int((values > 0.0).sum()),
    )


def _given(name: str, value: float | Sequence[float] | None, k: int) -> Sequence[float | None]:
    return [None] * k if value is None else positive(name, value, k)
