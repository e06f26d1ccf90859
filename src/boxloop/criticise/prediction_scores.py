r"""How good predictions of numbers and of classes are: proper scores, coverage and calibration, with standard errors.

The continuous ranked probability score measures how far a distribution F is from the value y that came,

.. math:: \mathrm{CRPS}(F, y) = \int (F(x) - 1_{y \le x})^2 dx = E|X - y| - \tfrac12 E|X - X'|,

in the units of y; smaller is better; it is the absolute error where F is a point (Gneiting and Raftery 2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp, ndtr

from boxloop.criticise.calibration import (
    BINS,
    LEVELS,
    Calibration,
    Reliability,
    check_probability,
    reliability,
    to_numbers,
)
from boxloop.data import check_level, make_frame
from boxloop.numeric import RandomState, format_with_error, generator, mean_and_error, single_threaded, spawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

TILE = 1 << 22
"""Numbers held at a time by pairs of draws."""


@dataclass(frozen=True)
class Difference:
    """A mean difference of two scores over the same rows.

    Args:
        value: the mean.
        standard_error: of it, over rows.

    Example:
        >>> Difference(0.2, 0.1).z, str(Difference(0.2, 0.1))
        (2.0, '+0.20 ± 0.10')
    """

    value: float
    standard_error: float

    @property
    def z(self) -> float:
        """The difference over its standard error; 0 where there is no difference at all."""
        if self.value == 0.0:
            return 0.0
        if self.standard_error > 0.0:
            return self.value / self.standard_error
        return float(np.sign(self.value)) * math.inf

    def __str__(self) -> str:
        return format_with_error(self.value, self.standard_error, sign="+")


def paired_difference(one: Array, other: Array) -> Difference:
    """The mean of one score minus another on the same rows; columns of a row are summed first."""
    if one.shape != other.shape:
        raise ValueError(f"scores must be of the same rows, got shapes {one.shape} and {other.shape}")
    apart = one - other
    return Difference(*mean_and_error(apart.sum(1) if apart.ndim == 2 else apart))


@dataclass(frozen=True)
class RegressionScores:
    """Scores of predictions of n rows of q outputs, row by row, so that two predictors can be compared in pairs.

    Args:
        transform: probability integral transforms, (n, q): uniform where predictions are right.
        log_score: log-density of the value, (n, q), larger is better; NaN where only draws were given.
        crps: continuous ranked probability score, (n, q), in units of y, smaller is better.
        squared_error: of the mean, (n, q).
        std: predicted standard deviation, (n, q).
        names: of the outputs.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = rng.normal(size=1000)
        >>> found = regression_scores(y, np.zeros(1000), np.full(1000, 0.5))
        >>> found.coverage([0.9])["inside"].round(2).tolist()
        [0.61]
        >>> found.table().index.tolist()
        ['y']
    """

    transform: Array
    log_score: Array
    crps: Array
    squared_error: Array
    std: Array
    names: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        """n."""
        return len(self.transform)

    @property
    def calibration(self) -> Calibration:
        """The transforms, with a test of uniformity and plots."""
        return Calibration(self.transform, self.names)

    @property
    def variance_ratio(self) -> Array:
        """Mean squared error over the predicted variance, (q,): 1 where right, above 1 where too small."""
        return np.asarray((self.squared_error / self.std**2).mean(0))

    def coverage(self, levels: Sequence[float] = LEVELS) -> Any:
        r"""How often central intervals hold the value, one line for every output and level.

        Args:
            levels: probabilities of the intervals.

        Returns:
            ``inside``, the share of rows; ``standard_error``, :math:`\sqrt{\ell (1 - \ell) / n}`, of a predictor that
            is right; ``z``, the difference from the level over it; ``p_value``, of the exact binomial test.
        """
        lines: list[tuple[Any, ...]] = []
        for name, values in zip(self.names, self.transform.T, strict=True):
            for level in levels:
                check_level(level)
                inside = np.abs(2.0 * values - 1.0) <= level
                share, error = float(inside.mean()), math.sqrt(level * (1.0 - level) / len(values))
                test = stats.binomtest(int(inside.sum()), len(values), level)
                z = (share - level) / error
                lines.append((name, float(level), share, error, z, float(test.pvalue)))
        columns = ("output", "level", "inside", "standard_error", "z", "p_value")
        return make_frame({name: [line[i] for line in lines] for i, name in enumerate(columns)})

    def table(self) -> Any:
        """One line per output: scores with standard errors, variance ratio, coverage, and Kolmogorov's p-value."""
        columns: dict[str, list[float]] = {"rows": [self.n_rows] * len(self.names)}
        for name, rows in self._scores().items():
            pairs = [mean_and_error(column) for column in rows.T]
            columns[name] = [value for value, _ in pairs]
            columns[f"{name} error"] = [error for _, error in pairs]
        columns["std"] = self.std.mean(0).tolist()
        columns["variance ratio"] = self.variance_ratio.tolist()
        calibration = self.calibration.table()
        for name in calibration.columns[2:]:
            columns[name] = calibration[name].tolist()
        return make_frame(columns, list(self.names))

    def difference(self, other: RegressionScores) -> dict[str, Difference]:
        """These scores minus those of another predictor on the same rows, paired; outputs of a row are summed.

        Args:
            other: of the same rows.

        Returns:
            By name: ``log score``, ``CRPS``, ``squared error``.
        """
        theirs = other._scores()
        return {name: paired_difference(rows, theirs[name]) for name, rows in self._scores().items()}

    def _scores(self) -> dict[str, Array]:
        return {"log score": self.log_score, "CRPS": self.crps, "squared error": self.squared_error}

    def plot(self, ax: Axes | None = None) -> Axes:
        """How often central intervals of every probability hold the value, with a band for right predictions.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> regression_scores([0.1, -0.3], [0.0, 0.0], [1.0, 1.0]).plot().get_ylabel()
            'share of rows inside'
        """
        return self.calibration.plot_coverage(ax)

    def __str__(self) -> str:
        lines = [f"{self.n_rows} rows"]
        for name, row in zip(self.names, self.table().to_dict("records"), strict=True):
            keys = ["CRPS"] if math.isnan(row["log score"]) else ["log score", "CRPS"]
            scores = [f"{key} {format_with_error(row[key], row[f'{key} error'])}" for key in keys]
            inside = [f"{row[f'inside {p:.0%}']:.3f} of rows in the {p:.0%} interval" for p in LEVELS]
            ratio = f"variance ratio {row['variance ratio']:.3g}"
            lines.append(f"{name}: {', '.join(scores)}, {ratio}; {', '.join(inside)}")
        return "\n".join(lines)


