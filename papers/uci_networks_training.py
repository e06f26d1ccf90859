"""Networks of all splits and runs trained side by side by SGD, each followed by its own posteriors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from boxloop.numeric import generator, spawn
from boxloop.weights import (
    SWA,
    SWAG,
    FactorEM,
    LastLayerPosterior,
    Layout,
    Method,
    Part,
    StackedLayers,
    WeightLaw,
    WeightPosterior,
    last_layer_laplace,
    weight_decay,
)
from papers.uci_networks_data import Splits


@dataclass(frozen=True)
class Setting:
    """How networks are trained.

    Args:
        units: in the one hidden layer.
        batch: rows of a step.
        burn_in: steps before weights are observed.
        steps: steps after that.
        every: steps between two observations.
        rate: of learning, constant.
        momentum: of SGD.
        rank: directions of a posterior.
        prior_precision: alpha, of every weight, in the standard units of inputs and target.
        noise_precision: beta, likewise; with alpha it gives the weight decay.
    """

    units: int = 50
    batch: int = 50
    burn_in: int = 2000
    steps: int = 2000
    every: int = 20
    rate: float = 0.01
    momentum: float = 0.9
    rank: int = 10
    prior_precision: float = 1.0
    noise_precision: float = 10.0

    def decay(self, rows: int) -> float:
        """The weight decay that the prior asks for, with a mean squared error over so many rows."""
        return weight_decay(self.prior_precision, rows, "mean_squared", self.noise_precision)


def followers(net: nn.Module, rank: int, seed: Generator) -> dict[str, WeightPosterior]:
    """The posteriors that follow a training; psi of factor analysis is new for every vector, as in Algorithm 2."""
    methods: dict[str, Method] = {"swa": SWA(), "swag": SWAG(rank), "factor": FactorEM(rank, refresh=1)}
    return {word: WeightPosterior(net, method, random_state=seed) for word, method in methods.items()}


@dataclass(frozen=True)
class Point:
    """A network with the weights that one training came to, as a posterior without spread."""

    net: nn.Module
    layout: Layout
    vector: Tensor

    def parts(self) -> tuple[Part, ...]:
        """All mass at one vector."""
        return (Part(1.0, self.net, self.layout, WeightLaw.point(self.vector)),)


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        last: where SGD was after its last step.
        annealed: where it came to with a rate that falls to 0 instead, from the end of the burn-in on.
        followed: posteriors of the trajectory, by the words of their methods.
        laplace: of the last layer of ``last``; of the first run of a split only.
    """

    last: Point
    annealed: Point
    followed: dict[str, WeightPosterior]
    laplace: LastLayerPosterior | None


def trained(splits: Splits, runs: int, setting: Setting, seed: int) -> list[list[Run]]:
    """Networks by split and run, all trained together.

    Args:
        splits: of a table.
        runs: networks of each split, from starts and with orders of batches of their own.
        setting: how.
        seed: of starts and orders.
    """
    x, y = splits.x["train"], splits.y["train"]
    n = splits.count * runs
    starts, first, annealing, following, watching = spawn(generator(seed), 5)
    stack = StackedLayers((x.shape[2], setting.units, 1), "relu", spawn(starts, n))
    nets = stack.nets()
    layout = Layout.of(nets[0])
    train = _Trainer(stack, x, y, torch.arange(splits.count).repeat_interleave(runs), setting)
    train(setting.burn_in, first)
    kept = [value.detach().clone() for value in stack.parameters()]
    train(setting.steps, annealing, lambda done: 1.0 - done)
    annealed = [Point(net, layout, _read(layout, net)) for net in nets]
    with torch.no_grad():
        for value, old in zip(stack.parameters(), kept, strict=True):
            value.copy_(old)
    followed = [followers(net, setting.rank, watching) for net in nets]

    def observe(step: int) -> None:
        if step % setting.every == 0:
            for group in followed:
                for posterior in group.values():
                    posterior.observe()

    train(setting.steps, following, observe=observe)
    found = []
    for place, net in enumerate(nets):
        split, run = divmod(place, runs)
        laplace = _laplace(net, x[split], y[split], setting) if run == 0 else None
        found.append(Run(Point(net, layout, _read(layout, net)), annealed[place], followed[place], laplace))
    return [found[split * runs : (split + 1) * runs] for split in range(splits.count)]


def _read(layout: Layout, net: nn.Module) -> Tensor:
    return layout.read(net, torch.empty(layout.size, dtype=torch.float64))


def _laplace(net: nn.Module, x: Tensor, y: Tensor, setting: Setting) -> LastLayerPosterior:
    """At the weights that SGD left, under the stated prior; the noise is found by the evidence."""
    return last_layer_laplace(net, x, y, "regression", setting.prior_precision, mode=False)


class _Trainer:
    """SGD on every network's own rows, in orders of their own."""

    def __init__(self, stack: StackedLayers, x: Tensor, y: Tensor, split: Tensor, setting: Setting) -> None:
        self.stack, self.x, self.y, self.split, self.setting = stack, x, y, split[:, None], setting

    def __call__(
        self,
        steps: int,
        stream: Generator,
        rate: Callable[[float], float] = lambda done: 1.0,
        observe: Callable[[int], None] = lambda step: None,
    ) -> None:
        """So many steps, from no momentum.

        Args:
            steps: how many.
            stream: of the orders.
            rate: of learning as a share of the setting's, from the share of steps done.
            observe: told the number of every step that was taken, from 1.
        """
        setting, n = self.setting, self.x.shape[1]
        optimiser = torch.optim.SGD(
            self.stack.parameters(),
            lr=setting.rate,
            momentum=setting.momentum,
            weight_decay=setting.decay(n),
        )
        step = 0
        while step < steps:
            orders = torch.rand((len(self.split), n), generator=stream).argsort(1)
            for some in orders.split(setting.batch, dim=1)[: n // min(setting.batch, n)]:  # whole batches
                if step == steps:
                    break
                for group in optimiser.param_groups:
                    group["lr"] = setting.rate * rate(step / steps)
                optimiser.zero_grad()
                left = self.stack(self.x[self.split, some]) - self.y[self.split, some]
                left.square().mean((1, 2)).sum().backward()
                optimiser.step()
                step += 1
                observe(step)
