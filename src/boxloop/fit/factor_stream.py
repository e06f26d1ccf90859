r"""Online EM for factor analysis of long vectors (Brownlie, 2021), with one read and one write of D x K numbers
per vector.

The recursion is that of every online engine, running means and then solve (Algorithm 2):

.. math:: A_t = (1 - \gamma_t) A_{t-1} + \gamma_t d_t m_t^\top, \qquad
          H_t = (1 - \gamma_t) H_{t-1} + \gamma_t (\Sigma_t + m_t m_t^\top), \qquad
          s_t = (1 - \gamma_t) s_{t-1} + \gamma_t d_t^2

with :math:`F = A H^{-1}` and :math:`\psi = s - \mathrm{rowsum}(F \odot A)`. It is fast because F is never formed. With
:math:`H = L L^\top` the rows :math:`U = L^{-1} A^\top` (K x D) are stored; then :math:`\psi = s -
\mathrm{colsum}(U^2)`, and the E step needs only :math:`G = U \Psi^{-1} U^\top` and :math:`v = U \Psi^{-1} d`: with
:math:`P = L^{-\top}` (so :math:`F^\top = P U`),

.. math:: \Sigma = (I + P G P^\top)^{-1}, \qquad m = \Sigma P v.

The update of U by :math:`d_t m_t^\top` is pending until vector t + 1, whose pass computes U, psi, G and v together.

Where psi may be a few vectors old, several vectors share a pass: with psi fixed, U after each of them is a small matrix
times the sheet of U and their deviations, and the E steps need only the Gram matrix of that sheet.

Notation: the sheet has K rows U over b rows of deviations, D columns; gaps are :math:`e_t = x_t - c_0`, differences
from the mean before the pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import lapack
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.data import check_choice
from boxloop.fit import factor_kernels
from boxloop.fit.column_tiles import (
    PreparedProduct,
    Tile,
    check_observation,
    choose_tile_width,
    draw_orthonormal_rows,
    prepare_outer_sum,
    prepare_product,
    split_into_tiles,
)
from boxloop.models import FactorModel
from boxloop.numeric import ConditionError
from boxloop.tree import Tree

Variant = Literal["exact", "paper"]


@dataclass(frozen=True)
class StreamSettings:
    """Options of a stream; the arguments of :meth:`FactorStream.start`."""

    schedule: Schedule
    warmup: int
    variant: Variant
    refresh: int
    expand: bool
    floor: float

    def __post_init__(self) -> None:
        check_choice(self.variant, "variant", ("exact", "paper"))
        if self.warmup < 2 or self.refresh < 1:
            raise ValueError(
                f"warmup must be at least 2 and refresh at least 1, got {self.warmup} and {self.refresh}"
            )
        if self.variant == "paper" and self.refresh > 1:
            raise ValueError(
                f"variant='paper' recomputes psi for every vector, so refresh must be 1, got {self.refresh}"
            )
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is a fraction of each column's variance, in [0, 1), got {self.floor}")

    def choose_vectors_per_pass(self, count: int) -> int:
        """Vectors that share a pass: a power of two, at most ``refresh`` and a quarter of the count so far."""
        if count <= self.warmup or count < 8:
            return 1
        return min(self.refresh, 1 << ((count // 4).bit_length() - 1))


@dataclass(frozen=True)
class StreamState(Tree):
    """State of a factor stream. Long tensors are updated in place; small ones are float64 on the CPU."""

    rows: Tensor  # U over the b deviations of the last observation, or gaps of b vectors, (K + b, D)
    mean: Tensor  # running mean c, (D,)
    square: Tensor  # running mean of squared deviations s, (D,)
    noise: Tensor  # psi as the last E step used it, (D,)
    start: Tensor | None  # initial loadings while the E step uses them instead of A, (K, D)
    gathered: Tensor  # vectors queued for a shared pass, (n, D)
    basis: Tensor  # B with Aᵀ = B U, lower triangular, (K, K)
    latent: Tensor  # running mean of Sigma + m mᵀ (paper: of m mᵀ), (K, K)
    turn: Tensor  # P with Fᵀ = P U, (K, K)
    update: Tensor  # the pending update: this matrix times ``rows`` is the next U, (K, K + b)
    count: int  # observations learned from; a mini-batch is one
    settings: StreamSettings

    @property
    def rank(self) -> int:
        """Number of factors, K."""
        return len(self.basis)


Array = NDArray[np.float64]

RELATIVE_ROUNDING = 0.25
"""Relative rounding error, as measured, of a sum over columns that adds blocks in float64; in machine epsilons."""
NEGLIGIBLE_ROUNDING = 1e-3
"""Rounding error of a factor's posterior mean, in its standard deviations, that is ignored."""
SMALLEST_NOISE = 1e-30


