"""An autoencoder by its codes: which columns go with which code, and which value makes a row unlikely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.criticise import active_units
from boxloop.models import Autoencoder, BernoulliHead, PoissonHead
from boxloop.numeric import format_with_error, generator
from boxloop.report.columns import Array

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
