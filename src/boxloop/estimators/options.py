"""Device and precision, as users name them."""

from __future__ import annotations

import torch

from boxloop.numeric import pick_device

__all__ = ["pick_device", "pick_dtype"]


def pick_dtype(dtype: str) -> torch.dtype:
    """float64 or float32."""
    choices = {"float64": torch.float64, "float32": torch.float32}
    if dtype not in choices:
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}")
    return choices[dtype]
