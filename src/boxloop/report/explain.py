"""The chosen model by its parts: components, factors or codes, by the names of the columns, with errors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from boxloop.estimators import (
    BayesianGaussianMixture,
    FactorAnalysis,
    GaussianMixture,
    ProbabilisticPCA,
    VariationalAutoencoder,
)
from boxloop.numeric import join_words
from boxloop.report.codes import describe_codes
from boxloop.report.columns import Array
from boxloop.report.findings import Findings, named
from boxloop.report.in_use import SMALL, small

FEW = 600
"""Most parameters whose errors are worked out."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The parts of a model.

    Args:
        word: what a part is called.
        meaning: what a number in the table is.
        names: of the columns.
        values: of each part and column, (k, d): means of components, correlations with factors or codes; NaN for
            codes not in use.
        errors: their standard errors, NaN where they were not worked out.
        order: columns by how much they tell parts apart, the most telling first.
        weights: share of the rows in each component, and its errors; None for factors and codes.
        explained: share of each column's variance that factors or codes explain; None for components.
        spread: what the errors are.
        notes: what else is to be said of the parts.
    """

    word: str
    meaning: str
    names: tuple[str, ...]
    values: Array
    errors: Array
    order: tuple[int, ...]
    weights: tuple[list[float], list[float]] | None = None
    explained: Array | None = None
    spread: str = "standard errors"
    notes: tuple[str, ...] = ()

    @property
    def certain(self) -> bool:
        """Whether the errors were worked out."""
        return bool(np.isfinite(self.errors).any())


def explain(found: Findings) -> Explanation:
    """The parts of the chosen model, with standard errors where these are affordable."""
    estimator, rows, names = found.model.estimator, found.table.rows[found.first], found.table.names
    if isinstance(estimator, VariationalAutoencoder):
        return _codes(found)
    errors = _errors(found)
    spread = np.nanstd(rows, axis=0)
    if isinstance(estimator, FactorAnalysis | ProbabilisticPCA):
        values = estimator.components_ / spread
        error = errors["components"] / spread if errors else np.full_like(values, np.nan)
        explained = np.square(values).sum(0).clip(max=1.0)
        order = tuple(np.argsort(-explained, kind="stable").tolist())
        meaning = "correlation of the column with the factor"
        return Explanation("factor", meaning, names, values, error, order, None, explained)
    bayesian = isinstance(estimator, BayesianGaussianMixture)
    used = estimator.active_ if bayesian else np.ones(len(estimator.weights_), dtype=bool)
    errors = {name: value[used] for name, value in errors.items()} if bayesian else errors
    values = np.asarray(_means(estimator))[used]
    error = np.asarray(errors[_mean_name(errors)]) if errors else np.full_like(values, np.nan)
    share = np.asarray(estimator.weights_)[used]
    apart = np.sqrt(share @ np.square(values - share @ values)) / np.where(spread > 0, spread, 1.0)
    weights = (share.tolist(), np.asarray(errors["weights"]).tolist() if errors else [np.nan] * len(share))
    order = tuple(np.argsort(-apart, kind="stable").tolist()) if len(share) > 1 else tuple(range(len(names)))
    meaning = "mean of the column in the component"
    notes = []
    if bayesian:
        in_use = f"{used.sum()} of at most {len(used)} components are in use"
        notes.append(f"{in_use}; the others were emptied and are left out.")
    few = np.flatnonzero(small(estimator, len(rows))[used])
    if len(few):
        which = (
            f"component {few[0]} holds"
            if len(few) == 1
            else f"components {join_words(list(map(str, few)))} hold"
        )
        notes.append(f"Fewer than {SMALL} rows: {which} so few that they may be outliers, and no group.")
    spread = "posterior standard deviations" if bayesian else "standard errors"
    note = (" ".join(notes),) if notes else ()
    return Explanation("component", meaning, names, values, error, order, weights, spread=spread, notes=note)


def _codes(found: Findings) -> Explanation:
    """Codes of an autoencoder, by the columns that go with them."""
    rows, held, names = found.table.rows[found.first], found.table.rows[found.second], found.table.names
    codes = describe_codes(found.model.estimator, named(rows, names), named(held, names), rows)
    order = tuple(np.argsort(-codes.explained, kind="stable").tolist())
    meaning = "correlation of the column with the code, that is with the mean of its posterior"
    return Explanation(
        "code", meaning, names, codes.values, codes.errors, order, None, codes.explained, notes=codes.notes
    )


def _means(estimator: Any) -> Array:
    if isinstance(estimator, GaussianMixture | BayesianGaussianMixture):
        return np.asarray(estimator.means_)
    return np.asarray(estimator.model_.family.mean.numpy())


def _mean_name(errors: dict[str, Array]) -> str:
    return next(name for name in errors if name not in ("weights", "covariances"))


def _errors(found: Findings) -> dict[str, Array]:
    """Standard errors of the parameters; empty where there are too many or the information is singular."""
    bayesian = isinstance(found.model.estimator, BayesianGaussianMixture)  # its errors cost nothing
    if found.model.trial.n_parameters > FEW and not bayesian:
        return {}
    from boxloop.data import open_source

    rows = open_source(found.table.rows[found.first], columns=list(found.table.names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN marks what has no error
        try:
            return {
                name: np.asarray(value) for name, value in found.model.estimator.standard_errors(rows).items()
            }
        except (ValueError, np.linalg.LinAlgError):
            return {}
