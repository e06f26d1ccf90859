"""Differences of two scores on the same rows, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxloop.numeric import format_with_error, mean_and_error

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A mean difference over rows.

    Args:
        value: the mean.
        standard_error: of it, over rows.

    Example:
        >>> Difference(0.2, 0.1).z, str(Difference(0.2, 0.1))
        (2.0, '+0.20 ± 0.10')
    """

    value: float
    standard_error: float

    @property
    def z(self) -> float:
        """In units of its error; 0 where there is no difference at all."""
        if self.value == 0.0:
            return 0.0
        return (
            self.value / self.standard_error
            if self.standard_error > 0.0
            else float(np.sign(self.value)) * np.inf
        )

    def __str__(self) -> str:
        return format_with_error(self.value, self.standard_error, sign="+")


def difference(one: Array, other: Array) -> Difference:
    """The mean of one less the other; columns of a row are summed first.

    Raises:
        ValueError: they are not of the same rows.

    Example:
        >>> import numpy as np
        >>> difference(np.array([1.0, 2.0]), np.array([0.0, 3.0])).value
        0.0
    """
    if one.shape != other.shape:
        raise ValueError(f"scores of {one.shape} and of {other.shape}: they must be of the same rows")
    apart = one - other
    return Difference(*mean_and_error(apart.sum(1) if apart.ndim == 2 else apart))