@dataclass(frozen=True)
class PassWeights:
    r"""Weights of the vectors of one pass in deviations, mean and variance, from their gaps :math:`e_t = x_t - c_0`.

    .. math:: d_t = \textstyle\sum_i T_{ti} e_i, \qquad \Delta = c_n - c_0 = \sum_t \omega_t e_t, \qquad
              s_n = \bigl(1 - \sum_t \omega_t\bigr) s_0 + \sum_t \omega_t e_t^2 - \beta \Delta^2
    """

    deviation_weights: Array  # T, (n, n)
    mean_weights: Array  # omega, (n,)
    correction: float  # beta; 1 makes s the variance of all vectors seen, about their own mean
    steps: tuple[float, ...]  # gamma of every vector, or a single one for a mini-batch

    @classmethod
    def from_steps(cls, steps: Sequence[float]) -> Self:
        r"""Vectors observed one after another: :math:`d_t = \sqrt{1 - \gamma_t} (x_t - c_{t-1})`."""
        n = len(steps)
        deviation_weights, mean_weights = np.eye(n), np.zeros(n)
        for t, step in enumerate(steps):
            deviation_weights[t] -= mean_weights
            mean_weights += step * deviation_weights[t]
            deviation_weights[t] *= math.sqrt(1.0 - step)
        return cls(deviation_weights, mean_weights, 1.0, tuple(steps))

    @classmethod
    def from_mini_batch(cls, n: int, step: float, shrink: float) -> Self:
        r"""A mini-batch as one observation: :math:`d_i = x_i - \bar x + \kappa (\bar x - c_0)`, as in the tiles."""
        deviation_weights = np.eye(n) - (1.0 - shrink) / n
        return cls(deviation_weights, np.full(n, step / n), (1.0 - shrink * shrink) / step, (step,))

    @property
    def is_sequential(self) -> bool:
        """Whether the vectors are observed one after another."""
        return len(self.steps) > 1


@dataclass
class _FactorMoments:
    """The K x K matrices of :class:`StreamState` during an update, and L with L Lᵀ = H after the warm-up."""

    # They are many and tiny, so NumPy and LAPACK are called directly: a call costs a microsecond.

    basis: Array
    latent: Array
    turn: Array
    rounding: float
    factor: Array | None = None

    def update_moments(
        self, settings: StreamSettings, inner: Array, cross: Array, step: float, warming_up: bool
    ) -> Array:
        """E step, running means and M step of one observation; returns the weight of each deviation in U, (K, b)."""
        batch = cross.shape[1]
        mean_map, sigma = compute_factor_posterior(self.turn @ inner @ self.turn.T, self.rounding)
        scores = mean_map @ (self.turn @ cross)
        if not math.isfinite(scores.sum()):
            raise ConditionError(
                "The posterior mean of the factors is not finite: the stream diverged. Use smaller steps."
            )
        exact = settings.variant == "exact"
        moment = scores @ scores.T / batch
        if exact:
            moment += sigma
        self.latent = self.latent + step * (moment - self.latent)
        gain: Array = _solve_lower_triangular(self.basis, scores) * (step / batch)
        if warming_up:
            return gain
        factor, failed = lapack.dpotrf(self.latent if exact else self.latent + sigma, lower=1)
        if failed or not math.isfinite(factor[-1, -1]):
            raise ConditionError("The second moment of the factors is not positive definite.")
        self.factor = factor
        if settings.expand:
            self.basis = self.turn = _solve_lower_triangular(self.factor, self.basis)
            self.latent = np.eye(len(sigma))
        else:
            self.turn = lapack.dpotrs(self.factor, self.basis, lower=1)[0]
        return gain

    def change_basis(self, factor: Array, expand: bool, update: Array) -> Array:
        """Adopt the basis in which the next pass has psi = s - colsum(U²), and express the update in it."""
        eye, update = np.eye(len(update)), self.basis @ update
        if expand:
            self.basis = self.turn = eye
            return update
        self.basis, self.turn = factor, _solve_lower_triangular(factor, eye).T
        return _solve_lower_triangular(factor, update)


