"""Warnings of a fit."""

from __future__ import annotations

from collections.abc import Iterable

from boxloop.caller import warn_caller


class FitWarning(UserWarning):
    """The fit is usable, but something about the data or the result deserves a look.

    Example:
        >>> import warnings
        >>> from boxloop import FitWarning
        >>> warnings.simplefilter("error", FitWarning)  # stop at the first doubt
        >>> warnings.simplefilter("default", FitWarning)
    """


def warn_of(worries: Iterable[str]) -> None:
    """One warning for each concern about a fit."""
    for worry in worries:
        warn_caller(worry, FitWarning)
