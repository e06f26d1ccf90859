"""Training that a posterior follows, for those who have no loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import length_hint
from os import PathLike
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from boxloop.loop import Outcome, Progress, run
from boxloop.numeric import single_threaded
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.progress import ProgressBar
from boxloop.weights.constraints import CLASSES
from boxloop.weights.fitting_epoch import Epoch, Loss
from boxloop.weights.fitting_state import FitState, Live, Row, Table
from boxloop.weights.method import warn
from boxloop.weights.posterior import WeightPosterior

STATES: dict[str, type] = {**CLASSES, **{kind.__name__: kind for kind in (FitState, Table, Row)}}
"""What a checkpoint may name."""


@dataclass(frozen=True)
class Training:
    """How a training went.

    Args:
        losses: the mean over each epoch, of the steps that were taken.
        skipped: steps that were not taken, as the loss or its gradient was not finite.
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
    meanwhile, and then in whatever mode it was before. A step whose loss or gradient is not finite is not taken, and
    leaves statistics of BatchNorm as they were; where weights would have been observed after it, they are refused.

    A checkpoint holds network, optimiser, scheduler and posterior, after whole epochs. A run that goes on from it is
    the one that was never stopped, bit for bit, if its batches are the same: a list, or a ``DataLoader`` with a
    ``generator`` of its own, whose state is kept too. Dropout draws from torch's global state, which is not.

    Args:
        posterior: whose ``net`` is trained, where it stands.
        batches: pairs (x, y), to be passed over once an epoch, such as a ``DataLoader``; tensors, or tuples, lists and
            dictionaries of them, on any device.
        loss: of what the network says of x, and y: one number, such as ``torch.nn.functional.mse_loss``.
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
        FloatingPointError: ten steps in a row could not be taken.
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
    _check(batches, epochs, burn_in, every)
    live = Live(posterior.net, (posterior,), optimiser, scheduler, batches)
    return train(
        Epoch(live, loss, burn_in, every, clip), epochs=epochs, verbose=verbose, checkpoint=checkpoint
    )


def _check(batches: Iterable[Any], epochs: int, burn_in: int, every: int) -> None:
    """Numbers of epochs and steps, before any is taken."""
    given: dict[str, Any] = {"epochs": epochs, "burn_in": burn_in, "every": every}
    for name, value in given.items():
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


def train(
    epoch: Epoch,
    *,
    epochs: int,
    name: str = "training",
    verbose: bool = False,
    checkpoint: str | PathLike[str] | None = None,
) -> Training:
    """Several epochs, with a progress bar and a checkpoint where they are asked for.

    Args:
        epoch: one of them.
        epochs: how many.
        name: of the progress bar.
        verbose: whether to show it.
        checkpoint: file to save progress in and to go on from.
    """
    live = epoch.live
    observers: list[Any] = (
        [ProgressBar(show=True).stage(name, describe=_told(live.posteriors))] if verbose else []
    )
    resume: Outcome[FitState] | None = None
    if checkpoint is not None:
        known = epoch.known()
        observers.append(CheckpointWriter(checkpoint, known, seconds=10.0))
        if Path(checkpoint).exists():
            resume = read_checkpoint(checkpoint, STATES, known)
            live.restore(resume.state)
    modes = [(module, module.training) for module in live.net.modules()]
    live.net.train()
    try:
        outcome = run(epoch, live.taken(), max_iter=epochs, observers=observers, resume=resume)
    finally:
        for module, mode in modes:
            module.training = mode
    if outcome.interrupted:
        live.restore(outcome.state)
        warn(f"interrupted: everything is as after epoch {outcome.n_iter} of {epochs}")
    losses = tuple(-value for value in outcome.trace)
    return Training(losses, outcome.state.skipped, outcome.interrupted, tuple(outcome.events))


def _told(posteriors: Sequence[WeightPosterior]) -> Callable[[Progress[FitState]], str]:
    def told(progress: Progress[FitState]) -> str:
        seen = sum(posterior.count for posterior in posteriors)
        return f"loss {-progress.trace[-1]:.4g}, {seen} vectors observed" if progress.trace else ""

    return told
