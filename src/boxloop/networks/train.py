"""Training of networks whose weights are observed, for users without a training loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from operator import length_hint
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from boxloop.fit import STATES, Follower, StepReport, Trainer, TrainPlan, TrainState
from boxloop.loop import Progress, run
from boxloop.networks.distribution import warn
from boxloop.networks.inputs import map_tensors
from boxloop.numeric import single_threaded
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.progress import ProgressBar
from boxloop.tree import from_tree, to_tree

if TYPE_CHECKING:
    from boxloop.networks.posterior import WeightPosterior

Loss = Callable[[Any, Any], Tensor]  # (predictions of the network, y) -> a scalar tensor


@dataclass(frozen=True)
class TrainingHistory:
    """The course of a training.

    Args:
        losses: mean loss of each epoch, over the accepted steps.
        n_refused: steps that were refused because the loss or its gradient was not finite.
        interrupted: whether Ctrl-C ended the training; everything is then as after the last complete epoch.
        events: messages about the training.
    """

    losses: tuple[float, ...]
    n_refused: int
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
) -> TrainingHistory:
    r"""Train the network of a posterior, which observes the weights after the burn-in.

    .. math:: \theta_t = \mathrm{step}\bigl(\theta_{t-1}, \nabla \ell(f_\theta(x_t), y_t)\bigr), \qquad
        \text{observed when } t - t_0 = m, 2m, 3m, \dots

    where :math:`t_0` is the last step of the ``burn_in`` epochs and m is ``every``. A step whose loss or gradient is
    not finite is refused: it changes neither weights nor statistics of BatchNorm, and an observation due after it is
    refused too; ten consecutive refusals end the training with a FloatingPointError.

    A checkpoint holds network, optimiser, scheduler and posterior after complete epochs. A run that continues from it
    is identical to one without interruption, bit for bit, if its batches are the same: a list, or a ``DataLoader`` with
    its own ``generator``, whose state is saved too. Dropout draws from torch's global state, which is not saved.

    Args:
        posterior: whose ``net`` is trained in place.
        batches: pairs (x, y), read once per epoch, such as a ``DataLoader``; each may hold several tensors.
        loss: of the network's predictions and y: a scalar, such as ``torch.nn.functional.mse_loss``.
        optimiser: of the network's parameters, and of those of the loss if it has any.
        epochs: passes over the batches.
        burn_in: epochs before weights are observed.
        every: steps between two observations.
        scheduler: of the learning rate; it steps after each epoch.
        clip: largest norm of a gradient; longer ones are shortened.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to continue from.

    Returns:
        :class:`TrainingHistory`.

    Example:
        >>> import torch
        >>> from boxloop.networks import WeightPosterior
        >>> net = torch.nn.Linear(1, 1)
        >>> x = torch.linspace(-1.0, 1.0, 40)[:, None]
        >>> batches = [(x[i::4], 2.0 * x[i::4] + 1.0) for i in range(4)]
        >>> posterior = WeightPosterior(net, "swa")
        >>> optimiser = torch.optim.SGD(net.parameters(), lr=0.2)
        >>> history = fit(posterior, batches, torch.nn.functional.mse_loss, optimiser, epochs=60, burn_in=50)
        >>> len(history.losses), posterior.count, posterior.mean().round(decimals=2)
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
            f"every={every} must be at most {steps}, the number of steps after burn-in; lower it or increase epochs"
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
) -> TrainingHistory:
    """Train a network whose weights any number of posteriors observe."""
    _check_arguments(net, batches, optimiser, every, clip)
    observer = WeightObserver(posteriors, burn_in, every)
    followers = [BufferBackup(net), observer, SchedulerStep(scheduler), LoaderGenerator(batches)]
    plan = TrainPlan(None, clip=clip, block=None, backoff=1.0)
    data = UserBatches(batches, net)
    trainer = Trainer(net, data, _add_loss_checks(loss), plan, optimiser=optimiser, followers=followers)
    observers: list[Any] = []
    if bar:
        observers.append(ProgressBar(show=True).stage(bar, describe=observer.describe))
    resume = None
    if checkpoint is not None:
        identity = _identify_run(trainer, observer, scheduler, batches)
        observers.append(CheckpointWriter(checkpoint, identity, seconds=10.0))
        if Path(checkpoint).exists():
            from boxloop.networks.constraints import CLASSES

            resume = read_checkpoint(checkpoint, {**CLASSES, **STATES}, identity)
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
        warn(f"Interrupted: network and posterior are as after epoch {outcome.n_iter} of {epochs}.")
    losses, n_refused = tuple(-value for value in outcome.trace), outcome.state.count - outcome.state.taken
    return TrainingHistory(losses, n_refused, outcome.interrupted, tuple(outcome.events))


