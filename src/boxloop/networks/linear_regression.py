r"""Bayesian linear regression, exact, from sums over rows (Brownlie, 2021, section 2.2).

Only :math:`X^\top X`, :math:`X^\top y`, :math:`y^\top y` and n are needed, so rows are read once, in any number of
pieces; one eigendecomposition then gives the posterior and the evidence for every alpha and beta. Directions in which
the rows do not vary keep their prior, so fewer rows than columns, or collinear columns, are no problem.

The evidence is computed along the axes of the inputs. Let :math:`X = U \Lambda^{1/2} V^\top` have rank r. Under the
model :math:`y = X \theta + \epsilon` the numbers :math:`z = U^\top y` are independent, and the remaining n - r
directions of y are noise alone:

.. math:: \log p(y) = \sum_{i=1}^{r} \log N(z_i; 0, \beta^{-1} + \lambda_i \alpha^{-1})
          - \tfrac{n - r}{2} \log \frac{2 \pi}{\beta} - \tfrac{\beta}{2} R, \qquad R = y^\top y - \sum_i z_i^2.

One decomposition thus serves all :math:`\alpha` and :math:`\beta`. With :math:`\rho = \beta / \alpha` the best noise is
known, :math:`n / \beta = R + \sum_i z_i^2 / (1 + \rho \lambda_i)`, which leaves a search over :math:`\log \rho`. It
may have several maxima, so it is evaluated on a grid first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.data import MOMENT_COLUMNS, check_count, check_kind, check_source, summarise_moments
from boxloop.numeric import gram, normal, single_threaded
from boxloop.tree import Tree
from boxloop.types import Source

EPS = torch.finfo(torch.float64).eps
ZERO_EIGENVALUE = 8.0 * EPS
"""Times the number of columns and the largest eigenvalue of XᵀX: smaller eigenvalues are rounding and count as zero."""
SMALLEST, LARGEST = 1e-152, 1e152
"""Sizes of values whose squares, and sums of them, float64 represents accurately."""
GRID_POINTS = 512  # at which the evidence is evaluated before its highest maximum is refined
HALVINGS = 80
MAX_LOG_RATIO = 30.0  # A ratio of exp(-MAX_LOG_RATIO) or less counts as zero
ROUNDING = 4.0 * EPS
"""Noise variance, relative to the mean square of y, that sums of squares cannot distinguish from zero."""
NEGLIGIBLE_NOISE = 1e-6
"""Share of the mean square of y below which noise counts as zero if no residual shows it."""

_VANISHING = "the evidence is highest without any coefficients (infinite alpha): the columns do not predict y"
_EXACT = "y is a linear function of the columns up to rounding, so beta has its largest representable value"
_NOISELESS = (
    "the evidence is highest without noise (infinite beta): there are as many independent columns as rows"
)

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (p,) -> values and derivatives, (p,) each."""


@dataclass(frozen=True)
class RegressionMoments(Tree):
    """Sums over rows; the sums of two sets of rows add.

    Args:
        gram: XᵀX, (d, d).
        cross: XᵀY, (d, k).
        square: sum of squares of each output, (k,).
        weight: number of rows, or the sum of their weights.

    Example:
        >>> import torch
        >>> x, y = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
        >>> total = RegressionMoments.from_rows(x[:1], y[:1]) + RegressionMoments.from_rows(x[1:], y[1:])
        >>> total.square, float(total.weight)
        (tensor([25.], dtype=torch.float64), 2.0)
    """

    gram: Tensor
    cross: Tensor
    square: Tensor
    weight: Tensor

    @classmethod
    def from_rows(cls, rows: Tensor, targets: Tensor, weight: Tensor | None = None) -> RegressionMoments:
        """Sums over rows (n, d) with outputs (n, k) and optional weights (n,), in float64."""
        tensors = {"rows": rows, "targets": targets} | ({} if weight is None else {"weight": weight})
        for name, value in tensors.items():
            check_kind(value, name, Tensor, f"torch.as_tensor({name}) makes one")
        n = len(rows) if rows.dim() else 0
        if (rows.dim(), targets.dim(), len(targets) if targets.dim() else 0) != (2, 2, n) or (
            weight is not None and weight.shape != (n,)
        ):
            shapes = [tuple(value.shape) for value in tensors.values()]
            raise ValueError(
                f"rows, targets and weight must have shapes (n, d), (n, k) and (n,), got {shapes}"
            )
        rows, targets = rows.double(), targets.double()
        weight = rows.new_ones(len(rows)) if weight is None else weight.to(rows)
        weighted = targets * weight[:, None]
        return cls(gram(rows, weight), rows.mT @ weighted, (weighted * targets).sum(0), weight.sum())


