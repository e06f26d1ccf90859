"""Parameters that estimators share: their constraints, and device and precision as users name them."""

from __future__ import annotations

from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions

from boxloop.numeric import pick_device

__all__ = ["COMMON", "pick_device", "pick_dtype"]

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
