r"""The small side of a stream: K x K matrices in float64, and how one observation changes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

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
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is a share of each column's variance, in [0, 1), got {self.floor}")


@dataclass(frozen=True)
class StreamState(Tree):
    r"""All that a stream knows. Long tensors are updated in place; small ones are float64 on the CPU.

    Args:
        rows: U over the b deviations of the last observation, (K + b, D).
        mean: running mean c, (D,).
        square: running mean of squared deviations s, (D,).
        noise: psi as the last E step used it, (D,).
        start: initial loadings while they are held beside the running A, (K, D), else None.
        basis: B with :math:`A^\top = B U`, lower triangular, (K, K).
        latent: running mean of :math:`\Sigma + m m^\top` (paper: of :math:`m m^\top`), (K, K).
        turn: P with :math:`F^\top = P U`, (K, K).
        inner: G while psi is held, (K, K).
        update: what times ``rows`` makes the next U, (K, K + b).
        due: whether the next pass computes psi and G anew.
        count: observations so far; a mini-batch is one.
        settings: how it learns.
    """

    rows: Tensor
    mean: Tensor
    square: Tensor
    noise: Tensor
    start: Tensor | None
    basis: Tensor
    latent: Tensor
    turn: Tensor
    inner: Tensor
    update: Tensor
    due: bool
    count: int
    settings: StreamSettings

    @property
    def rank(self) -> int:
        """K."""
        return len(self.basis)

    @property
    def warming(self) -> bool:
        """Whether the parameters are still the initial ones."""
        return self.count <= self.settings.warmup


def unchanged(rank: int, batch: int) -> Tensor:
    """The update that leaves U as it is, (K, K + b)."""
    return torch.eye(rank, rank + batch, dtype=torch.float64)


def advance(state: StreamState, inner: Tensor, cross: Tensor, quadratic: Tensor, step: float) -> StreamState:
    r"""E step, running means and solve, as far as K x K matrices go.

    .. math:: \Sigma = (I + P G P^\top)^{-1}, \quad M = \Sigma P V, \quad
              H \leftarrow (1 - \gamma) H + \gamma (\Sigma + M M^\top / b), \quad
              U \leftarrow (1 - \gamma) U + \tfrac{\gamma}{b} B^{-1} M D

    The update of U is only written down, as ``update``. When psi is due it is written in the basis in which
    :math:`\psi = s - \mathrm{colsum}(U^2)`: :math:`U \leftarrow L^{-1} B U` with :math:`L L^\top = H`. The expanded
    step calls :math:`L^{-1} z` the factors, so that H becomes I and B becomes :math:`L^{-1} B`.

    Args:
        state: as the last observation left it.
        inner: G of the current U and psi, (K, K).
        cross: :math:`V = U \Psi^{-1} D^\top` for the new deviations D, (K, b).
        quadratic: :math:`D \Psi^{-1} D^\top`, (b, b); read only when psi is held.
        step: gamma.
    """
    rules, batch, turn = state.settings, cross.shape[1], state.turn
    eye = torch.eye(state.rank, dtype=torch.float64)
    sigma = posterior(turn @ inner @ turn.mT)
    scores = sigma @ (turn @ cross)
    if not math.isfinite(float(scores.sum())):
        raise ConditionError("the posterior of the factors is not finite: the stream has diverged")
    fresh = torch.addmm(sigma, scores, scores.mT, beta=float(rules.variant == "exact"), alpha=1.0 / batch)
    latent = torch.lerp(state.latent, fresh, step)
    gain = torch.linalg.solve_triangular(state.basis, scores, upper=False) * (step / batch)
    update = torch.cat([eye * (1.0 - step), gain], dim=1)
    count = state.count + 1
    if count <= rules.warmup:
        return replace(state, latent=latent, update=update, count=count)
    factor = safe_cholesky(latent if rules.variant == "exact" else latent + sigma, "moment of the factors")
    turned = torch.linalg.solve_triangular(factor, state.basis, upper=False)
    due = (count - rules.warmup - 1) % rules.refresh == 0
    if due:
        update, basis = turned @ update, eye if rules.expand else factor
    else:
        basis, inner = turned if rules.expand else state.basis, _moved(inner, cross, quadratic, gain, step)
    if rules.expand:
        latent, turn = eye, basis
    else:
        turn = torch.cholesky_solve(basis, factor)
    changes: dict[str, Any] = {
        "basis": basis,
        "latent": latent,
        "turn": turn,
        "inner": inner,
        "update": update,
    }
    return replace(state, start=None, due=due, count=count, **changes)


def posterior(inner: Tensor) -> Tensor:
    r""":math:`(I + F^\top \Psi^{-1} F)^{-1}`; rounding that makes the inner matrix indefinite is taken away."""
    eye = torch.eye(len(inner), dtype=inner.dtype)
    factor, failed = torch.linalg.cholesky_ex(eye + inner)
    if failed:
        values, vectors = torch.linalg.eigh(inner)
        half = (vectors / (1.0 + values.clamp(min=0.0)).sqrt()).mT
    else:
        half = torch.linalg.solve_triangular(factor, eye, upper=False)
    return torch.mm(half.mT, half)


def _moved(inner: Tensor, cross: Tensor, quadratic: Tensor, gain: Tensor, step: float) -> Tensor:
    r"""G after U moves to :math:`(1 - \gamma) U + E D` while psi stays: no pass over D is needed."""
    keep, lean = 1.0 - step, gain @ cross.mT
    return keep * keep * inner + keep * (lean + lean.mT) + gain @ quadratic @ gain.mT
