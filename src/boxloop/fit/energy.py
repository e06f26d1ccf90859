r"""Maximum likelihood of an energy-based model by its gradient, with chains that persist.

.. math:: \nabla_\theta \log p_\theta(x) = -\nabla_\theta E_\theta(x) - \nabla_\theta \log Z_\theta
          = -\nabla_\theta E_\theta(x) + E_{p_\theta}[\nabla_\theta E_\theta(X)]

Document 002, section 1.1. The first term is a mean over rows, the second a mean over chains, which move a few steps
under the current energy and are kept for the next round (Tieleman 2008). Their positions are a replay buffer of which
each round moves a part and restarts a share from the base law (Du and Mordatch 2019), so that no mode stays unvisited.
Chains that start anew every round do not reach the model's law, and their gradient is biased.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.chain import Kernel, Path, advance
from boxloop.fit.adam import (
    PATIENCE,
    Adam,
    clip_gradient,
    flatten_parameters,
    restore_generator,
    unflatten_parameters,
)
from boxloop.loop import Iteration
from boxloop.models import EnergyModel
from boxloop.numeric import RandomState, generator
from boxloop.tree import Tree
from boxloop.types import Distribution

Batch = tuple[Tensor, Tensor]
Kernels = Callable[[Callable[[Tensor], Tensor], float], Kernel]
"""(log-density, scale of its steps) -> a kernel that leaves it as it is."""

SHORT, SHORTER = 0.2, 0.2
"""This share of the rounds, by chance, moves by steps this much shorter. Langevin steps of one length never leave the
tails of a density lighter than a Gaussian's, where they overshoot and are refused (Roberts and Tweedie 1996); chains
that are stuck there bias the fit."""


@dataclass(frozen=True)
class EnergyPlan:
    """How an energy is trained.

    Args:
        rate: learning rate of update t = 1, 2, ...
        chains: moved in a round.
        steps: of the kernel in a round.
        restart: share of the moved chains that first start anew from the base.
        clip: largest norm of a gradient.
        decay: weight decay, apart from the gradient (AdamW; Loshchilov and Hutter 2019).
        shrink: weight of the mean square of the network's values, on rows and chains alike; it biases the fit, and
            keeps energies near zero.
        goal: share of accepted moves that the kernel's scale is steered to.
        smoothing: step sizes of the average over the path of parameters; the default forgets its beginning.
    """

    rate: Schedule = field(default_factory=lambda: Power(0.5, 0.0, 1e-4))
    chains: int = 256
    steps: int = 10
    restart: float = 0.02
    clip: float = 10.0
    decay: float = 0.0
    shrink: float = 0.0
    goal: float = 0.574
    smoothing: Schedule = field(default_factory=lambda: Power(1.0, 7.0, 8.0))

    def __post_init__(self) -> None:
        if self.chains < 1 or self.steps < 1:
            raise ValueError("chains and steps must be at least 1")
        if not 0.0 <= self.restart <= 1.0:
            raise ValueError(f"restart must lie in [0, 1], got {self.restart}")
        if not (self.clip > 0.0 and self.decay >= 0.0 and self.shrink >= 0.0):
            raise ValueError("clip must be positive, decay and shrink not negative")


@dataclass(frozen=True)
class EnergyState(Tree):
    """Everything that the next round depends on, so that a fit resumes bit for bit.

    Args:
        point: the parameters as one vector, (p,).
        first: running mean of their gradient.
        second: running mean of its square.
        average: of the path of parameters.
        position: the replay buffer, (N, d).
        stream: state of the random generator.
        scale: of the kernel's steps.
        slower: factor of the learning rate, lowered by every refused round.
        count: updates made.
        refused: rounds refused in a row.
    """

    point: Tensor
    first: Tensor
    second: Tensor
    average: Tensor
    position: Tensor
    stream: Tensor
    scale: float
    slower: float = 1.0
    count: int = 0
    refused: int = 0

    @classmethod
    def start(
        cls,
        model: EnergyModel,
        base: Distribution,
        buffer: int,
        random_state: RandomState = None,
        scale: float = 1.0,
    ) -> EnergyState:
        """From a model and a buffer of draws from a base law."""
        point = flatten_parameters(model.parameters)
        stream = generator(random_state, point.device)
        position = base.draw(buffer, stream)[0].to(point)
        zero = torch.zeros_like(point)
        return cls(point, zero, zero, point, position, stream.get_state(), scale)

    def fitted(self, model: EnergyModel) -> EnergyModel:
        """The model at the average of the path."""
        return at(model, self.average)


def at(model: EnergyModel, point: Tensor) -> EnergyModel:
    """The model at other parameters, given as one vector; differentiable."""
    return replace(model, parameters=unflatten_parameters(point, model.parameters))


def contrast(model: EnergyModel, batch: Batch, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the network over rows less its mean over draws, and its mean square: minus the likelihood's slope.

    Args:
        model: of standardised rows.
        batch: rows (n, d) and weights (n,).
        drawn: of the model, (c, d).
    """
    rows, weight = batch
    value = model.potential(torch.cat([rows, drawn]))
    share = (weight / weight.sum()).to(value.dtype)
    return value[: len(rows)] @ share - value[len(rows) :].mean(), value.square().mean()


