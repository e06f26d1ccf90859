"""Rows of low density under the chosen model, and the columns that explain them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from boxloop.criticise import draw_rows
from boxloop.estimators import BayesianGaussianMixture, MixtureEstimator, VariationalAutoencoder
from boxloop.models import Autoencoder, BernoulliHead, Mixture, PoissonHead
from boxloop.numeric import generator
from boxloop.report.examine import Findings, select_components
from boxloop.report.read import Array
from boxloop.select import conditional_log_densities

RATE = 0.05
"""Rate of false discoveries, and level of the test of all moments together."""
SHOWN, REASONS = 20, 3
"""Rows that are listed, and columns that explain each."""
MOST_DRAWN = 200_000
"""Most rows of the model behind the p-values."""
TYPICAL_ROWS = 500
"""Rows that say what is usual in a column."""
SMALL = 10
"""Rows from which on a component counts as a group."""
RARE = 0.05
"""Share of the rows from which on a component counts as a group, however few these are; not of Bayesian mixtures."""
DRAWS = 128
"""Of the code behind each density without a value."""
FILLS = 4
"""Iterations in which a value that is left out is put in from the others, before the rest is encoded."""
BATCH = 64
"""Rows at a time."""

Density = Callable[[Array], Array]


def find_small_components(estimator: Any, n_rows: int) -> NDArray[np.bool_]:
    """Which components of a mixture fitted to ``n_rows`` are in use by so few that these may be outliers, (k,)."""
    if isinstance(estimator, BayesianGaussianMixture):
        few: NDArray[np.bool_] = estimator.active_ & (estimator.model_.component_counts.numpy() < SMALL)
        return few
    return np.asarray(estimator.weights_) * n_rows < min(SMALL, RARE * n_rows)


def drop_small_components(estimator: Any, n_rows: int) -> Mixture[Any] | None:
    """The distribution of a fitted mixture without its small components; None where it has none, or no others.

    A few rows far from all others get a component of their own: in judging which rows are outliers they must not vouch
    for one another. Of a Bayesian mixture it is the predictive distribution.
    """
    if not isinstance(estimator, MixtureEstimator):
        return None
    few = find_small_components(estimator, n_rows)
    bayesian = isinstance(estimator, BayesianGaussianMixture)
    kept = (estimator.active_ if bayesian else np.ones(len(few), dtype=bool)) & ~few
    if not few.any() or not kept.any():
        return None
    return select_components(estimator.model_.predictive if bayesian else estimator.model_, kept)


@dataclass(frozen=True)
class UnlikelyRow:
    """A row by its number in the file, counted from 0, and how often a row of the model has so low a density.

    Reasons are columns, their values, and the drop in log-density that each accounts for, largest first.
    """

    row: int
    log_density: float
    p_value: float
    flagged: bool
    reasons: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, eq=False)
class Outliers:
    """The rows of lowest density, worst first, and how many of all rows are flagged as outliers.

    Log-densities are those of every row, NaN where it has a missing value; rows below the threshold are flagged, which
    is -inf where none is.
    """

    rows: tuple[UnlikelyRow, ...]
    flagged: int
    log_density: Array
    threshold: float


def find_outliers(found: Findings) -> Outliers:
    """Rank all rows by density under the chosen model.

    A row is flagged where its log-density is too low for the model itself: among as many rows drawn from the model,
    fewer than one in twenty of those flagged would be there by chance (Benjamini and Hochberg 1995). Components of a
    mixture that hold a handful of rows are left out here.
    """
    table = found.table
    groups = drop_small_components(found.model.estimator, len(found.fit_rows))
    density = found.log_density if groups is None else _mixture_density(groups)
    scores = density(table.rows)
    n = min(max(20_000, 20 * len(scores)), MOST_DRAWN)
    drawn = found.sample_model(n) if groups is None else draw_rows(groups, n, generator(found.seed)).numpy()
    usual = np.sort(density(drawn))
    complete = ~np.isnan(table.rows).any(1)  # a row with missing values has another scale of log-density
    p_value = (1.0 + np.searchsorted(usual, scores, side="right")) / (len(usual) + 1.0)
    p_value = np.where(complete, p_value, 1.0)
    flagged = stats.false_discovery_control(p_value) <= RATE
    order = np.lexsort((scores, p_value))[:SHOWN]
    drops = _measure_drops(found, density, table.rows[order])
    rows = [
        UnlikelyRow(
            int(table.row_numbers[i]),
            float(scores[i]),
            float(p_value[i]),
            bool(flagged[i]),
            _list_reasons(table.names, drop, table.rows[i]),
        )
        for i, drop in zip(order, drops, strict=True)
    ]
    threshold = float(np.nextafter(scores[flagged].max(), np.inf)) if flagged.any() else -np.inf
    return Outliers(tuple(rows), int(flagged.sum()), np.where(complete, scores, np.nan), threshold)


def _list_reasons(names: Sequence[str], drop: Array, row: Array) -> tuple[tuple[str, float, float], ...]:
    worst = [j for j in np.argsort(-drop, kind="stable")[:REASONS] if drop[j] > 0.0]
    return tuple((names[j], float(row[j]), float(drop[j])) for j in worst)


def _mixture_density(mixture: Mixture[Any]) -> Density:
    def log_density(rows: Array) -> Array:
        each = mixture.family.log_prob(torch.from_numpy(np.ascontiguousarray(rows)))
        total: Array = (each + mixture.log_weight[:, None]).logsumexp(0).numpy()
        return total

    return log_density


def _measure_drops(found: Findings, density: Density, rows: Array) -> Array:
    """How much each value lowers the log-density of its row, beyond what is usual in its column, (m, d)."""
    if rows.shape[1] == 1:
        return np.ones(rows.shape)

    def given_others(rows: Array) -> Array:
        estimator = found.model.estimator
        if isinstance(estimator, VariationalAutoencoder):
            return conditional_log_density(estimator.model_, rows, found.seed)
        return conditional_log_densities(density, rows)

    every = found.table.rows
    some = every[np.linspace(0, len(every) - 1, min(len(every), TYPICAL_ROWS)).astype(int)]
    level = np.nanmedian(given_others(some), axis=0)
    return np.nan_to_num(level - given_others(rows), nan=0.0)


def conditional_log_density(model: Autoencoder, rows: Array, seed: int) -> Array:
    r"""Log-density of each value given the others of its row, (n, d).

    .. math:: \log p(x_j \mid x_{-j}) = \log p(x) - \log p(x_{-j}), \qquad
              p(x_{-j}) \approx \frac1M \sum_m \frac{p(x_{-j} \mid z_m) \, p(z_m)}{q(z_m)}

    Columns are independent given the code, so that a value is left out by leaving out its factor. The codes are drawn
    from q(z|x) with the value put in from the others, as missing values are (Rezende, Mohamed and Wierstra 2014).
    """
    stream, found = generator(seed), []
    with torch.no_grad():
        for part in torch.from_numpy(np.ascontiguousarray(rows)).split(BATCH):
            whole = model.log_prob(part)
            without = [_log_density_without_column(model, part, j, stream) for j in range(part.shape[1])]
            found.append(whole[:, None] - torch.stack(without, 1))
    return np.asarray(torch.cat(found).numpy())


def _log_density_without_column(
    model: Autoencoder, rows: Tensor, column: int, stream: torch.Generator
) -> Tensor:
    """Importance bound of the log-density of rows without a column, (n,)."""
    filled = rows.clone()
    filled[:, column] = model.emission(model.prior().mean).mean[0, column]
    for _ in range(FILLS):
        filled[:, column] = model.reconstruct(filled)[:, column]
    posterior = model.posterior(filled)
    noise = torch.randn((DRAWS, *posterior.mean.shape), generator=stream, dtype=posterior.mean.dtype)
    z = posterior.mean + posterior.variance.sqrt() * noise
    guess = (-0.5 * noise.square() - 0.5 * posterior.variance.log() - 0.5 * np.log(2.0 * np.pi)).sum(-1)
    flat = z.flatten(0, 1)
    each = _log_density_by_column(model, flat, rows.expand(DRAWS, -1, -1).flatten(0, 1))
    each[:, column] = 0.0
    joint = (each.sum(1) + model.latent.log_density(flat)).reshape(guess.shape)
    return (joint - guess).logsumexp(0) - float(np.log(DRAWS))


def _log_density_by_column(model: Autoencoder, z: Tensor, rows: Tensor) -> Tensor:
    """Log-density of each value of a row given its code, (n, d)."""
    emission = model.emission(z)
    if isinstance(model.head, PoissonHead):
        return torch.distributions.Poisson(emission.mean).log_prob(rows)
    if isinstance(model.head, BernoulliHead):
        chance = emission.mean.clamp(1e-12, 1.0 - 1e-12)
        return rows * chance.log() + (1.0 - rows) * (-chance).log1p()
    variance = emission.covariance().diagonal()
    return -0.5 * ((rows - emission.mean).square() / variance + variance.log() + float(np.log(2.0 * np.pi)))
