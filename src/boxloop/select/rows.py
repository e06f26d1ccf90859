"""Rows of tables of any kind, opened, counted and selected; and estimators configured for a fit to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples

from boxloop.data import (
    AnySource,
    MaskSelection,
    RowSelection,
    as_frame,
    fingerprint_source,
    fingerprint_values,
    is_read_in_place,
    open_source,
    select_rows,
    validate_rows,
)

RowIndices = NDArray[np.intp] | RowSelection
"""Row numbers, or a selection of rows."""


def open_table(owner: Any, estimator: Any, X: Any, *, reset: bool, keep_frame: bool = True) -> Any:
    """X as a table whose rows can be selected; its columns are recorded on ``owner``, or checked against the record.

    A frame stays one, so that names reach the estimator inside, or everything in memory becomes an array of numbers; a
    path or a Dask collection is opened as a source.
    """
    if is_read_in_place(X):
        source = open_source(X)
        if reset:  # later rows are checked by the estimator inside
            owner.n_features_in_ = source.n_columns
            vars(owner).pop("feature_names_in_", None)
            if source.names != tuple(f"x{j}" for j in range(source.n_columns)):  # of a table without names
                owner.feature_names_in_ = np.asarray(source.names, dtype=object)
        return source
    if keep_frame and as_frame(X) is not None:
        return validate_rows(owner, X, reset=reset, skip_check_array=True)
    tags = get_tags(estimator).input_tags
    return validate_rows(
        owner,
        X,
        reset=reset,
        dtype="numeric" if keep_frame else [np.float64, np.float32],
        accept_sparse="csr" if tags.sparse else False,
        ensure_all_finite="allow-nan" if tags.allow_nan else True,
    )


def count_rows(rows: Any) -> int:
    """Number of rows."""
    return int(rows.n_rows if isinstance(rows, AnySource) else _num_samples(rows))


def take_rows(rows: Any, where: RowIndices) -> Any:
    """Rows by number; those of a source stay where they are, so that their numbers must increase."""
    if isinstance(rows, AnySource):
        return select_rows(rows, to_selection(where, rows.n_rows))
    return _safe_indexing(rows, to_indices(where, count_rows(rows)))


def to_indices(where: RowIndices, n: int) -> NDArray[np.intp]:
    """Row numbers, out of n."""
    return where.mask_between(0, n).nonzero()[:, 0].numpy() if isinstance(where, RowSelection) else where


def to_selection(where: RowIndices, n: int) -> RowSelection:
    """Rows out of n as a selection, which works wherever the rows are."""
    if isinstance(where, RowSelection):
        return where
    if (np.diff(where) <= 0).any():
        raise ValueError(
            "row numbers of a source must increase: each row is taken once, in the order of the source"
        )
    mask = torch.zeros(n, dtype=torch.bool)
    mask[torch.from_numpy(np.asarray(where))] = True
    return MaskSelection(mask)


def configure_estimator(estimator: Any, params: Mapping[str, Any], seed: int) -> Any:
    """A new estimator with these parameters, and with a seed where it has none."""
    fresh = clone(estimator)  # scikit-learn's frozen estimators return nothing from set_params: no chaining
    fresh.set_params(**{name: clone(value, safe=False) for name, value in params.items()})
    current = fresh.get_params(deep=True)
    unseeded = [n for n, v in current.items() if v is None and n.rpartition("__")[2] == "random_state"]
    fresh.set_params(**dict.fromkeys(unseeded, seed))
    return fresh


def fingerprint_table(X: Any, weight: NDArray[np.float64] | None = None) -> str:
    """SHA-256 of a table: its shape, type, values, column names and weights; a source has a digest of its own."""
    if weight is not None:
        return fingerprint_values(fingerprint_table(X), weight)
    if isinstance(X, AnySource):
        return fingerprint_values(list(X.names), X.n_rows, fingerprint_source(X))
    frame = as_frame(X)
    if frame is not None:
        return fingerprint_values(
            list(map(str, frame.columns)), *(series.to_numpy() for series in frame.iter_columns())
        )
    if sparse.issparse(X):
        table: Any = X
        table = table.tocsr()
        return fingerprint_values(list(table.shape), table.data, table.indices, table.indptr)
    return fingerprint_values(np.asarray(X))