def update_small_matrices(state: StreamState, gram: Array, vectors: PassWeights) -> StreamState:
    r"""The K x K side of E step, running means and M step, for one observation after another.

    .. math:: \Sigma = (I + P G P^\top)^{-1}, \quad M = \Sigma P V, \quad
              H \leftarrow (1 - \gamma) H + \gamma (\Sigma + M M^\top / b), \quad
              U \leftarrow (1 - \gamma) U + \tfrac{\gamma}{b} B^{-1} M D

    U stays a small matrix W times the sheet [U; D], so G and V of every vector are W times the Gram matrix
    :math:`[U; E] \Psi^{-1} [U; E]^\top` that one pass has measured. W is stored as ``update``, in the basis in which
    the next pass has :math:`\psi = s - \mathrm{colsum}(U^2)`: :math:`U \leftarrow L^{-1} B U` with :math:`L L^\top
    = H`. The expanded step calls :math:`L^{-1} z` the factors, so that H becomes I and B becomes :math:`L^{-1} B`.
    """
    rank, settings = len(state.basis), state.settings
    transform = np.eye(rank + len(vectors.deviation_weights))  # turns [U; E] into [U; D]
    transform[rank:, rank:] = vectors.deviation_weights
    basis, latent, turn = (x.numpy() for x in (state.basis, state.latent, state.turn))
    moments = _FactorMoments(basis, latent, turn, RELATIVE_ROUNDING * torch.finfo(state.rows.dtype).eps)
    update = np.eye(rank, len(transform))
    gram = (transform @ gram if vectors.is_sequential else gram) @ transform.T
    products = gram[:rank]
    for index, step in enumerate(vectors.steps):
        columns = slice(rank + index, rank + index + 1) if vectors.is_sequential else slice(rank, None)
        if index:
            products = update @ gram
        inner = products @ update.T if index else products[:, :rank]
        warming_up = state.count + index + 1 <= settings.warmup
        weight = moments.update_moments(settings, inner, products[:, columns], step, warming_up)
        update *= 1.0 - step
        update[:, columns] = weight
    start = state.start
    if moments.factor is not None:
        start, update = None, moments.change_basis(moments.factor, settings.expand, update)
    matrices: dict[str, Any] = {"basis": moments.basis, "latent": moments.latent, "turn": moments.turn}
    matrices = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in matrices.items()}
    count = state.count + len(vectors.steps)
    return replace(state, start=start, count=count, update=torch.from_numpy(update @ transform), **matrices)


