"""Rows to judge by that are rows of the fit although their digest does not say so: copies and parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.criticise.forward import Forward
from boxloop.criticise.probes import FirstProbe, Probe
from boxloop.criticise.tally import Tally
from boxloop.data import RowSample, hash_rows

CLOSE = 1e-3
"""Standard errors within which all column means of held-out rows are as the model's in fewer than 1 table in 1e6."""
CLOSE_ALONE = 1e-4
"""The same for a table of one column: fewer than 1 in 1e4."""

APART = 0.1
"""Standard errors by which the means of training rows differ from the model's, from which on they are others."""

SHARED, DISTINCT = 0.05, 0.99
"""Share of the rows found among the training rows that is no chance where so many of these differ from one another."""


def check_column_names(model: object, names: Sequence[str], what: str) -> None:
    """Refuse rows whose columns have other names than those of the fit, or another order.

    Args:
        model: an estimator that may know the names it was fitted to.
        names: of the columns; those that a table without names is given are not checked.
        what: the argument that holds the rows.

    Raises:
        ValueError: other names.
    """
    known = getattr(model, "feature_names_in_", None)
    unnamed = [f"x{j}" for j in range(len(names))]
    if known is None or len(known) != len(names) or list(names) in (unnamed, list(known)):
        return
    raise ValueError(
        f"{what} has columns {', '.join(names)}, but {type(model).__name__} was fitted to {', '.join(map(str, known))}"
    )


def warn_of_copies(
    probes: Sequence[Probe],
    tallies: Sequence[Tally],
    forward: Sequence[Forward],
    judges: RowSample,
    n_rows: int,
) -> None:
    """Warn where the means of the rows are the model's, as they are of rows that were rounded after the fit.

    Columns of few values do not count: means of counts agree by chance.

    Args:
        probes: test functions.
        tallies: their sums over the rows.
        forward: their moments under the model.
        judges: the rows, or a random part of them.
        n_rows: how many there are.
    """
    for probe, tally, model in zip(probes, tallies, forward, strict=True):
        if not isinstance(probe, FirstProbe) or bool((model.error > 0).any()):
            continue
        moving = tally.error > 0
        apart = ((tally.mean - model.value.detach()).abs() / tally.error)[moving]
        if not bool((apart < CLOSE).all()):
            continue
        fine = _steps(judges.rows)[moving] / n_rows <= CLOSE_ALONE * tally.error[moving]
        telling = apart[fine]
        if len(telling) and bool((telling < (CLOSE if len(telling) > 1 else CLOSE_ALONE)).all()):
            warn_caller(
                "the column means of X are those of the model to a thousandth of their errors: X seems to hold the "
                "rows of the fit, rounded, repeated or with other weights, or was centred at its own means as they "
                "were. Moments that the fit matches then have no gap by construction, and p-values are too large; "
                "judge by held-out rows, in the units of the fit",
                UserWarning,
            )


def warn_of_other_rows(mean: Tensor, training: RowSample) -> None:
    """Warn where the means of training rows are not the model's, as they are at a maximum of their likelihood.

    Of a fit that kept no digest this is all that is known of its rows. A random part of the rows has other means, and
    so have rows of which values are missing: these say nothing.

    Args:
        mean: of the model, (d,).
        training: the training rows.
    """
    weight, total = training.weight[:, None], training.weight.sum()
    if training.probability < 1.0 or bool(torch.isnan(training.rows).any()):
        return
    own = (weight * training.rows).sum(0) / total
    error = (weight * (training.rows - own)).square().sum(0).sqrt() / total
    apart = torch.where(error > 0.0, (own - mean).abs() / error, 0.0).amax()
    if bool(apart > APART):
        warn_caller(
            "train= holds other rows than the model was fitted to, or the fit had not converged: the column means of "
            f"train are up to {float(apart):.1f} standard errors away from the model's, and not equal to them, so that "
            "the error of the parameters cannot be taken from these rows. Pass its rows, or leave train= out",
            UserWarning,
        )


def _steps(rows: Tensor) -> Tensor:
    """The smallest distance between two different values of each column, infinite where there is none, (d,)."""
    apart = rows.sort(0).values.diff(dim=0)
    return torch.where(apart > 0.0, apart, torch.inf).amin(0)


def warn_of_shared(judges: RowSample, training: RowSample) -> None:
    """Warn where rows to judge by are among the training rows, if these are so distinct that it is no chance."""
    words = hash_rows(training.rows)
    if len(words.unique()) < len(words) * (1.0 - (1.0 - DISTINCT) * training.probability):
        return
    found = int(torch.isin(hash_rows(judges.rows), words).sum())
    if found > SHARED * training.probability * len(judges.rows):
        warn_caller(
            f"{found} of {len(judges.rows)} rows of X are among the training rows, too: gaps are smaller on these than "
            "on held-out rows, and p-values too large; leave them out of X",
            UserWarning,
        )
