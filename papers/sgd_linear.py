r"""Stochastic gradient descent of linear models, many trials at once; Brownlie (2021), chapter 6.

.. math:: \theta \leftarrow \theta - \eta \Big( \frac{2}{|B|} \sum_{n \in B} (\theta^\top x_n - y_n) x_n
          + \lambda \theta \Big)

The loss is the mean of squared errors and :math:`\lambda` the weight decay, as an optimiser takes it. Its fixed point
solves :math:`(X^\top X + \tfrac12 \lambda N I) \theta = X^\top y`, so the posterior mean under a prior of precision
:math:`\alpha` and noise of precision :math:`\beta` belongs to :math:`\lambda = 2 \alpha / (\beta N)`, not to the
:math:`\alpha / \beta` of the reference.

Below the descent: the synthetic problem of section 6.1, its exact posterior, and distances of iterates from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.figures import COLOURS, FAINT, INK
from boxloop.networks import RegressionMoments, linear_regression
from boxloop.numeric import generator, normal, wasserstein_distance

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Tables:
    """Rows of s trials, float64.

    Args:
        x: inputs, (s, n, d), zero where a trial has fewer rows than others.
        y: outputs, (s, n), zero likewise.
        count: rows of each trial.
    """

    x: Tensor
    y: Tensor
    count: tuple[int, ...]

    @classmethod
    def stack(cls, x: Tensor, y: Tensor) -> Tables:
        """Trials of equal length."""
        return cls(x, y, (x.shape[1],) * len(x))

    @classmethod
    def padded(cls, parts: Sequence[tuple[Tensor, Tensor]]) -> Tables:
        """Trials of unequal length."""
        pad = torch.nn.utils.rnn.pad_sequence
        x, y = (pad([part[i] for part in parts], batch_first=True) for i in (0, 1))
        return cls(x, y, tuple(len(part[0]) for part in parts))


@dataclass(frozen=True)
class Descent:
    """Settings of SGD.

    Args:
        rate: eta.
        decay: lambda.
        batch: rows of a step.
        epochs: passes over the rows.
        replacement: draw the rows of a step with replacement, instead of shuffling them in every epoch.
    """

    rate: float
    decay: float
    batch: int
    epochs: int
    replacement: bool = False


def descend(
    tables: Tables, start: Tensor, settings: Descent, streams: Sequence[Generator], keep_path: bool = True
) -> tuple[Tensor, Tensor]:
    """Run SGD on every trial from its start.

    Args:
        tables: rows.
        start: (s, d).
        settings: rates and sizes.
        streams: random numbers of each trial.
        keep_path: whether to return the iterate after every step.

    Returns:
        The last iterates (s, d), and all of them in order, (s, steps, d), or none, (s, 0, d).
    """
    weights, n, path = start, tables.x.shape[1], []
    count = torch.tensor(tables.count)
    for _ in range(settings.epochs):
        order = torch.stack(
            [
                _order_rows(size, n, settings.replacement, s)
                for size, s in zip(tables.count, streams, strict=True)
            ]
        )
        y = tables.y.gather(1, order)
        x = tables.x.gather(1, order[..., None].expand_as(tables.x))
        for first in range(0, n, settings.batch):
            x_batch = x[:, first : first + settings.batch]
            batch_size = (count - first).clamp(1, x_batch.shape[1]).to(x)[:, None]
            gap = torch.baddbmm(-y[:, first : first + settings.batch, None], x_batch, weights[..., None])
            slope = (x_batch.mT @ gap)[..., 0] * (2.0 / batch_size)
            weights = weights - settings.rate * (slope + settings.decay * weights)
            if keep_path:
                path.append(weights)
    return weights, torch.stack(path, 1) if path else start[:, None][:, :0]


def _order_rows(size: int, n: int, replacement: bool, stream: Generator) -> Tensor:
    """Rows of one trial in the order of their use, padding last."""
    if replacement:
        order = torch.randint(size, (size,), generator=stream)
    else:
        order = torch.randperm(size, generator=stream)
    return order if size == n else torch.cat([order, torch.arange(size, n)])


def covariances(path: Tensor) -> Tensor:
    """Covariances of the iterates of each trial, (s, steps, d) -> (s, d, d)."""
    away = path - path.mean(1, keepdim=True)
    return away.mT @ away / (path.shape[1] - 1)


ROWS, ALPHA, BETA = 1000, 0.01, 0.1

COVER = ((1.0, 0.5), (0.5, 1.0))

PRETRAINING = Descent(0.001, 0.0, 100, 500)
"""Without weight decay; with any of those tried, the paper's numbers are not reproduced."""

PRIOR_DECAY = 2.0 * ALPHA / (BETA * ROWS)
"""The weight decay whose fixed point is the posterior mean, for a mean of squared errors."""

GROUPS = 20_000
"""Sets of ten trials that the paper's are compared with."""

LEVELS = (1.0, 2.0, 3.0)
"""Contours, in standard deviations."""

