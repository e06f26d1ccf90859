"""The parts of a fitted estimator, components, factors or codes: as numbers, and in a table short enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from boxloop.cli.models import Fitted, get_column_names
from boxloop.estimators import (
    Array,
    BayesianFactorAnalysis,
    BayesianMixtureEstimator,
    FactorAnalysis,
    GaussianMixture,
    LinearEstimator,
    MixtureEstimator,
    VariationalAutoencoder,
    to_numpy,
)
from boxloop.numeric import format_number, format_with_error, generator

MOST_ROWS = 16
MOST_COLUMNS = 7
MOST_WITH_SD = 4
"""What fits a terminal of 80 characters."""
DRAWS = 20_000
"""Rows drawn from an autoencoder to estimate which columns go with which code."""

TextTable = tuple[str, list[str], list[list[str]]]


def list_parameters(estimator: Fitted) -> dict[str, Any]:
    """The fitted parameters by name, each column's under its own; of a Bayesian model, of the parts in use."""
    names = get_column_names(estimator)
    if isinstance(estimator, VariationalAutoencoder):
        correlation, share = _correlate_codes(estimator)
        return {
            "codes": dict(zip(names, correlation.T, strict=True)),
            "explained": dict(zip(names, share, strict=True)),
        }
    if isinstance(estimator, LinearEstimator):
        return _list_factor_parameters(estimator, names)
    assert isinstance(estimator, MixtureEstimator)
    mean, deviation, errors = estimator.means_, _list_deviations(estimator), _list_posterior_errors(estimator)
    found = []
    for k in _find_used(estimator):
        one = {
            "weight": estimator.weights_[k],
            "mean": dict(zip(names, mean[k], strict=True)),
            "sd": dict(zip(names, deviation[k], strict=True)),
        }
        if errors is not None:
            one |= {"weight_error": errors[0][k], "mean_error": dict(zip(names, errors[1][k], strict=True))}
        found.append(one)
    return {"components": found}


def _list_factor_parameters(estimator: LinearEstimator, names: list[str]) -> dict[str, Any]:
    k = _count_factors(estimator)
    found = {
        "mean": dict(zip(names, estimator.mean_, strict=True)),
        "loadings": dict(zip(names, estimator.components_[:k].T, strict=True)),
        "noise_variance": dict(
            zip(names, np.broadcast_to(estimator.noise_variance_, len(names)), strict=True)
        ),
        "communality": dict(zip(names, _compute_communalities(estimator), strict=True)),
    }
    if isinstance(estimator, BayesianFactorAnalysis):
        found["loading_error"] = dict(zip(names, estimator.loading_sd_[:k].T, strict=True))
    return found


def tabulate_parts(estimator: Fitted) -> TextTable:
    """Title, heads and rows of a table with a row for each column of the data, the most important ones if many."""
    if isinstance(estimator, VariationalAutoencoder):
        return _tabulate_codes(estimator)
    if isinstance(estimator, LinearEstimator):
        return _tabulate_factors(estimator)
    assert isinstance(estimator, MixtureEstimator)
    return _tabulate_mixture(estimator)


def _tabulate_mixture(estimator: MixtureEstimator) -> TextTable:
    used, errors = _find_used(estimator), _list_posterior_errors(estimator)
    names, mean, deviation = (
        get_column_names(estimator),
        estimator.means_[used],
        _list_deviations(estimator)[used],
    )
    weight, few = estimator.weights_[used], len(used) <= MOST_WITH_SD
    with_sd = isinstance(estimator, GaussianMixture) and few
    shown = range(min(len(mean), MOST_COLUMNS))
    between = weight @ (mean - weight @ mean) ** 2
    kept = _pick_largest(between / (between + weight @ deviation**2 + np.finfo(float).tiny))
    rows = [["weight", *(f"{weight[k]:.1%}" for k in shown)]]
    for j in kept:
        if errors is not None and few:
            cells = [format_with_error(mean[k, j], errors[1][used][k, j]) for k in shown]
        else:
            cells = [
                format_number(mean[k, j], 3) + (f" ({format_number(deviation[k, j], 2)})" if with_sd else "")
                for k in shown
            ]
        rows.append([names[j], *cells])
    error_text = " (sd)" if with_sd else " ± posterior sd" if errors is not None and few else ""
    what = (
        "Components"
        if errors is None
        else f"{len(used)} of at most {len(estimator.weights_)} components in use"
    )
    title = f"{what}: weight, and mean{error_text} of each column"
    if len(kept) < len(names):
        title += f"; the {len(kept)} of {len(names)} columns that distinguish them best"
    return title + _note_omitted(len(mean)), ["component", *map(str, shown)], rows