@dataclass(frozen=True)
class Centre(Tree):
    """The origin and scale of rows before their sums were formed; predictions are mapped back."""

    origin: Tensor  # subtracted from the columns, (d,)
    scale: Tensor  # by which the columns were divided, (d,)
    level: Tensor  # subtracted from the outputs, (k,)
    free: bool  # whether the level is an intercept without a prior, with a variance of its own

    @classmethod
    def identity(cls, d: int, k: int) -> Centre:
        """Neither centred nor scaled."""
        one = torch.ones(d, dtype=torch.float64)
        return cls(one * 0.0, one, torch.zeros(k, dtype=torch.float64), False)


@single_threaded
def regression_moments(
    source: Source, n_targets: int = 1, *, centred: bool = True, scaled: bool = False
) -> tuple[RegressionMoments, Centre]:
    """Sums over the rows of a source whose last columns are the outputs, in one pass.

    Args:
        source: rows; sums are about the mean of the first ones, so values far from zero lose no digits.
        n_targets: k, number of outputs.
        centred: subtract the means, for an intercept without a prior.
        scaled: divide the columns by their standard deviations.

    Returns:
        The sums, and the origin and scale.
    """
    check_source(source, "source")
    if check_count(n_targets, "n_targets") >= source.n_columns:
        raise ValueError(
            f"n_targets must be below the number of columns, {source.n_columns}, got {n_targets}"
        )
    if source.n_columns > MOMENT_COLUMNS:
        raise ValueError(
            f"Exact regression supports at most {MOMENT_COLUMNS} columns; the rows have {source.n_columns}."
        )
    summary = summarise_moments(source)
    if summary is None:
        raise ValueError("Exact regression needs complete rows; a value is missing (NaN).")
    frame = summary.frame
    sizes = torch.where(frame.constant & (frame.origin != 0.0), frame.origin.abs(), frame.scale)
    for name, size in zip(summary.names, sizes.tolist(), strict=True):
        if not SMALLEST < size < LARGEST:
            extent = f"of size {size:.1e}" if math.isfinite(size) else f"above {LARGEST:g}"
            raise ValueError(
                f"Column {name!r} has values {extent}, whose squares float64 cannot represent: rescale it."
            )
    d = source.n_columns - n_targets
    unit = torch.ones_like(frame.scale)
    if scaled:
        unit[:d] = frame.scale[:d]
    factor = summary.scale / unit
    second = factor[:, None] * summary.covariance * factor
    origin = frame.origin if centred else torch.zeros_like(frame.origin)
    if not centred:
        mean = frame.origin / unit
        second = second + mean[:, None] * mean
    second = second * summary.weight
    squares, weight = second.diagonal()[d:].clamp(min=0.0), second.new_tensor(summary.weight)
    moments = RegressionMoments(second[:d, :d], second[:d, d:], squares, weight)
    return moments.to("cpu"), Centre(origin[:d], unit[:d], origin[d:], centred).to("cpu")


