r"""The small side of a stream: K x K matrices in float64, and how observations change them.

They are many and tiny, so that the time of a call is most of it: NumPy and LAPACK take a microsecond each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import lapack

from boxloop.fit.stream_state import StreamSettings, StreamState
from boxloop.numeric import ConditionError

Array = NDArray[np.float64]

CLEAR = 1e-3
"""Rounding of a factor's mean, in its own deviations, that is not looked at."""
TINY = 1e-30


@dataclass(frozen=True)
class Run:
    r"""Vectors told by their gaps :math:`e_t = x_t - c_0` to the mean before all of them.

    .. math:: d_t = \textstyle\sum_i T_{ti} e_i, \qquad \Delta = c_n - c_0 = \sum_t \omega_t e_t, \qquad
              s_n = \bigl(1 - \sum_t \omega_t\bigr) s_0 + \sum_t \omega_t e_t^2 - \beta \Delta^2

    Args:
        chain: T, (n, n).
        share: omega, (n,).
        back: beta, 1 where s is the variance of all vectors seen about their own mean.
        steps: gamma of every vector, or one for a mini-batch.
    """

    chain: Array
    share: Array
    back: float
    steps: tuple[float, ...]

    @classmethod
    def of(cls, steps: Sequence[float]) -> Self:
        r"""One after another: :math:`d_t = \sqrt{1 - \gamma_t} (x_t - c_{t-1})`."""
        n = len(steps)
        chain, share = np.eye(n), np.zeros(n)
        for t, step in enumerate(steps):
            chain[t] -= share
            share += step * chain[t]
            chain[t] *= math.sqrt(1.0 - step)
        return cls(chain, share, 1.0, tuple(steps))

    @classmethod
    def batch(cls, n: int, step: float, shrink: float) -> Self:
        r"""As one observation: :math:`d_i = x_i - \bar x + \kappa (\bar x - c_0)`.

        With :math:`\kappa = \sqrt{1 - \gamma}` the running mean of :math:`d d^\top` is the covariance of all vectors
        seen, weighted by the steps, about their own mean; :math:`\kappa = 1 - \gamma` is the deviation from the mean
        after its update (document 004, Algorithm 2, lines 5 and 6).

        Args:
            n: vectors.
            step: gamma.
            shrink: kappa.
        """
        chain = np.eye(n) - (1.0 - shrink) / n
        return cls(chain, np.full(n, step / n), (1.0 - shrink * shrink) / step, (step,))

    @property
    def several(self) -> bool:
        """Whether vectors come one after another."""
        return len(self.steps) > 1

    def whole(self, rank: int) -> Array:
        """[U; D] from [U; E], (K + n, K + n)."""
        matrix = np.eye(rank + len(self.chain))
        matrix[rank:, rank:] = self.chain
        return matrix


@dataclass
class _Small:
    """The K x K matrices of :class:`StreamState` while vectors change them, and L with L Lᵀ = H after warm-up.

    ``rounding`` is that of the sums which they are made of.
    """

    basis: Array
    latent: Array
    turn: Array
    rounding: float
    factor: Array | None = None

    def learn(self, rules: StreamSettings, inner: Array, cross: Array, step: float, held: bool) -> Array:
        """E step, running means and solve of one observation; what U gains by each of its deviations, (K, b)."""
        batch = cross.shape[1]
        reach, sigma = posterior(self.turn @ inner @ self.turn.T, self.rounding)
        scores = reach @ (self.turn @ cross)
        if not math.isfinite(scores.sum()):
            raise ConditionError("the posterior of the factors is not finite: the stream has diverged")
        exact = rules.variant == "exact"
        fresh = scores @ scores.T / batch
        if exact:
            fresh += sigma
        self.latent = self.latent + step * (fresh - self.latent)
        gain: Array = _solved(self.basis, scores) * (step / batch)
        if held:
            return gain
        self.factor = _lower(self.latent if exact else self.latent + sigma)
        if rules.expand:
            self.basis = self.turn = _solved(self.factor, self.basis)
            self.latent = np.eye(len(sigma))
        else:
            self.turn = lapack.dpotrs(self.factor, self.basis, lower=1)[0]
        return gain

    def settle(self, factor: Array, expand: bool, update: Array) -> Array:
        """The update in the basis in which the next pass has psi = s - colsum(U²); that basis is now this one."""
        eye, update = np.eye(len(update)), self.basis @ update
        if expand:
            self.basis = self.turn = eye
            return update
        self.basis, self.turn = factor, _solved(factor, eye).T
        return _solved(factor, update)


