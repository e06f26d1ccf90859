"""Input that estimators share: images as rows, tables of complete rows, responses and weights of a score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from boxloop.data import (
    MappedSource,
    SparseSource,
    check_range,
    check_weight,
    is_read_in_place,
    on_device,
    open_source,
    to_labels,
    to_vector,
    validate_rows,
)
from boxloop.types import Source

Weights = NDArray[np.float64] | None
Likelihood = Literal["gaussian", "bernoulli", "poisson", "categorical"]
Shape = tuple[int, ...]


def flatten_images(X: Any) -> tuple[Any, Shape | None]:
    """Images (n, H, W) or (n, C, H, W) as rows, and the shape of one; any other table unchanged, and None."""
    if isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4):
        return X.reshape(X.shape[0], -1), tuple(int(size) for size in X.shape[1:])
    return X, None


def find_shape_fault(shape: Shape | None, n_columns: int) -> str | None:
    """The fault of the shape that a file gives for an image of so many columns; the shape None means plain rows."""
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
    """Any table as a source of complete rows on a device, its columns checked against those seen in ``fit``."""
    if is_read_in_place(X) or isinstance(X, np.memmap | Tensor):
        source = open_source(X, sample_weight)
        match_columns(estimator, source.names, reset)
    else:
        X = validate_rows(
            estimator, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False
        )  # the source refuses infinite values, and names their column
        named = getattr(estimator, "feature_names_in_", None)
        source = open_source(X, sample_weight, None if named is None else list(named))
    if isinstance(source, SparseSource):
        raise ValueError(f"{type(estimator).__name__} takes no sparse rows")
    return _check_values(on_device(source, device), likelihood, type(estimator).__name__)


def match_columns(estimator: BaseEstimator, names: tuple[str, ...], reset: bool) -> None:
    """Set or check the columns of an estimator, where scikit-learn does not know the table."""
    unnamed = names == tuple(f"x{j}" for j in range(len(names)))
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
    """The source, refusing values outside the support of the likelihood as they are read, naming their column."""
    complete = refuse_rows(
        source,
        _missing,
        lambda name, _: (
            f"column {name!r} has a missing value (NaN): {what} needs whole rows; impute them first"
        ),
    )
    if likelihood == "gaussian":
        return complete
    if likelihood == "bernoulli":
        return check_range(complete, 0.0, 1.0, f"{what} with the bernoulli likelihood")
    counted = check_range(complete, 0.0, float("inf"), f"{what} with the {likelihood} likelihood")
    wanted = "counts" if likelihood == "poisson" else "codes 0, 1, 2, ..."
    return refuse_rows(
        counted,
        lambda rows: rows != rows.round(),
        lambda name, value: f"column {name!r} holds {value:g}: the {likelihood} likelihood needs {wanted}",
    )


def _missing(rows: Tensor) -> Tensor:
    """Where values are missing; their sum tells whether any is, at a third of the cost."""
    return torch.isnan(rows) if bool(torch.isnan(rows.sum())) else rows.new_zeros((), dtype=torch.bool)


def refuse_rows(
    source: Source, fault: Callable[[Tensor], Tensor], message: Callable[[str, float], str]
) -> Source:
    """The source, refusing rows in which ``fault`` finds a value, with ``message(column, value)``."""
    return MappedSource(source, _RowCheck(source.names, fault, message))


@dataclass(frozen=True)
class _RowCheck:
    names: tuple[str, ...]
    fault: Callable[[Tensor], Tensor]
    message: Callable[[str, float], str]

    def __call__(self, rows: Tensor) -> Tensor:
        bad = self.fault(rows)
        if bool(bad.any()):
            row, column = torch.nonzero(bad)[0].tolist()
            raise ValueError(self.message(self.names[column], float(rows[row, column])))
        return rows


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
        raise ValueError(f"y must be a list of labels, one a row; got the shape {labels.shape}")
    labels = labels.reshape(-1)
    kinds = {type(label) for label in labels} if labels.dtype.kind == "O" else set()
    if len(kinds) > 1 or kinds & {type(None), dict, list}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"y must hold labels of one kind, all text or all numbers; got {names}")
    return labels, _check_score_weight(sample_weight, len(labels))


def _check_score_weight(sample_weight: Any, n: int) -> Weights:
    return None if sample_weight is None else check_weight(sample_weight, n).numpy()
