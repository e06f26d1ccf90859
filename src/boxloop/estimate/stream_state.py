r"""The small side of a stream: K x K matrices in float64, and how one observation changes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self

import torch
from torch import Tensor

from boxloop.average import Schedule
from boxloop.numeric import ConditionError, safe_cholesky
from boxloop.tree import Tree

Variant = Literal["exact", "paper"]


@dataclass(frozen=True)
class StreamSettings:
    """How a stream learns; the arguments of :meth:`FactorStream.start`."""

    schedule: Schedule
    warmup: int
    variant: Variant
    refresh: int
    expand: bool
    floor: float

    def __post_init__(self) -> None:
        if self.variant not in ("exact", "paper"):
            raise ValueError(f"variant must be 'exact' or 'paper', got {self.variant!r}")
        if self.warmup < 2 or self.refresh < 1:
            raise ValueError(f"need warmup >= 2 and refresh >= 1, got {self.warmup} and {self.refresh}")
        if self.variant == "paper" and self.refresh > 1:
            raise ValueError("the paper's variant computes psi anew for every vector: refresh must be 1")
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is a share of each column's variance, in [0, 1), got {self.floor}")

    def together(self, count: int) -> int:
        """Vectors that share a pass after ``count`` of them: a power of two, up to ``refresh`` and a quarter of all."""
        if count <= self.warmup or count < 8:
            return 1
        return min(self.refresh, 1 << ((count // 4).bit_length() - 1))


@dataclass(frozen=True)
class StreamState(Tree):
    r"""All that a stream knows. Long tensors are updated in place; small ones are float64 on the CPU.

    Args:
        rows: U over the b deviations of the last observation, or the gaps of b vectors to the mean before them,
            (K + b, D).
        mean: running mean c, (D,).
        square: running mean of squared deviations s, (D,).
        noise: psi as the last E step used it, (D,).
        start: initial loadings while they are held beside the running A, (K, D), else None.
        gathered: vectors that wait for others, to share a pass with them, (n, D).
        basis: B with :math:`A^\top = B U`, lower triangular, (K, K).
        latent: running mean of :math:`\Sigma + m m^\top` (paper: of :math:`m m^\top`), (K, K).
        turn: P with :math:`F^\top = P U`, (K, K).
        update: what times ``rows`` makes the next U, (K, K + b).
        count: observations learned from; a mini-batch is one.
        settings: how it learns.
    """

    rows: Tensor
    mean: Tensor
    square: Tensor
    noise: Tensor
    start: Tensor | None
    gathered: Tensor
    basis: Tensor
    latent: Tensor
    turn: Tensor
    update: Tensor
    count: int
    settings: StreamSettings

    @property
    def rank(self) -> int:
        """K."""
        return len(self.basis)


def unchanged(rank: int, batch: int) -> Tensor:
    """The update that leaves U as it is, (K, K + b)."""
    return torch.eye(rank, rank + batch, dtype=torch.float64)


@dataclass(frozen=True)
class Run:
    r"""Vectors that come one after another, told by their gaps :math:`e_t = x_t - c_0` to the mean before all of them.

    .. math:: d_t = \sqrt{1 - \gamma_t} (x_t - c_{t-1}) = \textstyle\sum_i T_{ti} e_i, \qquad
              c_n - c_0 = \sum_t \omega_t e_t, \qquad \omega_t = \gamma_t \prod_{u > t} (1 - \gamma_u)

    Args:
        chain: T, lower triangular, (n, n).
        share: omega, (n,).
    """

    chain: Tensor
    share: Tensor

    @classmethod
    def of(cls, steps: Sequence[float]) -> Self:
        """From the step of every vector."""
        n = len(steps)
        chain, share = torch.eye(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
        for t, step in enumerate(steps):
            chain[t] -= share
            share += step * chain[t]
            chain[t] *= math.sqrt(1.0 - step)
        return cls(chain, share)

    def whole(self, rank: int) -> Tensor:
        """[U; D] from [U; E], (K + n, K + n)."""
        return torch.block_diag(torch.eye(rank, dtype=torch.float64), self.chain)


def advance(state: StreamState, found: Tensor, steps: Sequence[float]) -> StreamState:
    r"""E step, running means and solve for one vector after another, as far as K x K matrices go.

    .. math:: \Sigma = (I + P G P^\top)^{-1}, \quad M = \Sigma P V, \quad
              H \leftarrow (1 - \gamma) H + \gamma (\Sigma + M M^\top / b), \quad
              U \leftarrow (1 - \gamma) U + \tfrac{\gamma}{b} B^{-1} M D

    U stays a small matrix W times the sheet [U; D], so that G and V of every vector are W times what one pass over the
    sheet has found. W is only written down, as ``update``, in the basis in which the next pass has
    :math:`\psi = s - \mathrm{colsum}(U^2)`: :math:`U \leftarrow L^{-1} B U` with :math:`L L^\top = H`. The expanded
    step calls :math:`L^{-1} z` the factors, so that H becomes I and B becomes :math:`L^{-1} B`.

    Args:
        state: as the last observation left it.
        found: :math:`[U; D] \Psi^{-1} [U; D]^\top`, (K + b, K + b), or its first K rows for one observation.
        steps: gamma of every vector, or one for a mini-batch of b.
    """
    rank, batch = state.rank, found.shape[1] - state.rank
    several, update, shares = len(steps) > 1, _eye(rank), found[:rank]
    inner, rest = shares.split([rank, batch], dim=1)
    for place, step in enumerate(steps):
        if place:
            shares = torch.mm(update, found)
            inner, rest = torch.mm(shares, update.mT), shares[:, rank:]
        cross = rest[:, place : place + 1] if several else rest
        state, gain, factor = _advanced(state, inner, cross, step)
        if place:
            update.mul_(1.0 - step)[:, rank + place] = gain[:, 0]
        else:
            room = [gain.new_zeros(rank, batch - 1)] if several else []
            update = torch.cat([update * (1.0 - step), gain, *room], dim=1)
    if factor is None:
        return replace(state, update=update)
    if state.settings.expand:
        eye = _eye(rank)
        return replace(state, update=state.basis @ update, basis=eye, turn=eye)
    turned = torch.linalg.solve_triangular(factor, state.basis @ update, upper=False)
    return replace(state, update=turned, basis=factor, turn=torch.cholesky_solve(factor, factor))


def _advanced(
    state: StreamState, inner: Tensor, cross: Tensor, step: float
) -> tuple[StreamState, Tensor, Tensor | None]:
    """The small matrices after one observation, what U gains by each of its deviations, (K, b), and L after warm-up."""
    rules, batch, turn = state.settings, cross.shape[1], state.turn
    inner = turn @ inner @ turn.mT
    sigma = posterior(0.5 * (inner + inner.mT))
    scores = sigma @ (turn @ cross)
    if not math.isfinite(float(scores.sum())):
        raise ConditionError("the posterior of the factors is not finite: the stream has diverged")
    fresh = torch.addmm(sigma, scores, scores.mT, beta=float(rules.variant == "exact"), alpha=1.0 / batch)
    latent = torch.lerp(state.latent, fresh, step)
    gain = torch.linalg.solve_triangular(state.basis, scores, upper=False) * (step / batch)
    count = state.count + 1
    if count <= rules.warmup:
        return replace(state, latent=latent, count=count), gain, None
    moment = latent if rules.variant == "exact" else latent + sigma
    factor = safe_cholesky(moment, "moment of the factors")
    if rules.expand:
        basis = torch.linalg.solve_triangular(factor, state.basis, upper=False)
        latent, turn = _eye(state.rank), basis
    else:
        basis, turn = state.basis, torch.cholesky_solve(state.basis, factor)
    changes: dict[str, Any] = {"basis": basis, "latent": latent, "turn": turn, "count": count}
    return replace(state, start=None, **changes), gain, factor


@lru_cache(maxsize=16)
def _eye(rank: int) -> Tensor:
    """Never changed in place."""
    return torch.eye(rank, dtype=torch.float64, device="cpu")


def posterior(inner: Tensor) -> Tensor:
    r""":math:`(I + F^\top \Psi^{-1} F)^{-1}`; rounding that makes the inner matrix indefinite is taken away."""
    eye = _eye(len(inner))
    factor, failed = torch.linalg.cholesky_ex(eye + inner)
    if failed:
        values, vectors = torch.linalg.eigh(inner)
        half = (vectors / (1.0 + values.clamp(min=0.0)).sqrt()).mT
    else:
        half = torch.linalg.solve_triangular(factor, eye, upper=False)
    return torch.mm(half.mT, half)