@dataclass(frozen=True)
class UserBatches:
    """Batches of the user, read once per epoch and moved to the device of the network."""

    batches: Iterable[Any]
    net: nn.Module
    per_epoch: int = 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """All batches, in their own order."""
        device = next(self.net.parameters()).device
        for batch in islice(self.batches, start, None):
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                got = f"a {type(batch).__name__}"
                if isinstance(batch, Tensor):
                    got = f"a tensor of shape {tuple(batch.shape)}"
                elif isinstance(batch, tuple | list):
                    got += f" of {len(batch)}"
                raise ValueError(f"A batch must be a pair (x, y), got {got}")
            yield map_tensors(batch, lambda one: one.to(device, non_blocking=True))


class WeightObserver(Follower):
    """Posteriors that observe every m-th step after burn-in."""

    def __init__(self, posteriors: Sequence[WeightPosterior], burn_in: int, every: int) -> None:
        self.posteriors = posteriors
        self.burn_in = burn_in
        self.every = every
        self.steps: int = 0

    def after_step(self, step: StepReport) -> None:
        """Observe the weights, or refuse those of a refused step."""
        if step.epoch < self.burn_in:
            return
        self.steps += 1
        if self.steps % self.every == 0:
            for posterior in self.posteriors:
                if step.refusal is None:
                    posterior.observe(step.loss)
                else:
                    posterior.refuse(step.refusal)

    def state(self) -> Any:
        """Steps since burn-in, and the states of the posteriors."""
        return self.steps, tuple(posterior.state() for posterior in self.posteriors)

    def restore(self, state: Any) -> None:
        """Restore the posteriors in place, as others hold references to them."""
        self.steps, states = state
        for posterior, own in zip(self.posteriors, states, strict=True):
            vars(posterior).update(vars(type(posterior).restore(own, posterior.net, posterior.device)))

    def describe(self, progress: Progress[TrainState]) -> str:
        """The text of the progress bar."""
        count = sum(posterior.count for posterior in self.posteriors)
        return f"loss {-progress.trace[-1]:.4g}, {count} vectors observed" if progress.trace else ""


class SchedulerStep(Follower):
    """A scheduler of torch, stepped after each epoch."""

    def __init__(self, scheduler: LRScheduler | None) -> None:
        self.scheduler = scheduler

    def after_epoch(self, loss: float) -> None:
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()

    def state(self) -> Any:
        return None if self.scheduler is None else to_tree(self.scheduler.state_dict())

    def restore(self, state: Any) -> None:
        if self.scheduler is not None and state is not None:
            self.scheduler.load_state_dict(from_tree(state))


