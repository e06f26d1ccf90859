"""The synthetic problem of document 004, section 6.1, its exact posterior, and how far vectors of SGD are from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.numeric import generator, normal, wasserstein
from boxloop.weights import RegressionMoments, linear_regression
from papers.sgd_linear import Descent, Tables, covariances, descend

Array = NDArray[np.float64]

ROWS, ALPHA, BETA = 1000, 0.01, 0.1
COVER = ((1.0, 0.5), (0.5, 1.0))
PRETRAINING = Descent(0.001, 0.0, 100, 500)
"""Without weight decay; with any of those tried, the document's numbers do not come out."""
EPOCHS = 100
RIGHT = 2.0 * ALPHA / (BETA * ROWS)
"""The weight decay whose fixed point is the posterior mean, for a mean of squared errors."""
GROUPS = 20_000
"""Sets of ten trials that the document's are compared with."""


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


def drawn(trials: int, seed: int) -> Problem:
    """Inputs, weights from their prior, outputs, then 500 epochs of pre-training; one seed a trial."""
    streams = [generator(seed + s) for s in range(trials)]
    half = torch.linalg.cholesky(torch.tensor(COVER, dtype=torch.float64))
    x = torch.stack([normal((ROWS, 2), s) @ half.mT for s in streams])
    theta = torch.stack([normal((2,), s) for s in streams]) * ALPHA**-0.5
    noise = torch.stack([normal((ROWS,), s) for s in streams]) * BETA**-0.5
    y = (x @ theta[..., None])[..., 0] + noise
    exact = [linear_regression(RegressionMoments.of(a, b[:, None]), ALPHA, BETA)[0] for a, b in zip(x, y)]
    unit = torch.stack([torch.rand(2, generator=s, dtype=torch.float64) for s in streams])
    first = (2.0 * unit - 1.0) * 2.0**-0.5  # what torch.nn.Linear starts from
    tables = Tables.whole(x, y)
    start, _ = descend(tables, first, PRETRAINING, streams, keep=False)
    mean = torch.stack([found.mean[0] for found in exact])
    return Problem(tables, mean, torch.stack([found.covariance() for found in exact]), start, streams)


@dataclass(frozen=True)
class Distances:
    """From the vectors of each trial to its posterior, each (s,).

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


def distances(problem: Problem, path: Tensor) -> Distances:
    """Of the vectors of every trial, (s, t, 2)."""
    middle, cover = path.mean(1), covariances(path)
    truth = problem.covariance
    size = cover.diagonal(dim1=1, dim2=2).sum(1) / truth.diagonal(dim1=1, dim2=2).sum(1)
    axes = [torch.linalg.eigh(matrix)[1][..., -1] for matrix in (cover, truth)]
    turn = (axes[0] * axes[1]).sum(1).abs().clamp(max=1.0).acos().rad2deg()
    apart = [wasserstein(a, b, m, n) for a, b, m, n in zip(cover, truth, middle, problem.mean, strict=True)]
    return Distances(
        _relative(middle, problem.mean),
        _relative(cover, truth),
        np.asarray(apart),
        size.numpy(),
        turn.numpy(),
    )


def _relative(found: Tensor, truth: Tensor) -> Array:
    error: Array = ((found - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).numpy()
    return error


def collected(problem: Problem, rate: float, decay: float) -> Tensor:
    """The vectors of 100 further epochs, (s, 1000, 2)."""
    return descend(problem.tables, problem.start, Descent(rate, decay, 100, EPOCHS), problem.streams)[1]


def means_of_ten(values: Array, seed: int = 0) -> Array:
    """Means over ten trials drawn anew from ours: what a table of ten trials might say."""
    rng = np.random.default_rng(seed)
    return np.asarray(values[rng.integers(len(values), size=(GROUPS, 10))].mean(1))


def chance(values: Array, printed: float, digits: float = 5e-5) -> float:
    """How often ten of our trials have a mean as far out as a printed one, to either side, rounding allowed for."""
    means = means_of_ten(values)
    low, high = (means <= printed + digits).mean(), (means >= printed - digits).mean()
    return float(min(1.0, 2.0 * min(low, high)))
