r"""Maximum likelihood of an energy-based model by its gradient, with chains that persist.

.. math:: \nabla_\theta \log p_\theta(x) = -\nabla_\theta E_\theta(x) - \nabla_\theta \log Z_\theta
          = -\nabla_\theta E_\theta(x) + E_{p_\theta}[\nabla_\theta E_\theta(X)]

Le Corff, section 1.1. The first term is a mean over rows, the second a mean over chains, which move a few steps under
the current energy and are kept for the next update (Tieleman 2008). Their positions are a replay buffer of which each
update moves a part and restarts a share from the base distribution (Du and Mordatch 2019), so that no mode stays
unvisited. Chains that start anew at every update do not reach the model's distribution, and their gradient is biased.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.chain import Kernel, advance
from boxloop.fit.train import Follower, StepReport, Trainer, TrainPlan, TrainState
from boxloop.models import EnergyModel
from boxloop.numeric import RandomState, generator
from boxloop.tree import Tree
from boxloop.types import Distribution

Batch = tuple[Tensor, Tensor]
Kernels = Callable[[Callable[[Tensor], Tensor], float], Kernel]
"""(log-density, scale of its steps) -> a kernel that leaves it as it is."""

SHORT, SHORTER = 0.2, 0.2
"""This share of the updates, by chance, moves by steps this much shorter. Langevin steps of one length never leave the
tails of a density lighter than a Gaussian's, where they overshoot and are refused (Roberts and Tweedie 1996); chains
that are stuck there bias the fit."""


@dataclass(frozen=True)
class EnergyPlan:
    """How an energy is trained.

    Args:
        rate: learning rate of update t = 1, 2, ...
        chains: moved at each update.
        steps: of the kernel at each update.
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
class ChainState(Tree):
    """What energy training carries beside parameters and optimiser."""

    position: Tensor  # the replay buffer, (N, d)
    scale: float  # of the kernel's steps
    average: tuple[Tensor, ...]  # of the path of parameters


