"""Targets with a known normaliser, energies over them, and what is measured on them: the work behind `energy-model`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Generator, Tensor, nn

from boxloop.data import ArraySource
from boxloop.estimators import KERNELS, EnergyBasedModel, Means, explore, reference
from boxloop.fit import Batches, Cooling, EnergyPlan, EnergyState, at, energy_ascent
from boxloop.loop import run
from boxloop.models import EnergyModel, ModuleNetwork
from boxloop.numeric import generator, normal
from boxloop.sample import Bridge, pilot

Function = Callable[[Tensor], Tensor]
Line = np.ndarray[tuple[int], np.dtype[np.float64]]
MALA = KERNELS["mala"][0]
RING_RADIUS, RING_WIDTH = 2.0, 0.25
RUNG_STEPS = 2


@dataclass(frozen=True)
class Truth:
    """A law that can be drawn from and integrated on a grid.

    Args:
        name: in tables.
        columns: 1 or 2.
        draw: (n, stream) -> rows.
        log_prob: normalised, rows -> (n,).
        reach: the grid covers [-reach, reach] in every column.
    """

    name: str
    columns: int
    draw: Callable[[int, Generator], Tensor]
    log_prob: Function
    reach: float

    def grid(self) -> tuple[Tensor, float]:
        """Points and the volume of a cell; the midpoint rule is exact to many digits for smooth laws."""
        m = 2000 if self.columns == 1 else 200
        width = 2.0 * self.reach / m
        line = (torch.arange(m, dtype=torch.float64) + 0.5) * width - self.reach
        return (line[:, None] if self.columns == 1 else torch.cartesian_prod(line, line)), width**self.columns


def two_hills() -> Truth:
    """A mixture of two Gaussians, 0.3 N(-2, 0.4²) + 0.7 N(1.5, 0.8²)."""
    weight, mean, spread = torch.tensor([[0.3, 0.7], [-2.0, 1.5], [0.4, 0.8]], dtype=torch.float64)

    def draw(n: int, stream: Generator) -> Tensor:
        which = torch.multinomial(weight, n, replacement=True, generator=stream)
        return (mean[which] + spread[which] * normal((n,), stream))[:, None]

    def log_prob(rows: Tensor) -> Tensor:
        z = (rows - mean) / spread
        return (weight.log() - spread.log() - 0.5 * z.square() - 0.5 * math.log(2 * math.pi)).logsumexp(1)

    return Truth("two hills", 1, draw, log_prob, 8.0)


def ring() -> Truth:
    """A ring in the plane: an angle, and a radius N(2, 0.25²)."""

    def draw(n: int, stream: Generator) -> Tensor:
        angle = 2.0 * math.pi * torch.rand(n, generator=stream, dtype=torch.float64)
        radius = RING_RADIUS + RING_WIDTH * normal((n,), stream)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)

    def log_prob(rows: Tensor) -> Tensor:
        radius = rows.norm(dim=1)
        ends = [-0.5 * ((sign * radius - RING_RADIUS) / RING_WIDTH).square() for sign in (1.0, -1.0)]
        level = math.log(RING_WIDTH * math.sqrt(2 * math.pi)) + math.log(2 * math.pi)
        return torch.logaddexp(*ends) - level - radius.log()

    return Truth("ring", 2, draw, log_prob, 5.0)


def quartic_well() -> Truth:
    """A member of the quartic family with two shallow wells, drawn by its distribution function on a fine grid."""
    theta = torch.tensor([0.3, -1.0, math.log(0.5)], dtype=torch.float64)
    model = family_model(quartic=True)
    here = at(model, theta)
    fine = torch.linspace(-6.0, 6.0, 200_001, dtype=torch.float64)
    density = here.log_density(fine[:, None])
    level = density.logsumexp(0)
    mass = (density - level).exp().cumsum(0)

    def draw(n: int, stream: Generator) -> Tensor:
        chance = torch.rand(n, generator=stream, dtype=torch.float64) * mass[-1]
        return fine[torch.searchsorted(mass, chance).clamp(max=len(fine) - 1)][:, None]

    def log_prob(rows: Tensor) -> Tensor:
        return here.log_density(rows) - level - math.log(float(fine[1] - fine[0]))

    return Truth("quartic well", 1, draw, log_prob, 8.0)


def log_integral(log_density: Function, truth: Truth) -> float:
    """log of an integral over the truth's grid."""
    points, cell = truth.grid()
    with torch.no_grad():
        value = torch.cat([log_density(block) for block in points.split(50_000)])
    return float(value.logsumexp(0)) + math.log(cell)


def divergence(log_density: Function, truth: Truth) -> float:
    """KL(truth || fitted) by quadrature; the fitted density need not be normalised."""
    points, cell = truth.grid()
    with torch.no_grad():
        found = torch.cat([log_density(block) for block in points.split(50_000)])
    log_p = truth.log_prob(points)
    share = log_p.exp() * cell
    level = found.logsumexp(0) + math.log(cell)
    return float((share * (log_p - found + level)).sum() / share.sum())