def _tabulate_factors(estimator: LinearEstimator) -> TextTable:
    names, share = get_column_names(estimator), _compute_communalities(estimator)
    explained = (estimator.components_**2).sum(0)
    loadings = estimator.components_[: _count_factors(estimator)]
    correlation = loadings / np.sqrt(explained + estimator.noise_variance_)
    factors = isinstance(estimator, FactorAnalysis | BayesianFactorAnalysis)
    title, heads, rows = _tabulate_correlations(
        names, correlation, share, "factor" if factors else "component"
    )
    if isinstance(estimator, BayesianFactorAnalysis):
        title += f"; {len(loadings)} of at most {len(estimator.components_)} factors are in use"
    return title, heads, rows


def _tabulate_codes(estimator: VariationalAutoencoder) -> TextTable:
    title, heads, rows = _tabulate_correlations(
        get_column_names(estimator), *_correlate_codes(estimator), "code"
    )
    return f"{title}, in {DRAWS} rows drawn from the model", heads, rows


def _tabulate_correlations(names: list[str], correlation: Array, share: Array, word: str) -> TextTable:
    shown, kept = range(min(len(correlation), MOST_COLUMNS)), _pick_largest(share)
    rows = [[names[j], *(f"{correlation[k, j]:.2f}" for k in shown), f"{share[j]:.0%}"] for j in kept]
    title = f"Correlation of each column with each {word}, and the share of its variance explained"
    if len(kept) < len(names):
        title += f"; the {len(kept)} of {len(names)} columns best explained"
    return title + _note_omitted(len(correlation)), [word, *map(str, shown), "explained"], rows


def _correlate_codes(estimator: VariationalAutoencoder) -> tuple[Array, Array]:
    """Correlation of each column with each code in rows of the model itself, (k, d), and the share explained, (d,)."""
    rows, codes = estimator.model_.sample(DRAWS, generator(0))
    x, z = (to_numpy(part) for part in (rows, codes))
    middle = estimator.inverse_transform(z).reshape(x.shape)
    a, b = ((part - part.mean(0)) / np.maximum(part.std(0), np.finfo(float).tiny) for part in (x, z))
    variance = np.maximum(x.var(0), np.finfo(float).tiny)
    return b.T @ a / len(a), np.minimum(middle.var(0) / variance, 1.0)


def _find_used(estimator: MixtureEstimator) -> Any:
    """Places of the components in use."""
    if isinstance(estimator, BayesianMixtureEstimator):
        return np.flatnonzero(estimator.active_)
    return np.arange(len(estimator.weights_))


def _list_posterior_errors(estimator: MixtureEstimator) -> tuple[Array, Array] | None:
    """Posterior standard deviations of weights (k,) and means (k, d); None of a model without a posterior."""
    if not isinstance(estimator, BayesianMixtureEstimator):
        return None
    found = dict(estimator.standard_errors())
    weights = found.pop("weights")
    (first,) = found.values()
    scale = vars(estimator).get("probabilities_")
    # Of documents means are counts, and errors are those of probabilities.
    return weights, first if scale is None else first * (estimator.means_.sum() / scale.sum())


def _count_factors(estimator: LinearEstimator) -> int:
    used: int = (
        estimator.n_components_
        if isinstance(estimator, BayesianFactorAnalysis)
        else len(estimator.components_)
    )
    return used


def _note_omitted(k: int) -> str:
    return f"; the first {MOST_COLUMNS} of {k}" if k > MOST_COLUMNS else ""


def _pick_largest(value: Array) -> Sequence[int]:
    """Places of the largest values, in their own order; all of them if there are few."""
    if len(value) <= MOST_ROWS:
        return range(len(value))
    found: list[int] = np.sort(np.argsort(-value, kind="stable")[:MOST_ROWS]).tolist()
    return found


def _list_deviations(estimator: MixtureEstimator) -> Array:
    return np.asarray(np.sqrt(to_numpy(estimator.model_.family.covariance().diagonal())))


def _compute_communalities(estimator: LinearEstimator) -> Array:
    explained = (estimator.components_**2).sum(0)
    return np.asarray(explained / (explained + estimator.noise_variance_))