@single_threaded
def regression_scores(
    y: Any,
    mean: Any = None,
    std: Any = None,
    *,
    draws: Any = None,
    weight: Any = None,
    names: Sequence[str] | None = None,
    random_state: RandomState = 0,
) -> RegressionScores:
    r"""Scores of predictive distributions of numbers: normal ones, mixtures of them, or draws.

    .. math:: N(\mu_i, \sigma_i^2) \quad \text{or} \quad \sum_j w_j N(f_{ji}, \sigma_i^2) \quad \text{or} \quad
        f_{1i}, \dots, f_{mi} \sim F_i

    Gneiting and Raftery (2007). Each output is scored by itself: log scores are of marginals. A transform from draws is
    the rank of y among them with a uniform number added to break ties, :math:`u = (r + U) / (m + 1)`, which is exactly
    uniform where y is one more draw.

    Args:
        y: (n,) or (n, q).
        mean: in the shape of y; that of the draws when None.
        std: standard deviation, in the shape of y, or one number. With ``draws`` it is that of the noise around each of
            them.
        draws: (m, n) or (m, n, q): of the value itself where no ``std`` is given, else of its mean.
        weight: of the draws, (m,), where there is noise around them; scaled to sum to 1. Equal when None.
        names: of the outputs.
        random_state: seed of the numbers that break ties.

    Raises:
        ValueError: other shapes, values that are not finite, a ``std`` that is not positive, or neither mean nor draws.

    Example:
        >>> import numpy as np
        >>> y = np.random.default_rng(0).normal(2.0, 3.0, size=400)
        >>> found = regression_scores(y, np.full(400, 2.0), 3.0)
        >>> bool(found.calibration.table()["p_value"].iloc[0] > 0.01)
        True
    """
    target = _check_targets(y)
    q = target.shape[1]
    if names is None:
        names = ("y",) if q == 1 else tuple(f"y{j}" for j in range(q))
    names = tuple(names)
    if len(names) != q:
        raise ValueError(f"names has {len(names)} names, and y has {q} outputs")
    noise = None if std is None else _check_std(std, target)
    if draws is None:
        if mean is None or noise is None:
            raise ValueError("predictions are missing: give mean and std, or draws")
        centre = _check_like_targets(mean, "mean", target)
        z = (target - centre) / noise
        density = -0.5 * z * z - np.log(noise) - 0.5 * math.log(2.0 * math.pi)
        score = crps_normal(target, centre, noise)
        return RegressionScores(ndtr(z), density, score, (target - centre) ** 2, noise, names)
    rows = _check_like_targets(draws, "draws", target, lead=1)
    share = np.ones(len(rows)) if weight is None else to_numbers(weight, "weight")
    if share.shape != (len(rows),) or (share < 0.0).any() or not share.sum() > 0.0:
        raise ValueError(f"weight must hold {len(rows)} numbers that are not negative, one for each draw")
    share = share / share.sum()
    centre = np.tensordot(share, rows, 1) if mean is None else _check_like_targets(mean, "mean", target)
    squared = (target - centre) ** 2
    if noise is not None:
        z = (target - rows) / noise
        density = logsumexp(-0.5 * z * z, axis=0, b=share[:, None, None])
        density = density - np.log(noise) - 0.5 * math.log(2.0 * math.pi)
        total = np.sqrt(np.tensordot(share, (rows - np.tensordot(share, rows, 1)) ** 2, 1) + noise**2)
        transform, score = np.tensordot(share, ndtr(z), 1), crps_mixture(target, rows, noise, share)
        return RegressionScores(transform, density, score, squared, total, names)
    if len(rows) < 2 or weight is not None:
        raise ValueError("without std, draws must be at least 2 and weight must be left out")
    below, same = (rows < target).sum(0), (rows == target).sum(0)
    uniform = torch.rand(target.shape, generator=generator(random_state), dtype=torch.float64).numpy()
    rank = (below + uniform * (same + 1)) / (len(rows) + 1)
    unknown = np.full_like(target, np.nan)
    return RegressionScores(rank, unknown, crps_draws(target, rows), squared, rows.std(0, ddof=1), names)