def compute_factor_posterior(inner: Array, rounding: float) -> tuple[Array, Array]:
    r"""The matrix that maps :math:`v = F^\top \Psi^{-1} d` to the posterior mean of the factors, and their covariance.

    .. math:: m = \frac{a}{a^2 + a + \tau^2} v, \qquad \Sigma = \frac{a + \tau^2}{a^2 + a + \tau^2}

    along the eigenvectors of :math:`A = F^\top \Psi^{-1} F`, with eigenvalues a. A and v are sums over very many
    columns; their rounding error, :math:`\tau = \epsilon \operatorname{tr} A`, exceeds 1 where one factor explains
    nearly all of them. It is treated as noise in v: a factor below it keeps its prior instead of following the error.
    """
    eye, error = np.eye(len(inner)), rounding * float(inner.trace())
    factor, failed = lapack.dpotrf(eye + inner, lower=1)
    if not failed and error < NEGLIGIBLE_ROUNDING:
        half = _solve_lower_triangular(factor, eye)
        sigma: Array = half.T @ half
        return sigma, sigma
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    values, noise = values.clip(min=0.0), max(error * error, SMALLEST_NOISE)
    total = values * values + values + noise
    return (vectors * (values / total)) @ vectors.T, (vectors * ((values + noise) / total)) @ vectors.T


def _solve_lower_triangular(lower: Array, right: Array) -> Array:
    solution: Array = lapack.dtrtrs(lower, right, lower=1)[0]
    return solution


@dataclass(frozen=True)
class SharedMatrices:
    """Small matrices that all tiles share, in the dtype of the sheet; sums over tiles are float64."""

    update: Tensor  # this matrix times the sheet is the next U, (K, K + b)
    gram: Tensor  # receives [U; E] Psi^-1 [U; E]ᵀ, or its first K rows; F0 Eᵀ with initial loadings F0
    mean_weights: Tensor  # weight of each vector in the new mean, (b,)


class FactorTile:
    """The work of a pass on one tile of columns, with its products bound to the shared matrices."""

    def __init__(
        self, tile: Tile, square: Tensor, start: Tensor | None, shared: SharedMatrices, floor: float
    ) -> None:
        self.tile = tile
        self.square = square
        self.floor = floor
        self.shared = shared
        rank, batch, height = len(tile.upper), len(tile.lower), len(shared.gram)
        self.from_start: bool = start is not None
        self.left: Tensor = tile.rows[:height]
        self.scaled: Tensor = tile.scaled[:height]
        self.squares: Tensor = tile.scaled[:rank]
        self.weighted: Tensor = tile.scaled[:batch]
        self.multiply_update: PreparedProduct = prepare_product(shared.update, tile.rows, tile.fresh_upper)
        pair = (self.scaled, tile.rows) if start is None else (start, tile.lower)
        self.add_gram: PreparedProduct = prepare_outer_sum(*pair, shared.gram)

    def update_mean(self, values: Tensor, keep: float, correction: float) -> None:
        """Write the gaps E of vectors to the mean c before them, then update mean and variance by their weights."""
        tile, mean_weights = self.tile, self.shared.mean_weights
        torch.sub(values, tile.mean, out=tile.lower)
        torch.mul(tile.lower, tile.lower, out=self.weighted)
        self.square.addmv_(self.weighted.mT, mean_weights, beta=keep)
        torch.mv(tile.lower.mT, mean_weights, out=tile.gap)
        tile.mean.add_(tile.gap)
        self.square.addcmul_(tile.gap, tile.gap, value=-correction).clamp_(min=0.0)

    def observe(self, values: Tensor, keep: float, correction: float) -> None:
        """Carry out the pending update of U, compute psi and the gaps, and add this tile's part of the Gram matrix."""
        tile = self.tile
        self.multiply_update()
        if not self.from_start:
            torch.mul(tile.fresh_upper, tile.fresh_upper, out=self.squares)
            torch.sum(self.squares, 0, out=tile.noise)
            compute_residual_variance(self.square, tile.noise, self.floor, out=tile.noise, spare=tile.gap)
        tile.upper.copy_(tile.fresh_upper)
        self.update_mean(values, keep, correction)
        if not self.from_start:
            if self.floor > 0.0:
                torch.mul(self.square, self.floor, out=tile.gap)
                torch.maximum(tile.noise, tile.gap, out=tile.noise)
            torch.div(self.left, tile.noise, out=self.scaled)
        self.add_gram()


