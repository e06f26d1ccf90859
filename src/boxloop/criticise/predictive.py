r"""How good predictions of numbers are: scores, coverage and probability transforms, with standard errors."""

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

from boxloop.criticise.calibration import LEVELS, Calibration
from boxloop.criticise.crps import crps_draws, crps_mixture, crps_normal
from boxloop.criticise.outcomes import checked_targets, like_targets, numbers
from boxloop.criticise.paired import Difference, difference
from boxloop.data import check_level, make_frame
from boxloop.numeric import RandomState, format_with_error, generator, mean_and_error, single_threaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RegressionScores:
    """Scores of predictions of n rows of q outputs, row by row, so that two predictors can be compared in pairs.

    Args:
        transform: probability integral transforms, (n, q): uniform where predictions are right.
        log_score: log-density of the value, (n, q), larger is better; NaN where draws alone were given.
        crps: continuous ranked probability score, (n, q), in units of y, smaller is better.
        square_error: of the mean, (n, q).
        deviation: predicted, (n, q).
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
    square_error: Array
    deviation: Array
    names: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        """n."""
        return len(self.transform)

    @property
    def calibration(self) -> Calibration:
        """The transforms, with their test of uniformity and their pictures."""
        return Calibration(self.transform, self.names)

    @property
    def spread(self) -> Array:
        """Mean squared error in units of the predicted variance, (q,): 1 where right, above where too narrow."""
        found: Array = (self.square_error / self.deviation**2).mean(0)
        return found

    def coverage(self, levels: Sequence[float] = LEVELS) -> Any:
        r"""How often central intervals hold the value, a line for every output and level.

        Args:
            levels: probabilities of the intervals.

        Returns:
            ``inside``, the share of rows; ``standard_error``, :math:`\sqrt{\ell (1 - \ell) / n}`, of a predictor that
            is right; ``z``, the difference in units of it; ``p_value``, of the exact binomial test.
        """
        lines: dict[str, list[Any]] = {
            key: [] for key in ("output", "level", "inside", "standard_error", "z", "p_value")
        }
        for name, values in zip(self.names, self.transform.T, strict=True):
            for level in levels:
                check_level(level)
                inside = np.abs(2.0 * values - 1.0) <= level
                share, error = float(inside.mean()), math.sqrt(level * (1.0 - level) / len(values))
                test = stats.binomtest(int(inside.sum()), len(values), level)
                cells = (name, float(level), share, error, (share - level) / error, float(test.pvalue))
                for key, cell in zip(lines, cells, strict=True):
                    lines[key].append(cell)
        return make_frame(lines)

    def table(self) -> Any:
        """One line an output: scores with standard errors, spread, coverage, and Kolmogorov's p-value."""
        facts = {
            "log score": self.log_score,
            "CRPS": self.crps,
            "squared error": self.square_error,
        }
        columns: dict[str, list[float]] = {"rows": [self.n_rows] * len(self.names)}
        for name, rows in facts.items():
            found = [mean_and_error(column) for column in rows.T]
            columns[name] = [value for value, _ in found]
            columns[f"{name} error"] = [error for _, error in found]
        columns["deviation"] = self.deviation.mean(0).tolist()
        columns["spread"] = self.spread.tolist()
        shown = self.calibration.table()
        for name in shown.columns[2:]:
            columns[name] = shown[name].tolist()
        return make_frame(columns, list(self.names))

    def less(self, other: RegressionScores) -> dict[str, Difference]:
        """These scores less another predictor's on the same rows, paired; outputs of a row are summed.

        Args:
            other: of the same rows.

        Returns:
            By name: ``log score``, ``CRPS``, ``squared error``.
        """
        pairs = {
            "log score": (self.log_score, other.log_score),
            "CRPS": (self.crps, other.crps),
            "squared error": (self.square_error, other.square_error),
        }
        return {name: difference(a, b) for name, (a, b) in pairs.items()}

    def plot(self, ax: Axes | None = None) -> Axes:
        """How often central intervals of every probability hold the value, with the band that chance allows.

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
            said = [] if math.isnan(row["log score"]) else ["log score"]
            scores = [f"{key} {format_with_error(row[key], row[f'{key} error'])}" for key in (*said, "CRPS")]
            inside = [f"{row[f'inside {level:.0%}']:.3f} in {level:.0%}" for level in LEVELS]
            lines.append(f"{name}: {', '.join(scores)}, spread {row['spread']:.3g}; {', '.join(inside)}")
        return "\n".join(lines)


@single_threaded
def regression_scores(
    y: Any,
    mean: Any = None,
    deviation: Any = None,
    *,
    draws: Any = None,
    weight: Any = None,
    names: Sequence[str] | None = None,
    random_state: RandomState = 0,
) -> RegressionScores:
    r"""Scores of predictions of numbers: of normal laws, of mixtures of them, or of draws.

    .. math:: N(\mu_i, \sigma_i^2) \quad \text{or} \quad \sum_j w_j N(f_{ji}, \sigma_i^2) \quad \text{or} \quad
        f_{1i}, \dots, f_{mi} \sim F_i

    Each output is judged by its own law: log scores are of marginals. A transform from draws is the rank of y among
    them with a uniform number added to break ties, :math:`u = (r + U) / (m + 1)`, which is exactly uniform where y is
    one more draw.

    Args:
        y: (n,) or (n, q).
        mean: in the shape of y; that of the draws when None.
        deviation: standard deviation, in the shape of y, or one number. Beside ``draws`` it is that of the noise around
            each of them.
        draws: (m, n) or (m, n, q): of the value itself where no deviation is given, else of its mean.
        weight: of the draws, (m,), where there is noise around them; they are made to sum to 1. Equal when None.
        names: of the outputs.
        random_state: of broken ties.

    Returns:
        :class:`RegressionScores`.

    Raises:
        ValueError: other shapes, values that are not finite, a deviation of zero or below, or neither law nor draws.

    Example:
        >>> import numpy as np
        >>> y = np.random.default_rng(0).normal(2.0, 3.0, size=400)
        >>> found = regression_scores(y, np.full(400, 2.0), 3.0)
        >>> bool(found.calibration.table()["p_value"].iloc[0] > 0.01)
        True
    """
    target = checked_targets(y)
    said = tuple(names) if names is not None else _named(target.shape[1])
    if len(said) != target.shape[1]:
        raise ValueError(f"{len(said)} names for {target.shape[1]} outputs")
    noise = None if deviation is None else _deviation(deviation, target)
    if draws is None:
        if mean is None or noise is None:
            raise ValueError("give mean and deviation, or draws")
        centre = like_targets(mean, "mean", target)
        z = (target - centre) / noise
        density = -0.5 * z * z - np.log(noise) - 0.5 * math.log(2.0 * math.pi)
        score = crps_normal(target, centre, noise)
        return RegressionScores(ndtr(z), density, score, (target - centre) ** 2, noise, said)
    rows = like_targets(draws, "draws", target, lead=1)
    share = _shares(weight, len(rows))
    centre = np.tensordot(share, rows, 1) if mean is None else like_targets(mean, "mean", target)
    if noise is not None:
        return _mixture(target, centre, rows, noise, share, said)
    if len(rows) < 2 or weight is not None:
        raise ValueError("two draws at least, without weights, are needed where no deviation is given")
    unknown, square = np.full_like(target, np.nan), (target - centre) ** 2
    found = _ranks(target, rows, random_state)
    return RegressionScores(found, unknown, crps_draws(target, rows), square, rows.std(0, ddof=1), said)


def _mixture(
    target: Array, centre: Array, rows: Array, noise: Array, share: Array, names: tuple[str, ...]
) -> RegressionScores:
    z = (target - rows) / noise
    density = logsumexp(-0.5 * z * z, axis=0, b=share[:, None, None])
    wide = np.sqrt(np.tensordot(share, (rows - np.tensordot(share, rows, 1)) ** 2, 1) + noise**2)
    return RegressionScores(
        np.tensordot(share, ndtr(z), 1),
        density - np.log(noise) - 0.5 * math.log(2.0 * math.pi),
        crps_mixture(target, rows, noise, share),
        (target - centre) ** 2,
        wide,
        names,
    )


def _shares(weight: Any, m: int) -> Array:
    found = np.ones(m) if weight is None else numbers(weight, "weight")
    if found.shape != (m,) or (found < 0.0).any() or not found.sum() > 0.0:
        raise ValueError(f"weight must hold {m} numbers that are not negative, one for each draw")
    return np.asarray(found / found.sum())


def _named(q: int) -> tuple[str, ...]:
    return ("y",) if q == 1 else tuple(f"y{j}" for j in range(q))


def _deviation(given: Any, y: Array) -> Array:
    found = numbers(given, "deviation")
    if found.ndim == 0 or (found.ndim == 1 and len(found) == y.shape[1] != len(y)):
        found = np.broadcast_to(found, y.shape)
    found = like_targets(found, "deviation", y)
    if (found <= 0.0).any():
        raise ValueError("deviation must be above zero: a law without spread has no density")
    return found


def _ranks(y: Array, draws: Array, random_state: RandomState) -> Array:
    below, same = (draws < y).sum(0), (draws == y).sum(0)
    broken = torch.rand(y.shape, generator=generator(random_state), dtype=torch.float64).numpy()
    found: Array = (below + broken * (same + 1)) / (len(draws) + 1)
    return found
