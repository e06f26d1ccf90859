r"""The scale of a covariance, with noise or temperature, by the log score of held-out rows, which may be few.

.. math:: \max_{c,\,\sigma}\; \sum_{r=1}^n \log \sum_i w_i \prod_j N(y_{rj}; f_{ij}(x_r), \sigma_j^2)
          + \log p(c) + \log p(\sigma), \qquad
          \max_{c,\,T}\; \sum_{r=1}^n \log \sum_i w_i\, \mathrm{softmax}(f_i(x_r) / T)_{y_r}
          + \log p(c) + \log p(T)

where the draws i have covariance :math:`c\,\Sigma`. They share their random numbers over all c, so that the curve is
smooth; at every c noise or temperature is the best one there.

The priors are weak, and do not grow with n: :math:`\log_{10} c \sim N(0, 1)`, :math:`\log_2 T \sim N(0, 1)`, and for
the noise two more rows, of which the mean network leaves what it leaves of the others on average. Without them a few
dozen rows overfit. How much of what is left is noise and how much is spread shows only in rows that differ in their
spread; and a mixture of narrow bumps, one of them near every row held out, has the best score of all on these rows,
and the worst on others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from boxloop.data import make_frame
from boxloop.numeric import format_with_error, mean_and_error
from boxloop.weights.likely import Found
from boxloop.weights.method import warn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Profile = Callable[[float], Found]

SCALES = (0.0, *(2.0**power for power in range(-6, 7)))
"""Tried when nothing else is asked for; 0 is the mean network alone."""
SCALE_SPREAD = math.log(10.0)
"""Standard deviation of the logarithm of the scale, before any row is seen."""
LEAST = 2.0**-6
"""Scale below which all are alike to the prior, 0 among them: of the spread less than an eighth is left."""


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
        priors: logarithm of the prior at each, for all rows together, (g,); the best scale has the largest sum of
            ``n_rows * scores`` and these.
        behind: mean log score less that of the best, (g,), with the errors ``behind_errors`` of paired differences; it
            may be above 0 where the prior prefers the best.
        behind_errors: (g,).
        gain: of the best over what the predictor said before, a row; NaN where that had no score.
        gain_error: its standard error.
        at_end: whether the best scale is the largest tried: a larger one may be better still.
        n_rows: n, or the sum of the weights of the rows.
    """

    what: str
    scales: Array
    values: Array
    scores: Array
    errors: Array
    priors: Array
    behind: Array
    behind_errors: Array
    gain: float
    gain_error: float
    at_end: bool
    n_rows: float

    @property
    def best(self) -> int:
        """Place of the best scale."""
        return int((self.n_rows * self.scores + self.priors).argmax())

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
            "log prior": self.priors,
            "behind": self.behind,
            "s.e. behind": self.behind_errors,
        }
        return make_frame(columns)

    def plot(self, ax: Axes | None = None) -> Axes:
        """How far each scale is behind the best, with errors.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures import tuning_curve

        return tuning_curve(self.scales, self.behind, self.behind_errors, self.best, ax)

    def __str__(self) -> str:
        low, high = self.plausible
        value = ", ".join(f"{one:.4g}" for one in self.value)
        said = f"scale {self.scale:.3g} ({low:.3g} to {high:.3g} within two errors), {self.what} {value}"
        end = "; the largest scale tried" if self.at_end else ""
        none = "; the spread of the weights does not help" if self.scale == 0.0 else ""
        gain = (
            ""
            if np.isnan(self.gain)
            else f", {format_with_error(self.gain, self.gain_error, sign='+')} over before"
        )
        score = format_with_error(self.scores[self.best], self.errors[self.best])
        return f"{said}{end}{none}: log score {score} a row of {self.n_rows:.12g}{gain}"

    __repr__ = __str__


def tune(
    what: str,
    profile: Profile,
    before: Array | None,
    scales: Sequence[float],
    refine: int,
    row_weight: Array | None = None,
) -> Tuning:
    """Try every scale, then a few more between the neighbours of the best.

    Args:
        what: ``"noise"`` or ``"temperature"``.
        profile: what is best at a scale.
        before: log score of every row as things were, (n,).
        scales: to try.
        refine: how many more.
        row_weight: of the rows, (n,), as repetitions.

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
    if row_weight is None:
        row_weight = np.ones(len(next(iter(tried.values()))[1]))
    best = int(np.argmax([_gained(one, row_weight) for one in tried.values()]))
    at_end = best == len(grid) - 1 and grid[best] > 0.0
    if refine > 0 and not at_end and grid[best] > 0.0:
        _refine(profile, tried, grid, best, refine, row_weight)
        tried = _finite(tried)
    if at_end:
        warn(
            f"the best scale of the covariance is the largest tried, {grid[best]:.4g}: a larger one may be better"
        )
    return _summary(what, tried, before, at_end, row_weight)


def scale_prior(scale: float) -> float:
    """Logarithm of the prior of a scale, up to a constant."""
    return -0.5 * (math.log(max(scale, LEAST)) / SCALE_SPREAD) ** 2


def _gained(found: Found, row_weight: Array) -> float:
    """What is maximised."""
    return float(found[1] @ row_weight) + found[2]


def _finite(tried: dict[float, Found]) -> dict[float, Found]:
    """Scales whose rows all have a score: a large one may take networks out of bounds."""
    found = {
        scale: one for scale, one in tried.items() if np.isfinite(one[1]).all() and np.isfinite(one[0]).all()
    }
    if not found:
        raise ValueError("outputs are not finite at any scale: look for rows of X that are missing or huge")
    return found


def _refine(
    profile: Profile, tried: dict[float, Found], grid: Array, best: int, n: int, row_weight: Array
) -> None:
    low = grid[best - 1] if best > 0 and grid[best - 1] > 0.0 else grid[best] / 4.0

    def loss(log_scale: float) -> float:
        scale = float(
            f"{np.exp(log_scale):.4g}"
        )  # further digits mean nothing, and would be another machine's own
        if scale not in tried:
            tried[scale] = profile(scale)
        return -_gained(tried[scale], row_weight) / float(row_weight.sum())

    ends = (float(np.log(low)), float(np.log(grid[best + 1])))
    minimize_scalar(loss, bounds=ends, method="bounded", options={"maxiter": n, "xatol": 1e-3})


def _summary(
    what: str, tried: dict[float, Found], before: Array | None, at_end: bool, row_weight: Array
) -> Tuning:
    scales = sorted(tried)
    rows = np.array([tried[scale][1] for scale in scales])
    top = tried[max(scales, key=lambda scale: _gained(tried[scale], row_weight))][1]
    gain = np.full_like(top, np.nan) if before is None else top - before
    (scores, errors), (behind, behind_errors), (gained, gain_error) = (
        np.array([mean_and_error(line, row_weight) for line in table]).T
        for table in (rows, rows - top, gain[None])
    )
    return Tuning(
        what,
        np.array(scales),
        np.array([tried[scale][0] for scale in scales]),
        scores,
        errors,
        np.array([tried[scale][2] for scale in scales]),
        behind,
        behind_errors,
        float(gained[0]),
        float(gain_error[0]),
        at_end,
        float(row_weight.sum()),
    )
