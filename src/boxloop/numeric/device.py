"""Devices, as users name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_without_gpu: ContextVar[bool] = ContextVar("without_gpu", default=False)


@contextmanager
def without_gpu() -> Iterator[None]:
    """Inside, ``"auto"`` is the CPU."""
    token = _without_gpu.set(True)
    try:
        yield
    finally:
        _without_gpu.reset(token)


def pick_device(device: str | torch.device) -> torch.device:
    """A torch device from ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``"auto"`` (CUDA where there is one)."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and not _without_gpu.get() else "cpu")
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
