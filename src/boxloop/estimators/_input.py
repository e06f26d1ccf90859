"""Responses and weights of a score, checked first: scikit-learn's metrics name neither the argument nor a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data import check_weight, to_labels, to_vector

Weights = NDArray[np.float64] | None


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
