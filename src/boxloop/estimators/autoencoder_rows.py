"""Rows of an autoencoder: images as rows, and values that its likelihood can take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from boxloop.data import (
    MappedSource,
    SparseSource,
    check_range,
    is_read_in_place,
    on_device,
    open_source,
    validate_rows,
)
from boxloop.types import Source

Likelihood = Literal["gaussian", "bernoulli", "poisson", "categorical"]
Shape = tuple[int, ...]


def flat(X: Any) -> tuple[Any, Shape | None]:
    """Images (n, H, W) or (n, C, H, W) as rows, and the shape of one; anything else as it is, and None."""
    if isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4):
        return X.reshape(X.shape[0], -1), tuple(int(size) for size in X.shape[1:])
    return X, None


def image_fault(shape: Shape | None, n_columns: int) -> str | None:
    """What is wrong with the shape of an image of so many columns that a file names; None stands for plain rows."""
    if shape is None or (len(shape) in (2, 3) and min(shape) >= 1 and math.prod(shape) == n_columns):
        return None
    return f"images of shape {list(shape)} do not have {n_columns} columns"


def opened(
    estimator: BaseEstimator,
    X: Any,
    sample_weight: Any,
    likelihood: Likelihood,
    device: torch.device,
    reset: bool,
) -> Source:
    """Any table as a source of whole rows on a device, its columns checked against those seen in ``fit``."""
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
    return _checked(on_device(source, device), likelihood, type(estimator).__name__)


def match_columns(estimator: BaseEstimator, names: tuple[str, ...], reset: bool) -> None:
    """Set or check the columns of an estimator, where scikit-learn does not know the table."""
    plain = names == tuple(f"x{j}" for j in range(len(names)))  # what a table without names calls its columns
    if reset:
        estimator.n_features_in_ = len(names)
        vars(estimator).pop("feature_names_in_", None)
        if not plain:
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        return
    known = tuple(vars(estimator).get("feature_names_in_", names))
    if len(names) != estimator.n_features_in_ or (known != names and not plain):
        raise ValueError(
            f"X has {len(names)} columns ({', '.join(names[:9])}), but {type(estimator).__name__} was fitted to "
            f"{estimator.n_features_in_} ({', '.join(known[:9])})"
        )


def _checked(source: Source, likelihood: Likelihood, what: str) -> Source:
    """The source, refusing values that the likelihood cannot take by the name of their column, as they are read."""
    whole = refusing(
        source,
        _missing,
        lambda name, _: (
            f"column {name!r} has a missing value (NaN): {what} needs whole rows; impute them first"
        ),
    )
    if likelihood == "gaussian":
        return whole
    if likelihood == "bernoulli":
        return check_range(whole, 0.0, 1.0, f"{what} with the bernoulli likelihood")
    counted = check_range(whole, 0.0, float("inf"), f"{what} with the {likelihood} likelihood")
    wanted = "counts" if likelihood == "poisson" else "codes 0, 1, 2, ..."
    return refusing(
        counted,
        lambda rows: rows != rows.round(),
        lambda name, value: f"column {name!r} holds {value:g}: the {likelihood} likelihood needs {wanted}",
    )


def _missing(rows: Tensor) -> Tensor:
    """Where values are missing; their sum tells whether any is, at a third of the cost."""
    return torch.isnan(rows) if bool(torch.isnan(rows.sum())) else rows.new_zeros((), dtype=torch.bool)


def refusing(source: Source, fault: Callable[[Tensor], Tensor], told: Callable[[str, float], str]) -> Source:
    """The source, refusing rows in which ``fault`` finds one, in the words of ``told(column, value)``."""
    return MappedSource(source, _Refusing(source.names, fault, told))


@dataclass(frozen=True)
class _Refusing:
    names: tuple[str, ...]
    fault: Callable[[Tensor], Tensor]
    told: Callable[[str, float], str]

    def __call__(self, rows: Tensor) -> Tensor:
        bad = self.fault(rows)
        if bool(bad.any()):
            row, column = torch.nonzero(bad)[0].tolist()
            raise ValueError(self.told(self.names[column], float(rows[row, column])))
        return rows
