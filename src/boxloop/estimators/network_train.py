"""The training behind network estimators: by Adam to a minimum, then by SGD around it, where weights are observed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sklearn.base import BaseEstimator
from torch import Generator, Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from boxloop.estimators.network_members import groups_of
from boxloop.estimators.network_phase import Phase
from boxloop.estimators.network_rows import Rows
from boxloop.numeric import ConditionError
from boxloop.weights import Training, WeightPosterior

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
REVISED, AGREED = 3, 1.5
"""How often training goes on with the noise that was found in the end, and the factor up to which the noise that the
prior was weighed against was right."""


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
    """To a minimum and around it, until the noise that the prior is weighed against is that which is found."""
    noise = phase.linear_noise()
    adam = _adam(phase)
    losses: tuple[float, ...] = ()
    half = phase.first // 2
    for epochs, falling in ((half, False), (phase.first - half, True)):
        if epochs:
            done, decay = _descended(phase, adam, noise, epochs, falling)
            losses += phase.each(done)
            if done.interrupted:
                return _cut(phase, losses, decay)
            noise = phase.left(noise)
    found = collect_weights(phase, noise, losses)
    for _ in range(REVISED):
        if (
            found.interrupted
            or 1.0 / AGREED <= (new := phase.beside(found.posteriors, noise)) / noise <= AGREED
        ):
            break
        noise = new
        found = _revised(phase, found, noise)
    return found


def _adam(phase: Phase) -> Adam:
    net = phase.group.net
    return Adam(net.parameters(), lr=phase.estimator.learning_rate, fused=_is_fused(net))


def _is_fused(net: nn.Module) -> bool:
    """Whether an optimiser has one kernel for all its parameters."""
    return next(net.parameters()).device.type in ("cpu", "cuda")


def _descended(phase: Phase, adam: Adam, noise: float, epochs: int, falling: bool) -> tuple[Training, float]:
    """Some epochs of Adam at a constant rate, or at one that falls to nearly 0; and the weight decay."""
    decay = phase.set_decay(adam, noise)
    for group in adam.param_groups:
        group["lr"] = phase.estimator.learning_rate
    scheduler = LambdaLR(adam, _cosine(epochs)) if falling else None
    return phase.train(adam, epochs, "training", scheduler=scheduler), decay


def _revised(phase: Phase, before: Trained, noise: float) -> Trained:
    """Trained on, and followed again, with another noise; what was there before where that cannot be."""
    adam = _adam(phase)
    done, _ = _descended(phase, adam, noise, max(1, phase.first // 2), True)
    losses = before.losses + phase.each(done)
    if done.interrupted:
        said = "interrupted while the noise was looked at again: the weights are those collected before"
        return replace(before, losses=losses, interrupted=True, events=(*before.events, said))
    try:
        return collect_weights(phase, noise, losses)
    except FloatingPointError:
        said = (
            f"the weight decay is that of another noise: with {noise**0.5:.2g} of a standard deviation of y, which "
            "rows held out prefer, SGD runs away at every rate"
        )
        return replace(before, losses=losses, events=(*before.events, said))


def collect_weights(phase: Phase, noise: float, losses: tuple[float, ...]) -> Trained:
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
    sgd = _sgd(phase, start, noise, rate)
    try:
        done = phase.train(sgd, -(-PROBED // phase.per_epoch))
    except FloatingPointError:
        return False
    return done.interrupted or phase.each(done)[-1] <= most


def _sgd(phase: Phase, start: dict[str, Tensor], noise: float, rate: float) -> SGD:
    """SGD at the minimum."""
    net = phase.group.net
    net.load_state_dict(start)
    sgd = SGD(net.parameters(), lr=rate, momentum=phase.estimator.momentum, fused=_is_fused(net))
    phase.set_decay(sgd, noise)
    return sgd


def _observed(
    phase: Phase, start: dict[str, Tensor], noise: float, rate: float, losses: tuple[float, ...]
) -> Trained:
    """Posteriors of every member, from SGD at a rate."""
    posteriors = tuple(
        WeightPosterior(net, phase.estimator.method, phase.estimator.rank, random_state=own)
        for net, own in zip(phase.group.nets, phase.group.seeds, strict=True)
    )
    sgd = _sgd(phase, start, noise, rate)
    burn_in = int(SETTLING * phase.second)
    every = max(1, (phase.second - burn_in) * phase.per_epoch // GATHERED)
    done = phase.train(sgd, phase.second, "collecting", posteriors=posteriors, burn_in=burn_in, every=every)
    losses, decay = (*losses, *phase.each(done)), sgd.param_groups[0]["weight_decay"]
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