class LoaderGenerator(Follower):
    """The generator with which a ``DataLoader`` shuffles its rows."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.generator: Generator | None = batches.generator if isinstance(batches, DataLoader) else None

    def state(self) -> Any:
        return None if self.generator is None else self.generator.get_state()

    def restore(self, state: Any) -> None:
        if self.generator is not None and state is not None:
            self.generator.set_state(state)


class BufferBackup(Follower):
    """Buffers of the network, such as BatchNorm statistics, restored after a refused step."""

    def __init__(self, net: nn.Module) -> None:
        self._owners = [module for module in net.modules() if next(module.buffers(False), None) is not None]
        self._before: list[Tensor] = []

    def _current_buffers(self) -> list[tuple[nn.Module, str, Tensor]]:
        """The current buffers; the network may have replaced the tensors."""
        return [
            (owner, name, value)
            for owner in self._owners
            for name, value in owner.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def before_step(self) -> None:
        """Copy the buffers, into memory that every step reuses."""
        values = [value for *_, value in self._current_buffers()]
        own = [(value.shape, value.dtype) for value in values]
        if own != [(copy.shape, copy.dtype) for copy in self._before]:
            self._before = [torch.empty_like(value) for value in values]
        if values:
            torch._foreach_copy_(self._before, values)

    def after_step(self, step: StepReport) -> None:
        if step.refusal is not None:
            self.restore(tuple(self._before))

    def state(self) -> Any:
        return tuple(value.clone() for *_, value in self._current_buffers())

    @torch.no_grad()
    def restore(self, state: Any) -> None:
        for (owner, name, value), before in zip(self._current_buffers(), state, strict=True):
            setattr(owner, name, value.copy_(before))


def _add_loss_checks(loss: Loss) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """The loss of a batch, checked to be a real scalar with a gradient."""

    def evaluate(net: nn.Module, x: Any, y: Any, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        value: Any = loss(net(x), y)
        if not isinstance(value, Tensor):
            raise ValueError(
                f"loss must return a scalar tensor, got a {type(value).__name__}: remove .item()"
            )
        if value.is_complex():
            raise ValueError(f"loss must return a real number, got {value.dtype}: use .real or .abs()")
        if value.ndim:
            raise ValueError(
                f"loss must return one number per batch, its mean or sum, got shape {tuple(value.shape)}"
            )
        if not value.requires_grad:
            raise ValueError(
                "The loss has no gradient: compute it from the network's output, without .detach()."
            )
        return value, {}

    return evaluate


def _check_arguments(
    net: nn.Module, batches: Iterable[Any], optimiser: Optimizer, every: int, clip: float | None
) -> None:
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip must be above 0, got {clip}")
    if not isinstance(optimiser, Optimizer):
        raise TypeError(
            f"optimiser must be a torch.optim.Optimizer of the network, got a {type(optimiser).__name__}"
        )
    if isinstance(optimiser, LBFGS):
        raise ValueError("optimiser must not be LBFGS, which evaluates the loss several times per step")
    own = {id(value) for value in net.parameters()}
    if not any(id(value) in own for group in optimiser.param_groups for value in group["params"]):
        raise ValueError("optimiser holds none of the network's parameters")
    if isinstance(batches, Iterator):
        raise ValueError(
            "batches is an iterator, which can be read only once: pass a list, a DataLoader or another iterable"
        )


def _identify_run(
    trainer: Trainer[Any], observer: WeightObserver, scheduler: LRScheduler | None, batches: Iterable[Any]
) -> dict[str, Any]:
    """What identifies a training, for its checkpoint; learning rates as before the scheduler changed them."""
    groups = []
    for group in trainer.optimiser.param_groups:  # type: ignore[union-attr]
        own = {key: value for key, value in group.items() if isinstance(value, int | float | str)}
        own["lr"] = float(own.pop("initial_lr", group["lr"]))
        groups.append(own)
    return {
        "optimiser": type(trainer.optimiser).__name__,
        "groups": groups,
        "scheduler": type(scheduler).__name__,
        "methods": [repr(posterior.method) for posterior in observer.posteriors],
        "parameters": [posterior.layout.names for posterior in observer.posteriors],
        "shapes": [tuple(value.shape) for value in trainer.parameters],
        "batches": length_hint(batches, -1),
        "burn_in": observer.burn_in,
        "every": observer.every,
        "clip": trainer.plan.clip,
    }