MANY = 400
"""Number of iterates from which they are drawn faintly, as they cover one another."""


@dataclass(frozen=True)
class Problem:
    """Many trials: rows, exact posteriors and pre-trained weights.

    Args:
        tables: rows.
        mean: of the posterior, (s, 2).
        covariance: of the posterior, (s, 2, 2).
        start: weights after pre-training, (s, 2).
        streams: random numbers of each trial.
    """

    tables: Tables
    mean: Tensor
    covariance: Tensor
    start: Tensor
    streams: list[Generator]


def draw_problem(trials: int, seed: int) -> Problem:
    """Inputs, weights from their prior, outputs, then 500 epochs of pre-training; one seed per trial."""
    streams = [generator(seed + s) for s in range(trials)]
    half = torch.linalg.cholesky(torch.tensor(COVER, dtype=torch.float64))
    x = torch.stack([normal((ROWS, 2), s) @ half.mT for s in streams])
    theta = torch.stack([normal((2,), s) for s in streams]) * ALPHA**-0.5
    noise = torch.stack([normal((ROWS,), s) for s in streams]) * BETA**-0.5
    y = (x @ theta[..., None])[..., 0] + noise
    exact = [
        linear_regression(RegressionMoments.from_rows(a, b[:, None]), ALPHA, BETA)[0] for a, b in zip(x, y)
    ]
    unit = torch.stack([torch.rand(2, generator=s, dtype=torch.float64) for s in streams])
    first = (2.0 * unit - 1.0) * 2.0**-0.5  # the start of torch.nn.Linear
    tables = Tables.stack(x, y)
    start, _ = descend(tables, first, PRETRAINING, streams, keep_path=False)
    mean = torch.stack([posterior.mean[0] for posterior in exact])
    return Problem(tables, mean, torch.stack([posterior.covariance() for posterior in exact]), start, streams)


@dataclass(frozen=True)
class Distances:
    """From the iterates of each trial to its posterior, each (s,).

    Args:
        mean: relative error of the mean.
        covariance: relative error of the covariance.
        wasserstein: 2-Wasserstein distance.
        size: trace of the covariance over that of the posterior.
        turn: angle between the longest axes, in degrees.
    """

    mean: Array
    covariance: Array
    wasserstein: Array
    size: Array
    turn: Array


def measure_distances(problem: Problem, path: Tensor) -> Distances:
    """Of the iterates of every trial, (s, t, 2)."""
    mean, covariance = path.mean(1), covariances(path)
    truth = problem.covariance
    size = covariance.diagonal(dim1=1, dim2=2).sum(1) / truth.diagonal(dim1=1, dim2=2).sum(1)
    axes = [torch.linalg.eigh(matrix)[1][..., -1] for matrix in (covariance, truth)]
    turn = (axes[0] * axes[1]).sum(1).abs().clamp(max=1.0).acos().rad2deg()
    wasserstein_distances = [
        wasserstein_distance(a, b, m, n)
        for a, b, m, n in zip(covariance, truth, mean, problem.mean, strict=True)
    ]
    return Distances(
        _relative_error(mean, problem.mean),
        _relative_error(covariance, truth),
        np.asarray(wasserstein_distances),
        size.numpy(),
        turn.numpy(),
    )


def _relative_error(estimate: Tensor, truth: Tensor) -> Array:
    error: Array = ((estimate - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).numpy()
    return error


def resample_means(values: Array, seed: int = 0) -> Array:
    """Means over ten trials resampled from ours, as in a table of ten trials."""
    rng = np.random.default_rng(seed)
    return np.asarray(values[rng.integers(len(values), size=(GROUPS, 10))].mean(1))


def draw_cloud(axes: Any, path: Tensor, mean: Tensor, covariance: Tensor, start: Tensor) -> None:
    """Iterates, their mean and the pre-trained weights, over contours of the posterior."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    half = torch.linalg.cholesky(covariance).numpy()
    at = mean.numpy()[:, None]
    for level in LEVELS:
        ring = at + level * half @ circle
        label = "posterior: 1, 2, 3 deviations" if level == LEVELS[0] else None
        axes.plot(*ring, color=COLOURS[0], lw=1.3, label=label, zorder=2)
    size, alpha = (5, 0.35) if len(path) > MANY else (14, 0.7)
    axes.scatter(
        *path.numpy().T, s=size, color=COLOURS[1], alpha=alpha, linewidths=0, label="vectors", zorder=1
    )
    axes.plot(
        *mean.numpy(), "P", color=COLOURS[0], markersize=8, label="posterior mean", mec="white", zorder=4
    )
    axes.plot(*start.numpy(), "o", color="white", mec=FAINT, markersize=7, label="pre-trained", zorder=4)
    axes.plot(
        *path.mean(0).numpy(),
        "*",
        color=INK,
        markersize=11,
        label="mean of the vectors",
        mec="white",
        zorder=5,
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.locator_params(nbins=5)
