"""Devices, as users name them."""

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
