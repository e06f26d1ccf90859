"""A fitted estimator in numbers and in a table short enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from boxloop.estimators import FactorAnalysis, GaussianMixture, load
from boxloop.estimators.base import Array, LatentEstimator, to_numpy
from boxloop.estimators.linear import LinearEstimator
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.persist import ModelFileError, is_checkpoint
from boxloop.report.numbers import number

MOST_ROWS = 16
MOST_COLUMNS = 7
MOST_WITH_SPREAD = 4
"""What fits a terminal of 80 characters."""

Readable = tuple[str, list[str], list[list[str]]]


def load_model(path: Path) -> LatentEstimator:
    """Read a model file; its tensors are on the CPU, wherever they were fitted."""
    try:
        found = load(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such model file; `boxloop fit` writes one") from error
    except ModelFileError as error:
        if is_checkpoint(path):
            raise ModelFileError(
                f"{path}: a checkpoint of a fit, not a model; the same `boxloop fit` continues from it"
            ) from error
        raise ModelFileError(f"{error}; `boxloop fit` writes model files") from error
    assert isinstance(found, LatentEstimator)
    return found.set_params(device="cpu")


def fitted_columns(estimator: LatentEstimator) -> list[str] | None:
    """The columns to look for in a table; None where an estimator was fitted to columns without names."""
    names = vars(estimator).get("feature_names_in_")
    return None if names is None else [str(name) for name in names]


def column_names(estimator: LatentEstimator) -> list[str]:
    """The columns an estimator was fitted to; ``x0, x1, ...`` where they had no names."""
    return fitted_columns(estimator) or [f"x{j}" for j in range(estimator.n_features_in_)]


def facts(estimator: LatentEstimator) -> dict[str, Any]:
    """How the fit went."""
    return {
        "rounds": estimator.n_iter_,
        "converged": estimator.converged_,
        "interrupted": estimator.interrupted_,
        "lower_bound": estimator.lower_bound_,
        "events": list(estimator.events_),
    }


def parameters(estimator: LatentEstimator) -> dict[str, Any]:
    """The fitted parameters by name, each column's under its own."""
    names = column_names(estimator)
    if isinstance(estimator, LinearEstimator):
        noise = np.broadcast_to(estimator.noise_variance_, len(names))
        return {
            "mean": dict(zip(names, estimator.mean_, strict=True)),
            "loadings": dict(zip(names, estimator.components_.T, strict=True)),
            "noise_variance": dict(zip(names, noise, strict=True)),
            "communality": dict(zip(names, _communalities(estimator), strict=True)),
        }
    assert isinstance(estimator, MixtureEstimator)
    deviation = _deviations(estimator)
    return {
        "components": [
            {
                "weight": weight,
                "mean": dict(zip(names, mean, strict=True)),
                "sd": dict(zip(names, deviation[k], strict=True)),
            }
            for k, (weight, mean) in enumerate(zip(estimator.weights_, estimator.means_, strict=True))
        ]
    }


def readable(estimator: LatentEstimator) -> Readable:
    """Title, heads and rows of a table with a row for each column of the data, the most telling ones if many."""
    if isinstance(estimator, LinearEstimator):
        return _linear_table(estimator)
    assert isinstance(estimator, MixtureEstimator)
    return _mixture_table(estimator)


def _mixture_table(estimator: MixtureEstimator) -> Readable:
    names, mean, deviation, weight = (
        column_names(estimator),
        estimator.means_,
        _deviations(estimator),
        estimator.weights_,
    )
    spread = isinstance(estimator, GaussianMixture) and len(mean) <= MOST_WITH_SPREAD
    shown = range(min(len(mean), MOST_COLUMNS))
    between = weight @ (mean - weight @ mean) ** 2
    kept = _most(between / (between + weight @ deviation**2 + np.finfo(float).tiny))
    rows = [["weight", *(f"{weight[k]:.1%}" for k in shown)]]
    for j in kept:
        cells = (
            number(mean[k, j], 3) + (f" ({number(deviation[k, j], 2)})" if spread else "") for k in shown
        )
        rows.append([names[j], *cells])
    title = f"Components: weight, and mean{' (sd)' if spread else ''} of each column"
    if len(kept) < len(names):
        title += f"; the {len(kept)} of {len(names)} columns that tell them apart best"
    return title + _cut(len(mean)), ["component", *map(str, shown)], rows


def _linear_table(estimator: LinearEstimator) -> Readable:
    names, share = column_names(estimator), _communalities(estimator)
    explained = (estimator.components_**2).sum(0)
    correlation = estimator.components_ / np.sqrt(explained + estimator.noise_variance_)
    shown = range(min(len(correlation), MOST_COLUMNS))
    kept = _most(share)
    rows = [[names[j], *(f"{correlation[k, j]:.2f}" for k in shown), f"{share[j]:.0%}"] for j in kept]
    word = "factor" if isinstance(estimator, FactorAnalysis) else "component"
    title = f"Correlation of each column with each {word}, and the share of its variance explained"
    if len(kept) < len(names):
        title += f"; the {len(kept)} of {len(names)} columns best explained"
    return title + _cut(len(correlation)), [word, *map(str, shown), "explained"], rows


def _cut(k: int) -> str:
    return f"; the first {MOST_COLUMNS} of {k}" if k > MOST_COLUMNS else ""


def _most(value: Array) -> Sequence[int]:
    """Places of the largest values, in their own order; all of them if there are few."""
    if len(value) <= MOST_ROWS:
        return range(len(value))
    found: list[int] = np.sort(np.argsort(-value, kind="stable")[:MOST_ROWS]).tolist()
    return found


def _deviations(estimator: MixtureEstimator) -> Array:
    return np.asarray(np.sqrt(to_numpy(estimator.model_.family.covariance().diagonal())))


def _communalities(estimator: LinearEstimator) -> Array:
    explained = (estimator.components_**2).sum(0)
    return np.asarray(explained / (explained + estimator.noise_variance_))
