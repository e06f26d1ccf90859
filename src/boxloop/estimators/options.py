"""Device and precision, as users name them."""

from __future__ import annotations

import torch


def pick_device(device: str | torch.device) -> torch.device:
    """A torch device from ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` (CUDA where there is one)."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device={str(device)!r} is no device: use 'cpu', 'cuda', 'cuda:1' or 'auto'"
        ) from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={str(device)!r} was asked for, but no CUDA device is available; use device='auto'"
        )
    return chosen


def pick_dtype(dtype: str) -> torch.dtype:
    """float64 or float32."""
    choices = {"float64": torch.float64, "float32": torch.float32}
    if dtype not in choices:
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}")
    return choices[dtype]
