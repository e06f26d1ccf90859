r"""Are the vectors of a trajectory worth as many as there are, and have they settled?

One trajectory is one chain: nothing here can tell whether another would have gone elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from boxloop.concerns import Concern
from boxloop.data import make_frame
from boxloop.weights.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

FEWEST = 16
"""Rows below which nothing is said."""
FEW, ENOUGH, PLENTY = 10, 100, 400
"""Independent vectors that know a variance to 45 %, 14 % and 7 %: the root of 2 / n."""
SPARSE = 0.1
"""Share of the vectors that are worth something, below which a worry is due unless there are plenty."""
RATE = 0.01
"""False alarms of a trajectory that has settled."""
BLOCK, BLOCKS = 3.0, 16
"""Effective vectors that a block of a half is worth at least, and the most blocks of a half."""
FAR = 1.0
"""Drift between halves, in standard deviations of a weight, from which spread is mostly drift."""


@dataclass(frozen=True)
class Iterates:
    r"""What the watched weights tell of a trajectory.

    Args:
        seen: vectors observed, or means of windows.
        stride: how many of them from one that is looked at to the next.
        effective: independent vectors that each weight's mean is worth, (p,), by arviz-stats.
        time: integrated autocorrelation time in vectors, (p,).
        autocorrelation: mean over weights at lags 0, 1, ..., of recorded vectors.
        drift: mean of the second half less that of the first, in standard errors, (p,).
        shift: the same in standard deviations of the weight, (p,).
        p_value: that a settled trajectory drifts as much in any weight: Student's t of means of blocks, Bonferroni
            over weights. Where halves are worth fewer than ten vectors, slow fluctuation is drift to it in up to
            one case of twenty at 1 %.
        still: watched weights that never moved.

    Example:
        >>> import torch
        >>> rows = torch.randn(400, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> found = iterates(Record(torch.arange(5), rows, 1, 400))
        >>> found.worries[0].level, bool(found.effective.min() > 200)
        ('good', True)
    """

    seen: int
    stride: int
    effective: Array
    time: Array
    autocorrelation: Array
    drift: Array
    shift: Array
    p_value: float
    still: int

    @property
    def typical(self) -> float:
        """Effective vectors of the median weight."""
        return float(np.median(self.effective))

    @property
    def worries(self) -> tuple[Concern, ...]:
        """Of the number of vectors, and of drift."""
        return (self._number(), self._drift())

    def table(self) -> Any:
        """One line a watched weight that moved."""
        return make_frame(
            {
                "effective": self.effective.tolist(),
                "autocorrelation time": self.time.tolist(),
                "drift in errors": self.drift.tolist(),
                "drift in deviations": self.shift.tolist(),
            }
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """The autocorrelation, against the lag in vectors.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.
        """
        from boxloop.figures import correlogram

        title = f"Autocorrelation: {self.seen} vectors are worth {self.typical:.0f}"
        return correlogram(self.autocorrelation, self.stride, self.typical, ax, title=title)

    def _number(self) -> Concern:
        what, n = "Independent vectors", self.typical
        why = (
            f"{self.seen} vectors are worth {n:.0f} independent ones in the median weight "
            f"({self.effective.min():.0f} in the worst), so that variances are known to within {(2.0 / n) ** 0.5:.0%}; "
            "one trajectory cannot tell whether another would end elsewhere"
        )
        every = max(1, round(float(np.median(self.time))))
        if n < FEW:
            return Concern("bad", what, why, f"train longer: vectors {every} apart are still alike")
        if n < ENOUGH or (n < PLENTY and n < SPARSE * self.seen):
            return Concern(
                "doubtful", what, why, f"train longer; observing every {every} vectors loses nothing"
            )
        return Concern("good", what, why)

    def _drift(self) -> Concern:
        worst = float(np.abs(self.drift).max())
        typical = float(np.median(np.abs(self.shift)))
        why = (
            f"between the halves the mean moves by {typical:.2g} standard deviations in the median weight, "
            f"at most {worst:.1f} standard errors (p = {self.p_value:.2g})"
        )
        if typical > FAR:
            why += (
                ""
                if self.p_value < RATE
                else ": bad by the size, not by the test, to which vectors so alike are few"
            )
            said = "spread is mostly drift, not fluctuation: begin to observe later"
            return Concern("bad", "Drift", why, said)
        if self.p_value < RATE:
            return Concern("doubtful", "Drift", why, "begin to observe later, or lower the learning rate")
        return Concern("good", "Drift", why)


def iterates(record: Record, window: int = 1) -> Iterates:
    r"""Effective number and drift of the vectors of a trajectory.

    .. math:: n_{\text{eff}} = n / \tau, \qquad \tau = 1 + 2 \sum_{k \ge 1} \rho_k, \qquad
        t = (\bar\theta_2 - \bar\theta_1) / \sqrt{(s_1^2 + s_2^2) / m}

    with the effective sizes of Vehtari et al. (2021). The halves are compared as by Geweke (1992), with variances s^2
    of the means of m blocks of each half, every block worth three vectors or so (two blocks at least): sizes that are
    estimated from one half are too large where vectors remember long, and errors by them too small.

    Args:
        record: of a posterior, ``posterior.record``.
        window: vectors whose means are what was followed, where they were.

    Raises:
        ValueError: too few vectors, or none of the watched weights moved.
    """
    block = max(1, round(window / record.stride))
    rows = record.rows.numpy()
    rows = rows[: len(rows) // block * block].reshape(-1, block, rows.shape[1]).mean(1)
    if len(rows) < FEWEST:
        said = "vectors" if window == 1 else "windows"
        raise ValueError(f"{len(rows)} {said} are recorded, of {FEWEST} that are needed at least")
    moved = np.ptp(rows, axis=0) > 0.0
    if not moved.any():
        raise ValueError("none of the watched weights has moved: all vectors are the same")
    table = np.ascontiguousarray(rows[:, moved].T)
    effective = np.array([_effective(row) for row in table])
    stride = max(1, record.stride // window)
    half = table.shape[1] // 2
    first, last = table[:, :half], table[:, -half:]
    apart = last.mean(1) - first.mean(1)
    halves = [_halves(one, other) for one, other in zip(first, last, strict=True)]
    z, chance = (np.array(values) for values in zip(*halves, strict=True))
    return Iterates(
        seen=record.seen // window,
        stride=stride,
        effective=effective,
        time=table.shape[1] / effective * stride,
        autocorrelation=_autocorrelation(table),
        drift=z,
        shift=apart / table.std(1, ddof=1),
        p_value=min(1.0, float(chance.min()) * len(chance)),
        still=int((~moved).sum()),
    )


def _halves(first: Array, last: Array) -> tuple[float, float]:
    """How far apart two halves are in standard errors, and the chance of as much where nothing drifts."""
    worth = min(_effective(first), _effective(last))
    m = int(np.clip(worth // BLOCK, 2, BLOCKS))
    means = [half[len(half) % m :].reshape(m, -1).mean(1) for half in (first, last)]
    error = float(np.sqrt(sum(one.var(ddof=1) for one in means) / m))
    apart = float(last.mean() - first.mean())
    z = apart / error if error > 0.0 else np.copysign(np.inf, apart) if apart else 0.0
    return float(z), float(2.0 * stats.t.sf(abs(z), 2 * m - 2))


def _effective(row: Array) -> float:
    """Independent values that a mean is worth; never more than there are, as the verdicts are about too few."""
    if np.ptp(row) == 0.0:
        return 1.0
    known: Any = import_module("arviz_stats.base").array_stats
    return float(np.clip(known.ess(row[None], method="mean"), 1.0, len(row)))


def _autocorrelation(table: Array) -> Array:
    """Mean over rows (p, t), at lags up to a third of the length."""
    known: Any = import_module("arviz_stats.base").array_stats
    most = max(2, table.shape[1] // 3)
    found: Array = np.mean([known.autocorr(row)[:most] for row in table], axis=0)
    return found