@dataclass(frozen=True)
class LinearPrediction:
    """Predictions for n rows.

    Args:
        mean: (n, k).
        epistemic_std: standard deviation due to the coefficients, (n, k).
        noise: standard deviation of an observation around its expected value, (k,).
    """

    mean: Tensor
    epistemic_std: Tensor
    noise: Tensor

    @property
    def std(self) -> Tensor:
        """Standard deviation of an observation: coefficients and noise together, (n, k)."""
        return (self.epistemic_std.square() + self.noise.square()).sqrt()


@dataclass(frozen=True)
class LinearPosterior(Tree):
    """N(m, S) for the coefficients of each of k outputs, in centred and scaled columns.

    Args:
        mean: m, (k, d).
        vectors: axes of S, as columns, the same for all outputs, (d, d).
        variance: along them, (k, d).
        centre: origin and scale of the rows.
        level_variance: variance of the intercept, (k,); zero if there is none.
        alpha: precision of the prior, (k,).
        beta: precision of the noise, (k,).
        log_evidence: log p(y | X, alpha, beta), (k,); with a flat prior of unit density for an intercept.
        effective: effective number of coefficients, (k,).
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
        """Coefficients of the original columns, (k, d)."""
        return self.mean / self.centre.scale

    def intercept(self) -> Tensor:
        """Expected output of a row of zeros, (k,)."""
        return self.centre.level - self.coefficients() @ self.centre.origin

    def covariance(self, output: int = 0) -> Tensor:
        """Covariance of the coefficients of one output, (d, d)."""
        half = self.root(output) / self.centre.scale[:, None]
        return half @ half.mT

    def root(self, output: int = 0) -> Tensor:
        """A square root of S in centred and scaled columns, (d, d)."""
        return self.vectors * self.variance[output].sqrt()

    def predict(self, rows: Tensor) -> LinearPrediction:
        """Means and standard deviations for rows (n, d)."""
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
    r"""The posterior of the coefficients of each output.

    .. math:: p(\theta \mid X, y) = N(m, S), \qquad S^{-1} = \alpha I + \beta X^\top X, \qquad m = \beta S X^\top y

    for a prior :math:`N(0, \alpha^{-1} I)` and noise of variance :math:`\beta^{-1}`: Brownlie (2021), eq. 2.11 to 2.14.

    Args:
        moments: sums over rows; they are solved on the CPU.
        alpha: prior precision, one or one per output; None maximises the evidence.
        beta: noise precision, likewise.
        centre: origin and scale of the rows. An intercept without a prior is integrated out: it uses one degree of
            freedom and adds :math:`1 / (\beta n)` to the variance of predictions.

    Returns:
        The posterior, and messages about it.

    Example:
        >>> import torch
        >>> x, y = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[1.0], [2.0]]).double()
        >>> posterior, _ = linear_regression(RegressionMoments.from_rows(x, y), alpha=1.0, beta=1.0)
        >>> posterior.mean, posterior.covariance()  # 5 / 6 and 1 / 6
        (tensor([[0.8333]], dtype=torch.float64), tensor([[0.1667]], dtype=torch.float64))
    """
    remedy = "RegressionMoments.from_rows(rows, targets) or regression_moments(source) makes one"
    check_kind(moments, "moments", RegressionMoments, remedy)
    if centre is not None:
        check_kind(centre, "centre", Centre, "regression_moments(source) returns it")
    moments = moments.to("cpu")
    d, k = moments.cross.shape
    centre = Centre.identity(d, k) if centre is None else centre
    count = float(moments.weight) - (1.0 if centre.free else 0.0)
    if not count > 0.0:
        raise ValueError(
            f"A regression needs more rows: {float(moments.weight):g} row(s), 1 sample is too few."
        )
    alphas, betas = (
        [None] * k if value is None else check_positive(name, value, k)
        for name, value in (("alpha", alpha), ("beta", beta))
    )
    # In units near the sizes of columns and outputs no square leaves the range of float64.
    column = _power_of_two_scale(moments.gram.diagonal()[None], moments.weight)
    output = _power_of_two_scale(moments.square[:, None], moments.weight)
    ratio = (output / column).tolist()
    alphas = [None if a is None else a * r * r for a, r in zip(alphas, ratio, strict=True)]
    betas = [None if b is None else b * u * u for b, u in zip(betas, output.tolist(), strict=True)]
    moments = RegressionMoments(
        moments.gram / column / column,
        moments.cross / column / output,
        moments.square / output / output,
        moments.weight,
    )
    # A bound of the rounding error of the sums of squares.
    lost = ROUNDING * moments.square + float(moments.weight) * (EPS * centre.level / output).square()
    scaled, messages = _solve_posterior(moments, centre, count, alphas, betas, lost.tolist())
    return _restore_units(scaled, column, output, count), messages


def _power_of_two_scale(squares: Tensor, weight: Tensor) -> Tensor:
    """A power of two near the root of the largest mean square of each row of ``squares``, (k, p) -> (k,)."""
    if not bool(torch.isfinite(squares).all()):
        raise ValueError(
            "The sums of squares of the rows are not finite: divide columns and outputs by their standard deviations."
        )
    size = (squares.amax(1) if squares.shape[1] else squares.new_zeros(len(squares))) / weight
    return torch.where(size > 0.0, torch.exp2((0.5 * size.log2()).round()), 1.0)


def _restore_units(scaled: LinearPosterior, column: Tensor, output: Tensor, count: float) -> LinearPosterior:
    """The posterior in the original units, from one in units of columns (1,) and outputs (k,)."""
    ratio = output / column
    posterior = replace(
        scaled,
        mean=scaled.mean * ratio[:, None],
        variance=scaled.variance * ratio[:, None] * ratio[:, None],
        level_variance=scaled.level_variance * output * output,
        alpha=scaled.alpha / ratio / ratio,
        beta=scaled.beta / output / output,
        log_evidence=scaled.log_evidence - count * output.log(),
    )
    positive = torch.stack([posterior.alpha, posterior.beta, *posterior.variance.unbind(1)])
    if bool((torch.isfinite(positive) & (positive > torch.finfo(positive.dtype).tiny)).all()):
        return posterior
    raise ValueError(
        f"The columns (about {float(column):.0e}) and the outputs (about {float(output.max()):.0e}) have sizes for "
        "which float64 cannot represent alpha and beta: divide both by their standard deviations."
    )


def _solve_posterior(
    moments: RegressionMoments,
    centre: Centre,
    count: float,
    alphas: Sequence[float | None],
    betas: Sequence[float | None],
    lost: Sequence[float],
) -> tuple[LinearPosterior, tuple[str, ...]]:
    """The posterior along the eigenvectors of XᵀX, with the precisions of highest evidence, and messages."""
    d, k = moments.cross.shape
    values, vectors = torch.linalg.eigh(moments.gram)
    nonzero = values > max(d, 32) * ZERO_EIGENVALUE * (float(values.max()) if d else 0.0)
    values = torch.where(nonzero, values, 0.0)
    cross = torch.where(nonzero[:, None], vectors.mT @ moments.cross, 0.0)
    spectra, best = [], []
    for j in range(k):
        squares, least = cross[nonzero, j].square() / values[nonzero], max(lost[j] / (count + 1.0), 1e-200)
        rest = (moments.square[j] - squares.sum()).clamp(min=count * least)
        spectra.append(Spectrum(values[nonzero], squares, rest, count, least))
        best.append(maximise_evidence(spectra[j], alphas[j], betas[j]))
    alpha, beta = (values.new_tensor([getattr(one, name) for one in best]) for name in ("alpha", "beta"))
    variance = 1.0 / (alpha[:, None] + beta[:, None] * values)
    evidence = [one.log_evidence(a, b) for one, a, b in zip(spectra, alpha, beta, strict=True)]
    effective = [
        one.count_effective_coefficients(a, b) for one, a, b in zip(spectra, alpha, beta, strict=True)
    ]
    posterior = LinearPosterior(
        mean=(beta[:, None] * variance * cross.mT) @ vectors.mT,
        vectors=vectors.contiguous(),  # as when read from a file, so that products agree to the last bit
        variance=variance,
        centre=centre,
        level_variance=1.0 / (beta * moments.weight) if centre.free else torch.zeros_like(beta),
        alpha=alpha,
        beta=beta,
        log_evidence=torch.stack(evidence) - (0.5 * math.log(float(moments.weight)) if centre.free else 0.0),
        effective=torch.stack(effective),
        rank=int((values > 0.0).sum()),
    )
    return posterior, tuple(dict.fromkeys(one.message for one in best if one.message))


@dataclass(frozen=True)
class Spectrum(Tree):
    """One output along the axes of the inputs."""

    values: Tensor  # eigenvalues of XᵀX that are not zero, (r,)
    squares: Tensor  # z², (r,)
    rest: Tensor  # R, a number
    count: float  # n; one less if the outputs were centred
    least: float  # smallest noise variance above the rounding error

    def log_evidence(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """log p(y); differentiable in alpha and beta, which are numbers or of one shape (...)."""
        variance = 1.0 / beta[..., None] + self.values / alpha[..., None]
        inside = variance.log().sum(-1) + (self.squares / variance).sum(-1)
        outside = beta * self.rest - (self.count - len(self.values)) * beta.log()
        return -0.5 * (inside + outside + self.count * math.log(2.0 * math.pi))

    def count_effective_coefficients(self, alpha: Tensor, beta: Tensor) -> Tensor:
        r"""Effective number of coefficients, :math:`\sum_i \beta \lambda_i / (\alpha + \beta \lambda_i)`."""
        return (beta * self.values / (alpha + beta * self.values)).sum()


@dataclass(frozen=True)
class Precisions:
    """The precisions of highest evidence."""

    alpha: float  # of the prior
    beta: float  # of the noise
    message: str = ""  # says so if the maximum lies at infinity; empty otherwise


def check_positive(name: str, value: float | Sequence[float], k: int) -> list[float]:
    """One positive, finite number for each of k outputs, from one number for all or k numbers."""
    values: list[float] = np.ravel(np.asarray(value, dtype=np.float64)).tolist()
    for each in values:
        if not 0.0 < each < math.inf:
            raise ValueError(
                f"{name} must be positive and finite, or None to maximise the evidence, got {each}"
            )
    if len(values) not in (1, k):
        raise ValueError(f"{name} must be one number or {k} numbers, got {len(values)}")
    return values * k if len(values) == 1 else values


def maximise_evidence(spectrum: Spectrum, alpha: float | None, beta: float | None) -> Precisions:
    """The precisions of highest evidence; those that are numbers stay fixed."""
    if alpha is not None and beta is not None:
        return Precisions(alpha, beta)
    if not len(spectrum.values):  # the inputs are constant: the evidence does not depend on alpha
        noise = max(float(spectrum.rest) / spectrum.count, spectrum.least)
        return Precisions(
            alpha or 1.0, beta or 1.0 / noise, _describe_zero_noise(noise, spectrum) if beta is None else ""
        )
    if alpha is not None:
        return _maximise_over_noise(spectrum, alpha)
    return _maximise_over_ratio(spectrum) if beta is None else _maximise_over_prior(spectrum, beta)


def _maximise_over_ratio(spectrum: Spectrum) -> Precisions:
    def find_noise(log_ratio: Tensor) -> Tensor:
        """The best noise variance, (p,)."""
        left = spectrum.squares / (1.0 + log_ratio.exp()[:, None] * spectrum.values)
        return (spectrum.rest + left.sum(1)) / spectrum.count

    def objective(log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        ratio = log_ratio.exp()[:, None] * spectrum.values
        gain, noise = ratio / (1.0 + ratio), find_noise(log_ratio)
        height = -0.5 * (spectrum.count * noise.log() + torch.log1p(ratio).sum(1))
        return height, 0.5 * ((spectrum.squares * gain * (1.0 - gain)).sum(1) / noise - gain.sum(1))

    low, high = -MAX_LOG_RATIO - spectrum.values.max().log(), MAX_LOG_RATIO - spectrum.values.min().log()
    place, side = _find_maximum(objective, float(low), float(high))
    noise = float(find_noise(torch.tensor([place], dtype=torch.float64))[0])
    message = _VANISHING if side < 0 else _describe_zero_noise(noise, spectrum)
    return Precisions(1.0 / (math.exp(place) * noise), 1.0 / noise, message)


def _maximise_over_noise(spectrum: Spectrum, alpha: float) -> Precisions:
    mean_square = float(spectrum.squares.sum() + spectrum.rest) / spectrum.count

    def objective(u: Tensor) -> tuple[Tensor, Tensor]:
        noise = u.exp()
        variance = noise[:, None] + spectrum.values / alpha
        share = noise[:, None] / variance
        log = u * (spectrum.count - len(spectrum.values)) + variance.log().sum(1)
        square = spectrum.rest / noise + (spectrum.squares / variance).sum(1)
        slope = spectrum.count - len(spectrum.values) - spectrum.rest / noise
        slope = slope + (share * (1.0 - spectrum.squares / variance)).sum(1)
        return -0.5 * (log + square), -0.5 * slope

    place, _ = _find_maximum(
        objective, math.log(spectrum.least) - 1.0, math.log(max(2.0 * mean_square, 10.0 * spectrum.least))
    )
    noise = max(math.exp(place), spectrum.least)
    return Precisions(alpha, 1.0 / noise, _describe_zero_noise(noise, spectrum))


def _maximise_over_prior(spectrum: Spectrum, beta: float) -> Precisions:
    def objective(u: Tensor) -> tuple[Tensor, Tensor]:
        explained = u.exp()[:, None] * spectrum.values
        variance = 1.0 / beta + explained
        height = variance.log() + spectrum.squares / variance
        return -0.5 * height.sum(1), -0.5 * (explained / variance * (1.0 - spectrum.squares / variance)).sum(
            1
        )

    largest = float((spectrum.squares / spectrum.values).max())
    low = -math.log(beta) - float(spectrum.values.max().log()) - MAX_LOG_RATIO
    place, side = _find_maximum(objective, low, max(math.log(max(2.0 * largest, 1e-300)), low + 1.0))
    return Precisions(math.exp(-place), beta, _VANISHING if side < 0 else "")


def _find_maximum(objective: Objective, low: float, high: float) -> tuple[float, int]:
    """The maximum between two ends, and -1 or 1 if it is the lower or upper end, else 0."""
    points = torch.linspace(low, high, GRID_POINTS, dtype=torch.float64)
    place = int(objective(points)[0].argmax())
    if place == 0:
        return low, -1
    if place == GRID_POINTS - 1:
        return high, 1
    left, right = float(points[place - 1]), float(points[place + 1])
    for _ in range(HALVINGS):
        middle = 0.5 * (left + right)
        rising = float(objective(torch.tensor([middle], dtype=torch.float64))[1]) > 0.0
        left, right = (middle, right) if rising else (left, middle)
    return 0.5 * (left + right), 0


def _describe_zero_noise(noise: float, spectrum: Spectrum) -> str:
    """A message if only rounding keeps the noise above zero."""
    mean_square = float(spectrum.squares.sum() + spectrum.rest) / spectrum.count
    floored = float(spectrum.rest) <= 30.0 * spectrum.count * spectrum.least
    if not floored or noise > max(NEGLIGIBLE_NOISE * mean_square, 10.0 * spectrum.least):
        return ""
    return _NOISELESS if spectrum.count <= len(spectrum.values) else _EXACT
