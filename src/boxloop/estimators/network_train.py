"""The training behind network estimators: by Adam to a minimum, then by SGD around it, where weights are observed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sklearn.base import BaseEstimator
from torch import Generator, Tensor
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from boxloop.estimators.network_members import groups_of
from boxloop.estimators.network_phase import Phase
from boxloop.estimators.network_rows import Rows
from boxloop.numeric.linalg import ConditionError
from boxloop.weights.fitting_state import Live
from boxloop.weights.posterior import WeightPosterior

GATHERED = 500
"""Vectors of weights that are observed, about."""
FASTEST, HALVINGS, PROBED = 0.1, 10, 100
"""Of SGD where its rate is not given: the first tried, how many are, each half of the last, and steps of a try."""
EXCESS = 1.25
"""How much the loss may rise while weights are collected, as a factor: by a quarter, as that of draws from a posterior
does that determines one weight for every four rows."""
DRIFT = 1.5
"""The same, over all of the collecting: SGD may leave slowly."""
SETTLING = 0.1
"""Share of the collecting that is not observed, while SGD leaves the minimum."""


@dataclass(frozen=True)
class Trained:
    """What a training gives.

    Args:
        posteriors: one for each member.
        losses: of the training and of the collecting, the mean over members, an epoch.
        rate: of collecting.
        decay: of the weights, at the end.
        interrupted: whether Ctrl-C ended it.
        events: what is worth knowing.
    """

    posteriors: tuple[WeightPosterior, ...]
    losses: tuple[float, ...]
    rate: float
    decay: float
    interrupted: bool
    events: tuple[str, ...]


def train_networks(estimator: BaseEstimator, rows: Rows, stream: Generator) -> tuple[Trained, ...]:
    """Train the members of an estimator, and follow each; one result for those that are trained together.

    Args:
        estimator: a ``NetworkRegressor`` or ``NetworkClassifier``.
        rows: in standard units.
        stream: of all randomness.
    """
    found: list[Trained] = []
    for group in groups_of(estimator, rows, stream):
        found.append(_trained(Phase(estimator, rows, group)))
        if found[-1].interrupted:
            break
    return tuple(found)


def _trained(phase: Phase) -> Trained:
    """To a minimum, where the noise that the prior is weighed against is looked at again half way."""
    noise, net = phase.linear_noise(), phase.group.net
    losses: tuple[float, ...] = ()
    adam = Adam(net.parameters(), lr=phase.estimator.learning_rate)
    half = phase.first // 2
    for epochs, rate in ((half, None), (phase.first - half, _cosine)):
        if epochs:
            decay = phase.set_decay(adam, noise)
            scheduler = None if rate is None else LambdaLR(adam, rate(epochs))
            done = phase.train(Live(net, (), adam, scheduler, phase.batches()), epochs, "training")
            losses += phase.each(done)
            if done.interrupted:
                return _cut(phase, losses, decay)
            noise = phase.left(noise)
    return _collected(phase, noise, losses)


def _collected(phase: Phase, noise: float, losses: tuple[float, ...]) -> Trained:
    """SGD around the minimum, at the highest rate at which it stays near."""
    start = {name: value.clone() for name, value in phase.group.net.state_dict().items()}
    given = phase.estimator.collect_rate
    rates = [given] if given else [FASTEST / 2**halved for halved in range(HALVINGS)]
    for rate in rates:
        if not given and not _near(phase, start, noise, rate, EXCESS * losses[-1]):
            continue
        try:
            found = _observed(phase, start, noise, rate, losses)
        except (FloatingPointError, ConditionError):
            if given:
                raise
            continue
        after = found.losses[len(losses) :]
        if given or found.interrupted or sum(after) <= len(after) * DRIFT * losses[-1]:
            return found
    raise FloatingPointError(
        f"SGD runs away from the minimum even at a rate of {rates[-1]:.2g}: look for rows far from all others, or give "
        "collect_rate= yourself"
    )


def _near(phase: Phase, start: dict[str, Tensor], noise: float, rate: float, most: float) -> bool:
    """Whether the loss stays below some value for a while."""
    live = _live(phase, start, noise, rate, ())
    try:
        done = phase.train(live, -(-PROBED // phase.per_epoch))
    except FloatingPointError:
        return False
    return done.interrupted or phase.each(done)[-1] <= most


def _live(
    phase: Phase, start: dict[str, Tensor], noise: float, rate: float, posteriors: tuple[WeightPosterior, ...]
) -> Live:
    """SGD at the minimum."""
    net = phase.group.net
    net.load_state_dict(start)
    sgd = SGD(net.parameters(), lr=rate, momentum=phase.estimator.momentum)
    phase.set_decay(sgd, noise)
    return Live(net, posteriors, sgd, None, phase.batches())


def _observed(
    phase: Phase, start: dict[str, Tensor], noise: float, rate: float, losses: tuple[float, ...]
) -> Trained:
    """Posteriors of every member, from SGD at a rate."""
    posteriors = tuple(
        WeightPosterior(net, phase.estimator.method, phase.estimator.rank, random_state=own)
        for net, own in zip(phase.group.nets, phase.group.seeds, strict=True)
    )
    live = _live(phase, start, noise, rate, posteriors)
    burn_in = int(SETTLING * phase.second)
    every = max(1, (phase.second - burn_in) * phase.per_epoch // GATHERED)
    done = phase.train(live, phase.second, "collecting", burn_in, every)
    losses, decay = (*losses, *phase.each(done)), live.optimiser.param_groups[0]["weight_decay"]
    if done.interrupted and min(one.count for one in posteriors) < posteriors[0].method.least:
        return _cut(phase, losses, decay)
    said = f"interrupted while weights were collected, after {min(one.count for one in posteriors)} vectors"
    events = (said,) if done.interrupted else done.events
    return Trained(posteriors, losses, rate, decay, done.interrupted, events)


def _cut(phase: Phase, losses: tuple[float, ...], decay: float) -> Trained:
    """What Ctrl-C leaves before weights were collected: the networks as they are."""
    points = tuple(WeightPosterior(net, "swa", random_state=0) for net in phase.group.nets)
    for point in points:
        point.observe()
    said = "interrupted before weights were collected: the networks are as they were then, without spread"
    return Trained(points, losses, math.nan, decay, True, (said,))


def _cosine(epochs: int) -> Callable[[int], float]:
    """From 1 to nearly 0 over so many epochs."""
    return lambda epoch: 0.5 * (1.0 + math.cos(math.pi * epoch / (epochs + 1)))
