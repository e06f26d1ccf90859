"""Labels of a classifier: from what the user gave to numbers of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from torch import Tensor

from boxloop.data import ConcatenatedRows
from boxloop.estimators.base import Array, to_numpy
from boxloop.types import Source


def labels_of(y: Any) -> Any:
    """Labels as scikit-learn would have them: one column without infinite values."""
    if y is None:
        raise ValueError("a classifier requires y to be passed, but the target y is None")
    found = column_or_1d(y.numpy(force=True) if isinstance(y, Tensor) else y, warn=True)
    assert_all_finite(found, input_name="y")
    return found


def codes_of(both: Source) -> tuple[Any, Array]:
    """Numbers of the classes, and weights."""
    found = both.reduce(
        lambda rows, weight: ConcatenatedRows.of(torch.stack([rows[:, -1].double(), weight.double()], 1))
    )
    codes, weight = found.concatenate().unbind(1)
    return to_numpy(codes).astype(np.int64), to_numpy(weight)
