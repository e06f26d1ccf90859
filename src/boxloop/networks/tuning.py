r"""The scale of the covariance, with noise or temperature, by the log score of held-out rows.

The draws use the same random numbers for all scales c, so the curve is smooth; at each c, noise or temperature is
optimal. The objective is in :meth:`~boxloop.networks.Predictor.tune`. Its priors are weak and do not grow with n:
:math:`\log_{10} c \sim N(0, 1)`, :math:`\log_2 T \sim N(0, 1)`, and for the noise two further rows whose residuals are
those of the mean network on average. Without them a few dozen rows overfit:
only rows of different epistemic variance separate it from noise, a mixture of narrow components near the held-out rows
has the best score of all on these rows and the worst on others, and a dozen correctly classified rows prefer a
temperature of zero. The priors outweigh a dozen rows and are negligible beside a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from boxloop.data import make_frame
from boxloop.networks.distribution import warn
from boxloop.networks.prediction import log_mean_probability, log_probabilities, mixture_log_prob
from boxloop.numeric import format_with_error, mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

Profile = tuple[Array, Array, float]
"""At one scale: the best noise or temperature, the log score of every row, and the log prior."""

SCALES = (0.0, *(2.0**power for power in range(-6, 7)))  # default scales; 0 is the mean network alone
LOG_SCALE_STD = math.log(10.0)  # prior standard deviation of the logarithm of the scale
MIN_SCALE = 2.0**-6
"""Scale below which the prior is constant: the epistemic standard deviation is an eighth of its value or less."""
PRIOR_ROWS = 2  # rows that the prior of the noise is worth
MAX_LOG_TEMPERATURE = 7.0
LOG_TEMPERATURE_STD = math.log(2.0)  # prior standard deviation of the logarithm of the temperature


@dataclass(frozen=True, eq=False, repr=False)
class Tuning:
    """The scales that were tried on n held-out rows, and their scores.

    The same rows chose the scale, so the best score is slightly optimistic; evaluate a tuned predictor on other rows.

    Args:
        parameter: ``"noise"`` or ``"temperature"``.
        scales: of the covariance, increasing, (g,).
        values: the best noise (g, k), or temperature (g, 1), at each scale.
        scores: mean log score per row, (g,).
        errors: their standard errors, (g,).
        log_priors: log prior at each scale, for all rows together, (g,); the best scale has the largest sum of
            ``n_rows * scores`` and these.
        differences: mean log score minus that of the best, (g,); may be above 0 where the prior prefers the best.
        difference_errors: standard errors of these paired differences, (g,).
        gain: mean log score of the best minus that of the predictor before tuning; NaN where that had none.
        gain_error: its standard error.
        at_largest: whether the best scale is the largest tried, so that a larger one may be better.
        n_rows: n, or the sum of the sample weights.
    """

    parameter: str
    scales: Array
    values: Array
    scores: Array
    errors: Array
    log_priors: Array
    differences: Array
    difference_errors: Array
    gain: float
    gain_error: float
    at_largest: bool
    n_rows: float

    @property
    def best_index(self) -> int:
        """Index of the best scale."""
        return int((self.n_rows * self.scores + self.log_priors).argmax())

    @property
    def scale(self) -> float:
        """The best scale."""
        return float(self.scales[self.best_index])

    @property
    def value(self) -> Array:
        """Noise (k,), or temperature (1,), at the best scale."""
        return self.values[self.best_index]

    @property
    def scale_range(self) -> tuple[float, float]:
        """The smallest and largest scale whose score is within two standard errors of the best."""
        near = self.scales[self.differences >= -2.0 * self.difference_errors]
        return float(near.min()), float(near.max())

    def table(self) -> Any:
        """A frame with one row per scale."""
        several = self.values.shape[1] > 1
        columns: dict[str, Any] = {"scale": self.scales}
        for j, column in enumerate(self.values.T):
            columns[f"{self.parameter} {j}" if several else self.parameter] = column
        columns |= {"log score": self.scores, "s.e.": self.errors, "log prior": self.log_priors}
        columns |= {"difference": self.differences, "s.e. difference": self.difference_errors}
        return make_frame(columns)

    def plot(self, ax: Axes | None = None) -> Axes:
        """The differences of the scores from the best, with standard errors.

        Args:
            ax: where to draw; a new figure, ``axes.figure``, if None.
        """
        from boxloop.figures import tuning_curve

        return tuning_curve(self.scales, self.differences, self.difference_errors, self.best_index, ax)

    def __str__(self) -> str:
        low, high = self.scale_range
        value = ", ".join(f"{one:.4g}" for one in self.value)
        score = format_with_error(self.scores[self.best_index], self.errors[self.best_index])
        parts = [
            f"scale {self.scale:.3g} ({low:.3g} to {high:.3g} within two standard errors)",
            f"{self.parameter} {value}",
            f"mean log score {score} on {self.n_rows:.12g} rows",
        ]
        if not np.isnan(self.gain):
            parts.append(f"gain by tuning {format_with_error(self.gain, self.gain_error, sign='+')}")
        if self.at_largest:
            parts.append("the scale is the largest that was tried")
        if self.scale == 0.0:
            parts.append("the covariance of the weights does not improve predictions")
        return "; ".join(parts)

    __repr__ = __str__


def tune_scale(
    parameter: str,
    profile: Callable[[float], Profile],
    before: Array | None,
    scales: Sequence[float],
    refine: int,
    row_weight: Array | None = None,
) -> Tuning:
    """Try every scale, then a few more between the neighbours of the best."""
    grid = np.unique(np.asarray(scales, dtype=np.float64))
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid) & (grid >= 0.0)).all():
        raise ValueError(f"scales must be finite numbers, at least 0, got {scales}")
    profiles = _drop_infinite({float(scale): profile(float(scale)) for scale in grid})
    grid = np.array(sorted(profiles))
    weight = np.ones(len(next(iter(profiles.values()))[1])) if row_weight is None else row_weight
    best = int(np.argmax([_log_posterior(profiles[scale], weight) for scale in grid.tolist()]))
    at_largest = best == len(grid) - 1 and grid[best] > 0.0
    if at_largest:
        warn(
            f"The best scale of the covariance, {grid[best]:.4g}, is the largest that was tried; pass larger scales=."
        )
    elif refine > 0 and grid[best] > 0.0:
        low = grid[best - 1] if best > 0 and grid[best - 1] > 0.0 else grid[best] / 4.0

        def loss(log_scale: float) -> float:
            scale = float(f"{np.exp(log_scale):.4g}")  # further digits would differ between machines
            if scale not in profiles:
                profiles[scale] = profile(scale)
            return -_log_posterior(profiles[scale], weight) / float(weight.sum())

        bounds = (float(np.log(low)), float(np.log(grid[best + 1])))
        minimize_scalar(loss, bounds=bounds, method="bounded", options={"maxiter": refine, "xatol": 1e-3})
        profiles = _drop_infinite(profiles)
    return _summarise_profiles(parameter, profiles, before, at_largest, weight)


def log_scale_prior(scale: float) -> float:
    """Log prior of a scale, up to a constant."""
    return -0.5 * (math.log(max(scale, MIN_SCALE)) / LOG_SCALE_STD) ** 2


def _log_posterior(profile: Profile, row_weight: Array) -> float:
    return float(profile[1] @ row_weight) + profile[2]


def _drop_infinite(profiles: dict[float, Profile]) -> dict[float, Profile]:
    """Scales at which all rows have a finite score; networks may overflow at large ones."""
    finite = {
        scale: (value, score, prior)
        for scale, (value, score, prior) in profiles.items()
        if np.isfinite(score).all() and np.isfinite(value).all()
    }
    if not finite:
        raise ValueError("The outputs are not finite at any scale: check X for missing or huge values.")
    return finite


def _summarise_profiles(
    parameter: str, profiles: dict[float, Profile], before: Array | None, at_largest: bool, row_weight: Array
) -> Tuning:
    scales = sorted(profiles)
    rows = np.array([profiles[scale][1] for scale in scales])
    best = profiles[max(scales, key=lambda scale: _log_posterior(profiles[scale], row_weight))][1]
    gain = np.full_like(best, np.nan) if before is None else best - before
    (scores, errors), (differences, difference_errors), (mean_gain, gain_error) = (
        np.array([mean_and_error(line, row_weight) for line in table]).T
        for table in (rows, rows - best, gain[None])
    )
    return Tuning(
        parameter,
        np.array(scales),
        np.array([profiles[scale][0] for scale in scales]),
        scores,
        errors,
        np.array([profiles[scale][2] for scale in scales]),
        differences,
        difference_errors,
        float(mean_gain[0]),
        float(gain_error[0]),
        at_largest,
        float(row_weight.sum()),
    )


def find_best_noise(centres: Array, weight: Array, y: Array, row_weight: Array | None = None) -> Profile:
    r"""The noise of highest posterior density for each output, with the log score of the rows and the log prior.

    The noise is multiplied by :math:`\sqrt{(n + 2) / n}`, which makes it the standard deviation of a Student
    distribution with n + 2 degrees of freedom: of a new row, where the noise is known from so few rows.
    """
    residual = np.sqrt(np.average((y - np.tensordot(weight, centres, 1)) ** 2, axis=0, weights=row_weight))
    if not np.isfinite(residual).all():
        return np.full(y.shape[1], np.nan), np.full(len(y), np.nan), 0.0
    if not (residual > 0.0).all():
        raise ValueError(
            "An output is predicted exactly on all rows, so its noise would be 0: pass noise= instead."
        )
    square, rows = ((y - centres) ** 2).reshape(-1, y.shape[1]), len(y)
    each = np.ones(rows) if row_weight is None else row_weight
    count = float(each.sum())

    def log_prior(log_noise: Array) -> float:
        return -0.5 * PRIOR_ROWS * float((2.0 * log_noise + (residual * np.exp(-log_noise)) ** 2).sum())

    def loss(log_noise: Array) -> tuple[float, Array]:
        precision = np.exp(-2.0 * log_noise)
        joint = (square @ (-0.5 * precision)).reshape(len(weight), rows) + np.log(weight)[:, None]
        top = joint.max(0)
        share = np.exp(joint - top)
        total = share.sum(0)
        share /= total
        score = (top + np.log(total)) @ each - count * log_noise.sum() + log_prior(log_noise)
        left = (share * each).reshape(-1) @ square + PRIOR_ROWS * residual**2
        slope = precision * left - count - PRIOR_ROWS
        return -float(score) / count, -slope / count

    # A mixture may have two maxima: noise that explains the residuals, or those of a few draws.
    optima = [
        minimize(
            loss,
            np.log(residual) + shift,
            jac=True,
            method="L-BFGS-B",
            bounds=[(at - 12.0, at + 3.0) for at in np.log(residual)],
            options={"ftol": 1e-13, "gtol": 1e-8},
        )
        for shift in (0.0, -1.5)
    ]
    best = min(optima, key=lambda one: one.fun).x
    noise = np.exp(best) * math.sqrt((count + PRIOR_ROWS) / count)
    return noise, mixture_log_prob(centres, weight, y, noise), log_prior(best)


def find_best_temperature(
    logits: Array, weight: Array, observed: NDArray[np.int64], row_weight: Array | None = None
) -> Profile:
    """The temperature of highest posterior density (1,), the log score of the rows (n,), and the log prior."""
    each = np.ones(len(observed)) if row_weight is None else row_weight
    if not np.isfinite(logits).all():
        return np.array([np.nan]), np.full(len(observed), np.nan), 0.0

    def score(log_temperature: float) -> Array:
        log_p = log_probabilities(logits, math.exp(log_temperature))
        return log_mean_probability(np.take_along_axis(log_p, observed[None, :, None], 2)[..., 0], weight)

    def log_prior(log_temperature: float) -> float:
        return -0.5 * (log_temperature / LOG_TEMPERATURE_STD) ** 2

    def loss(log_temperature: float) -> float:
        return -float(score(log_temperature) @ each + log_prior(log_temperature)) / float(each.sum())

    grid = np.linspace(-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE, 29)
    place = int(np.argmin([loss(at) for at in grid]))
    bounds = (grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)])
    best = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)
    return np.exp([best]), score(best), log_prior(best)
