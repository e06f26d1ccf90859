"""Trainings that one process and several must end alike; run as a script, this file is several processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from boxloop.data import ArraySource
from boxloop.fit import Constant, Epochs, Trainer, TrainPlan, TrainState, Workers, distributed
from boxloop.loop import Outcome, run
from boxloop.numeric import generator, normal
from boxloop.twoview import relevance_loss

N = 92
"""Batches of 16 and 15 rows: shares of two and of three processes are uneven."""
ROWS = torch.tensor([1.0, -2.0, 3.0]).double() + normal((N, 3), generator(0))
WEIGHT = torch.rand(N, generator=generator(1), dtype=torch.float64) * 2.0
WAIT = 5.0
"""Seconds that one of the groups waits for a process that is stuck."""

Found = dict[str, object]


@dataclass(frozen=True)
class Place:
    at: Tensor
    slope: Tensor

    def trainable(self) -> tuple[Tensor, ...]:
        return self.at, self.slope

    def with_trainable(self, values: tuple[Tensor, ...]) -> Place:
        return Place(*values)


@dataclass(frozen=True)
class Shared:
    """Least squares of rows moved by chance: a mean over rows, of which every process takes its own."""

    workers: Workers

    def __call__(self, model, rows, weight, stream):
        mine, count = self.workers.local_rows(len(rows))
        moved = (rows + 0.1 * normal(tuple(rows.shape), stream))[mine]
        far = (moved - model.at).square().sum(1) @ weight[mine] / count
        bent = (rows[mine] @ model.slope - rows[mine]).square().sum(1) @ weight[mine] / count
        return far + bent, {"far": far, "bent": bent}


@dataclass(frozen=True)
class Broken(Shared):
    """Not finite at one row, which is in the batch of one process alone."""

    def __call__(self, model, rows, weight, stream):
        loss, parts = super().__call__(model, rows, weight, stream)
        mine, _ = self.workers.local_rows(len(rows))
        bad = (rows[mine][:, 0] == ROWS[5, 0]).any() & (model.at.abs().sum() < 1.0)
        return loss + torch.where(bad, torch.nan, 0.0) * model.at.sum(), parts


@dataclass(frozen=True)
class Related:
    """The relevance of two families of features, which is no mean over rows."""

    workers: Workers
    weighted: bool

    def __call__(self, model, rows, weight, stream):
        mine, _ = self.workers.local_rows(len(rows))
        left, right = features(model, rows[mine])
        mass = weight[mine] if self.weighted else None
        loss = relevance_loss(left, right, mass, ridge=1e-3, workers=self.workers)
        return loss, {"relevance": 2.0 - loss}


def features(model: Place, rows: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(rows @ model.slope[:, :2] + model.at[:2]), torch.sin(rows[:, :2] * model.slope[2, :2])


def unaware(model, rows, weight, stream):
    """A loss that knows of no other process."""
    value = (rows - model.at).square().sum(1) @ weight / len(rows) + model.slope.square().sum()
    return value, {"far": value}


def gap(model, rows, stream):
    """A penalty: no mean over rows."""
    return (rows.mean(0) - model.at).norm() + (normal((3,), stream) * model.slope[0]).square().sum()


def start() -> Place:
    return Place(torch.full((3,), 0.1).double(), torch.eye(3).double() * 0.5 + 0.2)


def made(loss, workers: Workers, **more) -> Trainer:
    epochs = Epochs(ArraySource(ROWS, WEIGHT), more.pop("size", 16), seed=3)
    plan = more.pop("plan", TrainPlan(Constant(0.05), weight=Constant(0.3), clip=2.0, block=4))
    return Trainer(start(), epochs, loss, plan, workers=workers, **more)


def summarise(outcome: Outcome[TrainState]) -> Found:
    state = outcome.state
    return {
        "point": torch.cat([value.reshape(-1) for value in state.best]),
        "history": state.history,
        "recent": state.recent,
        "iterations": outcome.n_iter,
    } | {
        "interrupted": outcome.interrupted,
        "taken": state.taken,
        "slower": state.slower,
    }


def trained(trainer: Trainer, epochs: int = 4) -> Found:
    first = trainer.start(7)
    with trainer.workers.interruptible(trainer, torch.device("cpu")) as step:
        return summarise(run(step, first, max_iter=trainer.iterations(epochs)))


def drifting(workers: Workers) -> Found:
    """Validation by which process 0, asked alone, would stop first."""
    seen: list[int] = []

    def validate(model, stream):
        seen.append(len(seen))
        own = float(seen[-1]) if workers.size > 1 and workers.leads else -float(min(seen[-1], 3))
        return torch.tensor(own * (2.0 if workers.size > 1 and not workers.leads else 1.0)).double(), {}

    plan = TrainPlan(Constant(0.05), patience=2, block=4)
    return {**trained(made(Shared(workers), workers, plan=plan, validate=validate), 20), "asked": len(seen)}


def few(workers: Workers) -> Found:
    """Fewer rows in a batch than processes."""
    return trained(made(Shared(workers), workers, size=2), 1)


def objective(workers: Workers) -> Found:
    """Loss and gradient of two views, every option, on shares that are uneven, or of fewer rows than processes."""
    found: Found = {}
    for n in (N, 17, 2):
        for constant in ("enforced", "learned"):
            for weighted in (False, True):
                leaf = start().slope.clone().requires_grad_()
                mine, _ = workers.local_rows(n)
                left, right = features(Place(start().at, leaf), ROWS[:n][mine])
                mass = WEIGHT[:n][mine] if weighted else None
                loss = relevance_loss(left, right, mass, ridge=0.01, constant=constant, workers=workers)
                (slope,) = torch.autograd.grad(loss, leaf)
                found[f"{n}-{constant}-{weighted}"] = torch.cat(
                    [loss.detach()[None], workers.mean(slope).flatten()]
                )
    return found


CASES: dict[str, Callable[[Workers], Found]] = {
    "mean": lambda workers: trained(made(Shared(workers), workers)),
    "unaware": lambda workers: trained(made(unaware, workers, penalty=gap)),
    "both": lambda workers: trained(made(Shared(workers), workers, penalty=gap)),
    "related": lambda workers: trained(made(Related(workers, False), workers)),
    "weighted": lambda workers: trained(made(Related(workers, True), workers)),
    "broken": lambda workers: trained(made(Broken(workers), workers)),
    "few": few,
    "objective": objective,
}
"""What must be the same for one process and for several."""


def interrupted(workers: Workers, when: int) -> Found:
    """Ctrl-C reaches the last process alone, in the middle of an iteration."""
    iterations: list[int] = []

    def loss(model, rows, weight, stream):
        iterations.append(1)
        if len(iterations) == when and workers.rank == workers.size - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return Shared(workers)(model, rows, weight, stream)

    return trained(made(loss, workers), 2)


def abandoned(workers: Workers, leave: Callable[[], None]) -> Found:
    """The last process leaves in its third step: what the others see, and after how long."""
    steps: list[float] = []

    def loss(model, rows, weight, stream):
        steps.append(time.monotonic())
        if len(steps) == 3 and workers.rank == workers.size - 1:
            leave()
        return Shared(workers)(model, rows, weight, stream)

    try:
        trained(made(loss, workers))
    except RuntimeError as error:
        return {"error": str(error), "seconds": time.monotonic() - steps[-1]}
    return {}


def unlike(workers: Workers) -> Found:
    numbers = torch.tensor([1.0, 2.0, torch.nan]).double()
    near, far = numbers * (1.0 + 1e-9 * workers.rank), numbers + 0.1 * workers.rank
    return {"same": workers.have_equal(near), "other": workers.have_equal(far)}


def _kept(path: Path, found: dict[str, Found]) -> None:
    flat = {
        f"{case}/{name}": np.asarray(value) for case, each in found.items() for name, value in each.items()
    }
    np.savez(path, **flat)


def _all(folder: Path) -> None:
    """Every case by all processes and by the first two; then the processes that leave, the last for good."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with distributed(timeout=60.0) as workers:
        pair = dist.new_group([0, 1])
        found = {name: case(workers) for name, case in CASES.items()}
        found["drifting"], found["unlike"] = drifting(workers), unlike(workers)
        found["ctrl-c"], found["late ctrl-c"] = interrupted(workers, 6), interrupted(workers, 12)
        if workers.rank < 2:
            with distributed(pair) as two:
                found |= {f"two {name}": case(two) for name, case in CASES.items()}
        dist.barrier()
        with distributed(dist.new_group(timeout=timedelta(seconds=WAIT))) as others:
            found["stuck"] = abandoned(others, lambda: time.sleep(1.5 * WAIT))
        _kept(folder / f"{workers.rank}.npz", found)
        found["dead"] = abandoned(workers, lambda: os.kill(os.getpid(), signal.SIGKILL))
        _kept(folder / f"{workers.rank}.npz", found)


def _each(folder: Path, size: int) -> list[int]:
    """One process for each rank, and how it ended. They are made when all is imported, which then is done once."""
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            _all(folder)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    print(_each(Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])))
