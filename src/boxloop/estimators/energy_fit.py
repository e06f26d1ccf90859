"""What an energy-based estimator does with its rows: coordinates, a base, training, and the constant afterwards.

Training is in ``estimate``, annealing in ``sample``; this is where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from boxloop.chain import advance
from boxloop.data import Standardisation, StandardisedSource, WeightedSum, shuffle_rows
from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.fit import SHORTER, Batches, EnergyPlan, TrainState, coordinates, energy_trainer
from boxloop.loop import Observer, Outcome, run
from boxloop.models import EnergyModel, ModuleNetwork, Perceptron
from boxloop.numeric import floor_covariance, normal, seed, spawn
from boxloop.sample import HMC, MALA, Bridge, Kernels, RandomWalk, Target, Weighted, pilot
from boxloop.types import Distribution, Source

BaseKind = Literal["full", "diag"] | None
KERNELS: dict[str, tuple[Kernels, Callable[[int], float]]] = {
    "mala": (lambda f, scale: MALA(scale).kernel(Target(f)), MALA().goal),
    "random_walk": (lambda f, scale: RandomWalk(scale).kernel(Target(f)), RandomWalk().goal),
    "hmc": (lambda f, scale: HMC(scale).kernel(Target(f)), HMC().goal),
}
"""By name: a kernel of a log-density and a scale, and the share of moves that is best accepted."""

FLOOR = 1e-3
"""Smallest variance of a base law, in standard coordinates: rows on a plane leave the others to the network."""

RUNG_STEPS, SETTLE = 2, 25
"""Steps at each temperature, and, long and short, at the last once draws are chosen by weight: so that copies part."""

DIRECTIONS, STEP = 16, 1e-3
"""Random directions of the parameters in which a fit is asked for more, and the length of a step in them."""

BLOCK = 1 << 12
"""Chains that are annealed together."""


@dataclass(frozen=True)
class Means:
    """How chains move: a kernel, and the share of its moves to accept."""

    kernels: Kernels
    goal: float

    @classmethod
    def of(cls, kernel: Any, columns: int) -> Means:
        """By name, or from a function (log-density, scale) -> kernel."""
        if isinstance(kernel, str):
            kernels, goal = KERNELS[kernel]
            return cls(kernels, goal(columns))
        return cls(kernel, MALA().goal(columns))


def frame_of(source: Source) -> Standardisation:
    """Standard coordinates of rows that an energy can be fitted to.

    Raises:
        ValueError: fewer than two rows, a missing value, or a column without spread.
    """
    if source.n_rows < 2:
        raise ValueError(f"an energy needs at least 2 rows, got n_samples = {source.n_rows}")
    frame = coordinates(source, "columns")
    for name, constant, seen in zip(
        source.names, frame.constant.tolist(), frame.observed.tolist(), strict=True
    ):
        if frame.missing and seen < frame.weight:
            raise ValueError(f"column {name!r} has a missing value: an energy needs whole rows")
        if constant:
            raise ValueError(f"column {name!r} is constant: it has no density, leave it out")
    return frame


def start_model(
    energy: nn.Module | None,
    hidden: Sequence[int],
    kind: BaseKind,
    rows: StandardisedSource,
    stream: Generator,
) -> EnergyModel:
    """The model before training: a network over the Gaussian of standardised rows.

    Args:
        energy: the network; a perceptron when None.
        hidden: its widths.
        kind: of the base's covariance; None for a network that confines itself.
        rows: standardised, in the precision of the fit.
        stream: for random layers.
    """
    base = None if kind is None else _base(rows, kind)
    d = rows.n_columns
    if energy is None:
        network = Perceptron(d, tuple(int(width) for width in hidden))
        return EnergyModel.start(network, network.start(stream, rows.dtype), base, d)
    module, parameters = ModuleNetwork.of(energy, rows.dtype, stream.device)
    return EnergyModel.start(module, parameters, base, d)


def _base(rows: StandardisedSource, kind: BaseKind) -> Distribution:
    def second(tile: Tensor, weight: Tensor) -> WeightedSum:
        values = tile.double()
        return WeightedSum((values * weight[:, None]).mT @ values, weight.sum())

    total = rows.reduce(second)
    matrix, _ = floor_covariance((total.value / total.weight)[None], FLOOR)
    zero = matrix.new_zeros(1, rows.n_columns)
    law = (
        FullGaussian.of(zero, matrix)
        if kind == "full"
        else DiagonalGaussian(zero, matrix.diagonal(dim1=1, dim2=2))
    )
    return law.to(dtype=rows.dtype)


def reference(model: EnergyModel) -> Distribution:
    """Where chains start and annealing begins: the base, or a standard normal where there is none."""
    if model.base is not None:
        law: Distribution = model.base
        return law
    like = model.parameters[0].new_zeros(1, len(model.origin))
    return DiagonalGaussian(like, like + 1.0)


def train(
    model: EnergyModel,
    rows: StandardisedSource,
    means: Means,
    plan: EnergyPlan,
    *,
    steps: int,
    buffer: int,
    batch_size: int,
    stream: Generator,
    observers: Sequence[Observer[Any]] = (),
    resume: Outcome[Any] | None = None,
) -> Outcome[TrainState]:
    """Run the training loop from a model of standardised rows."""
    order, own = spawn(stream, 2)
    batches = Batches(replace(rows, source=shuffle_rows(rows.source, order)), batch_size)
    base = reference(model)
    plan, buffer = replace(plan, goal=means.goal), max(buffer, plan.chains)
    trainer = energy_trainer(model, batches, means.kernels, base, plan, buffer=buffer, random_state=own)
    return run(trainer, trainer.start(seed(own)), max_iter=steps, observers=observers, resume=resume)


def explore(model: EnergyModel, means: Means, chains: int, stream: Generator) -> tuple[Weighted, Tensor]:
    """Chains annealed from the base to a model of standardised rows.

    Args:
        model: its log-density is climbed.
        means: how.
        chains: how many, all independent.
        stream: randomness.

    Returns:
        The chains with their weights, whose mean estimates Z; and as many draws of the model, by weight, which have
        moved on from one another.
    """
    base, kernels = reference(model), means.kernels
    ladder = pilot(model.log_density, base, kernels, random_state=stream, goal=means.goal)
    bridge = Bridge(model.log_density, base, kernels, RUNG_STEPS)
    sizes = [min(BLOCK, chains - start) for start in range(0, chains, BLOCK)]
    blocks = [bridge.travel(base.draw(size, stream)[0], ladder, stream) for size in sizes]
    whole = Weighted(torch.cat([b.position for b in blocks]), torch.cat([b.log_weight for b in blocks]))
    chosen = whole.resample(chains, stream).split(BLOCK)
    for share in (1.0, SHORTER):  # short steps bring in what long ones leave in the tails
        kernel = kernels(model.log_density, share * ladder.scales[-1])
        chosen = tuple(advance(kernel, kernel.init(x), SETTLE, stream).chains.position for x in chosen)
    return whole, torch.cat(chosen)


def disagreement(model: EnergyModel, rows: StandardisedSource, drawn: Tensor) -> tuple[float, float]:
    """Mean of V over draws of a fitted model less its mean over the rows, and the Monte Carlo error of that.

    At a maximum of the likelihood the two are equal, for any network whose last layer is linear: the derivative in the
    size of V is zero. Chains that do not reach the model's law, or too few updates, leave them apart.
    """
    with torch.no_grad():
        at_rows, value = WeightedSum.over(rows, model.potential), model.potential(drawn).double()
    return float(value.mean()) - at_rows.mean, float(value.std() / len(value) ** 0.5)


def remaining_gain(
    model: EnergyModel, rows: StandardisedSource, drawn: Tensor, stream: Generator
) -> tuple[float, float]:
    r"""Log-likelihood per row that one more step would add, and the noise in that.

    .. math:: \tfrac12 \delta^\top \Sigma^{-1} \delta, \qquad
              \delta = E_\mathrm{draws}[f] - E_\mathrm{rows}[f], \quad \Sigma = \mathrm{Var}_\mathrm{draws}(f)

    with f the derivatives of V in random directions of the parameters: the gain of a natural-gradient step within
    these. Unlike the mean of V itself it is not zero at the start, where V is. What rows and draws of one law would
    show by chance is taken off.

    Args:
        model: of standardised rows.
        rows: standardised.
        drawn: draws of the model, (N, d).
        stream: of the directions.
    """
    ahead, behind = _moved(model, stream)

    def slopes(some: Tensor) -> Tensor:
        pairs = [(a.potential(some) - b.potential(some)).double() for a, b in zip(ahead, behind, strict=True)]
        return torch.stack(pairs, 1) / (2.0 * STEP)

    def sums(some: Tensor) -> Tensor:
        found = slopes(some)
        return torch.cat([found[:, None], found[:, :, None] * found[:, None, :]], 1)

    with torch.no_grad():
        total = WeightedSum.over(rows, sums)
        there = total.value / total.weight
        at_rows = there[1:] - there[:1].mT @ there[:1]
        found = slopes(drawn)
        spread = found.mT.cov()
        values, vectors = torch.linalg.eigh(spread)
        keep = values > 1e-8 * values[-1]
        whiten = vectors[:, keep] / values[keep].sqrt()
        gain = 0.5 * ((found.mean(0) - there[0]) @ whiten).square().sum()
        noise = spread / len(found) + at_rows / total.weight
        chance = 0.5 * float((whiten.mT @ noise @ whiten).trace())
    return float(gain) - chance, chance * (2.0 / max(int(keep.sum()), 1)) ** 0.5


def _moved(model: EnergyModel, stream: Generator) -> tuple[list[EnergyModel], list[EnergyModel]]:
    """The model with its parameters a small step ahead and behind in random directions, each in its own units."""
    ahead: list[EnergyModel] = []
    behind: list[EnergyModel] = []
    for _ in range(DIRECTIONS):
        move = [STEP * _size(part) * normal(tuple(part.shape), stream).to(part) for part in model.parameters]
        for models, sign in ((ahead, 1.0), (behind, -1.0)):
            parameters = tuple(p + sign * m for p, m in zip(model.parameters, move, strict=True))
            models.append(replace(model, parameters=parameters))
    return ahead, behind


def _size(part: Tensor) -> float:
    """Root mean square of parameters; 1 where they are all zero."""
    return float(part.square().mean().sqrt()) or 1.0
