r"""Where a power law changes its exponent: two straight lines that meet, in logarithms.

.. math:: \log e_i = a + b_1 \min(t_i - \tau, 0) + b_2 \max(t_i - \tau, 0) + \epsilon_i, \qquad t_i = \log x_i

Document 003, figure 4, finds the crossing of two lines by eye. Here tau is the least-squares one, its interval holds
every tau that an F test does not refuse (Hinkley 1971), and whether there is a change at all is asked first. Without
one tau means nothing, so that the largest F over tau has no F law (Davies 1987): its law is drawn from straight lines
with Gaussian noise at the same places.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Kind = Literal["break", "bend", "line"]

LEAST = 6
"""Places that a fit of two lines needs: it has four parameters."""

GRID = 400
"""Values of tau that are tried."""

ROUNDING = 1e-26
"""Of squares of logarithms, beside 1: a curve this near a line is one."""


@dataclass(frozen=True)
class Knee:
    """A change of slope, or that there is none.

    Args:
        kind: ``break``: two lines; ``line``: one line does as well; ``bend``: one line does not, but a parabola does at
            least as well as two, so that the slope changes nowhere in particular.
        at: the place of the change, in units of x; what two lines would say, where ``kind`` is another.
        low: lower end of its interval.
        high: upper end.
        slopes: exponents before and after.
        slope_errors: their standard errors.
        p_value: of one line against two.
        level: of the interval.
        x: places.
        y: geometric mean of the values at each.
        fitted: of the two lines at each.
    """

    kind: Kind
    at: float
    low: float
    high: float
    slopes: tuple[float, float]
    slope_errors: tuple[float, float]
    p_value: float
    level: float
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    fitted: Array = field(repr=False)

    @property
    def found(self) -> bool:
        """Whether there is a distinct change of slope."""
        return self.kind == "break"

    def __str__(self) -> str:
        before, after = self.slopes
        if self.kind == "line":
            return f"no change of slope: one straight line will do (p = {self.p_value:.2g})"
        if self.kind == "bend":
            return (
                f"no change of slope at any one place: a smooth bend fits as well as two lines "
                f"(from {before:.2f} to {after:.2f}; one line: p = {self.p_value:.2g})"
            )
        return (
            f"slope changes at {self.at:.3g} ({100 * self.level:.0f}% interval {self.low:.3g} to {self.high:.3g}), "
            f"from {before:.2f} to {after:.2f}; one line: p = {self.p_value:.2g}"
        )

    def lines(self, x: ArrayLike) -> tuple[Array, Array]:
        """Both lines, each drawn on beyond the place where they cross, at any x."""
        where = int(np.argmin(np.abs(np.log(self.x / self.at))))
        slope = self.slopes[0 if self.x[where] <= self.at else 1]
        level = np.log(self.fitted[where]) - slope * np.log(self.x[where] / self.at)
        far = np.log(np.asarray(x, dtype=np.float64) / self.at)
        first, second = (np.exp(level + b * far) for b in self.slopes)
        return first, second

    def plot(self, ax: Axes | None = None, *, across: str = "latent dimension", up: str = "error") -> Axes:
        """The values, the two lines, and the interval of their crossing.

        Args:
            ax: where to draw; a figure of its own when omitted.
            across: what x is.
            up: what the values are.
        """
        from boxloop.figures import COLOURS, FAINT, INK, add_legend, check_axes, dress, new_axes

        ax = check_axes(ax) or new_axes()
        ax.set(xscale="log", yscale="log")
        ax.plot(self.x, self.y, "o", color=COLOURS[0], markersize=5, label="mean over repetitions")
        bottom, top = 0.93 * float(self.y.min()), 1.07 * float(self.y.max())
        if self.found:
            reach = np.geomspace(self.x[0], self.x[-1], 200)
            for line, colour in zip(self.lines(reach), COLOURS[1:3], strict=False):
                shown = (line > bottom) & (line < top)
                ax.plot(reach[shown], line[shown], color=colour, lw=1.2)
            told = f"change of slope at {self.at:.3g} ({self.low:.3g} to {self.high:.3g})"
            ax.axvspan(self.low, self.high, color=FAINT, alpha=0.25, lw=0)
            ax.axvline(self.at, color=INK, lw=1, ls="--", label=told)
        ax.set_ylim(bottom, top)
        dress(ax, "" if self.found else str(self).split(":")[0], across, up)
        add_legend(ax)
        return ax


def change_of_slope(
    x: ArrayLike, y: ArrayLike, *, level: float = 0.95, draws: int = 4000, random_state: int = 0
) -> Knee:
    """Find where a power law changes its exponent, and whether it does.

    Args:
        x: at least six different places, positive.
        y: positive values at each, (m,), or several repetitions, (m, s): their logarithms are averaged, and what is
            left over by the lines says how far off a mean may be.
        level: of the interval; a line is refused at 1 - level.
        draws: straight lines with noise behind the p-value.
        random_state: of these.

    Returns:
        The change, with an interval, or a statement that there is none.

    Example:
        >>> import numpy as np
        >>> x, noise = np.array([1, 2, 4, 8, 16, 32, 64, 128]), np.random.default_rng(0).normal(size=8)
        >>> print(change_of_slope(x, np.where(x < 20, 1 / x, 1 / 20) * np.exp(0.02 * noise)))
        slope changes at 19.8 (95% interval 19 to 20.6), from -1.00 to 0.01; one line: p = 0.00025
        >>> print(change_of_slope(x, x**-0.5 * np.exp(0.02 * noise)))
        no change of slope: one straight line will do (p = 0.35)
    """
    place, value = _checked(x, y)
    t, v = np.log(place), np.log(value).mean(1)
    m = len(t)
    taus, bases = _bases(t)
    best, misfits = _best(t, v, taus, bases)
    design = _hinge(t, best)
    parameters, misfit = _least(design, v)
    noise = max(misfit / (m - 4), np.finfo(np.float64).tiny)
    moves = np.where(t < best, -parameters[1], -parameters[2])  # of the fit with tau
    change = np.column_stack([design, moves])
    errors = np.sqrt(noise * np.linalg.pinv(change.T @ change).diagonal())
    most = misfit + noise * float(stats.f.ppf(level, 1, m - 4))
    low, high = (_end(t, v, best, taus[side], misfits[side], most) for side in (taus < best, taus > best))
    p_value = _p_value(t, v, misfit, bases, draws, random_state)
    kind: Kind = "line"
    if p_value < 1.0 - level:
        _, smooth = _least(np.stack([np.ones(m), t, t * t], 1), v)
        gain = m * np.log(max(smooth, 1e-300) / max(misfit, 1e-300)) - np.log(m)
        kind = "break" if gain > 0.0 else "bend"
    return Knee(
        kind,
        at=float(np.exp(best)),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        slopes=(float(parameters[1]), float(parameters[2])),
        slope_errors=(float(errors[1]), float(errors[2])),
        p_value=p_value,
        level=level,
        x=place,
        y=np.exp(v),
        fitted=np.exp(design @ parameters),
    )


def _checked(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    place, value = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    value = value[:, None] if value.ndim == 1 else value
    if place.ndim != 1 or value.ndim != 2 or len(place) != len(value):
        raise ValueError(f"x must be (m,) and y (m,) or (m, s), got {place.shape} and {value.shape}")
    if len(np.unique(place)) < max(LEAST, len(place)):
        raise ValueError(
            f"at least {LEAST} places are needed, none of them twice, got {len(np.unique(place))}"
        )
    if not (np.isfinite(place).all() and np.isfinite(value).all() and place.min() > 0 and value.min() > 0):
        raise ValueError("places and values must be positive and finite: their logarithms are fitted")
    order = np.argsort(place)
    return place[order], value[order]


def _hinge(t: Array, tau: float) -> Array:
    return np.stack([np.ones_like(t), np.minimum(t - tau, 0.0), np.maximum(t - tau, 0.0)], 1)


def _least(design: Array, v: Array) -> tuple[Array, float]:
    """Least squares: parameters and the sum of squares left over."""
    parameters = np.asarray(np.linalg.lstsq(design, v, rcond=None)[0], dtype=np.float64)
    return parameters, float(np.square(v - design @ parameters).sum())


def _bases(t: Array) -> tuple[Array, Array]:
    """Values of tau from the second to the last place but one, and an orthonormal basis of each fit, (g, m, 3)."""
    taus = np.unique(np.append(np.linspace(t[1], t[-2], GRID), t[1:-1]))
    return taus, np.stack([np.linalg.qr(_hinge(t, tau))[0] for tau in taus])


def _best(t: Array, v: Array, taus: Array, bases: Array) -> tuple[float, Array]:
    """The best tau, and the misfit at each that is tried."""
    centred = v - v.mean()
    misfits = np.maximum(centred @ centred - np.square(np.einsum("gmk,m->gk", bases, centred)).sum(1), 0.0)
    at = int(misfits.argmin())
    around = (taus[max(at - 1, 0)], taus[min(at + 1, len(taus) - 1)])
    fine = optimize.minimize_scalar(
        lambda tau: _misfit(t, v, tau), bounds=around, method="bounded", options={"xatol": 1e-10}
    )
    return float(fine.x if fine.fun < _misfit(t, v, taus[at]) else taus[at]), misfits


def _misfit(t: Array, v: Array, tau: float) -> float:
    return _least(_hinge(t, tau), v)[1]


def _end(t: Array, v: Array, best: float, taus: Array, misfits: Array, most: float) -> float:
    """The end of an interval on one side: the furthest tau whose misfit is below ``most``."""
    order = np.argsort(np.abs(taus - best))
    taus, inside = taus[order], np.flatnonzero(misfits[order] <= most)
    last = int(inside[-1]) if len(inside) else -1
    if last + 1 == len(taus):
        return float(taus[-1]) if len(taus) else best
    near, far = (best if last < 0 else taus[last]), taus[last + 1]
    for _ in range(50):
        middle = 0.5 * (near + far)
        near, far = (middle, far) if _misfit(t, v, middle) <= most else (near, middle)
    return float(near)


def _p_value(t: Array, v: Array, misfit: float, bases: Array, draws: int, random_state: int) -> float:
    """How often a straight line with Gaussian noise gains as much by a change of slope."""
    line = np.linalg.qr(np.stack([np.ones_like(t), t], 1))[0]

    def left(values: Array) -> Array:
        return values - values @ line @ line.T

    own = left(v)
    if float(own @ own) <= ROUNDING * (1.0 + float(v @ v)):
        return 1.0
    noise = left(np.random.default_rng(random_state).normal(size=(draws, len(t))))
    whole = np.square(noise).sum(1)
    kept = np.max([np.square(noise @ basis).sum(1) for basis in bases], axis=0)
    ratio = misfit / float(own @ own)
    return float((1 + np.count_nonzero(1.0 - kept / whole <= ratio)) / (1 + draws))
