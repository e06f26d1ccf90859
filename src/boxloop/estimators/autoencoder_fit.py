"""What an autoencoder's estimator does with its rows: a start, a loss, rows held out, and the weight of the penalty.

Training is in ``estimate``, moment gaps are in ``criticise``; this is where they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.criticise import MomentPenalty
from boxloop.data import ArraySource, Standardisation
from boxloop.fit import SINGLE_PROCESS, Workers, resample_rows
from boxloop.models import Autoencoder
from boxloop.numeric import generator, join_words
from boxloop.select import Array, GroupedSums, gaps_to_best

ALPHAS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Weights of the moment penalty that are tried on validation rows."""

TILE = 1 << 12
"""Rows whose bound is computed at once where nothing is learned."""

VALIDATION_DRAWS = 16
"""Draws of z behind the bound of a row held out, where the training has no more: the rows are few, and no gradient is
needed."""


@dataclass(frozen=True)
class BoundLoss:
    r"""Minus the evidence lower bound of a batch, the mean over its rows.

    .. math:: -\frac1n \sum_i w_i \left( E_q \log p(x_i \mid z) - \beta \, \mathrm{KL}_i \right)

    Args:
        beta: weight of the divergence in what is lowered; the reported bound has weight 1.
        draws: M, of z for a row.
        unit: mean weight of a row, by which weights are divided.
        level: log-density of the data less that of the rows seen here: minus the logs of the scales.
        workers: the processes that share the rows of a batch, each with its part of the noise of all.
    """

    beta: float = 1.0
    draws: int = 1
    unit: float = 1.0
    level: float = 0.0
    workers: Workers = SINGLE_PROCESS

    def __call__(
        self, model: Autoencoder, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its parts."""
        mine, count = self.workers.local_rows(len(rows))
        noise = model.noise((self.draws, len(rows)), stream)
        bound = model.standard_bound(rows[mine], noise[:, mine])
        share = (weight[mine] / (self.unit * count)).to(bound.divergence)
        fit, far = (bound.reconstruction + self.level) @ share, bound.divergence @ share
        return self.beta * far - fit, {"elbo": fit - far, "reconstruction": fit, "divergence": far}


def moment_gap(nodes: int, device: torch.device) -> MomentPenalty:
    """The gap of document 000, eq. 18, by Sobol nodes; by plain draws on a GPU, which those would keep waiting."""
    return MomentPenalty(1.0, nodes, "sobol" if device.type == "cpu" else "monte_carlo")


@dataclass(frozen=True)
class HeldOut:
    """Validation of a model: the bound and the moment gap on rows held out.

    Args:
        rows: standardised, in memory.
        loss: of rows.
        gap: of all of them at once.
        by_weight: whether the gap is of rows drawn by their weights.
        alpha: weight of the gap in what is to be low.
    """

    rows: ArraySource
    loss: BoundLoss
    gap: MomentPenalty
    by_weight: bool = False
    alpha: float = 0.0

    def __call__(self, model: Autoencoder, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and its parts with the gap."""
        assert self.rows.weight is not None
        unit = float(self.rows.weight.mean())
        draws = max(self.loss.draws, VALIDATION_DRAWS)
        loss = replace(self.loss, unit=unit if unit > 0.0 else 1.0, draws=draws)
        total, parts = self.rows.rows.new_zeros(()), dict[str, Tensor]()
        for rows, weight in self.rows.chunks(TILE):
            value, some = loss(model, rows, weight, stream)
            share = len(rows) / self.rows.n_rows
            total = total + share * value
            parts = {name: share * part + parts.get(name, 0.0) for name, part in some.items()}
        parts["gap"] = self._gap(model, stream)
        return total + (self.alpha * parts["gap"] if self.alpha else 0.0), parts

    def each(self, model: Autoencoder, seed: int) -> Array:
        """The bound of every row, from the same draws for every model, (n,)."""
        stream = generator(seed, self.rows.rows.device)
        with torch.no_grad():
            found = [
                model.bound(rows, stream, VALIDATION_DRAWS).value() for rows, _ in self.rows.chunks(TILE)
            ]
        return np.asarray(torch.cat(found).double().cpu().numpy()) + self.loss.level

    def gap_of(self, model: Autoencoder, seed: int) -> float:
        """The gap, from the same nodes for every model."""
        with torch.no_grad():
            return float(self._gap(model, generator(seed, self.rows.rows.device)))

    def _gap(self, model: Autoencoder, stream: Generator) -> Tensor:
        rows = self.rows.rows
        if self.by_weight and self.rows.weight is not None:
            rows = resample_rows(rows, self.rows.weight, stream)
        return self.gap.gap(model, rows, stream)


def chosen(
    alphas: Sequence[float], bounds: Sequence[Array], gaps: Sequence[float], weight: Any
) -> tuple[int, dict[str, list[float]]]:
    """Which weight of the penalty to keep, and the table by which it was chosen.

    The rule: among the weights whose mean bound is behind the best one's by no more than one standard error of that
    paired difference, the one with the smallest moment gap; of equals the smallest weight.

    Args:
        alphas: the weights.
        bounds: bound of every validation row under each, (n,).
        gaps: moment gap of validation rows under each.
        weight: of the rows, (n,).
    """
    values = [GroupedSums.of(rows, np.arange(len(rows)), len(rows), np.asarray(weight)) for rows in bounds]
    means = [rows.mean_error() for rows in values]
    usable = [
        mean if np.isfinite(mean) and np.isfinite(gap) else -np.inf for (mean, _), gap in zip(means, gaps)
    ]
    best = int(np.argmax(usable))
    lag, error = gaps_to_best(values, best)
    near = [j for j in range(len(alphas)) if np.isfinite(usable[j]) and lag[j] <= np.nan_to_num(error[j])]
    pick = min(near or [best], key=lambda j: (gaps[j], alphas[j]))
    table = {
        "alpha": list(alphas),
        "elbo": [mean for mean, _ in means],
        "elbo_error": [error for _, error in means],
        "behind": lag.tolist(),
        "behind_error": error.tolist(),
        "gap": list(gaps),
        "chosen": [float(j == pick) for j in range(len(alphas))],
    }
    return pick, table


def level_of(frame: Standardisation) -> float:
    """What standard coordinates add to a row's log-density."""
    return -float(frame.scale.log().sum())


def worries_of(frame: Standardisation, names: tuple[str, ...], codes: int, likelihood: str) -> list[str]:
    """What about rows and codes deserves a look before any training."""
    found = []
    if codes > len(names):
        found.append(
            f"n_components={codes} is more than the {len(names)} columns of the rows: some of the code will not be "
            "used, and a bound tells little of such a fit"
        )
    still = [name for name, constant in zip(names, frame.constant.tolist(), strict=True) if constant]
    if still and likelihood == "gaussian":
        found.append(
            f"columns without spread ({join_words(still, most=5)}): their density is as high as the floor of a "
            "variance lets it be, and enters every score"
        )
    return found
