"""Warnings that point at the user's line, however deep in the library they arise."""

from __future__ import annotations

import warnings
from sys import _getframe
from types import FrameType

OURS = {"boxloop", "sklearn", "joblib"}
"""Packages that no warning points at: scikit-learn stands between an estimator's ``fit`` and its caller."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line by which the user came into the library."""
    depth = inside = 0
    frame: FrameType | None = _getframe()
    while frame is not None:
        depth += 1
        if str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
            inside = depth
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=inside + 1)