class Polynomial(nn.Module):
    r"""An exponential family on the line: :math:`E(x) = a x + b x^2 / 2 + e^c x^4 / 4`, or without the last term.

    Args:
        quartic: with :math:`x^4`; else b is :math:`e^b`, a Gaussian.
    """

    def __init__(self, quartic: bool) -> None:
        super().__init__()
        self.quartic = quartic
        self.theta = nn.Parameter(torch.zeros(3 if quartic else 2, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 1) -> (n,)."""
        x = rows[:, 0]
        if not self.quartic:
            return self.theta[0] * x + 0.5 * self.theta[1].exp() * x.square()
        return self.theta[0] * x + 0.5 * self.theta[1] * x.square() + 0.25 * self.theta[2].exp() * x**4


def exact_fit(model: EnergyModel, rows: Tensor, truth: Truth) -> tuple[Tensor, Tensor]:
    """Maximum likelihood by quadrature, and the standard errors of its parameters."""
    points, cell = truth.grid()

    def loss(point: Tensor) -> Tensor:
        here = at(model, point)
        level = (-here.potential(points)).logsumexp(0) + math.log(cell)
        return here.potential(rows).mean() + level

    def both(value: Line) -> tuple[float, Line]:
        leaf = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        found = loss(leaf)
        return float(found.detach()), torch.autograd.grad(found, leaf)[0].numpy().reshape(-1)

    start = np.zeros(sum(value.numel() for value in model.parameters))
    best = torch.from_numpy(minimize(both, start, jac=True, method="BFGS", options={"gtol": 1e-10}).x)
    curvature = torch.autograd.functional.hessian(loss, best)
    return best, torch.linalg.inv(curvature * len(rows)).diagonal().sqrt()


def family_model(quartic: bool) -> EnergyModel:
    """An exponential family as an energy without a base: it confines itself."""
    network, parameters = ModuleNetwork.of(Polynomial(quartic), torch.float64, torch.device("cpu"))
    return EnergyModel.start(network, parameters, columns=1)


def trained_family(quartic: bool, rows: Tensor, rounds: int, seed: int) -> tuple[EnergyModel, Tensor]:
    """An exponential family trained on whole batches with persistent chains: the model and its parameters."""
    model = family_model(quartic)
    plan = EnergyPlan(Cooling(0.05, rounds), chains=1024, steps=5, restart=0.0)
    batches = Batches(ArraySource(rows), len(rows))
    base = reference(model)
    step = energy_ascent(model, batches, MALA, base, plan)
    state = run(step, EnergyState.start(model, base, 1024, seed), max_iter=rounds).state
    return model, state.average


def gradient_errors(model: EnergyModel, truth: Truth, stream: Generator) -> tuple[float, float]:
    r"""The identity :math:`\nabla \log Z = -E[\nabla E]` at a model, both sides by quadrature and by annealed draws.

    Returns:
        Largest relative difference between a central difference of log Z and the mean of the gradient, over random
        directions; and the z-score of the same mean over draws, in the first of them.
    """
    point = torch.cat([value.reshape(-1) for value in model.parameters])
    points, _ = truth.grid()
    worst, step, score = 0.0, 1e-4, 0.0
    for trial in range(5):
        way = nn.functional.normalize(normal(tuple(point.shape), stream), dim=0)
        ends = [log_integral(at(model, point + sign * step * way).log_density, truth) for sign in (1.0, -1.0)]
        slope = (ends[0] - ends[1]) / (2.0 * step)
        density = model.log_density(points)
        share = (density - density.logsumexp(0)).exp()
        mean = -float(share @ _along(model, way, points))
        worst = max(worst, abs(slope - mean) / max(abs(mean), 1e-3))
        if trial == 0:
            drawn = -_along(model, way, explore(model, Means.of("mala", truth.columns), 2000, stream)[1])
            score = float((drawn.mean() - mean) / (drawn.std() / len(drawn) ** 0.5))
    return worst, score


def _along(model: EnergyModel, way: Tensor, rows: Tensor) -> Tensor:
    """Derivative of the potential in the parameters along a direction, at each row: two backward passes."""
    point = torch.cat([value.reshape(-1) for value in model.parameters]).requires_grad_()
    found = []
    for part in rows.split(50_000):
        dual = torch.zeros(len(part), dtype=part.dtype, requires_grad=True)
        (slope,) = torch.autograd.grad(at(model, point).potential(part) @ dual, point, create_graph=True)
        found.append(torch.autograd.grad(slope @ way, dual)[0])
    return torch.cat(found)


def partition_trials(
    model: EnergyModel, truth: Truth, repeats: int, chains: int, stream: Generator
) -> tuple[list[float], list[float], list[float]]:
    """Annealing over and over against quadrature: z-scores, ratios of Z to the truth, and reported errors."""
    exact = log_integral(model.log_density, truth)
    base = reference(model)
    ladder = pilot(model.log_density, base, MALA, random_state=stream)
    bridge = Bridge(model.log_density, base, MALA, RUNG_STEPS)
    found = [bridge.travel(base.draw(chains, stream)[0], ladder, stream) for _ in range(repeats)]
    scores = [(f.log_mean - exact) / f.error for f in found]
    return scores, [math.exp(f.log_mean - exact) for f in found], [f.error for f in found]


def fitted(
    truth: Truth, n: int, rounds: int, seed: int, *, restart: float = 0.02, steps: int = 10
) -> EnergyBasedModel:
    """A network energy fitted to n rows of a truth."""
    rows = truth.draw(n, generator(seed))
    return EnergyBasedModel(
        hidden=(32, 32) if truth.columns == 1 else (64, 64),
        max_iter=rounds,
        learning_rate=0.01,
        restart=restart,
        steps=steps,
        partition_chains=512,
        random_state=seed,
    ).fit(rows.numpy())


def standard(model: EnergyModel) -> EnergyModel:
    """A fitted model over standardised rows."""
    return replace(
        model, origin=torch.zeros_like(model.origin), scale=torch.ones_like(model.scale), draws=None
    )
