r"""The scale of a covariance, with noise or temperature, by the mean log score of held-out rows.

.. math:: \max_{c,\,\sigma}\; \frac1n \sum_r \log \sum_i w_i \prod_j N(y_{rj}; f_{ij}(x_r), \sigma_j^2), \qquad
          \max_{c,\,T}\; \frac1n \sum_r \log \sum_i w_i\, \mathrm{softmax}(f_i(x_r) / T)_{y_r}

where the draws i have covariance :math:`c\,\Sigma`. They share their random numbers over all c, so that the curve is
smooth; at every c noise or temperature is the best one there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from boxloop.data.frames import make_frame
from boxloop.weights.method import WeightWarning
from boxloop.weights.prediction import mixture_log_prob

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Profile = Callable[[float], tuple[Array, Array]]
"""From a scale: the best noise or temperature there, and the log score of every row."""

SCALES = (0.0, *(2.0**power for power in range(-6, 7)))
"""Tried when nothing else is asked for; 0 is the mean network alone."""


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """What was tried, and what came of it on n held-out rows.

    The rows chose the scale, so the best score flatters a little; judge what was tuned on other rows.

    Args:
        what: ``"noise"`` or ``"temperature"``.
        scales: of the covariance, rising, (g,).
        values: the best noise (g, k), or temperature (g, 1), at each.
        scores: mean log score of a row at each, (g,).
        errors: standard errors of these, from row to row, (g,).
        behind: mean log score less that of the best, (g,), with the errors ``behind_errors`` of paired differences.
        behind_errors: (g,).
        gain: of the best over what the predictor said before, a row; NaN where that had no score.
        gain_error: its standard error.
        at_end: whether the best scale is the largest tried: a larger one may be better still.
        n_rows: n.
    """

    what: str
    scales: Array
    values: Array
    scores: Array
    errors: Array
    behind: Array
    behind_errors: Array
    gain: float
    gain_error: float
    at_end: bool
    n_rows: int

    @property
    def best(self) -> int:
        """Place of the best scale."""
        return int(self.scores.argmax())

    @property
    def scale(self) -> float:
        """The best."""
        return float(self.scales[self.best])

    @property
    def value(self) -> Array:
        """Noise (k,), or temperature (1,), at the best scale."""
        return self.values[self.best]

    @property
    def plausible(self) -> tuple[float, float]:
        """The least and the largest scale tried whose score is within two standard errors of the best."""
        near = self.scales[self.behind >= -2.0 * self.behind_errors]
        return float(near.min()), float(near.max())

    def table(self) -> Any:
        """One line for each scale that was tried, as a frame."""
        many = self.values.shape[1] > 1
        own = {f"{self.what}{f' {j}' if many else ''}": column for j, column in enumerate(self.values.T)}
        columns: dict[str, Any] = {
            "scale": self.scales,
            **own,
            "log score": self.scores,
            "s.e.": self.errors,
            "behind": self.behind,
            "s.e. behind": self.behind_errors,
        }
        return make_frame(columns)

    def plot(self, ax: Axes | None = None) -> Axes:
        """How far each scale is behind the best, with errors.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures.predictions import tuning_curve

        return tuning_curve(self.scales, self.behind, self.behind_errors, self.best, ax)

    def __str__(self) -> str:
        low, high = self.plausible
        value = ", ".join(f"{one:.4g}" for one in self.value)
        said = f"scale {self.scale:.3g} ({low:.3g} to {high:.3g} within two errors), {self.what} {value}"
        end = "; the largest scale tried" if self.at_end else ""
        none = "; the spread of the weights does not help" if self.scale == 0.0 else ""
        gain = "" if np.isnan(self.gain) else f", {self.gain:+.4g} ± {self.gain_error:.2g} over before"
        best = self.scores[self.best]
        return f"{said}{end}{none}: log score {best:.4g} ± {self.errors[self.best]:.2g} a row of {self.n_rows}{gain}"

    __repr__ = __str__