def _check_std(std: Any, y: Array) -> Array:
    value = to_numbers(std, "std")
    if value.ndim == 0 or (value.ndim == 1 and len(value) == y.shape[1] != len(y)):
        value = np.broadcast_to(value, y.shape)
    value = _check_like_targets(value, "std", y)
    if (value <= 0.0).any():
        raise ValueError(
            f"std must be positive, got {value.min():g}: a distribution without variance has no density"
        )
    return value


def _check_targets(y: Any) -> Array:
    """Values of q outputs, (n, q); one dimension is one output."""
    target = to_numbers(y, "y")
    target = target[:, None] if target.ndim == 1 else target
    if target.ndim != 2 or 0 in target.shape:
        raise ValueError(f"y must have shape (n,) or (n, q), got {target.shape}")
    return target


def _check_like_targets(value: Any, name: str, y: Array, lead: int = 0) -> Array:
    """Numbers in the shape of targets, after ``lead`` axes of their own; one output may leave its axis out."""
    numbers = to_numbers(value, name)
    if numbers.ndim == 1 + lead and y.shape[1] == 1:
        numbers = numbers[..., None]
    if numbers.ndim != 2 + lead or numbers.shape[lead:] != y.shape:
        wanted = "(m, n, q)" if lead else "(n, q)"
        raise ValueError(f"{name} must have shape {wanted} with (n, q) = {y.shape}, got {numbers.shape}")
    return numbers