def advance(state: StreamState, found: Array, run: Run) -> StreamState:
    r"""E step, running means and solve for one observation after another, as far as K x K matrices go.

    .. math:: \Sigma = (I + P G P^\top)^{-1}, \quad M = \Sigma P V, \quad
              H \leftarrow (1 - \gamma) H + \gamma (\Sigma + M M^\top / b), \quad
              U \leftarrow (1 - \gamma) U + \tfrac{\gamma}{b} B^{-1} M D

    U stays a small matrix W times the sheet [U; D], so that G and V of every vector are W times what one pass over the
    sheet has found. W is only written down, as ``update``, in the basis in which the next pass has
    :math:`\psi = s - \mathrm{colsum}(U^2)`: :math:`U \leftarrow L^{-1} B U` with :math:`L L^\top = H`. The expanded
    step calls :math:`L^{-1} z` the factors, so that H becomes I and B becomes :math:`L^{-1} B`.

    Args:
        state: as the last observation left it.
        found: :math:`[U; E] \Psi^{-1} [U; E]^\top`, (K + b, K + b), or its first K rows for one observation.
        run: what was observed.
    """
    rank, rules, whole = state.rank, state.settings, run.whole(state.rank)
    basis, latent, turn = (x.numpy() for x in (state.basis, state.latent, state.turn))
    small = _Small(basis, latent, turn, rounding_of(state.rows.dtype))
    update = np.eye(rank, len(whole))
    found = (whole @ found if run.several else found) @ whole.T
    shares = found[:rank]
    for place, step in enumerate(run.steps):
        mine = slice(rank + place, rank + place + 1) if run.several else slice(rank, None)
        if place:
            shares = update @ found
        inner = shares @ update.T if place else shares[:, :rank]
        held = state.count + place + 1 <= rules.warmup
        gain = small.learn(rules, inner, shares[:, mine], step, held)
        update *= 1.0 - step
        update[:, mine] = gain
    start = state.start
    if small.factor is not None:
        start, update = None, small.settle(small.factor, rules.expand, update)
    kept: dict[str, Any] = {"basis": small.basis, "latent": small.latent, "turn": small.turn}
    kept = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in kept.items()}
    count = state.count + len(run.steps)
    return replace(state, start=start, count=count, update=torch.from_numpy(update @ whole), **kept)


def rounding_of(dtype: torch.dtype) -> float:
    """Of a sum over columns, which is made of float64 sums of blocks: relative, as measured."""
    return torch.finfo(dtype).eps / 4.0


def posterior(inner: Array, rounding: float) -> tuple[Array, Array]:
    r"""What times :math:`F^\top \Psi^{-1} d` is the mean of the factors, and their covariance Sigma.

    .. math:: \Sigma = (I + A)^{-1}, \quad m = \Sigma v, \qquad A = F^\top \Psi^{-1} F, \quad v = F^\top \Psi^{-1} d

    A and v are sums over very many columns. Their rounding, :math:`\tau = \epsilon \operatorname{tr} A`, is large
    beside 1 where one factor explains nearly all of them. It is noise in v: with the eigenvalues a of A,

    .. math:: m = \frac{a}{a^2 + a + \tau^2} v, \qquad \Sigma = \frac{a + \tau^2}{a^2 + a + \tau^2}

    along its eigenvectors. So a factor that cannot be told from rounding stays as it is, instead of following it.

    Args:
        inner: A, (K, K).
        rounding: epsilon, of the sums.
    """
    eye, blur = np.eye(len(inner)), rounding * float(inner.trace())
    factor, failed = lapack.dpotrf(eye + inner, lower=1)
    if not failed and blur < CLEAR:
        half = _solved(factor, eye)
        sigma: Array = half.T @ half
        return sigma, sigma
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    values, noise = values.clip(min=0.0), max(blur * blur, TINY)
    total = values * values + values + noise
    return (vectors * (values / total)) @ vectors.T, (vectors * ((values + noise) / total)) @ vectors.T


def _lower(matrix: Array) -> Array:
    factor: Array
    factor, failed = lapack.dpotrf(matrix, lower=1)
    if failed or not math.isfinite(factor[-1, -1]):
        raise ConditionError("moment of the factors is not positive definite")
    return factor


def _solved(lower: Array, right: Array) -> Array:
    solution: Array = lapack.dtrtrs(lower, right, lower=1)[0]
    return solution
