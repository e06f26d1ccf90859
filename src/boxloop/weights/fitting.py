"""Training of networks that posteriors over their weights observe, for those who have no loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from operator import length_hint
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from boxloop.fit import STATES, Follower, StepReport, Trainer, TrainPlan, TrainState
from boxloop.loop import Progress, run
from boxloop.numeric import single_threaded
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.progress import ProgressBar
from boxloop.tree import from_tree, to_tree
from boxloop.weights.constraints import CLASSES
from boxloop.weights.inputs import mapped
from boxloop.weights.method import warn
from boxloop.weights.posterior import WeightPosterior

Loss = Callable[[Any, Any], Tensor]
"""(what the network predicts, y) -> one number."""


@dataclass(frozen=True)
class Training:
    """How a training went.

    Args:
        losses: the mean over each epoch, of the steps that were taken.
        skipped: steps that were refused, as the loss or its gradient was not finite.
        interrupted: whether Ctrl-C ended it; everything is then as after the last whole epoch.
        events: what happened on the way, in words.
    """

    losses: tuple[float, ...]
    skipped: int
    interrupted: bool
    events: tuple[str, ...]


@single_threaded
def fit(
    posterior: WeightPosterior,
    batches: Iterable[Any],
    loss: Loss,
    optimiser: Optimizer,
    *,
    epochs: int,
    burn_in: int = 0,
    every: int = 1,
    scheduler: LRScheduler | None = None,
    clip: float | None = None,
    verbose: bool = False,
    checkpoint: str | PathLike[str] | None = None,
) -> Training:
    r"""Train the network of a posterior, which observes it once the first epochs are over.

    .. math:: \theta_t = \mathrm{step}\bigl(\theta_{t-1}, \nabla \ell(f_\theta(x_t), y_t)\bigr), \qquad
        \text{observed when } t - t_0 = m, 2m, 3m, \dots

    where :math:`t_0` is the last step of the ``burn_in`` epochs and m is ``every``. The network is in training mode
    meanwhile, and then in whatever mode it was before. A step whose loss or gradient is not finite is refused, and
    leaves statistics of BatchNorm as they were; where weights would have been observed after it, they are refused.

    A checkpoint holds network, optimiser, scheduler and posterior, after whole epochs. A run that goes on from it is
    the one that was never stopped, bit for bit, if its batches are the same: a list, or a ``DataLoader`` with a
    ``generator`` of its own, whose state is kept too. Dropout draws from torch's global state, which is not.

    Args:
        posterior: whose ``net`` is trained, where it stands.
        batches: pairs (x, y), to be passed over once an epoch, such as a ``DataLoader``; tensors, or tuples, lists and
            dictionaries of them, on any device.
        loss: of what the network predicts from x, and y: one number, such as ``torch.nn.functional.mse_loss``.
        optimiser: of the network's parameters, and of others where the loss has some.
        epochs: passes over the batches.
        burn_in: of them, those before weights are observed.
        every: steps between two observations.
        scheduler: of the learning rate, moved on after each epoch.
        clip: largest norm of a gradient; a longer one is shortened.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to go on from.

    Returns:
        The mean loss of each epoch, and what went wrong.

    Raises:
        FloatingPointError: ten steps in a row were refused.
        ValueError: batches that cannot be passed over again, or are none; a loss that is not one number, or has no
            gradient; an ``every`` so large that nothing would be observed.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(1, 1)
        >>> x = torch.linspace(-1.0, 1.0, 40)[:, None]
        >>> batches = [(x[i::4], 2.0 * x[i::4] + 1.0) for i in range(4)]
        >>> posterior = WeightPosterior(net, "swa")
        >>> optimiser = torch.optim.SGD(net.parameters(), lr=0.2)
        >>> done = fit(posterior, batches, torch.nn.functional.mse_loss, optimiser, epochs=60, burn_in=50)
        >>> len(done.losses), posterior.count, posterior.centre().round(decimals=2)
        (60, 40, tensor([2., 1.]))
    """
    counts: dict[str, Any] = {"epochs": epochs, "burn_in": burn_in, "every": every}
    for name, value in counts.items():
        if not isinstance(value, Integral):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if not 0 <= burn_in < epochs:
        raise ValueError(f"burn_in must be at least 0 and below epochs={epochs}, got {burn_in}")
    steps = (epochs - burn_in) * length_hint(batches, 0)
    if 0 < steps < every:
        raise ValueError(
            f"every={every} observes nothing in the {steps} steps after burn-in: lower it, or give more epochs"
        )
    return train(
        posterior.net,
        batches,
        loss,
        optimiser,
        epochs=epochs,
        posteriors=(posterior,),
        burn_in=burn_in,
        every=every,
        scheduler=scheduler,
        clip=clip,
        bar="training" if verbose else "",
        checkpoint=checkpoint,
    )


def train(
    net: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    optimiser: Optimizer,
    *,
    epochs: int,
    posteriors: Sequence[WeightPosterior] = (),
    burn_in: int = 0,
    every: int = 1,
    scheduler: LRScheduler | None = None,
    clip: float | None = None,
    bar: str = "",
    checkpoint: str | PathLike[str] | None = None,
) -> Training:
    """Train a network that any number of posteriors observe.

    Args:
        net: that is trained, where it stands; several networks may be stacked in it.
        batches: as in :func:`fit`, like all that is not listed here.
        loss: of a batch.
        optimiser: of the network's parameters.
        epochs: over the batches.
        posteriors: of the network, or of parts of it.
        burn_in: epochs that they do not observe.
        every: steps between two observations.
        scheduler: of the learning rate.
        clip: largest norm of a gradient.
        bar: name of the progress bar; none is shown without a name.
        checkpoint: file to save progress in and to go on from.
    """
    _check(net, batches, optimiser, every, clip)
    observed = Observed(posteriors, burn_in, every)
    followers = [Buffers(net), observed, Cooled(scheduler), Shuffled(batches)]
    plan = TrainPlan(None, clip=clip, block=None, backoff=1.0)
    trainer = Trainer(
        net, Passes(batches, net), _loss_of(loss), plan, optimiser=optimiser, followers=followers
    )
    observers: list[Any] = []
    if bar:
        observers.append(ProgressBar(show=True).stage(bar, describe=observed.describe))
    resume = None
    if checkpoint is not None:
        known = _known(trainer, observed, scheduler, batches)
        observers.append(CheckpointWriter(checkpoint, known, seconds=10.0))
        if Path(checkpoint).exists():
            resume = read_checkpoint(checkpoint, {**CLASSES, **STATES}, known)
            trainer.restore(resume.state)
    modes = [(module, module.training) for module in net.modules()]
    net.train()
    try:
        outcome = run(trainer, trainer.start(0), max_iter=epochs, observers=observers, resume=resume)
    finally:
        for module, mode in modes:
            module.training = mode
    if outcome.interrupted:
        trainer.restore(outcome.state)
        warn(f"interrupted: everything is as after epoch {outcome.n_iter} of {epochs}")
    losses = tuple(-value for value in outcome.trace)
    state = outcome.state
    return Training(losses, state.count - state.taken, outcome.interrupted, tuple(outcome.events))


@dataclass(frozen=True)
class Passes:
    """Batches of the user's, passed over once an epoch, on the device of a network."""

    batches: Iterable[Any]
    net: nn.Module
    per_epoch: int = 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """All batches; their order is their own."""
        place = next(self.net.parameters()).device
        for batch in islice(self.batches, start, None):
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise ValueError(f"a batch must be a pair (x, y), got {_describe(batch)}")
            yield mapped(batch, lambda one: one.to(place, non_blocking=True))