class PersistentChains(Follower):
    """The chains whose mean is the model's term of the gradient, and the average of the path of parameters."""

    def __init__(
        self,
        model: EnergyModel,
        kernels: Kernels,
        base: Distribution,
        plan: EnergyPlan,
        buffer: int,
        random_state: RandomState = None,
    ) -> None:
        self.kernels = kernels
        self.base = base
        self.plan = plan
        stream = generator(random_state, model.parameters[0].device)
        self.position: Tensor = base.draw(buffer, stream)[0].to(model.parameters[0])
        self.scale: float = 1.0
        self.average: tuple[Tensor, ...] = model.parameters

    def loss(
        self, model: EnergyModel, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Move some chains, and contrast the energies of the rows with theirs."""
        self.move_chains(model.with_trainable(tuple(value.detach() for value in model.parameters)), stream)
        gap, square = measure_energy_gap(model, (rows, weight), self._path.chains.position)
        return gap + self.plan.shrink * square, {"contrast": gap}

    def move_chains(self, model: EnergyModel, stream: Generator) -> None:
        """Move a part of the buffer by a few steps, a share of it from the base."""
        device = self.position.device
        place = torch.randperm(len(self.position), generator=stream, device=device)[: self.plan.chains]
        start = self.position[place]
        fresh = torch.rand(len(start), generator=stream, device=device) < self.plan.restart
        start = torch.where(fresh[:, None], self.base.draw(len(start), stream)[0].to(start), start)
        self._short = float(torch.rand((), generator=stream, device=device)) < SHORT
        kernel = self.kernels(model.log_density, self.scale * (SHORTER if self._short else 1.0))
        self._path = advance(kernel, kernel.init(start), self.plan.steps, stream)
        self._place, self._stream = place, stream

    def after_step(self, step: StepReport) -> None:
        """Keep where the chains are. After a refused step those at an energy that is not finite start anew."""
        drawn = self._path.chains.position
        if step.refusal is None:
            share = self.plan.smoothing(step.update)
            pairs = zip(self.average, step.parameters, strict=True)
            self.average = tuple(mean + share * (value.detach() - mean) for mean, value in pairs)
            if not self._short and self._path.log_ratio is not None:
                # Longer steps where too many moves are accepted; the distribution they lead to is the same.
                accepted = self._path.log_ratio.nan_to_num(nan=-math.inf).clamp(max=0.0).exp().mean()
                self.scale *= math.exp(0.2 * (float(accepted) - self.plan.goal))
        else:
            lost = ~torch.isfinite(self._path.chains.log_density)
            fresh = self.base.draw(len(drawn), self._stream)[0].to(drawn)
            drawn = torch.where(lost[:, None], fresh, drawn)
        self.position = self.position.index_copy(0, self._place, drawn)

    def state(self) -> ChainState:
        """Every tensor is replaced by the next step, not changed."""
        return ChainState(self.position, self.scale, self.average)

    def restore(self, state: ChainState) -> None:
        """The same, on the device of the chains."""
        self.position = state.position.to(self.position)
        self.scale = state.scale
        self.average = tuple(value.to(like) for value, like in zip(state.average, self.average, strict=True))


@dataclass(frozen=True)
class BatchesInOrder:
    """Batches 0, 1, ... as one epoch without end."""

    batches: Callable[[int], Batch]
    per_epoch: int = sys.maxsize

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """From batch ``start`` on."""
        while True:
            yield self.batches(start)
            start += 1


def energy_trainer(
    model: EnergyModel,
    batches: Callable[[int], Batch],
    kernels: Kernels,
    base: Distribution,
    plan: EnergyPlan,
    *,
    buffer: int,
    random_state: RandomState = None,
) -> Trainer[EnergyModel]:
    r"""Stochastic gradient ascent on the likelihood of an energy-based model, as a step for :func:`boxloop.loop.run`.

    .. math:: \theta_t = \theta_{t-1} - \alpha_t \left( \overline{\nabla V}_{\text{rows}}
        - \overline{\nabla V}_{\text{chains}} \right)

    with Adam's scaling. The objective of an iteration, one update, is the mean energy of the chains less that of the
    rows: near zero once the two agree, whatever the likelihood. A step whose loss is not finite is refused: parameters
    stay, the learning rate is halved, and chains at an energy that is not finite start anew.

    Args:
        model: of standardised rows.
        batches: rows and weights of update t = 0, 1, ...
        kernels: (log-density, scale) -> kernel; one with a Metropolis correction leaves the model as it is.
        base: where chains start and restart; the model's base where it has one.
        plan: rates, chains and steps.
        buffer: chains in the replay buffer.
        random_state: of their start.

    Raises:
        FloatingPointError: ten steps in a row are refused.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.fit.online import Batches
        >>> from boxloop.fit import Cooling
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.models.energy import Perceptron
        >>> from boxloop.loop import run
        >>> from boxloop.sample import MALA, Target
        >>> kernels = lambda f, scale: MALA(scale).kernel(Target(f))
        >>> base = DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
        >>> network = Perceptron(1, (8,))
        >>> model = EnergyModel.from_network(network, network.draw_parameters(generator(0)), base)
        >>> rows = ArraySource(torch.full((64, 1), 1.0).double())
        >>> plan = EnergyPlan(Cooling(0.02, 50), chains=64)
        >>> trainer = energy_trainer(model, Batches(rows, 32), kernels, base, plan, buffer=64, random_state=0)
        >>> state = run(trainer, trainer.start(0), max_iter=50).state
        >>> energy = take_averaged_model(model, state).potential(torch.tensor([[1.0], [-1.0]]).double())
        >>> bool(energy[0] < energy[1])  # lower where the rows are
        True
    """
    chains = PersistentChains(model, kernels, base, plan, buffer, random_state)
    steps = TrainPlan(plan.rate, clip=plan.clip, decay=plan.decay, block=1)
    return Trainer(
        model, BatchesInOrder(batches), chains.loss, steps, followers=[chains], objective="contrast"
    )


def take_averaged_model(model: EnergyModel, state: TrainState) -> EnergyModel:
    """The model at the average of the path of parameters."""
    (chains,) = state.followers
    return model.with_trainable(chains.average)


def measure_energy_gap(model: EnergyModel, batch: Batch, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the network over rows less its mean over draws (minus the likelihood's slope), and its mean square."""
    rows, weight = batch
    value = model.potential(torch.cat([rows, drawn]))
    share = (weight / weight.sum()).to(value.dtype)
    return value[: len(rows)] @ share - value[len(rows) :].mean(), value.square().mean()
