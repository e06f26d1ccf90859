r"""Means over the draws of a mixture, each part with its own number of draws, and their errors.

.. math:: \bar f = \sum_p w_p \bar f_p, \qquad \mathrm{Var}(\bar f) = \sum_p w_p^2 s_p^2 / n_p
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Strata:
    """How many draws each part of a mixture has; Cochran (1977), "Sampling techniques", chapter 5.

    Args:
        shares: of the parts, (p,); they sum to 1.
        counts: draws of each part.
        points: which parts have no spread: their one draw is all there is to know.

    Example:
        >>> strata = Strata.of([0.5, 0.3, 0.2], [False, False, True], 10)
        >>> strata.counts, strata.n_draws
        ((6, 4, 1), 11)
        >>> round(float(strata.weight[:6].sum()), 12)
        0.5
    """

    shares: Array
    counts: tuple[int, ...]
    points: tuple[bool, ...]

    @classmethod
    def of(cls, shares: Sequence[float], points: Sequence[bool], draws: int) -> Strata:
        """Draws in proportion to the shares by largest remainders, one at least; one for a part without spread.

        Args:
            shares: of the parts, (p,).
            points: which have no spread.
            draws: of those that have some, together.

        Raises:
            ValueError: shares that do not sum to 1, or fewer draws than parts.
        """
        share, point = np.asarray(shares, dtype=np.float64), np.asarray(points, dtype=bool)
        if not (share.ndim == 1 and len(share) and (share > 0.0).all() and abs(share.sum() - 1.0) < 1e-6):
            raise ValueError(f"shares of parts must be above 0 and sum to 1, got {share.tolist()}")
        count = np.ones(len(share), dtype=int)
        wide = np.flatnonzero(~point)
        if len(wide):
            least = max(2, len(wide))
            if draws < least:
                raise ValueError(f"draws={draws}: {len(wide)} part(s) with spread need {least} at least")
            count[wide] = _apportioned(share[wide] / share[wide].sum(), draws)
        return cls(share, tuple(count.tolist()), tuple(point.tolist()))

    @property
    def n_draws(self) -> int:
        """m, of all parts together."""
        return sum(self.counts)

    @property
    def weight(self) -> Array:
        """Of each draw, (m,); those of a part sum to its share."""
        return np.repeat(self.shares / np.array(self.counts), self.counts)

    def places(self) -> Iterator[slice]:
        """Where the draws of each part stand."""
        ends = np.cumsum(self.counts)
        return (slice(int(end) - n, int(end)) for end, n in zip(ends, self.counts, strict=True))

    def mean(self, values: Array) -> Array:
        """Of (m, ...) values over draws, (...)."""
        return np.asarray(np.tensordot(self.weight, values, 1))

    def variance(self, values: Array) -> Array:
        """Of the mixture, without bias: within parts, and between their means less what draws add to it, (...)."""
        middle = self.mean(values)
        found = np.zeros_like(middle)
        for w, n, mean, within in self._parts(values, middle):
            found += w * (mean - middle) ** 2 + w * within * (1.0 - (1.0 - w) / n)
        return found

    def error(self, values: Array) -> Array:
        """Standard error of :meth:`mean` as there are finitely many draws, (...)."""
        found = np.zeros(values.shape[1:])
        for w, n, _, within in self._parts(values, self.mean(values)):
            found += w**2 * within / n
        return np.asarray(np.sqrt(found))

    def _parts(self, values: Array, middle: Array) -> Iterator[tuple[float, int, Array, Array]]:
        """Share, draws, mean and variance of each part; one draw with spread borrows the variance of all draws."""
        for w, n, point, place in zip(self.shares, self.counts, self.points, self.places(), strict=True):
            own = values[place]
            if n > 1:
                within = own.var(0, ddof=1)
            elif point:
                within = np.zeros_like(middle)
            else:
                within = np.asarray(np.tensordot(self.weight, (values - middle) ** 2, 1))
            yield float(w), n, own.mean(0), within


def _apportioned(share: Array, total: int) -> NDArray[np.int_]:
    """Whole numbers near ``share * total`` with that sum, none of them 0."""
    quota = share * total
    count = np.floor(quota).astype(int)
    first = np.argsort(count - quota, kind="stable")[: total - int(count.sum())]
    count[first] += 1
    for place in np.flatnonzero(count == 0):
        count[np.argmax(count)] -= 1
        count[place] = 1
    return count
