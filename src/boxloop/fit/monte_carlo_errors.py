r"""What a Monte Carlo fit is worth: standard errors, the Monte Carlo error, and the last step.

Chains run on at the fitted parameters :math:`\hat\theta`, with a kernel that no longer changes. With
:math:`s_i = \nabla \log p_\theta(x_i, z_i)` the complete-data score of a unit, score and observed information are

.. math:: \nabla \ell = \sum_i E[s_i], \qquad
          I = \sum_i E[-\nabla^2 \log p_\theta(x_i, z_i)] - \sum_i \mathrm{Cov}(s_i)

given the rows (Fisher's and Louis' identities; Louis 1982). They hold for any latent coordinates, so latent values may
follow the parameters (``model.follow``), which takes most of the noise away. The estimate reported is
:math:`\hat\theta + I^{-1} \widehat{\nabla \ell}`: one Newton step on the likelihood itself. It removes what EM has not
yet gained, whatever engine and rate led here, and its Monte Carlo error is known,
:math:`I^{-1} V I^{-1}` with V the error of the score from the spread between copies of the chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from boxloop.fit.monte_carlo_walk import Kernels, MonteCarloState, SampledModel, Walk
from boxloop.models import jacobian
from boxloop.numeric import ConditionError, safe_cholesky, single_threaded
from boxloop.tree import flatten, unflatten

M = TypeVar("M", bound=SampledModel)

Named = Callable[[M], Mapping[str, Tensor]]

FLAT = 1e-4
"""Smallest share of the complete-data information that counts as information."""
FAR = 1.0
"""Longest step, in standard errors: beyond it a quadratic says little, and the step is cut."""
NEAR = 0.3
"""Longest step after which there need not be another."""
LONGEST = 20.0
"""By how much a step may be longer than EM's: an information that chance made too small would lead astray."""


@dataclass(frozen=True)
class Assessment(Generic[M]):
    """A fit with its errors.

    Args:
        model: after the last step, which is at most one standard error long.
        step: length that it wanted to have, in standard errors; NaN where the information is not positive.
        chance: length that Monte Carlo error alone would give it.
        covariance: of the free parameters, (p, p).
        noise: Monte Carlo covariance of the free parameters, (p, p).
        errors: standard errors by public name, NaN where the likelihood is flat.
        monte_carlo_errors: by public name.
        latent_mean: posterior mean of each unit's latent values, (units, q).
        latent_covariance: (units, q, q).
        draws: behind these, for each unit.
        state: with the model after the last step, and the chains where they are now.
    """

    model: M
    step: float
    chance: float
    covariance: Tensor
    noise: Tensor
    errors: Mapping[str, Tensor]
    monte_carlo_errors: Mapping[str, Tensor]
    latent_mean: Tensor
    latent_covariance: Tensor
    draws: int
    state: MonteCarloState[M]

    @property
    def near(self) -> bool:
        """Whether the step was short: of the length that chance gives it, so that what a quadratic misses is less."""
        return self.step < min(NEAR, max(0.1, 2.0 * self.chance))

    @property
    def ratio(self) -> float:
        """Largest Monte Carlo error of a public parameter beside its standard error; NaN where none is known."""
        shares = [(self.monte_carlo_errors[name] / error).reshape(-1) for name, error in self.errors.items()]
        known = torch.cat(shares)
        known = known[torch.isfinite(known)]
        return float(known.max()) if len(known) else math.nan


