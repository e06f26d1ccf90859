"""scikit-learn's check of rows, after what it would not see: a mask would be read under, times taken for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from boxloop.data.checks import check_no_paths
from boxloop.data.frames import check_numbers


def validated(owner: Any, X: Any, *given: Any, **options: Any) -> Any:
    """:func:`sklearn.utils.validation.validate_data`, with NaN for what a mask hides in X or y.

    Raises:
        ValueError: also for a column of a frame that holds text or times, by its name.
    """
    if not options.get("skip_check_array", False):
        check_no_paths(X)
        check_numbers(X)
    return validate_data(owner, unmasked(X), *map(unmasked, given), **options)


def unmasked(values: Any) -> Any:
    """A masked array with NaN in its holes; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    real = values if values.dtype.kind in "fO" else values.astype(np.float64)
    return np.ma.filled(real, np.nan)