def energy_ascent(
    model: EnergyModel,
    batches: Callable[[int], Batch],
    kernels: Kernels,
    base: Distribution,
    plan: EnergyPlan,
) -> Callable[[EnergyState], Iteration[EnergyState]]:
    r"""Stochastic gradient ascent on the likelihood of an energy-based model, as a step for :func:`boxloop.loop.run`.

    .. math:: \theta_t = \theta_{t-1} - \alpha_t \left( \overline{\nabla V}_{\text{rows}}
        - \overline{\nabla V}_{\text{chains}} \right)

    with Adam's scaling. The objective of a round is the mean energy of the chains less that of the rows: near zero once
    the two agree, whatever the likelihood. A round whose loss is not finite is refused: parameters stay, the learning
    rate is halved, and chains at an energy that is not finite start anew.

    Args:
        model: of standardised rows; its parameters are replaced by those of the state.
        batches: rows and weights of update t = 0, 1, ...
        kernels: (log-density, scale) -> kernel; one with a Metropolis correction has the model's own law.
        base: where chains restart; the model's base where it has one.
        plan: rates, chains and steps.

    Raises:
        FloatingPointError: ten rounds in a row are refused.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.fit.adam import Cooling
        >>> from boxloop.fit.online import Batches
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.models.energy import Perceptron
        >>> from boxloop.loop import run
        >>> from boxloop.sample.mala import MALA
        >>> from boxloop.sample.target import Target
        >>> kernels = lambda f, scale: MALA(scale).kernel(Target(f))
        >>> base = DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
        >>> network = Perceptron(1, (8,))
        >>> model = EnergyModel.start(network, network.start(generator(0)), base)
        >>> rows = ArraySource(torch.full((64, 1), 1.0).double())
        >>> plan = EnergyPlan(Cooling(0.02, 50), chains=64)
        >>> step = energy_ascent(model, Batches(rows, 32), kernels, base, plan)
        >>> state = run(step, EnergyState.start(model, base, 64, 0), max_iter=50).state
        >>> energy = state.fitted(model).potential(torch.tensor([[1.0], [-1.0]]).double())
        >>> bool(energy[0] < energy[1])  # lower where the rows are
        True
    """

    def step(state: EnergyState) -> Iteration[EnergyState]:
        stream = restore_generator(state.stream, state.position.device)
        here = at(model, state.point)
        place, path, short = _move(state, here, kernels, base, plan, stream)
        drawn = path.chains.position
        leaf = state.point.detach().requires_grad_()
        gap, square = contrast(at(model, leaf), batches(state.count), drawn)
        (gradient,) = torch.autograd.grad(gap + plan.shrink * square, leaf)
        objective = -float(gap.detach())
        if not (math.isfinite(objective) and bool(torch.isfinite(gradient).all())):
            lost = ~torch.isfinite(path.chains.log_density)
            drawn = torch.where(lost[:, None], base.draw(len(drawn), stream)[0].to(drawn), drawn)
            kept = state.position.index_copy(0, place, drawn)
            return _refused(state, kept, stream, int(lost.sum()))
        moved = _updated(state, gradient, plan)
        position = state.position.index_copy(0, place, drawn)
        scale = state.scale if short else _steered(state.scale, path, plan.goal)
        return Iteration(replace(moved, position=position, stream=stream.get_state(), scale=scale), objective)

    return step


def _move(
    state: EnergyState,
    model: EnergyModel,
    kernels: Kernels,
    base: Distribution,
    plan: EnergyPlan,
    stream: Generator,
) -> tuple[Tensor, Path, bool]:
    """Some of the buffer a few steps on, a share of it from the base: which, their path, and whether it was short."""
    device = state.position.device
    place = torch.randperm(len(state.position), generator=stream, device=device)[: plan.chains]
    start = state.position[place]
    fresh = torch.rand(len(start), generator=stream, device=device) < plan.restart
    start = torch.where(fresh[:, None], base.draw(len(start), stream)[0].to(start), start)
    short = float(torch.rand((), generator=stream, device=device)) < SHORT
    kernel = kernels(model.log_density, state.scale * (SHORTER if short else 1.0))
    return place, advance(kernel, kernel.init(start), plan.steps, stream), short


def _updated(state: EnergyState, gradient: Tensor, plan: EnergyPlan) -> EnergyState:
    """One step of AdamW, and the average over the path."""
    t = state.count + 1
    kept, rate = Adam(state.first, state.second), state.slower * plan.rate(t)
    kept, point = kept.step(state.point, clip_gradient(gradient, plan.clip), t, rate, plan.decay)
    average = state.average + plan.smoothing(t) * (point - state.average)
    return replace(
        state, point=point, first=kept.first, second=kept.second, average=average, count=t, refused=0
    )


def _steered(scale: float, path: Path, goal: float) -> float:
    """Longer steps where too many moves are accepted; the law they lead to is the same."""
    if path.log_ratio is None:
        return scale
    accepted = float(path.log_ratio.nan_to_num(nan=-math.inf).clamp(max=0.0).exp().mean())
    return scale * math.exp(0.2 * (accepted - goal))


def _refused(state: EnergyState, position: Tensor, stream: Generator, lost: int) -> Iteration[EnergyState]:
    """The same parameters, a lower rate, and chains that are somewhere again."""
    if state.refused + 1 >= PATIENCE:
        raise FloatingPointError(
            f"the energy or its gradient was not finite in {PATIENCE} rounds in a row, from round "
            f"{state.count - state.refused + 1} on: "
            "lower the learning rate, or check that the network gives finite energies"
        )
    again = replace(
        state,
        position=position,
        stream=stream.get_state(),
        slower=0.5 * state.slower,
        refused=state.refused + 1,
        count=state.count + 1,
    )
    event = f"a loss that is not finite: step refused, learning rate halved, {lost} chains restarted"
    return Iteration(again, math.nan, (event,), rejected=True)
