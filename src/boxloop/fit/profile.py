r"""Factor analysis by Newton's method on the likelihood of the noise alone.

Given the noise, the best loadings are known. With :math:`\theta_1 \ge \dots \ge \theta_d` the eigenvalues of
:math:`\Psi^{-1/2} S \Psi^{-1/2}`, :math:`\omega_j` their vectors, k factors and :math:`u = \log \psi`,

.. math:: -\tfrac{2}{n} L(u) = d \log 2\pi + \sum_i u_i + \sum_{j \le k} (1 + \log \theta_j) + \sum_{j > k} \theta_j,
   \qquad g_i = \sum_{j > k} (1 - \theta_j)\, \omega_{ij}^2,

.. math:: H_{il} = \sum_{j, m > k} \tfrac{\theta_j + \theta_m}{2}\, w_{jm}
   + \sum_{j > k \ge m} \frac{(1 - \theta_j)(\theta_m + \theta_j)}{\theta_m - \theta_j}\, w_{jm},
   \qquad w_{jm} = \omega_{ij} \omega_{lj} \omega_{im} \omega_{lm}.

Joreskog (1967), Lawley and Maxwell (1971), Clarke (1970). A handful of steps where EM takes tens of iterations, or
thousands if a column's noise vanishes (a Heywood case: EM creeps as 1/t); a floor of the noise is a bound of the
search. A step costs :math:`O(k d^3)`, so wide tables begin with EM and come here only when it creeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from torch import Tensor

from boxloop.fit.em import EMState, Step
from boxloop.loop import Iteration
from boxloop.models import FactorModel

Array = NDArray[np.float64]

CREEPING = 1e-2
"""Noise below this part of a column's variance is on its way to the floor."""

QUICK_COLUMNS = 128
"""Widest table for which a Newton step costs less than the EM iterations it saves."""

CLOSE = 0.1
"""Residual eigenvalues this near to 1 leave an error of a tenth a step if their expected curvature is used."""

BLOCK_VALUES = 1 << 22
"""Values held at once for the second derivatives."""


def profile_noise(step: Step[FactorModel], mean: Tensor, covariance: Tensor) -> Step[FactorModel]:
    """Newton's method over the noise; on wide tables the given step, until a noise variance nears its floor.

    Args:
        step: an EM step on the same rows.
        mean: of the rows in standard coordinates, (d,).
        covariance: of the same, (d, d).

    Returns:
        A step for :func:`boxloop.loop.run` whose objective rises as EM's does.
    """
    second: Array = covariance.cpu().numpy()
    lowest = CREEPING * covariance.diagonal()
    # The point behind the last model, so as not to compute it twice.
    known: list[tuple[FactorModel, Profile]] = []

    def iterate(state: EMState[FactorModel]) -> Iteration[EMState[FactorModel]]:
        model = state.model
        wide = len(second) > QUICK_COLUMNS
        if state.safe is not None or (wide and not bool((model.noise < lowest).any())):
            return step(state)
        if known and known[0][0] is model:
            here = known.pop()[1]
        else:
            noise: Array = model.noise.double().cpu().numpy()
            here = Profile.at(noise, second, model.loadings.shape[1])
        known.clear()
        there = here.take_step(max(model.floor, 1e-300))
        point = here if there is None else there
        fitted = torch.from_numpy(point.loadings).to(mean), torch.from_numpy(point.noise).to(mean)
        better = type(model)(mean, *fitted, model.floor, model.expand)
        known.append((better, point))
        return Iteration(EMState(better), -0.5 * here.value, final=there is None)

    return iterate


@dataclass(frozen=True)
class Profile:
    """Minus twice the mean log-likelihood at one noise, with the best loadings for it.

    Args:
        noise: psi, (d,).
        second: covariance of the rows, S, (d, d).
        k: most factors.
        value: minus twice the mean log-likelihood per row.
        size: theta, largest first, (d,).
        axes: omega, their vectors, (d, d).
        used: factors that explain more than noise would: those with theta above 1, at most k.
    """

    noise: Array
    second: Array
    k: int
    value: float
    size: Array
    axes: Array
    used: int

    @classmethod
    def at(cls, noise: Array, second: Array, k: int) -> Profile:
        """The profile at this noise."""
        root = np.sqrt(noise)
        values, vectors = np.linalg.eigh(second / root[:, None] / root)
        size, axes = values[::-1], vectors[:, ::-1]
        used = min(k, int((size > 1.0).sum()))
        value = len(noise) * np.log(2.0 * np.pi) + np.log(noise).sum()
        value += used + np.log(size[:used]).sum() + size[used:].sum()
        return cls(noise, second, k, float(value), size, axes, used)

    @property
    def loadings(self) -> Array:
        """The best loadings, (d, k); zero for factors that explain nothing."""
        loadings = np.zeros((len(self.noise), self.k))
        length = np.sqrt(self.size[: self.used] - 1.0)
        loadings[:, : self.used] = np.sqrt(self.noise)[:, None] * self.axes[:, : self.used] * length
        return loadings

    def gradient(self) -> Array:
        """Slope of the value in log noise, (d,)."""
        rest = self.axes[:, self.used :]
        return np.asarray(np.square(rest) @ (1.0 - self.size[self.used :]))

    def hessian(self) -> Array:
        """Second derivatives of the value in log noise, (d, d)."""
        top, rest = self.axes[:, : self.used], self.axes[:, self.used :]
        t, r = self.size[: self.used, None], self.size[self.used :]
        result = (rest @ rest.T) * ((rest * r) @ rest.T)
        weight = (1.0 - r) * (t + r) / np.maximum(t - r, 1e-12)
        block = max(1, BLOCK_VALUES // max(rest.size, 1))
        for start in range(0, self.used, block):
            some = slice(start, start + block)
            pairs = (top[:, some, None] * rest[:, None, :]).reshape(len(top), -1)
            result += (pairs * weight[some].reshape(-1)) @ pairs.T
        return np.asarray(result)

    def take_step(self, floor: float) -> Profile | None:
        """A point of lower value one Newton step on, no noise below the floor; None at a minimum."""
        u, slope = np.log(self.noise), self.gradient()
        low = np.full_like(u, np.log(floor))
        high = np.maximum(np.log(np.maximum(self.second.diagonal(), 1e-300)), low)
        free = ~(((u <= low + 1e-12) & (slope > 0.0)) | ((u >= high - 1e-12) & (slope < 0.0)))
        if not free.any():
            return None
        move = np.zeros_like(u)
        move[free] = -self._newton_step(slope, free)
        if -float(slope @ move) < 1e-15 * abs(self.value):
            return None
        for length in 0.5 ** np.arange(12):
            target = np.clip(u + length * move, low, high)
            there = Profile.at(np.exp(target), self.second, self.k)
            if there.value < self.value + 1e-4 * float(slope @ (target - u)):
                return there
        return None

    def _newton_step(self, slope: Array, free: NDArray[np.bool_]) -> Array:
        """Newton's step over the free columns; with the expected curvature where it is as good, or the only one."""
        rest = self.axes[:, self.used :]
        expected = np.square(rest @ rest.T)
        expected.flat[:: len(expected) + 1] += 1e-6  # a column that factors explain wholly has none
        close = float(np.abs(1.0 - self.size[self.used :]).max(initial=0.0)) < CLOSE
        for curvature in (expected,) if close else (self.hessian(), expected):
            try:
                factor: Any = cho_factor(curvature[np.ix_(free, free)], check_finite=False)
            except LinAlgError:
                continue
            return np.asarray(cho_solve(factor, slope[free], check_finite=False))
        return slope[free]
