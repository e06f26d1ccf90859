r"""Stochastic gradient descent of linear models, many trials at once (document 004, chapter 6).

.. math:: \theta \leftarrow \theta - \eta \Big( \frac{2}{|B|} \sum_{n \in B} (\theta^\top x_n - y_n) x_n
          + \lambda \theta \Big)

The loss is the mean of squared errors and :math:`\lambda` the weight decay, as an optimiser takes it. Its fixed point
solves :math:`(X^\top X + \tfrac12 \lambda N I) \theta = X^\top y`, so the posterior mean under a prior of precision
:math:`\alpha` and noise of precision :math:`\beta` belongs to :math:`\lambda = 2 \alpha / (\beta N)`, not to the
document's :math:`\alpha / \beta`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Tables:
    """Rows of s trials side by side, float64.

    Args:
        x: inputs, (s, n, d), zero where a trial has fewer rows than others.
        y: outputs, (s, n), zero likewise.
        count: rows of each trial.
    """

    x: Tensor
    y: Tensor
    count: tuple[int, ...]

    @classmethod
    def whole(cls, x: Tensor, y: Tensor) -> Tables:
        """Trials of as many rows each."""
        return cls(x, y, (x.shape[1],) * len(x))

    @classmethod
    def padded(cls, parts: Sequence[tuple[Tensor, Tensor]]) -> Tables:
        """Trials of unequal lengths."""
        pad = torch.nn.utils.rnn.pad_sequence
        x, y = (pad([part[i] for part in parts], batch_first=True) for i in (0, 1))
        return cls(x, y, tuple(len(part[0]) for part in parts))


@dataclass(frozen=True)
class Descent:
    """How to go down.

    Args:
        rate: eta.
        decay: lambda.
        batch: rows of a step.
        epochs: as many steps as pass over the rows so often.
        replacement: draw every row of a step anew, instead of shuffling the rows in every epoch.
    """

    rate: float
    decay: float
    batch: int
    epochs: int
    replacement: bool = False


def descend(
    tables: Tables, start: Tensor, how: Descent, streams: Sequence[Generator], keep: bool = True
) -> tuple[Tensor, Tensor]:
    """Every trial from its start.

    Args:
        tables: rows.
        start: (s, d).
        how: rates and sizes.
        streams: random numbers of each trial.
        keep: whether the vector after every step is wanted.

    Returns:
        The last vectors (s, d), and all of them in order, (s, steps, d), or none, (s, 0, d).
    """
    weights, n, path = start, tables.x.shape[1], []
    count = torch.tensor(tables.count)
    for _ in range(how.epochs):
        order = torch.stack(
            [_order(size, n, how.replacement, s) for size, s in zip(tables.count, streams, strict=True)]
        )
        y = tables.y.gather(1, order)
        x = tables.x.gather(1, order[..., None].expand_as(tables.x))
        for first in range(0, n, how.batch):
            some = x[:, first : first + how.batch]
            there = (count - first).clamp(1, some.shape[1]).to(x)[:, None]
            gap = torch.baddbmm(-y[:, first : first + how.batch, None], some, weights[..., None])
            slope = (some.mT @ gap)[..., 0] * (2.0 / there)
            weights = weights - how.rate * (slope + how.decay * weights)
            if keep:
                path.append(weights)
    return weights, torch.stack(path, 1) if path else start[:, None][:, :0]


def _order(size: int, n: int, replacement: bool, stream: Generator) -> Tensor:
    """Rows of one trial in the order of their use, those that are not there last."""
    if replacement:
        found = torch.randint(size, (size,), generator=stream)
    else:
        found = torch.randperm(size, generator=stream)
    return found if size == n else torch.cat([found, torch.arange(size, n)])


def covariances(path: Tensor) -> Tensor:
    """Of the vectors of each trial, (s, steps, d) -> (s, d, d)."""
    away = path - path.mean(1, keepdim=True)
    return away.mT @ away / (path.shape[1] - 1)