def tune(what: str, profile: Profile, before: Array | None, scales: Sequence[float], refine: int) -> Tuning:
    """Try every scale, then a few more between the neighbours of the best.

    Args:
        what: ``"noise"`` or ``"temperature"``.
        profile: scores at a scale.
        before: log score of every row as things were, (n,).
        scales: to try.
        refine: how many more.

    Warns:
        WeightWarning: the best scale is the largest tried.

    Raises:
        ValueError: outputs that are not finite at any scale.
    """
    grid = np.unique(np.asarray(scales, dtype=np.float64))
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid) & (grid >= 0.0)).all():
        raise ValueError(f"scales must be finite numbers that are not negative, got {scales}")
    tried = _finite({float(scale): profile(float(scale)) for scale in grid})
    grid = np.array(sorted(tried))
    best = int(np.argmax([rows.mean() for _, rows in tried.values()]))
    at_end = best == len(grid) - 1 and grid[best] > 0.0
    if refine > 0 and not at_end and grid[best] > 0.0:
        _refine(profile, tried, grid, best, refine)
        tried = _finite(tried)
    if at_end:
        warnings.warn(
            f"the best scale of the covariance is the largest tried, {grid[best]:.4g}: a larger one may be better",
            WeightWarning,
            stacklevel=4,
        )
    return _summary(what, tried, before, at_end)


def _finite(tried: dict[float, tuple[Array, Array]]) -> dict[float, tuple[Array, Array]]:
    """Scales whose rows all have a score: a large one may take networks out of bounds."""
    found = {
        scale: one for scale, one in tried.items() if np.isfinite(one[1]).all() and np.isfinite(one[0]).all()
    }
    if not found:
        raise ValueError("outputs are not finite at any scale: look for rows of X that are missing or huge")
    return found


def best_noise(centres: Array, weight: Array, y: Array) -> tuple[Array, Array]:
    """Standard deviations (k,) of most held-out density around centres (m, n, k), and the log score of rows (n,).

    Raises:
        ValueError: an output that is predicted without any error.
    """
    start = np.sqrt(((y - np.tensordot(weight, centres, 1)) ** 2).mean(0))
    if not np.isfinite(start).all():
        return np.full(y.shape[1], np.nan), np.full(len(y), np.nan)
    if not (start > 0.0).all():
        raise ValueError("an output is predicted exactly on all rows: noise of zero has no density")

    square, rows = ((y - centres) ** 2).reshape(-1, y.shape[1]), len(y)

    def loss(log_noise: Array) -> tuple[float, Array]:
        precision = np.exp(-2.0 * log_noise)
        joint = (square @ (-0.5 * precision)).reshape(len(weight), rows) + np.log(weight)[:, None]
        top = joint.max(0)
        share = np.exp(joint - top)
        total = share.sum(0)
        share /= total
        score = (top + np.log(total)).mean() - log_noise.sum()
        return -float(score), 1.0 - precision * (share.reshape(-1) @ square) / rows

    found = [
        minimize(
            loss,
            np.log(start) + shift,
            jac=True,
            method="L-BFGS-B",
            bounds=[(at - 12.0, at + 3.0) for at in np.log(start)],
            options={"ftol": 1e-13, "gtol": 1e-8},
        )
        for shift in (
            0.0,
            -1.5,
        )  # a mixture may have two maxima: noise for the residuals, or for those of some draws
    ]
    noise = np.exp(min(found, key=lambda one: one.fun).x)
    return noise, mixture_log_prob(centres, weight, y, noise)


def _refine(
    profile: Profile, tried: dict[float, tuple[Array, Array]], grid: Array, best: int, n: int
) -> None:
    low = grid[best - 1] if best > 0 and grid[best - 1] > 0.0 else grid[best] / 4.0

    def loss(log_scale: float) -> float:
        scale = float(np.exp(log_scale))
        tried[scale] = profile(scale)
        return -float(tried[scale][1].mean())

    ends = (float(np.log(low)), float(np.log(grid[best + 1])))
    minimize_scalar(loss, bounds=ends, method="bounded", options={"maxiter": n, "xatol": 1e-3})


def _summary(
    what: str, tried: dict[float, tuple[Array, Array]], before: Array | None, at_end: bool
) -> Tuning:
    scales = sorted(tried)
    rows = np.array([tried[scale][1] for scale in scales])
    top = rows[int(rows.mean(1).argmax())]
    gain = np.array([np.nan, np.nan]) if before is None else top - before
    return Tuning(
        what,
        np.array(scales),
        np.array([tried[scale][0] for scale in scales]),
        rows.mean(1),
        _error(rows),
        (rows - top).mean(1),
        _error(rows - top),
        float(gain.mean()),
        float(_error(gain[None])[0]),
        at_end,
        rows.shape[1],
    )


def _error(rows: Array) -> Array:
    n = rows.shape[1]
    return np.asarray(rows.std(1, ddof=1) / np.sqrt(n)) if n > 1 else np.full(len(rows), np.nan)
