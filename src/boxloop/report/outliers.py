"""Rows of low density under the chosen model, and the columns that explain them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from boxloop.criticise import draw_rows
from boxloop.distributions import TiedGaussian
from boxloop.estimators import BayesianGaussianMixture, MixtureEstimator, VariationalAutoencoder
from boxloop.models import Mixture
from boxloop.numeric import generator
from boxloop.report.examine import Findings
from boxloop.report.explain import given_others
from boxloop.report.read import Array
from boxloop.select import conditional_log_densities

SMALL = 10
"""Rows from which on a component counts as a group."""
RARE = 0.05
"""Share of the rows from which on a component counts as a group, however few these are; not of Bayesian mixtures."""


def criticised(estimator: Any) -> Any:
    """What of a fitted estimator is held against the rows.

    Of a Bayesian mixture, the components in use at their expected parameters: how these err is known from the rows
    fitted to. Its predictive law has tails that the prior gave it, in components that no row belongs to, and these make
    the errors of its moments infinite.
    """
    if not isinstance(estimator, BayesianGaussianMixture):
        return estimator
    return _part(estimator.model_, estimator.active_)


@dataclass(frozen=True)
class ComponentsInUse:
    """What of a fitted estimator is held against the rows, with the digest of the rows of its fit."""

    model_: Any
    training_digest_: str | None


def small(estimator: Any, n_rows: int) -> NDArray[np.bool_]:
    """Which components of a fitted mixture are in use by so few rows that these may be outliers, (k,).

    Args:
        estimator: the mixture.
        n_rows: that it was fitted to.
    """
    if isinstance(estimator, BayesianGaussianMixture):
        held: NDArray[np.bool_] = estimator.active_ & (estimator.model_.counts.numpy() < SMALL)
        return held
    return np.asarray(estimator.weights_) * n_rows < min(SMALL, RARE * n_rows)


def without_small(estimator: Any, n_rows: int) -> Mixture[Any] | None:
    """The distribution of a fitted mixture without its small components; None where it has none, or no others.

    A few rows far from all others get a component of their own: in judging which rows are outliers they must not vouch
    for one another. Of a Bayesian mixture it is the predictive distribution.
    """
    if not isinstance(estimator, MixtureEstimator):
        return None
    few = small(estimator, n_rows)
    bayesian = isinstance(estimator, BayesianGaussianMixture)
    kept = (estimator.active_ if bayesian else np.ones(len(few), dtype=bool)) & ~few
    if not few.any() or not kept.any():
        return None
    return _part(estimator.model_.predictive if bayesian else estimator.model_, kept)


def _part(mixture: Mixture[Any], kept: NDArray[np.bool_]) -> Mixture[Any]:
    """Some of the components, by their weights."""
    places = torch.from_numpy(np.flatnonzero(kept))
    family: Any = mixture.family
    weight = mixture.log_weight[places]
    if isinstance(family, TiedGaussian):  # one covariance for all
        few = replace(family, mean=family.mean[places])
    else:
        few = family.map(lambda leaf: leaf[places])
    return Mixture(weight - weight.logsumexp(0), few)


def components(estimator: Any, rows: Any) -> tuple[Array, Array, Array, Any]:
    """Weights (k,), means (k, d) and covariances (k, d, d) of a Gaussian mixture, and the component of each row."""
    share = estimator.predict_proba(rows)
    if isinstance(estimator, BayesianGaussianMixture):
        model, share = criticised(estimator), share[:, estimator.active_]
    else:
        model = estimator.model_
    weights, covariances = np.exp(model.log_weight.numpy()), model.family.covariance().dense().numpy()
    whole = np.broadcast_to(covariances, (len(weights), *covariances.shape[1:]))
    return weights, model.family.mean.numpy(), whole, share.argmax(1)


Density = Callable[[Array], Array]

RATE = 0.05
SHOWN = 20
REASONS = 3
MOST_DRAWN = 200_000
USUAL = 500
"""Rows that tell what is usual in a column."""


@dataclass(frozen=True)
class Strange:
    """One row.

    Args:
        place: in the file, counted from 0.
        score: its log-density under the model.
        p_value: how often a row of the model itself has so low a density.
        flagged: whether it counts as an outlier.
        reasons: columns, their values, and the drop in log-density that each accounts for, largest first.
    """

    place: int
    score: float
    p_value: float
    flagged: bool
    reasons: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, eq=False)
class Outlying:
    """The rows of lowest density.

    Args:
        rows: the strangest, worst first.
        flagged: how many of all rows count as outliers.
        scores: log-density of every row, NaN where it has a missing value.
        threshold: rows below it are flagged; -inf where none is.
    """

    rows: tuple[Strange, ...]
    flagged: int
    scores: Array
    threshold: float


def outlying(found: Findings) -> Outlying:
    """Rank all rows by density under the chosen model.

    A row is flagged where its log-density is too low for the model itself: among as many rows drawn from the model,
    fewer than one in twenty of those flagged would be there by chance (Benjamini and Hochberg 1995). Components of a
    mixture that hold a handful of rows are left out here.

    Args:
        found: what :func:`boxloop.report.examine.examine` gave.
    """
    table, names = found.table, found.table.names
    law = without_small(found.model.estimator, len(found.first))
    density = found.density if law is None else _density(law)
    scores = density(table.rows)
    n = min(max(20_000, 20 * len(scores)), MOST_DRAWN)
    drawn = found.drawn(n) if law is None else draw_rows(law, n, generator(found.seed)).numpy()
    usual = np.sort(density(drawn))
    complete = ~np.isnan(table.rows).any(1)  # a row with holes has another scale of log-density
    chance = (1.0 + np.searchsorted(usual, scores, side="right")) / (len(usual) + 1.0)
    chance = np.where(complete, chance, 1.0)
    flagged = stats.false_discovery_control(chance) <= RATE
    order = np.lexsort((scores, chance))[:SHOWN]
    strange = [
        Strange(
            int(table.places[i]),
            float(scores[i]),
            float(chance[i]),
            bool(flagged[i]),
            _reasons(names, drop, row),
        )
        for i, drop, row in zip(
            order, _drops(found, density, table.rows[order]), table.rows[order], strict=True
        )
    ]
    threshold = float(np.nextafter(scores[flagged].max(), np.inf)) if flagged.any() else -np.inf
    return Outlying(tuple(strange), int(flagged.sum()), np.where(complete, scores, np.nan), threshold)


def _reasons(names: Sequence[str], drop: Array, row: Array) -> tuple[tuple[str, float, float], ...]:
    worst = [j for j in np.argsort(-drop, kind="stable")[:REASONS] if drop[j] > 0.0]
    return tuple((names[j], float(row[j]), float(drop[j])) for j in worst)


def _density(law: Mixture[Any]) -> Density:
    def density(rows: Array) -> Array:
        each = law.family.log_prob(torch.from_numpy(np.ascontiguousarray(rows)))
        at: Array = (each + law.log_weight[:, None]).logsumexp(0).numpy()
        return at

    return density


def _drops(found: Findings, density: Density, rows: Array) -> Array:
    """How much each value lowers the log-density of its row, beyond what is usual in its column, (m, d)."""
    if rows.shape[1] == 1:
        return np.ones(rows.shape)
    every = found.table.rows
    some = every[np.linspace(0, len(every) - 1, min(len(every), USUAL)).astype(int)]
    level = np.nanmedian(_given_others(found, density, some), axis=0)
    return np.nan_to_num(level - _given_others(found, density, rows), nan=0.0)


def _given_others(found: Findings, density: Density, rows: Array) -> Array:
    """Log-density of each value given the others of its row, (m, d)."""
    estimator = found.model.estimator
    if isinstance(estimator, VariationalAutoencoder):
        return given_others(estimator.model_, rows, found.seed)
    return conditional_log_densities(density, rows)
