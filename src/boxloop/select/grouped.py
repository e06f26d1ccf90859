r"""Log-densities of rows as sums over groups: a group is a row where there are few, and rows meet by chance where many.

What models differ by is a mean over rows, whose error is that of paired values. Both need one number for each group of
rows, however many rows are in it (random groups: Wolter 2007, chapter 2), so that nothing grows with the table: sums
add up over tiles, partitions and folds, and the mean is that of all rows. Of 65,536 groups the error is known to 0.3%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.numeric import mean_and_error, scrambled
from boxloop.select.scores import Array
from boxloop.tree import Tree

GROUPS = 1 << 16
"""Most groups; of no more rows each is a group of its own."""

KEY = 3
"""Of the chance by which rows meet."""


@dataclass(frozen=True)
class Grouped(Tree):
    r"""Values of rows, summed by group, of g groups.

    With weights :math:`w_i` of the rows in a group, :math:`\sum w_i`, :math:`\sum w_i^2` and :math:`\sum w_i v_i`.

    Args:
        weight: (g,).
        square: (g,).
        total: (g,); infinite where a value is.

    Example:
        >>> found = Grouped.of(np.array([1.0, 3.0]), np.arange(2), 2)
        >>> found.mean, found.mean_error()[1]
        (2.0, 1.0)
    """

    weight: Tensor
    square: Tensor
    total: Tensor

    @classmethod
    def of(
        cls,
        values: Array,
        places: NDArray[np.intp],
        n_rows: int,
        weight: Array | None = None,
        share: Array | None = None,
    ) -> Self:
        """Of some rows of a table.

        Args:
            values: one number a row, (m,).
            places: which rows they are, counted from 0, (m,).
            n_rows: of the whole table: how many groups there are, and who meets in them.
            weight: of the rows; whole numbers count as repetitions.
            share: by how much each value counts, where a row has several: they should add up to 1.
        """
        place, size = places, min(n_rows, GROUPS)
        if n_rows > GROUPS:
            place = (scrambled(place.astype(np.uint64), KEY) % np.uint64(GROUPS)).astype(np.int64)
        mass = np.ones(len(values)) if weight is None else np.asarray(weight, dtype=np.float64)
        once = mass if share is None else mass * share
        some = once > 0.0  # a row without weight may have no density
        place, mass, once, known = place[some], mass[some], once[some], np.asarray(values)[some]
        sums = (once, once * mass, once * known)
        return cls(*(torch.from_numpy(np.bincount(place, part, minlength=size)) for part in sums))

    @property
    def n_rows(self) -> float:
        """Weight of all rows: how many they are, where they have no weights."""
        return float(self.weight.sum())

    @property
    def sum(self) -> float:
        """Of all values, by weight."""
        return float(self.total.sum())

    @property
    def mean(self) -> float:
        """Of all values, by weight."""
        return self.sum / self.n_rows

    def less(self, by: float) -> Self:
        """All values lowered by a number."""
        return type(self)(self.weight, self.square, self.total - by * self.weight)

    def behind(self, best: Self) -> tuple[float, float]:
        """How far the mean is below another's on the same rows, with the standard error of the paired difference."""
        return type(self)(self.weight, self.square, best.total - self.total).mean_error()

    def mean_error(self) -> tuple[float, float]:
        r"""Mean with its standard error; NaN for a single row, and where a value is infinite.

        .. math:: \mathrm{se}^2 = \frac{\sum_g W_g (\bar v_g - \bar v)^2}{W \, (\sum_g Q_g / W_g - 1)}, \qquad
            W_g = \sum_{i \in g} w_i, \; Q_g = \sum_{i \in g} w_i^2

        Unbiased for independent rows, in groups of any sizes; where each row is a group it is that of the rows.
        """
        some = self.weight > 0.0
        weight, square, total = (part[some].numpy() for part in (self.weight, self.square, self.total))
        return mean_and_error(total / weight, weight, float((square / weight).sum()) - 1.0)


def behind(values: Sequence[Grouped], best: int) -> tuple[Array, Array]:
    """How far each candidate is behind the best one, which has 0, with the errors of these paired differences."""
    found = [(0.0, 0.0) if j == best else other.behind(values[best]) for j, other in enumerate(values)]
    return np.array([mean for mean, _ in found]), np.array([error for _, error in found])