class Observed(Follower):
    """Posteriors that observe every m-th step once burn-in is over."""

    def __init__(self, posteriors: Sequence[WeightPosterior], burn_in: int, every: int) -> None:
        self.posteriors, self.burn_in, self.every, self.steps = posteriors, burn_in, every, 0

    def after_step(self, step: StepReport) -> None:
        """Observe weights, or refuse those of a step that was not taken."""
        if step.epoch < self.burn_in:
            return
        self.steps += 1
        if self.steps % self.every == 0:
            for posterior in self.posteriors:
                if step.refusal is None:
                    posterior.observe(step.loss)
                else:
                    posterior._refuse(step.refusal)

    def state(self) -> Any:
        """Steps since burn-in, and every posterior."""
        return self.steps, tuple(posterior.state() for posterior in self.posteriors)

    def restore(self, state: Any) -> None:
        """Posteriors are put back in place: others hold them."""
        self.steps, before = state
        for posterior, kept in zip(self.posteriors, before, strict=True):
            vars(posterior).update(vars(WeightPosterior.restore(kept, posterior.net, posterior.device)))

    def describe(self, progress: Progress[TrainState]) -> str:
        """What a progress bar says."""
        seen = sum(posterior.count for posterior in self.posteriors)
        return f"loss {-progress.trace[-1]:.4g}, {seen} vectors observed" if progress.trace else ""


