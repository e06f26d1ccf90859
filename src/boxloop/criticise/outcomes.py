"""What predictions are judged against, and whether it can be: checked shapes and values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

SLACK = 1e-4
"""Probabilities of a row may sum to 1 within this: float16 and float32 give no better."""


def numbers(given: Any, name: str) -> Array:
    """Finite float64 numbers from an array, tensor, list or data frame.

    Raises:
        ValueError: not numbers, or one that is NaN or infinite.

    Example:
        >>> numbers([1, 2], "y")
        array([1., 2.])
    """
    try:
        plain = given.detach().cpu().double().numpy() if isinstance(given, Tensor) else given
        found = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers: {error}") from error
    if not np.isfinite(found).all():
        raise ValueError(f"{name} holds {int((~np.isfinite(found)).sum())} value(s) that are not finite")
    return found


def checked_targets(y: Any) -> Array:
    """Values of q outputs, (n, q); one dimension is one output."""
    found = numbers(y, "y")
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(f"y must have shape (n,) or (n, q), got {found.shape}")
    return found


def like_targets(given: Any, name: str, y: Array, lead: int = 0) -> Array:
    """Numbers in the shape of targets, after ``lead`` axes of their own; one output may leave its axis out."""
    found = numbers(given, name)
    if found.ndim == 1 + lead and y.shape[1] == 1:
        found = found[..., None]
    if found.ndim != 2 + lead or found.shape[lead:] != y.shape:
        wanted = "(m, n, q)" if lead else "(n, q)"
        raise ValueError(f"{name} has shape {found.shape}; {wanted} with (n, q) = {y.shape} is needed")
    return found


def checked_probability(probability: Any, y: Any) -> tuple[Array, NDArray[np.int64]]:
    """Probabilities (n, C) and the numbers of the classes (n,).

    Args:
        probability: (n, C), or (n,) for the second of two classes.
        y: numbers of classes from 0.

    Raises:
        ValueError: not probabilities, rows that do not sum to 1, labels that are no class, or other lengths.

    Example:
        >>> checked_probability([0.25], [1])
        (array([[0.75, 0.25]]), array([1]))
    """
    p = numbers(probability, "probability")
    p = np.stack([1.0 - p, p], axis=1) if p.ndim == 1 else p
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise ValueError(f"probability must have shape (n, C) with two classes at least, got {p.shape}")
    if p.min() < -SLACK or np.abs(p.sum(1) - 1.0).max() > SLACK:
        raise ValueError("probability must hold rows of probabilities: not negative, with sum 1")
    p = np.clip(p, 0.0, 1.0)
    labels = numbers(y, "y")
    if labels.shape != (len(p),):
        raise ValueError(f"y must have one label for each of {len(p)} rows, got shape {labels.shape}")
    codes = labels.astype(np.int64)
    if (codes != labels).any() or codes.min() < 0 or codes.max() >= p.shape[1]:
        raise ValueError(f"y must hold numbers of classes from 0 to {p.shape[1] - 1}")
    return p, codes
