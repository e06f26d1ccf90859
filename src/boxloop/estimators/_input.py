"""Input of estimators: constraints of shared parameters, tables and images as sources of rows, what a score takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import (
    ConcatenatedRows,
    MappedSource,
    SparseSource,
    check_count,
    check_range,
    check_weight,
    is_read_in_place,
    on_device,
    open_source,
    to_labels,
    to_vector,
    validate_rows,
)
from boxloop.numeric import pick_device as pick_device
from boxloop.types import Source

Likelihood = Literal["gaussian", "bernoulli", "poisson", "categorical"]
Shape = tuple[int, ...]
Weights = NDArray[np.float64] | None

COMMON: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0.0, None, closed="left")],
    "max_iter": [Interval(Integral, 0, None, closed="left")],
    "random_state": ["random_state", np.random.Generator, torch.Generator],
    "warm_start": ["boolean"],
    "verbose": ["verbose"],
    "method": [StrOptions({"em", "online", "gradient"})],
    "accelerate": ["boolean"],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "checkpoint": [str, PathLike, None],
    "device": [str, torch.device],
    "dtype": [StrOptions({"float64", "float32"})],
}
"""What scikit-learn checks of the parameters that most estimators have."""


def pick_dtype(dtype: str) -> torch.dtype:
    """float64 or float32."""
    choices = {"float64": torch.float64, "float32": torch.float32}
    if dtype not in choices:
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}")
    return choices[dtype]


def find_shape_fault(shape: Shape | None, n_columns: int) -> str | None:
    """What is wrong with the image shape that a file names for rows of ``n_columns``; None if nothing, or no images."""
    if shape is None or (len(shape) in (2, 3) and min(shape) >= 1 and math.prod(shape) == n_columns):
        return None
    return f"images of shape {list(shape)} do not have {n_columns} columns"


def open_rows(
    estimator: BaseEstimator,
    X: Any,
    sample_weight: Any,
    likelihood: Likelihood,
    device: torch.device,
    reset: bool,
) -> Source:
    """Any table as a source of complete rows on a device; its columns must be those seen in ``fit``."""
    name = type(estimator).__name__
    if is_read_in_place(X) or isinstance(X, np.memmap | Tensor):
        source = open_source(X, sample_weight)
        match_columns(estimator, source.names, reset)
    else:
        # The source refuses infinite values, and names their column.
        X = validate_rows(estimator, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False)
        columns = getattr(estimator, "feature_names_in_", None)
        source = open_source(X, sample_weight, None if columns is None else list(columns))
    if isinstance(source, SparseSource):
        raise ValueError(f"{name} takes no sparse rows: pass a dense array")
    return _check_values(on_device(source, device), likelihood, name)


def map_rows(estimator: Any, X: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
    """``function(rows)`` of every tile of a table, joined along rows; the estimator is fitted and opens the table."""
    check_is_fitted(estimator)
    source = estimator._open(X, reset=False)
    with torch.no_grad():
        joined: Tensor = source.reduce(lambda rows, weight: ConcatenatedRows.of(function(rows))).concatenate()
    return joined


def match_columns(estimator: BaseEstimator, names: tuple[str, ...], reset: bool) -> None:
    """Set or check the columns of an estimator, for tables that scikit-learn does not read."""
    unnamed = names == tuple(f"x{j}" for j in range(len(names)))  # the names of a table without names
    if reset:
        estimator.n_features_in_ = len(names)
        vars(estimator).pop("feature_names_in_", None)
        if not unnamed:
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        return
    known = tuple(vars(estimator).get("feature_names_in_", names))
    if len(names) != estimator.n_features_in_ or (known != names and not unnamed):
        raise ValueError(
            f"X has {len(names)} columns ({', '.join(names[:9])}), but {type(estimator).__name__} was fitted to "
            f"{estimator.n_features_in_} ({', '.join(known[:9])})"
        )


def _check_values(source: Source, likelihood: Likelihood, what: str) -> Source:
    """The source, which refuses values outside the support of the likelihood as they are read, naming their column."""
    complete = refuse_rows(
        source,
        _find_missing,
        lambda name, _: (
            f"column {name!r} has a missing value (NaN): {what} needs complete rows; impute them first"
        ),
    )
    if likelihood == "gaussian":
        return complete
    if likelihood == "bernoulli":
        return check_range(complete, 0.0, 1.0, f"{what} with the bernoulli likelihood")
    counts = check_range(complete, 0.0, float("inf"), f"{what} with the {likelihood} likelihood")
    expected = "counts" if likelihood == "poisson" else "codes 0, 1, 2, ..."
    return refuse_rows(
        counts,
        lambda rows: rows != rows.round(),
        lambda name, value: f"column {name!r} holds {value:g}: the {likelihood} likelihood needs {expected}",
    )


def _find_missing(rows: Tensor) -> Tensor:
    """Which values are missing; their sum shows whether any is, at a third of the cost."""
    return torch.isnan(rows) if bool(torch.isnan(rows.sum())) else rows.new_zeros((), dtype=torch.bool)


def refuse_rows(
    source: Source, find_faults: Callable[[Tensor], Tensor], message: Callable[[str, float], str]
) -> Source:
    """The source, which raises ``message(column, value)`` for the first value that ``find_faults`` marks."""
    return MappedSource(source, _RowCheck(source.names, find_faults, message))


@dataclass(frozen=True)
class _RowCheck:
    names: tuple[str, ...]
    find_faults: Callable[[Tensor], Tensor]
    message: Callable[[str, float], str]

    def __call__(self, rows: Tensor) -> Tensor:
        bad = self.find_faults(rows)
        if bool(bad.any()):
            row, column = torch.nonzero(bad)[0].tolist()
            raise ValueError(self.message(self.names[column], float(rows[row, column])))
        return rows


def check_array(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The parameter ``name`` as finite float64 values of a shape."""
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} should have the shape {shape}, but got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a value that is not finite")
    return array


def check_sample_size(n_samples: Any) -> None:
    """Refuse a number of rows to draw that is not a whole number of at least one."""
    if check_count(n_samples, "n_samples", None) < 1:
        raise ValueError(f"Invalid value for 'n_samples': {n_samples}. At least one sample is needed.")


# scikit-learn's metrics name neither the argument nor a remedy, so that a score checks its arguments first.


def check_score_numbers(y: Any, sample_weight: Any) -> tuple[NDArray[np.float64], Weights]:
    """Outputs (n,) or (n, q), and the weight of each row."""
    outputs: NDArray[np.float64] = to_vector(y, "y")
    if outputs.ndim not in (1, 2):
        raise ValueError(f"y must have one dimension or two, got the shape {outputs.shape}")
    return outputs, _check_score_weight(sample_weight, len(outputs))


def check_score_labels(y: Any, sample_weight: Any) -> tuple[NDArray[Any], Weights]:
    """Labels (n,), and the weight of each row."""
    labels = to_labels(y, "y")
    if labels.ndim != 1 and labels.shape[1:] != (1,):
        raise ValueError(f"y must be a list of labels, one per row; got the shape {labels.shape}")
    labels = labels.reshape(-1)
    kinds = {type(label) for label in labels} if labels.dtype.kind == "O" else set()
    if len(kinds) > 1 or kinds & {type(None), dict, list}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"y must hold labels of one kind, all text or all numbers; got {names}")
    return labels, _check_score_weight(sample_weight, len(labels))


def _check_score_weight(sample_weight: Any, n: int) -> Weights:
    return None if sample_weight is None else check_weight(sample_weight, n).numpy()