class Cooled(Follower):
    """A scheduler of torch, moved on after each epoch."""

    def __init__(self, scheduler: LRScheduler | None) -> None:
        self.scheduler = scheduler

    def after_epoch(self, loss: float) -> None:
        """One step of it."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()

    def state(self) -> Any:
        """Its dictionary."""
        return None if self.scheduler is None else to_tree(self.scheduler.state_dict())

    def restore(self, state: Any) -> None:
        """The same."""
        if self.scheduler is not None and state is not None:
            self.scheduler.load_state_dict(from_tree(state))


class Shuffled(Follower):
    """The generator by which a ``DataLoader`` orders its rows."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.generator: Generator | None = batches.generator if isinstance(batches, DataLoader) else None

    def state(self) -> Any:
        """Its state."""
        return None if self.generator is None else self.generator.get_state()

    def restore(self, state: Any) -> None:
        """The same."""
        if self.generator is not None and state is not None:
            self.generator.set_state(state)


class Buffers(Follower):
    """The buffers of a network, such as BatchNorm's statistics, as they were before a step that is refused."""

    def __init__(self, net: nn.Module) -> None:
        self._owners = [
            module for module in net.modules() if any(True for _ in module.buffers(recurse=False))
        ]
        self._before: list[Tensor] = []

    def _live(self) -> list[tuple[nn.Module, str, Tensor]]:
        """The network may have put other tensors in their place."""
        return [
            (owner, name, value)
            for owner in self._owners
            for name, value in owner.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def before_step(self) -> None:
        """Copy them, into memory that every step uses again."""
        values = [value for *_, value in self._live()]
        if [(value.shape, value.dtype) for value in values] != [
            (kept.shape, kept.dtype) for kept in self._before
        ]:
            self._before = [torch.empty_like(value) for value in values]
        if values:
            torch._foreach_copy_(self._before, values)

    def after_step(self, step: StepReport) -> None:
        """Put them back where the step was refused."""
        if step.refusal is not None:
            self.restore(tuple(self._before))

    def state(self) -> Any:
        """Copies."""
        return tuple(value.clone() for *_, value in self._live())

    @torch.no_grad()
    def restore(self, state: Any) -> None:
        """In place."""
        for (owner, name, value), before in zip(self._live(), state, strict=True):
            setattr(owner, name, value.copy_(before))


def _loss_of(loss: Loss) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """The loss of a batch, refused where it cannot be followed downhill."""

    def evaluate(net: nn.Module, x: Any, y: Any, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        value: Any = loss(net(x), y)
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the loss must be a tensor of one number, but is a {type(value).__name__}: leave out .item()"
            )
        if value.is_complex():
            raise ValueError(
                f"the loss must be a real number, but is {value.dtype}: take its .real, or .abs()"
            )
        if value.ndim:
            raise ValueError(
                f"the loss must be one number for a batch, its mean or its sum, but has shape {tuple(value.shape)}"
            )
        if not value.requires_grad:
            raise ValueError(
                "the loss has no gradient: it must be computed from the network's output, without .detach()"
            )
        return value, {}

    return evaluate


def _check(
    net: nn.Module, batches: Iterable[Any], optimiser: Optimizer, every: int, clip: float | None
) -> None:
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip must be above 0, got {clip}")
    if not isinstance(optimiser, Optimizer):
        raise TypeError(
            f"optimiser must be a torch optimiser of the network, got a {type(optimiser).__name__}"
        )
    if isinstance(optimiser, LBFGS):
        raise ValueError("LBFGS asks for the loss several times a step, and is not followed: use another")
    own = {id(value) for value in net.parameters()}
    if not any(id(value) in own for group in optimiser.param_groups for value in group["params"]):
        raise ValueError("the optimiser moves none of the network's parameters")
    if isinstance(batches, Iterator):
        raise ValueError(
            "batches can be passed over once only: give a list, a DataLoader, or another iterable"
        )


def _known(
    trainer: Trainer[Any], observed: Observed, scheduler: LRScheduler | None, batches: Iterable[Any]
) -> dict[str, Any]:
    """What tells this training from others, for its checkpoint; rates as before any scheduler changed them."""
    groups = [
        {
            key: value
            for key, value in group.items()
            if isinstance(value, int | float | str) and key != "initial_lr"
        }
        | {"lr": float(group.get("initial_lr", group["lr"]))}
        for group in trainer.optimiser.param_groups  # type: ignore[union-attr]
    ]
    return {
        "optimiser": type(trainer.optimiser).__name__,
        "groups": groups,
        "scheduler": type(scheduler).__name__,
        "methods": [repr(posterior.method) for posterior in observed.posteriors],
        "parameters": [posterior.layout.names for posterior in observed.posteriors],
        "shapes": [tuple(value.shape) for value in trainer.parameters],
        "batches": length_hint(batches, -1),
        "burn_in": observed.burn_in,
        "every": observed.every,
        "clip": trainer.plan.clip,
    }


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
