"""Warnings of a fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


class FitWarning(UserWarning):
    """The fit is usable, but something about the data or the result deserves a look.

    Example:
        >>> import warnings
        >>> from boxloop import FitWarning
        >>> warnings.simplefilter("error", FitWarning)  # stop at the first doubt
        >>> warnings.simplefilter("default", FitWarning)
    """


def warn_of(worries: Iterable[str], depth: int) -> None:
    """One warning for each worry, told to the caller ``depth`` calls above the one who calls this."""
    for worry in worries:
        warnings.warn(worry, FitWarning, stacklevel=depth + 2)