def crps_normal(y: Array, mean: Array, std: Array) -> Array:
    r"""The continuous ranked probability score of normal distributions; Gneiting et al. (2005), eq. 5.

    .. math:: \sigma \left[ z (2 \Phi(z) - 1) + 2 \phi(z) - \pi^{-1/2} \right], \qquad z = (y - \mu) / \sigma
    """
    return _expected_absolute_normal(y - mean, std) - std / math.sqrt(math.pi)


def crps_draws(y: Array, draws: Array) -> Array:
    r"""The continuous ranked probability score from draws (m, n, q), without bias: the fair score of Ferro (2014).

    .. math:: \frac1m \sum_i |x_i - y| - \frac{1}{2 m (m - 1)} \sum_{ij} |x_i - x_j|

    Its mean over draws is the score of their distribution; dividing by :math:`m^2` would penalise few draws.
    """
    m = len(draws)
    rank = np.arange(1 - m, m, 2, dtype=np.float64)
    pairs = np.tensordot(rank, np.sort(draws, axis=0), 1) / (m * (m - 1))
    return np.abs(draws - y).mean(0) - pairs


def crps_mixture(y: Array, draws: Array, std: Array, weight: Array) -> Array:
    r"""The continuous ranked probability score of mixtures of normal distributions; Grimit et al. (2006).

    .. math:: \sum_i w_i A(y - \mu_i, \sigma) - \tfrac12 \sum_{ij} w_i w_j A(\mu_i - \mu_j, \sqrt2 \sigma), \qquad
        A(d, s) = d (2 \Phi(d/s) - 1) + 2 s \phi(d/s)

    The draws (m, n, q) are means, with weights (m,) of sum 1 and std (n, q). It takes :math:`m^2` operations per row.
    """
    to_value = np.tensordot(weight, _expected_absolute_normal(y - draws, std), 1)
    m, wide = len(draws), math.sqrt(2.0) * std
    step = max(1, TILE // (m * std.size))
    between = np.zeros_like(to_value)
    for start in range(0, m, step):
        apart = draws[start : start + step, None] - draws[None]
        shares = weight[start : start + step, None] * weight
        between += np.tensordot(shares, _expected_absolute_normal(apart, wide), 2)
    return np.asarray(to_value - 0.5 * between)


def _expected_absolute_normal(mean: Array, std: Array) -> Array:
    """E|X| of a normal X."""
    z = mean / std
    return np.asarray(mean * (2.0 * ndtr(z) - 1.0) + std * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * z * z))


