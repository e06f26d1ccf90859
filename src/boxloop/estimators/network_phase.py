"""What every phase of a network estimator's training has: batches, a loss, the weight decay that the prior asks for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer

from boxloop.estimators.network_members import Group
from boxloop.estimators.network_rows import Rows
from boxloop.weights import (
    Kind,
    Loss,
    MultiPosterior,
    Predictor,
    RegressionMoments,
    ShuffledRows,
    Training,
    WeightPosterior,
    WeightWarning,
    has_batch_norm,
    linear_regression,
    summed,
    train,
    weight_decay,
    weighted,
)

STEPS, FEWEST, MOST = 2000, 10, 500
"""Of training where epochs are not given: about so many steps, in no fewer and no more epochs than these."""
AT_FIRST = 0.05
"""Share of what a linear function leaves that is taken for noise at first. All of it would be a decay that keeps the
network linear, whose errors then confirm the guess."""
LEAST_NOISE = 1e-6
"""Smallest variance of noise that the prior is weighed against, in units of the variance of y."""


@dataclass(frozen=True)
class Phase:
    """The training of one group of members.

    Args:
        estimator: a ``NetworkRegressor`` or ``NetworkClassifier``.
        rows: in standard units.
        group: the members.
    """

    estimator: BaseEstimator
    rows: Rows
    group: Group

    @property
    def size(self) -> int:
        """Rows of a batch, at most."""
        return int(self.estimator.batch_size or max(16, min(128, len(self.rows.x) // 12)))

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.rows.x) // self.size)

    @property
    def first(self) -> int:
        """Epochs of training."""
        return int(self.estimator.epochs or max(FEWEST, min(MOST, -(-STEPS // self.per_epoch))))

    @property
    def second(self) -> int:
        """Epochs of collecting."""
        return int(self.estimator.collect or max(FEWEST, self.first // 2))

    def train(self, optimiser: Optimizer, epochs: int, name: str = "", **more: Any) -> Training:
        """Some epochs; with a progress bar where they have a name, and one is asked for."""
        bar = f"{type(self.estimator).__name__}: {name}" if self.estimator.verbose and name else ""
        return train(self.group.net, self.batches(), self.loss(), optimiser, epochs=epochs, bar=bar, **more)

    def loss(self) -> Loss:
        """Of all members together."""
        plain: Loss = cross_entropy if self.rows.classified else mse_loss
        if self.rows.weight is not None:
            each = _row_entropy if self.rows.classified else _row_square
            plain = weighted(each, float(self.rows.weight.mean()))
        return plain if self.group.alone else summed(plain, len(self.group.nets))

    def each(self, done: Training) -> tuple[float, ...]:
        """Losses of a member; the loss of several is the sum."""
        return tuple(value / len(self.group.nets) for value in done.losses)

    def batches(self) -> ShuffledRows:
        """Of every member."""
        rows, group = self.rows, self.group
        return ShuffledRows(rows.x, rows.y, self.size, group.streams, group.alone, rows.weight)

    def set_decay(self, optimiser: Optimizer, noise: float) -> float:
        """The decay that the prior asks for, where observations have this variance of noise."""
        alpha, n = self.estimator.prior_precision, self.rows.count
        if self.rows.classified:
            decay = weight_decay(alpha, n, "mean_log")
        else:
            decay = weight_decay(alpha, n, "mean_squared", 1.0 / noise, self.rows.outputs)
        for group in optimiser.param_groups:
            group["weight_decay"] = decay
        return decay

    def linear_noise(self) -> float:
        """A first guess: a part of what the best linear function leaves."""
        if self.rows.classified:
            return 1.0
        x, y = self.rows.x.double(), self.rows.y.double()
        found, _ = linear_regression(RegressionMoments.of(x, y, self.rows.weight))
        return _variance(AT_FIRST * torch.as_tensor(found.beta).reciprocal())

    def left(self, before: float) -> float:
        """What the networks leave of rows held out, or else of those that they learn from."""
        if self.rows.classified:
            return before
        x, y, weight = self.rows.x, self.rows.y, self.rows.weight
        if self.rows.held_x is not None and self.rows.held_y is not None:
            x, y, weight = self.rows.held_x, self.rows.held_y, self.rows.held_weight
        with self._at_rest() as net, torch.no_grad():
            square = (net(x) - y).square()
            return _variance(square if weight is None else square * (weight / weight.mean())[:, None])

    def beside(self, posteriors: Sequence[WeightPosterior], before: float) -> float:
        """The noise that rows held out find beside the spread of the weights."""
        if self.rows.classified or self.rows.held_x is None:
            return before
        mixture = MultiPosterior(posteriors)
        mixture.parts()  # which tells what is wrong with them once
        with self._at_rest(), warnings.catch_warnings():
            warnings.simplefilter("ignore", WeightWarning)  # of a tuning that may not be the last
            found = tuned(self.estimator, mixture, self.rows, self.group.seeds[0])
        return _variance(torch.as_tensor(found.noise).square())

    @contextmanager
    def _at_rest(self) -> Iterator[nn.Module]:
        """The networks as they predict."""
        net = self.group.net
        training = net.training
        try:
            yield net.eval()
        finally:
            net.train(training)


def tuned(estimator: BaseEstimator, posterior: MultiPosterior, rows: Rows, own: int) -> Predictor:
    """Draws from a posterior, with scale, and noise or temperature, as rows held out prefer.

    Args:
        estimator: with ``n_draws``.
        posterior: in standard units.
        rows: of the fit.
        own: seed of the draws.
    """
    kind: Kind = "classification" if rows.classified else "regression"
    refresh = rows.x if has_batch_norm(posterior.parts()) else None
    made = Predictor.of(posterior, kind, estimator.n_draws, refresh=refresh, random_state=own)
    if rows.held_x is not None and rows.held_y is not None:
        return made.tuned(rows.held_x, rows.held_y, sample_weight=rows.held_weight)
    return made if rows.classified else made.with_noise(rows.x, rows.y, rows.weight)


def _row_square(out: Tensor, y: Tensor) -> Tensor:
    return mse_loss(out, y, reduction="none").mean(-1)


def _row_entropy(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out, y, reduction="none")


def _variance(values: Tensor) -> float:
    return min(max(float(values.double().mean()), LEAST_NOISE), 1.0)
