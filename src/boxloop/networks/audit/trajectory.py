r"""Effective sample size and drift of the weight vectors of a trajectory.

A trajectory is a single chain: these checks cannot show whether another run would converge elsewhere.
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
from boxloop.networks.posterior import WeightTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

MIN_VECTORS = 16  # recorded vectors below which nothing can be estimated
FEW, ENOUGH, PLENTY = 10, 100, 400
"""Effective sample sizes that determine a variance to 45%, 14% and 7%: the root of 2 / n."""
SPARSE = 0.1
"""Effective share of the vectors below which the check is doubtful, unless there are plenty."""
RATE = 0.01  # false-alarm rate of the test of drift
BLOCK_ESS, MAX_BLOCKS = 3.0, 16
"""Effective vectors per block of a half, at least, and most blocks per half."""
LARGE_SHIFT = 1.0
"""Shift between halves, in standard deviations of a weight, from which the variance is mostly drift."""


@dataclass(frozen=True)
class TrajectoryCheck:
    """Effective sample size and drift of the recorded weights that varied, p of them.

    The p-value is that of the largest drift of a stationary trajectory: Student's t of block means, Bonferroni over
    weights. If halves have an effective sample size below ten, slow fluctuations exceed the 1% level in up to 5% of
    cases.
    """

    n_vectors: int  # vectors observed, or window means
    stride: int  # of them from one recorded vector to the next
    ess: Array  # effective sample size of the mean of each weight, (p,), by arviz-stats
    autocorrelation_time: Array  # integrated, in vectors, (p,)
    autocorrelation: Array  # mean over weights at lags 0, 1, ..., of recorded vectors
    drift_z: Array  # mean of the second half minus that of the first, in standard errors, (p,)
    drift_std: Array  # the same in standard deviations of the weight, (p,)
    p_value: float
    n_constant: int  # recorded weights that did not vary

    @property
    def median_ess(self) -> float:
        """Median of the effective sample sizes."""
        return float(np.median(self.ess))

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """One about the effective sample size, one about drift."""
        return (self._assess_sample_size(), self._assess_drift())

    def table(self) -> Any:
        """A frame with one row per recorded weight that varied."""
        return make_frame(
            {
                "effective sample size": self.ess.tolist(),
                "autocorrelation time": self.autocorrelation_time.tolist(),
                "drift in standard errors": self.drift_z.tolist(),
                "drift in standard deviations": self.drift_std.tolist(),
            }
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """The autocorrelation against the lag in vectors."""
        from boxloop.figures import correlogram

        title = f"{self.n_vectors} vectors, effective sample size {self.median_ess:.0f}"
        return correlogram(self.autocorrelation, self.stride, self.median_ess, ax, title=title)

    def _assess_sample_size(self) -> Concern:
        what, n = "Effective sample size", self.median_ess
        why = (
            f"The {self.n_vectors} weight vectors have an effective sample size of {n:.0f} (median over weights; "
            f"minimum {self.ess.min():.0f}), so variances have a relative standard error of {(2.0 / n) ** 0.5:.0%}. A "
            "single trajectory cannot show whether another run would converge elsewhere"
        )
        time = max(1, round(float(np.median(self.autocorrelation_time))))
        if n < FEW:
            return Concern("bad", what, why, f"train longer: vectors {time} steps apart are still correlated")
        if n < ENOUGH or (n < PLENTY and n < SPARSE * self.n_vectors):
            return Concern("doubtful", what, why, f"train longer; observing every {time} steps loses nothing")
        return Concern("good", what, why)

    def _assess_drift(self) -> Concern:
        largest = float(np.abs(self.drift_z).max())
        typical = float(np.median(np.abs(self.drift_std)))
        why = (
            f"From the first to the second half of the trajectory the mean shifts by {typical:.2g} standard deviations "
            f"(median over weights), and by at most {largest:.1f} standard errors (p = {self.p_value:.2g})"
        )
        if typical > LARGE_SHIFT:
            if self.p_value >= RATE:
                why += ". The shift is large but not significant, as the vectors are highly correlated"
            return Concern("bad", "Drift", why, "start observing later: the variance is mostly drift")
        if self.p_value < RATE:
            return Concern("doubtful", "Drift", why, "start observing later, or lower the learning rate")
        return Concern("good", "Drift", why)


def check_trajectory(trace: WeightTrace, window: int = 1) -> TrajectoryCheck:
    r"""Effective sample size (Vehtari et al., 2021) and drift (Geweke, 1992) of the vectors of a trajectory.

    .. math:: n_{\text{eff}} = n / \tau, \qquad \tau = 1 + 2 \sum_{k \ge 1} \rho_k, \qquad
        t = (\bar\theta_2 - \bar\theta_1) / \sqrt{(s_1^2 + s_2^2) / m}

    The s^2 are variances of the means of m blocks of each half, each with an effective sample size of about three:
    sizes estimated from one half are too large for long autocorrelation times, and errors from them too small.
    """
    block = max(1, round(window / trace.stride))
    values = trace.values.numpy()
    values = values[: len(values) // block * block].reshape(-1, block, values.shape[1]).mean(1)
    if len(values) < MIN_VECTORS:
        unit = "vectors" if window == 1 else "windows"
        raise ValueError(f"At least {MIN_VECTORS} {unit} are needed; {len(values)} were recorded")
    varied = np.ptp(values, axis=0) > 0.0
    if not varied.any():
        raise ValueError("All vectors are identical: none of the recorded weights has changed")
    series = np.ascontiguousarray(values[:, varied].T)
    ess = np.array([_effective_sample_size(one) for one in series])
    stride = max(1, trace.stride // window)
    half = series.shape[1] // 2
    first, last = series[:, :half], series[:, -half:]
    shift = last.mean(1) - first.mean(1)
    tests = [_compare_halves(one, other) for one, other in zip(first, last, strict=True)]
    z, p_values = (np.array(numbers) for numbers in zip(*tests, strict=True))
    array_stats: Any = import_module("arviz_stats.base").array_stats
    max_lag = max(2, series.shape[1] // 3)
    return TrajectoryCheck(
        n_vectors=trace.count // window,
        stride=stride,
        ess=ess,
        autocorrelation_time=series.shape[1] / ess * stride,
        autocorrelation=np.mean([array_stats.autocorr(one)[:max_lag] for one in series], axis=0),
        drift_z=z,
        drift_std=shift / series.std(1, ddof=1),
        p_value=min(1.0, float(p_values.min()) * len(p_values)),
        n_constant=int((~varied).sum()),
    )


def _compare_halves(first: Array, last: Array) -> tuple[float, float]:
    """The difference of the means of two halves in standard errors, and its p-value."""
    size = min(_effective_sample_size(first), _effective_sample_size(last))
    m = int(np.clip(size // BLOCK_ESS, 2, MAX_BLOCKS))
    means = [half[len(half) % m :].reshape(m, -1).mean(1) for half in (first, last)]
    error = float(np.sqrt(sum(one.var(ddof=1) for one in means) / m))
    shift = float(last.mean() - first.mean())
    z = shift / error if error > 0.0 else np.copysign(np.inf, shift) if shift else 0.0
    return float(z), float(2.0 * stats.t.sf(abs(z), 2 * m - 2))


def _effective_sample_size(series: Array) -> float:
    """Effective sample size of a mean, at most the number of values, since the verdicts are about too few."""
    if np.ptp(series) == 0.0:
        return 1.0
    array_stats: Any = import_module("arviz_stats.base").array_stats
    return float(np.clip(array_stats.ess(series[None], method="mean"), 1.0, len(series)))
