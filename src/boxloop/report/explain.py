"""The chosen model by its parts: components, factors or codes, by the names of the columns, with errors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.criticise import active_units
from boxloop.estimators import (
    BayesianGaussianMixture,
    FactorAnalysis,
    GaussianMixture,
    ProbabilisticPCA,
    VariationalAutoencoder,
)
from boxloop.models import Autoencoder, BernoulliHead, PoissonHead
from boxloop.numeric import format_with_error, generator, join_words
from boxloop.report.examine import Findings, named
from boxloop.report.outliers import SMALL, small
from boxloop.report.read import Array

DRAWS = 128
"""Of the code behind each density without a value."""
FILLS = 4
"""Rounds in which a value that is left out is put in from the others, before the rest is encoded."""
PART = 64
"""Rows at a time."""


@dataclass(frozen=True, eq=False)
class Codes:
    """What the codes have to do with the columns.

    Args:
        values: correlation of each column with the posterior mean of each code, (k, d); NaN for a code not in use.
        errors: their standard errors over rows.
        explained: share of each column's variance that the codes explain, (d,).
        active: which codes are in use.
        notes: how many codes are, and the parts of the bound, in words.
    """

    values: Array
    errors: Array
    explained: Array
    active: tuple[bool, ...]
    notes: tuple[str, ...]


def describe_codes(estimator: Any, rows: Any, held: Any, values: Array) -> Codes:
    """Codes of a fitted autoencoder.

    Args:
        estimator: the autoencoder.
        rows: that it was fitted to, with names.
        held: rows that it has not seen, with names.
        values: those of ``rows``.
    """
    units, parts = active_units(estimator, rows), estimator.elbo(held)
    found, error = correlations(values, np.asarray(estimator.transform(rows), dtype=np.float64))
    left = values - estimator.reconstruct(rows)
    explained = (1.0 - left.var(0) / values.var(0)).clip(0.0, 1.0)
    idle = ~units.active[:, None]
    notes = (
        f"{units.count} of {len(units.active)} codes tell something about a row (their means vary over rows by more "
        f"than {units.threshold:g}).",
        f"Evidence lower bound of a row that judges: {format_with_error(parts.elbo, parts.elbo_error)}, which is "
        f"{format_with_error(parts.reconstruction, parts.reconstruction_error)} for the row given its code, less "
        f"{format_with_error(parts.divergence, parts.divergence_error)} nats for the code.",
        "Scores are importance-weighted bounds, which are tighter, yet still below the log-likelihood.",
    )
    return Codes(
        np.where(idle, np.nan, found),
        np.where(idle, np.nan, error),
        explained,
        tuple(units.active.tolist()),
        notes,
    )


def correlations(values: Array, codes: Array) -> tuple[Array, Array]:
    r"""Correlations of columns with codes, (k, d), and their standard errors over rows, whatever the laws.

    .. math:: \mathrm{se}^2 = \frac{1}{n^2} \sum_i \left( a_i b_i - \tfrac r2 (a_i^2 + b_i^2) \right)^2

    for standardised a and b: the mean square of the influence of a row.

    Args:
        values: (n, d).
        codes: (n, k).

    Example:
        >>> found, error = correlations(np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [5.0]]))
        >>> found.round(12).tolist(), error.round(12).tolist()
        ([[1.0]], [[0.0]])
    """
    a, b = (_standard(part) for part in (values, codes))
    n = len(a)
    found = b.T @ a / n
    error = np.empty_like(found)
    for k in range(len(found)):
        influence = a * b[:, k : k + 1] - 0.5 * found[k] * (a**2 + b[:, k : k + 1] ** 2)
        error[k] = np.sqrt(np.square(influence).sum(0)) / n
    return found, error


def _standard(values: Array) -> Array:
    spread = values.std(0)
    return np.asarray((values - values.mean(0)) / np.where(spread > 0.0, spread, 1.0))


def given_others(model: Autoencoder, rows: Array, seed: int) -> Array:
    r"""Log-density of each value given the others of its row, (n, d).

    .. math:: \log p(x_j \mid x_{-j}) = \log p(x) - \log p(x_{-j}), \qquad
              p(x_{-j}) \approx \frac1M \sum_m \frac{p(x_{-j} \mid z_m) \, p(z_m)}{q(z_m)}

    Columns are independent given the code, so that a value is left out by leaving out its factor. The codes are drawn
    from q(z|x) with the value put in from the others, as missing values are (Rezende, Mohamed and Wierstra 2014).

    Args:
        model: the autoencoder.
        rows: complete, (n, d).
        seed: of the draws.
    """
    stream, found = generator(seed), []
    with torch.no_grad():
        for part in torch.from_numpy(np.ascontiguousarray(rows)).split(PART):
            whole = model.log_prob(part)
            without = [_without(model, part, j, stream) for j in range(part.shape[1])]
            found.append(whole[:, None] - torch.stack(without, 1))
    return np.asarray(torch.cat(found).numpy())


def _without(model: Autoencoder, rows: Tensor, column: int, stream: torch.Generator) -> Tensor:
    """Importance bound of the log-density of rows without a column, (n,)."""
    filled = rows.clone()
    filled[:, column] = model.emission(model.prior().mean).mean[0, column]
    for _ in range(FILLS):
        filled[:, column] = model.reconstruct(filled)[:, column]
    law = model.posterior(filled)
    noise = torch.randn((DRAWS, *law.mean.shape), generator=stream, dtype=law.mean.dtype)
    z = law.mean + law.variance.sqrt() * noise
    guess = (-0.5 * noise.square() - 0.5 * law.variance.log() - 0.5 * np.log(2.0 * np.pi)).sum(-1)
    flat = z.flatten(0, 1)
    each = _by_column(model, flat, rows.expand(DRAWS, -1, -1).flatten(0, 1))
    each[:, column] = 0.0
    joint = (each.sum(1) + model.latent.log_density(flat)).reshape(guess.shape)
    return (joint - guess).logsumexp(0) - float(np.log(DRAWS))


def _by_column(model: Autoencoder, z: Tensor, rows: Tensor) -> Tensor:
    """Log-density of each value of a row given its code, (n, d)."""
    law = model.emission(z)
    if isinstance(model.head, PoissonHead):
        return torch.distributions.Poisson(law.mean).log_prob(rows)
    if isinstance(model.head, BernoulliHead):
        chance = law.mean.clamp(1e-12, 1.0 - 1e-12)
        return rows * chance.log() + (1.0 - rows) * (-chance).log1p()
    variance = law.covariance().diagonal()
    return -0.5 * ((rows - law.mean).square() / variance + variance.log() + float(np.log(2.0 * np.pi)))


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