def compute_residual_variance(
    square: Tensor, explained: Tensor, floor: float, out: Tensor | None = None, spare: Tensor | None = None
) -> Tensor:
    """psi = s - explained, at least ``floor`` times s, and positive even for a constant column."""
    noise = torch.sub(square, explained, out=out)
    if floor == 0.0:
        return noise
    least = torch.add(_smallest_variance(square.dtype, square.device), square, alpha=floor, out=spare)
    return torch.maximum(noise, least, out=noise)


@lru_cache(maxsize=8)
def _smallest_variance(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(torch.finfo(dtype).tiny * 1e8, dtype=dtype, device=device)


KERNEL_TILE = 1 << 17
"""Columns per tile where kernels do the passes: the scratch of tiles then takes little memory."""


class TiledState:
    """The D-long tensors of a state, cut into tiles that share small matrices; passes change them in place."""

    def __init__(self, state: StreamState, tile: int | None, is_sequential: bool = False) -> None:
        rows, rank, floor = state.rows, len(state.basis), state.settings.floor
        self.is_sequential = is_sequential
        self._from_start = state.start is not None
        self._kernels: factor_kernels.FactorKernels | None = None
        if rows.is_cuda and not self._from_start and tile is None and factor_kernels.is_supported(rows, rank):
            tile = KERNEL_TILE  # tiles then only serve rare operations
            self._kernels = factor_kernels.FactorKernels(
                rows, state.mean, state.square, state.noise, rank, floor
            )
        self._width = min(tile or choose_tile_width(rows), rows.shape[1])
        height, batch = len(rows), len(rows) - rank
        shape = (rank, batch) if self._from_start else (height if is_sequential else rank, height)
        gram = rows.new_zeros(shape, dtype=torch.float64)
        self._shared = SharedMatrices(rows.new_zeros(rank, height), gram, rows.new_zeros(batch))
        tiles = split_into_tiles(rows, state.mean, state.noise, rank, self._width)
        squares = state.square.split(self._width)
        starts = [None] * len(tiles) if state.start is None else state.start.split(self._width, dim=1)
        self._tiles = [
            FactorTile(tile, square, start, self._shared, floor)
            for tile, square, start in zip(tiles, squares, starts, strict=True)
        ]

    @property
    def uses_kernels(self) -> bool:
        """Whether a pass runs as Triton kernels."""
        return self._kernels is not None

    def update_mean(self, values: Tensor, vectors: PassWeights) -> None:
        """Update mean and variance only."""
        keep = self._set_mean_weights(vectors)
        for work, part in self._pair_tiles(values):
            work.update_mean(part, keep, vectors.correction)

    def scale_loadings(self) -> None:
        """Multiply U by the standard deviation of each column."""
        for work in self._tiles:
            work.tile.upper.mul_(work.square.sqrt())

    def observe(self, update: Tensor, values: Tensor, vectors: PassWeights) -> Array:
        """Carry out the pending update and observe vectors; returns [U; E] Psi^-1 [U; E]ᵀ, or its first K rows."""
        keep = self._set_mean_weights(vectors)
        self._shared.update.copy_(update)
        if self._kernels is not None:
            return self._kernels(
                values, self._shared.update, self._shared.mean_weights, keep, vectors.correction
            )
        self._shared.gram.zero_()
        for work, part in self._pair_tiles(values):
            work.observe(part, keep, vectors.correction)
        gram: Array = self._shared.gram.cpu().numpy()
        return np.concatenate([np.eye(len(gram)), gram], axis=1) if self._from_start else gram

    def compute_updated_rows(self, update: Tensor, batch: int) -> Tensor:
        """U with the pending update carried out, over ``batch`` rows of zeros, as a new tensor (K + b, D)."""
        first = self._tiles[0].tile.rows
        columns = sum(work.tile.rows.shape[1] for work in self._tiles)
        rows = first.new_zeros(len(update) + batch, columns)
        self._shared.update.copy_(update)
        for work, out in self._pair_tiles(rows):
            out[: len(update)] = self._shared.update @ work.tile.rows
        return rows

    def solve_loadings(self, state: StreamState) -> tuple[Tensor, Tensor]:
        """F and psi after all observations, (D, K) and (D,)."""
        loadings = state.rows.new_empty(len(state.mean), state.rank)
        noise = torch.empty_like(state.mean)
        self._shared.update.copy_(state.update)
        turn, basis = state.turn.to(loadings), state.basis.to(loadings)
        unscaled = state.settings.variant == "exact" and state.count < state.settings.warmup
        parts = zip(self._tiles, loadings.split(self._width), noise.split(self._width), strict=True)
        for work, out, psi in parts:
            rows = (self._shared.update @ work.tile.rows) * (work.square.sqrt() if unscaled else 1.0)
            out.copy_((turn @ rows).mT)
            psi.copy_(
                compute_residual_variance(work.square, (out.mT * (basis @ rows)).sum(0), state.settings.floor)
            )
        return loadings, noise

    def _set_mean_weights(self, vectors: PassWeights) -> float:
        """Copy the weights of the vectors to the shared matrices; return the weight of the old mean."""
        self._shared.mean_weights.copy_(torch.from_numpy(vectors.mean_weights))
        return 1.0 - float(vectors.mean_weights.sum())

    def _pair_tiles(self, values: Tensor) -> Iterator[tuple[FactorTile, Tensor]]:
        return zip(self._tiles, values.split(self._width, dim=1), strict=True)


class VectorQueue:
    """At most ``capacity`` vectors that are queued to share a pass."""

    def __init__(self, vectors: Tensor, capacity: int) -> None:
        self._buffer, self._capacity = vectors, capacity
        self.count: int = len(vectors)

    def vectors(self) -> Tensor:
        """The queued vectors in order; a view."""
        return self._buffer[: self.count]

    def append(self, vector: Tensor) -> None:
        """Queue a copy of ``vector``."""
        if len(self._buffer) < self._capacity:
            larger = self._buffer.new_empty(self._capacity, len(vector))
            larger[: self.count] = self._buffer
            self._buffer = larger
        self._buffer[self.count] = vector
        self.count += 1


class FactorStream:
    """Factor analysis of a stream of vectors (D,), each seen once.

    Deviation: ``variant="exact"`` averages Sigma_t + m_t m_tᵀ instead of adding the newest Sigma to older averages;
    scales the deviation from the old mean by sqrt(1 - gamma), which makes ``square`` the variance of all vectors seen
    (the paper's deviation from the new mean shrinks it); and starts at the data's scale: the warm-up measures only
    mean and variance, then the paper's start, in units of each column's standard deviation, enters the averages as
    if it had been observed during the warm-up. ``variant="paper"`` is Algorithm 2 exactly, unit start included.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> factor = torch.tensor([3.0, -2.0, 1.0, 0.0])
        >>> stream = FactorStream.start(4, 1, draws, schedule=Power(1.0, scale=2.0), warmup=20)
        >>> for _ in range(2000):
        ...     z, noise = torch.randn(1, generator=draws), torch.randn(4, generator=draws)
        ...     stream.observe(5.0 + factor * z + noise)
        >>> covariance = stream.model().moments()[1].dense()[0]
        >>> bool((covariance - factor.outer(factor) - torch.eye(4)).abs().max() < 0.5)
        True
    """

    def __init__(self, state: StreamState, tile: int | None = None) -> None:
        """Adopt ``state`` without a copy, in tiles of ``tile`` columns (chosen from the cache when None)."""
        self._state = state
        self._tile = tile
        self._interrupted = False
        self._queue = VectorQueue(state.gathered, state.settings.refresh)
        self._sheet = TiledState(state, tile)

    @classmethod
    def start(
        cls,
        n_columns: int,
        rank: int,
        generator: Generator,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        schedule: Schedule | None = None,
        warmup: int = 100,
        variant: Variant = "exact",
        refresh: int = 1,
        expand: bool | None = None,
        floor: float | None = None,
        tile: int | None = None,
    ) -> Self:
        """A stream without observations.

        Args:
            n_columns: D.
            rank: K, number of factors.
            generator: source of the initial loadings.
            dtype: of the D-long tensors; float32 or float64.
            device: of the D-long tensors.
            schedule: step sizes gamma_t; 1/t when None, the plain mean of Algorithm 2. ``Power(1.0, scale=2.0)``
                weights observation t by t: it forgets the start much sooner, at 15% more noise.
            warmup: observations before the loadings first change.
            variant: "exact", or "paper" for Brownlie's (2021) Algorithm 2 unchanged.
            refresh: most vectors that share a pass, and the psi before it. At 16 the cost is a quarter, at the memory
                of twice as many vectors. ``model()`` is always current.
            expand: the parameter-expanded M step (Liu, Rubin and Wu 1998), which finds the scale of the loadings
                in a few steps. When None: True for "exact", False for "paper".
            floor: smallest psi, as a fraction of each column's variance; when None the square root of the machine
                epsilon for "exact", 0 for "paper".
            tile: columns per tile, for measurements.
        """
        if not 1 <= rank <= n_columns:
            raise ValueError(f"rank must lie between 1 and the {n_columns} columns, got {rank}")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        paper = variant == "paper"
        if paper and expand:
            raise ValueError("variant='paper' has no parameter-expanded step: use expand=False")
        expand = not paper if expand is None else expand
        floor = 0.0 if paper else math.sqrt(torch.finfo(dtype).eps) if floor is None else floor
        settings = StreamSettings(schedule or Power(exponent=1.0), warmup, variant, refresh, expand, floor)
        zeros = torch.zeros(n_columns, dtype=dtype, device=device)
        first = draw_orthonormal_rows(rank, n_columns, generator, zeros)
        rows = zeros.new_zeros(rank + 1, n_columns)
        if not paper:
            rows[:rank] = first
        eye = torch.eye(rank, dtype=torch.float64)
        state = StreamState(
            rows=rows,
            mean=zeros,
            square=zeros.clone(),
            noise=zeros + 1.0,
            start=first if paper else None,
            gathered=zeros.new_empty(0, n_columns),
            basis=eye,
            latent=torch.zeros_like(eye) if paper else eye,
            turn=eye,
            update=torch.eye(rank, rank + 1, dtype=torch.float64),
            count=0,
            settings=settings,
        )
        return cls(state, tile)

    @classmethod
    def restore(
        cls, state: StreamState, *, device: torch.device | str | None = None, tile: int | None = None
    ) -> Self:
        """A stream that continues from a copy of ``state``: on the same device, bit for bit as the one that gave it."""
        state = state.map(torch.clone)
        start = None if state.start is None else state.start.to(device)
        names = "rows", "mean", "square", "noise", "gathered"
        moved: dict[str, Any] = {name: getattr(state, name).to(device) for name in names}
        return cls(replace(state, start=start, **moved), tile)

    def state(self) -> StreamState:
        """A copy of the state, for a checkpoint."""
        self._check_intact()
        return replace(self._state, gathered=self._queue.vectors()).map(torch.clone)

    @property
    def count(self) -> int:
        """Observations so far; a mini-batch is one."""
        return self._state.count + self._queue.count

    @property
    def uses_kernels(self) -> bool:
        """Whether a pass runs as Triton kernels, which need a GPU, float32 and few factors."""
        return self._sheet.uses_kernels

    def observe(self, values: Tensor | ArrayLike) -> None:
        """Observe one vector (D,), or b vectors (b, D) in one update with their averaged statistics; all or nothing."""
        self.observe_checked(check_observation(values, len(self._state.mean), self._state.rows))

    def is_constant(self, vector: Tensor) -> bool:
        """Whether all vectors so far, and this one (D,), are identical: they have no scale."""
        state = self._state
        smallest = torch.finfo(state.mean.dtype).tiny * 1e8
        return not bool(state.square.any()) and float((vector - state.mean).square().amax()) <= smallest

    def observe_checked(self, values: Tensor) -> None:
        """Observe finite vectors (b, D) of the stream's dtype and device, without checking them."""
        self._check_intact()
        count, settings = self._state.count, self._state.settings
        if len(values) == 1 and (most := settings.choose_vectors_per_pass(count)) > 1:
            self._queue.append(values[0])
            if self._queue.count >= most:
                self._learn_queued()
            return
        self._learn_queued()
        step = settings.schedule(self._state.count + 1)
        shrink = math.sqrt(1.0 - step) if settings.variant == "exact" else 1.0 - step
        self._learn_vectors(values, PassWeights.from_mini_batch(len(values), step, shrink))

    def model(self) -> FactorModel:
        """The factor model solved from all observations so far, at least two; the stream is unchanged."""
        self._check_intact()
        if self._queue.count:
            return self._copy_after_queue().model()
        state = self._state
        if state.count < 2:
            raise ValueError(f"A model needs at least two observations; this stream has seen {state.count}.")
        if state.start is not None:
            return FactorModel(state.mean.clone(), state.start.mT.contiguous(), state.noise.clone())
        return FactorModel(state.mean.clone(), *self._sheet.solve_loadings(state))

    def _copy_after_queue(self) -> Self:
        """A copy of this stream that has also learned from the queued vectors."""
        state, queued = self._state, self._queue.vectors()
        tensors: dict[str, Any] = {name: getattr(state, name).clone() for name in ("mean", "square", "noise")}
        rows = self._sheet.compute_updated_rows(state.update, len(queued))
        update = torch.eye(state.rank, state.rank + len(queued), dtype=torch.float64)
        copy = type(self)(replace(state, rows=rows, update=update, gathered=queued, **tensors), self._tile)
        copy._learn_queued()
        return copy

    def _learn_queued(self) -> None:
        """Learn from the queued vectors."""
        if self._queue.count:
            count, schedule = self._state.count, self._state.settings.schedule
            steps = [schedule(count + t) for t in range(1, self._queue.count + 1)]
            self._learn_vectors(self._queue.vectors(), PassWeights.from_steps(steps))
            self._queue.count = 0  # the buffer stays allocated

    def _learn_vectors(self, values: Tensor, vectors: PassWeights) -> None:
        """One pass that carries out the pending update and observes vectors, then the update of the small matrices."""
        rank, batch = len(self._state.basis), len(values)
        if rank + batch != len(self._state.rows):
            # Carry out the pending update, and make room for as many deviations.
            rows = self._sheet.compute_updated_rows(self._state.update, batch)
            update = torch.eye(rank, rank + batch, dtype=torch.float64)
            self._state = replace(self._state, rows=rows, update=update)
            self._sheet = TiledState(self._state, self._tile)
        if vectors.is_sequential != self._sheet.is_sequential:
            self._sheet = TiledState(self._state, self._tile, vectors.is_sequential)
        state, settings = self._state, self._state.settings
        self._interrupted = True
        if state.count == 0 and vectors.steps[0] == 1.0:
            # The old mean has weight 0; gaps from it could be large and lose digits.
            state.mean.copy_(values[0])
        if settings.variant == "exact" and state.count < settings.warmup:
            self._learn_scale(values, vectors)
        else:
            gram = self._sheet.observe(state.update, values, vectors)
            self._state = update_small_matrices(state, gram, vectors)
            if state.start is not self._state.start:
                self._sheet = TiledState(self._state, self._tile)
        self._interrupted = False

    def _learn_scale(self, values: Tensor, vectors: PassWeights) -> None:
        """Warm-up of the exact variant: mean and variance only; at its end the loadings take the data's scale."""
        state = self._state
        self._sheet.update_mean(values, vectors)
        if state.count + 1 == state.settings.warmup:
            if not bool(state.square.any()):
                raise ConditionError("All warm-up vectors are identical, so the scale cannot be initialised.")
            self._sheet.scale_loadings()
        self._state = replace(state, count=state.count + 1)

    def _check_intact(self) -> None:
        if self._interrupted:
            raise RuntimeError(
                "An observation was interrupted and left the stream inconsistent: restore it from a checkpoint."
            )
