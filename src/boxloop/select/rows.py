"""Tables that can be cut into rows, and estimators made ready to be fitted to them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from boxloop.data.frames import as_frame


def checked_rows(owner: Any, estimator: Any, X: Any, *, reset: bool) -> Any:
    """X as something whose rows can be taken, its columns noted on ``owner`` or checked against those noted.

    Args:
        owner: the meta-estimator.
        estimator: the one inside, whose tags say what rows it takes.
        X: an array, list, frame or sparse matrix. A frame stays one, so that names reach the estimator inside.
        reset: whether this is ``fit``.

    Returns:
        The rows.
    """
    if as_frame(X) is not None:
        return validate_data(owner, X, reset=reset, skip_check_array=True)
    tags = get_tags(estimator).input_tags
    return validate_data(
        owner,
        X,
        reset=reset,
        dtype="numeric",
        accept_sparse="csr" if tags.sparse else False,
        ensure_all_finite="allow-nan" if tags.allow_nan else True,
    )


def ready(estimator: Any, params: Mapping[str, Any], seed: int) -> Any:
    """A new estimator with these parameters, and with a seed where it has none."""
    fresh = clone(estimator)  # scikit-learn's frozen estimators return nothing from set_params: no chaining
    fresh.set_params(**{name: clone(value, safe=False) for name, value in params.items()})
    found = fresh.get_params(deep=True)
    missing = [n for n, v in found.items() if v is None and n.rpartition("__")[2] == "random_state"]
    fresh.set_params(**dict.fromkeys(missing, seed))
    return fresh


def digest(X: Any) -> str:
    """SHA-256 of a table: its shape, type, values and column names."""
    frame = as_frame(X)
    if frame is not None:
        return digest_of(
            list(map(str, frame.columns)), *(series.to_numpy() for series in frame.iter_columns())
        )
    if sparse.issparse(X):
        table: Any = X
        table = table.tocsr()
        return digest_of(list(table.shape), table.data, table.indices, table.indptr)
    return digest_of(np.asarray(X))


def digest_of(*parts: Any) -> str:
    """SHA-256 of arrays and of things with a faithful ``repr``."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray) and not part.dtype.hasobject:
            whole.update(f"{part.dtype}{part.shape}".encode())
            whole.update(part.tobytes())
        else:
            whole.update(repr(part.tolist() if isinstance(part, np.ndarray) else part).encode())
    return whole.hexdigest()
