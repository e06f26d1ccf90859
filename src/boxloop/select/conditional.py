"""What each value of a row is worth, given the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from boxloop.select.scores import Array


def conditional(density: Callable[[Array], Array], rows: Array) -> Array:
    """Log-density of each value given the others of its row, (n, d); NaN where it is missing.

    Args:
        density: log-density of rows, some of whose values may be missing (NaN).
        rows: (n, d).
    """
    whole = density(rows)
    found = np.empty(rows.shape)
    for j in range(rows.shape[1]):
        without = rows.copy()
        without[:, j] = np.nan
        with np.errstate(invalid="ignore"):  # a density of zero with and without the column tells nothing
            found[:, j] = whole - density(without)
    return np.where(np.isnan(rows), np.nan, found)
