"""What can be wrong with an equation of one's own."""

from __future__ import annotations


class EquationError(ValueError):
    """The function that was given cannot be an estimating equation: wrong shape, or a value that is no number."""


class NoRootError(RuntimeError):
    """The search ended where the mean of the equations is not zero, or the objective has no maximum."""


class NotIdentifiedError(ValueError):
    """The data do not determine the parameters: some direction changes no equation. The message names it."""


class EstimateWarning(UserWarning):
    """The estimate is usable with care: rounds ran out, or several roots were found."""