@dataclass(frozen=True)
class ClassificationScores:
    r"""Scores of probabilities of n rows, row by row, so that two predictors can be compared in pairs.

    Args:
        log_score: :math:`\log p_y`, (n,), larger is better; minus infinity where the label had probability 0.
        brier: :math:`\sum_c (p_c - 1_{c = y})^2`, (n,), smaller is better. With two classes scikit-learn's
            ``brier_score_loss`` is half of its mean.
        correct: whether the most probable class is the label, (n,).
        reliability: of the most probable class in bins of equal width, with the calibration error.
        adaptive: the same in bins of equal count.

    Example:
        >>> found = classification_scores([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        >>> found.accuracy, found.brier.tolist()
        (1.0, [0.5, 0.125])
    """

    log_score: Array
    brier: Array
    correct: NDArray[np.bool_]
    reliability: Reliability
    adaptive: Reliability

    @property
    def n_rows(self) -> int:
        """n."""
        return len(self.brier)

    @property
    def accuracy(self) -> float:
        """Share of rows whose most probable class is the label."""
        return float(self.correct.mean())

    @property
    def n_impossible(self) -> int:
        """Rows whose label had probability 0."""
        return int(np.isneginf(self.log_score).sum())

    def table(self) -> Any:
        """One line per score: its value and standard error; of calibration errors also their distribution by chance."""
        unknown = (math.nan, math.nan, math.nan)
        lines = {name: (*mean_and_error(rows), *unknown) for name, rows in self._scores().items()}
        for name, one in (
            ("calibration error", self.reliability),
            ("calibration error, equal counts", self.adaptive),
        ):
            error = (one.calibration_error, one.standard_error)
            lines[name] = (*error, one.chance, one.chance_high, one.p_value)
        names = ("value", "standard_error", "chance", "chance_high", "p_value")
        return make_frame(dict(zip(names, zip(*lines.values()))), list(lines))

    def difference(self, other: ClassificationScores) -> dict[str, Difference]:
        """These scores minus those of another predictor on the same rows, paired.

        Args:
            other: of the same rows.

        Returns:
            By name: ``log score``, ``Brier score``, ``accuracy``.
        """
        theirs = other._scores()
        return {name: paired_difference(rows, theirs[name]) for name, rows in self._scores().items()}

    def _scores(self) -> dict[str, Array]:
        correct = self.correct.astype(float)
        return {"log score": self.log_score, "Brier score": self.brier, "accuracy": correct}

    def plot(self, ax: Axes | None = None) -> Axes:
        """The reliability diagram, with the 95% band of right probabilities.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> classification_scores([0.9, 0.2, 0.6], [1, 0, 1]).plot().get_ylabel()
            'observed frequency'
        """
        return self.reliability.plot(ax)

    def __str__(self) -> str:
        score = format_with_error(*mean_and_error(self.log_score))
        brier = format_with_error(*mean_and_error(self.brier))
        impossible = f"; {self.n_impossible} label(s) had probability 0" if self.n_impossible else ""
        scores = f"log score {score}, Brier score {brier}, accuracy {self.accuracy:.3f}{impossible}"
        return f"{self.n_rows} rows: {scores}\n{self.reliability}"


@single_threaded
def classification_scores(
    probability: Any,
    y: Any,
    *,
    bins: int = BINS,
    floor: float = 0.0,
    repeats: int | None = None,
    random_state: RandomState = 0,
) -> ClassificationScores:
    r"""Scores of probabilities of classes.

    .. math:: \log p_{i y_i}, \qquad \sum_c (p_{ic} - 1_{c = y_i})^2

    Both are proper: no other probabilities have a better mean than the true ones (Gneiting and Raftery 2007).

    Args:
        probability: (n, C), rows summing to 1; or (n,), of the second of two classes.
        y: number of each row's class, (n,), from 0.
        bins: of the calibration errors.
        floor: least probability in the log score, for methods that give 0.
        repeats: label sets drawn for the distribution of calibration errors by chance; chosen by the number of rows
            when None.
        random_state: seed of them.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.05, 0.95, size=1000)
        >>> found = classification_scores(p, rng.random(1000) < p)
        >>> found.table().index.tolist()[:3]
        ['log score', 'Brier score', 'accuracy']
        >>> found.reliability.p_value > 0.01
        True
    """
    p, codes = check_probability(probability, y)
    if not 0.0 <= floor < 1.0:
        raise ValueError(f"floor must be a probability, got {floor}")
    own = p[np.arange(len(p)), codes]
    with np.errstate(divide="ignore"):
        log_score = np.log(np.maximum(own, floor))
    square = (p * p).sum(1) - 2.0 * own + 1.0
    one, other = spawn(generator(random_state), 2)
    return ClassificationScores(
        log_score,
        square,
        p.argmax(1) == codes,
        reliability(p, codes, bins=bins, repeats=repeats, random_state=one),
        reliability(p, codes, bins=bins, equal="count", repeats=repeats, random_state=other),
    )
