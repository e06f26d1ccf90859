"""A GPU with too little memory: a fit goes on on the CPU where the device was left open, else there is advice."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

import torch

from boxloop.caller import warn_caller
from boxloop.estimators.warned import FitWarning
from boxloop.numeric import SingleThreaded, without_gpu

FITS = ("fit", "fit_predict", "fit_transform", "fit_covariance")
"""Methods that start afresh, and can be called again on another device."""


class DeviceMemoryError(torch.OutOfMemoryError, MemoryError):
    """The GPU has too little memory; the message says what to do."""


class DeviceEstimator(SingleThreaded):
    """Base of estimators with a ``device``: no public method ends in an allocation error without advice."""

    device: Any
    _left_gpu = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(vars(cls).items()):
            if isinstance(value, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _within_memory(value))


def _within_memory(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method; where the memory of the GPU ends, on the CPU or with advice."""
    name = function.__name__

    @wraps(function)
    def call(self: DeviceEstimator, *args: Any, **kwargs: Any) -> Any:
        if name in FITS and self._left_gpu:
            self._left_gpu = False
        try:
            if not self._left_gpu:
                return function(self, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            where = f"the GPU has too little memory for {type(self).__name__}.{name}"
            if self.device != "auto" or name not in FITS:
                raise DeviceMemoryError(
                    f"{where}: use device='cpu', dtype='float32' or fewer rows at a time, or fit with device='auto', "
                    f"which goes on on the CPU ({error})"
                ) from error
            warn_caller(f"{where}: it goes on on the CPU", FitWarning)
        with without_gpu():
            found = function(self, *args, **kwargs)
        self._left_gpu = True  # where the model now is
        return found

    return call