@single_threaded
def assess(
    state: MonteCarloState[M],
    rows: Any,
    kernels: Kernels,
    draws: int = 2000,
    discard: int = 50,
    named: Named[M] | None = None,
) -> Assessment[M]:
    """Standard errors and Monte Carlo errors of a fit, and the fit after its last step.

    Args:
        state: of the fit; its chains go on from where they are.
        rows: that were fitted.
        kernels: as in the fit.
        draws: for each unit, all its chains together.
        discard: steps of every chain before; they only tell how widely each unit's latent values vary.
        named: parameters whose errors are wanted, as a differentiable function of the model; by default its own.

    Returns:
        The assessment; ``state`` is unchanged.

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import GroupedRows
        >>> from boxloop.models.random_effects import PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.sample.random_walk import RandomWalk
        >>> from boxloop.sample.target import Target
        >>> one = torch.ones(400, 1).double()
        >>> rows = GroupedRows.of((torch.arange(400) // 4 % 5).double(), one, one, torch.arange(400) // 4)
        >>> model = RandomEffects(torch.tensor([0.4]).double(), torch.eye(1).double(), PoissonResponse())
        >>> start = MonteCarloState.start(model, rows, 10, generator(0))
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> found = assess(start, rows, kernels)
        >>> found.errors["coefficients"].shape, bool(found.ratio < 0.2)
        (torch.Size([1]), True)
    """
    if state.copies < 2:
        raise ValueError("Monte Carlo errors need at least 2 chains a unit")
    walk = Walk(state, rows, kernels)
    sums = _Sums(walk, _spread(walk, discard))
    for path in walk.paths(-(-draws // walk.copies)):
        sums.add(path.position)
    return _judged(state, sums, named or (lambda model: model.named()))


def _spread(walk: Walk[M], steps: int) -> Tensor:
    """Covariance of each unit's latent values along the next steps, (units, q, q)."""
    visited = torch.cat([path.position for path in walk.paths(steps)])
    z = walk.together(visited).reshape(walk.units, -1, visited.shape[2])
    apart = z - z.mean(1, keepdim=True)
    return apart.mT @ apart / z.shape[1]


class _Sums(Generic[M]):
    """Sums over draws of scores, of their products, of curvature, and of latent values."""

    def __init__(self, walk: Walk[M], spread: Tensor) -> None:
        self.walk, self.spread = walk, spread
        self.free = walk.state.model.free()
        self.point = flatten(self.free)
        p, q = len(self.point), walk.state.position.shape[1]
        self.steps = 0
        self.score = self.point.new_zeros(walk.units, walk.copies, p)
        self.product = self.point.new_zeros(p, p)
        self.curvature = self.point.new_zeros(p, p)
        self.latent = self.point.new_zeros(walk.units, q)
        self.square = self.point.new_zeros(walk.units, q, q)

    def add(self, position: Tensor) -> None:
        walk, z = self.walk, self.walk.together(position)

        def joint(vector: Tensor) -> Tensor:
            there = walk.state.model.with_free(unflatten(vector, self.free))
            moved, volume = there.follow(walk.state.model, z, self.spread)
            return there.log_joint(walk.rows, moved) + volume

        score, curvature = _derivatives(joint, self.point)
        self.product += score.mT @ score / walk.copies
        self.score += score.reshape(walk.units, -1, walk.copies, score.shape[1]).sum(1)
        self.curvature -= curvature / walk.copies
        draws = z.reshape(walk.units, -1, z.shape[1])
        self.latent += draws.sum(1) / walk.copies
        self.square += draws.mT @ draws / walk.copies
        self.steps += len(position)

    def information(self) -> tuple[Tensor, Tensor, Tensor]:
        """Score (p,), its Monte Carlo covariance, and the observed information, (p, p) each."""
        copy = self.score / self.steps
        unit = copy.mean(1)
        apart = (copy - unit[:, None]).reshape(-1, copy.shape[2])
        error = apart.mT @ apart / (self.walk.copies * (self.walk.copies - 1))
        # The square of an estimated mean is too large by the variance of the estimate.
        missing = self.product / self.steps - unit.mT @ unit + error
        found = self.curvature / self.steps - missing
        return unit.sum(0), error, 0.5 * (found + found.mT)


def _derivatives(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of each of N outputs, (N, p), and the second derivatives of their sum, (p, p).

    The gradient of a weighted sum is linear in the weights: its derivative in them is every output's gradient, at the
    price of p backward passes, not N.
    """
    with torch.enable_grad():
        moving = point.clone().requires_grad_()
        value = function(moving)
        weight = torch.ones_like(value, requires_grad=True)
        (total,) = torch.autograd.grad(value, moving, weight, create_graph=True)
        pairs = [torch.autograd.grad(slope, (weight, moving), retain_graph=True) for slope in total]
    return torch.stack([each for each, _ in pairs], dim=1), torch.stack([curve for _, curve in pairs])


def _shares(complete: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the complete-data information that is observed, along directions with one unit of the former.

    Returns:
        Directions as columns, (p, p), and shares, (p,): the rate of EM along each is one less its share.
    """
    try:
        half = safe_cholesky(complete)
    except ConditionError:  # far from a maximum; any scale of the parameters will do
        half = torch.diag(complete.diagonal().abs().clamp(min=1e-300).sqrt())
    inner = torch.linalg.solve_triangular(half, observed, upper=False)
    inner = torch.linalg.solve_triangular(half.mT, inner, upper=True, left=False)
    share, vectors = torch.linalg.eigh(0.5 * (inner + inner.mT))
    return torch.linalg.solve_triangular(half.mT, vectors, upper=True), share


def _moved(model: M, free: dict[str, Tensor], point: Tensor, move: Tensor) -> M:
    """The model a step further, or as much of the step as leaves a model."""
    for _ in range(30):
        try:
            return model.with_free(unflatten(point + move, free))
        except ConditionError:
            move = 0.5 * move
    return model


def _judged(state: MonteCarloState[M], sums: _Sums[M], named: Named[M]) -> Assessment[M]:
    score, error, information = sums.information()
    model, point, free = state.model, sums.point, sums.free
    basis, share = _shares(sums.curvature / sums.steps, information)
    good = share > FLAT
    covariance = (basis[:, good] / share[good]) @ basis[:, good].mT
    noise = covariance @ error @ covariance
    chance = float((covariance * error).sum().clamp(min=0.0).sqrt())
    along = basis.mT @ score
    length = float((along.square() / share).sum().sqrt()) if bool(good.all()) else torch.nan
    stretch = 1.0 / share.clamp(min=1.0 / LONGEST)
    reach = float((along.square() * stretch).sum().sqrt())
    model = _moved(model, free, point, basis @ (along * stretch) * min(1.0, FAR / max(reach, FAR)))
    point = flatten(model.free())
    flat = basis[:, ~good]
    errors: dict[str, Tensor] = {}
    monte_carlo: dict[str, Tensor] = {}
    for name in named(model):

        def value(vector: Tensor, name: str = name) -> Tensor:
            return named(state.model.with_free(unflatten(vector, free)))[name]

        slope = jacobian(value, point)
        blind = (slope @ flat).norm(dim=-1) > 1e-4 * (slope @ basis).norm(dim=-1)
        for to, spread in ((errors, covariance), (monte_carlo, noise)):
            variance = torch.einsum("...i,ij,...j->...", slope, spread, slope)
            to[name] = torch.where(blind, torch.nan, variance.clamp(min=0.0).sqrt())
    mean = sums.latent / sums.steps
    spread = sums.square / sums.steps - mean[:, :, None] * mean[:, None, :]
    walk = sums.walk
    after = replace(state, model=model, position=walk.chains.position, stream=walk.stream.get_state())
    draws = sums.steps * walk.copies
    return Assessment(
        model, length, chance, covariance, noise, errors, monte_carlo, mean, spread, draws, after
    )
