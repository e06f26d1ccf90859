"""Members of an ensemble, trained one after another or in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.utils.parallel import Parallel, delayed
from torch import Generator, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxloop.numeric import seed, spawn
from boxloop.weights.fitting import Loss, Training, fit
from boxloop.weights.method import Method, warn
from boxloop.weights.posterior import WeightPosterior

Batches = Iterable[Any] | Callable[[Generator], Iterable[Any]]
"""Pairs (x, y), or what gives them."""


@dataclass(frozen=True)
class Plan:
    """How each member is trained: as in :meth:`boxloop.weights.ensemble.MultiPosterior.fit`."""

    loss: Loss
    make_optimiser: Callable[[nn.Module], Optimizer]
    make_scheduler: Callable[[Optimizer], LRScheduler] | None
    method: str | Method
    rank: int
    parameters: str | Sequence[str] | None
    epochs: int
    burn_in: int
    every: int
    clip: float | None
    verbose: bool

    def __call__(
        self, net: nn.Module, batches: Iterable[Any], own: int, checkpoint: Path | None
    ) -> tuple[WeightPosterior, Training]:
        """Train one network, with a seed of its own."""
        posterior = WeightPosterior(net, self.method, self.rank, parameters=self.parameters, random_state=own)
        optimiser = self.make_optimiser(net)
        done = fit(
            posterior,
            batches,
            self.loss,
            optimiser,
            epochs=self.epochs,
            burn_in=self.burn_in,
            every=self.every,
            scheduler=None if self.make_scheduler is None else self.make_scheduler(optimiser),
            clip=self.clip,
            verbose=self.verbose,
            checkpoint=checkpoint,
        )
        return posterior, done


def fit_members(
    plan: Plan,
    make_net: Callable[[Generator], nn.Module],
    batches: Batches,
    streams: Sequence[Generator],
    n_jobs: int | None,
    checkpoint: str | PathLike[str] | None,
) -> tuple[tuple[WeightPosterior, ...], tuple[Training, ...]]:
    """One member a stream of random numbers.

    The networks are made here and not in a process that trains one: torch's layers start from a global generator, which
    is the same in every new process.

    Args:
        plan: how each is trained.
        make_net: gives a network.
        batches: pairs, or what gives them.
        streams: of each member.
        n_jobs: processes.
        checkpoint: path of the files, to which a number is added.

    Raises:
        TypeError: no function that makes a network, or an optimiser.
        ValueError: the same network twice.
    """
    _check(plan, make_net)
    tasks = []
    for number, own in enumerate(streams):
        starting, ordering, following = spawn(own, 3)
        some = batches(ordering) if callable(batches) else batches
        path = None if checkpoint is None else Path(f"{checkpoint}.{number}")
        tasks.append((make_net(starting), some, seed(following), path))
    if len({id(net) for net, *_ in tasks}) < len(tasks):
        raise ValueError("make_net gave the same network twice: it must make a new one at every call")
    if n_jobs not in (None, 1):
        found = Parallel(n_jobs=n_jobs)(delayed(plan)(*task) for task in tasks)
    else:
        found = _in_turn(plan, tasks)
    posteriors, trainings = zip(*found, strict=True)
    return posteriors, trainings


def _check(plan: Plan, make_net: Any) -> None:
    """What makes networks and optimisers, before any is made."""
    if isinstance(make_net, nn.Module) or not callable(make_net):
        raise TypeError(f"make_net must be a function that makes a network, got a {type(make_net).__name__}")
    made: Any = plan.make_optimiser
    if not callable(made):
        raise TypeError(
            f"make_optimiser must be a function that makes an optimiser, given a network, got a {type(made).__name__}"
        )


def _in_turn(plan: Plan, tasks: Sequence[Any]) -> list[tuple[WeightPosterior, Training]]:
    """One after another, until Ctrl-C."""
    found: list[tuple[WeightPosterior, Training]] = []
    for task in tasks:
        posterior, done = plan(*task)
        if not done.interrupted or posterior.count >= posterior.method.least:
            found.append((posterior, done))
        if done.interrupted:
            if not found:
                raise KeyboardInterrupt
            warn(f"interrupted: a mixture of {len(found)} members, of {len(tasks)} asked for")
            break
    return found
