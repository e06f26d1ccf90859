"""The chosen model by its parts: components, factors or codes, by the names of the columns, with errors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from boxloop.criticise import active_units
from boxloop.estimators import (
    BayesianGaussianMixture,
    FactorAnalysis,
    GaussianMixture,
    ProbabilisticPCA,
    VariationalAutoencoder,
)
from boxloop.numeric import format_with_error, join_words
from boxloop.report.examine import Findings, name_columns
from boxloop.report.outliers import SMALL, find_small_components
from boxloop.report.read import Array

FEW = 600
"""Most parameters whose errors are worked out."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The parts of a model: components, factors or codes.

    Args:
        kind: what a part is called.
        meaning: what a number in the table is.
        names: of the columns.
        values: of each part and column, (k, d): means of components, correlations with factors or codes; NaN for
            codes not in use.
        errors: of the values, NaN where they were not worked out.
        order: columns by how much they distinguish the parts, the most important first.
        weights: share of the rows in each component, and its errors; None for factors and codes.
        explained: share of each column's variance that factors or codes explain; None for components.
        error_kind: what the errors are.
        notes: other remarks on the parts.
    """

    kind: str
    meaning: str
    names: tuple[str, ...]
    values: Array
    errors: Array
    order: tuple[int, ...]
    weights: tuple[list[float], list[float]] | None = None
    explained: Array | None = None
    error_kind: str = "standard errors"
    notes: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Whether the errors were worked out."""
        return bool(np.isfinite(self.errors).any())


def explain_model(found: Findings) -> Explanation:
    """The parts of the chosen model, with standard errors where these are affordable."""
    estimator = found.model.estimator
    if isinstance(estimator, VariationalAutoencoder):
        return _explain_codes(found)
    rows = found.table.rows[found.fit_rows]
    if isinstance(estimator, FactorAnalysis | ProbabilisticPCA):
        return _explain_factors(found, rows)
    return _explain_components(found, rows)


def _explain_factors(found: Findings, rows: Array) -> Explanation:
    std, errors = np.nanstd(rows, axis=0), _estimate_errors(found)
    values = found.model.estimator.components_ / std
    error = errors["components"] / std if errors else np.full_like(values, np.nan)
    explained = np.square(values).sum(0).clip(max=1.0)
    meaning = "correlation of the column with the factor"
    return Explanation(
        "factor", meaning, found.table.names, values, error, _order_falling(explained), None, explained
    )


def _explain_components(found: Findings, rows: Array) -> Explanation:
    estimator, std, errors = found.model.estimator, np.nanstd(rows, axis=0), _estimate_errors(found)
    bayesian = isinstance(estimator, BayesianGaussianMixture)
    gaussian = bayesian or isinstance(estimator, GaussianMixture)
    used = estimator.active_ if bayesian else np.ones(len(estimator.weights_), dtype=bool)
    values = np.asarray(estimator.means_ if gaussian else estimator.model_.family.mean.numpy())[used]
    share = np.asarray(estimator.weights_)[used]
    error, share_error = np.full_like(values, np.nan), np.full(len(share), np.nan)
    if errors:
        share_error = errors.pop("weights")[used]
        error = next(value for name, value in errors.items() if name != "covariances")[used]
    apart = np.sqrt(share @ np.square(values - share @ values)) / np.where(std > 0, std, 1.0)
    order = _order_falling(apart) if len(share) > 1 else tuple(range(len(found.table.names)))
    notes = []
    if bayesian:
        in_use = f"{used.sum()} of at most {len(used)} components are in use"
        notes.append(f"{in_use}; the others were emptied and are left out.")
    few = np.flatnonzero(find_small_components(estimator, len(rows))[used]).tolist()
    if few:
        which = (
            f"component {few[0]} holds"
            if len(few) == 1
            else f"components {join_words(list(map(str, few)))} hold"
        )
        notes.append(f"Fewer than {SMALL} rows: {which} so few that they may be outliers, and no group.")
    return Explanation(
        "component",
        "mean of the column in the component",
        found.table.names,
        values,
        error,
        order,
        (share.tolist(), share_error.tolist()),
        error_kind="posterior standard deviations" if bayesian else "standard errors",
        notes=(" ".join(notes),) if notes else (),
    )


def _explain_codes(found: Findings) -> Explanation:
    """Codes of an autoencoder, by their correlations with the columns."""
    estimator, names, table = found.model.estimator, found.table.names, found.table.rows
    values = table[found.fit_rows]
    rows, held_out = name_columns(values, names), name_columns(table[found.held_out], names)
    units, bound = active_units(estimator, rows), estimator.elbo(held_out)
    correlation, error = correlate_with_codes(values, np.asarray(estimator.transform(rows), dtype=np.float64))
    residual = values - estimator.reconstruct(rows)
    explained = (1.0 - residual.var(0) / values.var(0)).clip(0.0, 1.0)
    idle = ~units.active[:, None]
    notes = (
        f"{units.count} of {len(units.active)} codes are active (their means vary over rows by more than "
        f"{units.threshold:g}).",
        f"Evidence lower bound per held-out row: {format_with_error(bound.elbo, bound.elbo_error)}, which is "
        f"{format_with_error(bound.reconstruction, bound.reconstruction_error)} for the row given its code, less "
        f"{format_with_error(bound.divergence, bound.divergence_error)} nats for the code.",
        "Scores are importance-weighted bounds, which are tighter, yet still below the log-likelihood.",
    )
    return Explanation(
        "code",
        "correlation of the column with the code, that is with the mean of its posterior",
        names,
        np.where(idle, np.nan, correlation),
        np.where(idle, np.nan, error),
        _order_falling(explained),
        explained=explained,
        notes=notes,
    )


def _order_falling(value: Array) -> tuple[int, ...]:
    return tuple(np.argsort(-value, kind="stable").tolist())


def _estimate_errors(found: Findings) -> dict[str, Array]:
    """Standard errors of the parameters; empty where there are too many or the information is singular."""
    bayesian = isinstance(found.model.estimator, BayesianGaussianMixture)  # its errors cost nothing
    if found.model.trial.n_parameters > FEW and not bayesian:
        return {}
    rows = name_columns(found.table.rows[found.fit_rows], found.table.names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN marks what has no error
        try:
            return {
                name: np.asarray(value) for name, value in found.model.estimator.standard_errors(rows).items()
            }
        except (ValueError, np.linalg.LinAlgError):
            return {}


def correlate_with_codes(values: Array, codes: Array) -> tuple[Array, Array]:
    r"""Correlations of columns with codes, (k, d), and their standard errors over rows, whatever the distributions.

    .. math:: \mathrm{se}^2 = \frac{1}{n^2} \sum_i \left( a_i b_i - \tfrac r2 (a_i^2 + b_i^2) \right)^2

    for standardised a (n, d) and b (n, k): the mean square of the influence of a row.

    Example:
        >>> found, error = correlate_with_codes(np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [5.0]]))
        >>> found.round(12).tolist(), error.round(12).tolist()
        ([[1.0]], [[0.0]])
    """
    a, b = (_standardise(part) for part in (values, codes))
    n = len(a)
    found = b.T @ a / n
    error = np.empty_like(found)
    for k in range(len(found)):
        influence = a * b[:, k : k + 1] - 0.5 * found[k] * (a**2 + b[:, k : k + 1] ** 2)
        error[k] = np.sqrt(np.square(influence).sum(0)) / n
    return found, error


def _standardise(values: Array) -> Array:
    std = values.std(0)
    return np.asarray((values - values.mean(0)) / np.where(std > 0.0, std, 1.0))
