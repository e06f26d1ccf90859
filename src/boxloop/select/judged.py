"""Rows judged by fitted estimators, where the rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import AnySource, ArraySource, RowSelection
from boxloop.select.grouped import Grouped
from boxloop.select.rows import Places, marked, n_rows, placed, taken
from boxloop.select.scores import Array, log_densities
from boxloop.tree import Tree
from boxloop.types import Source


@dataclass(frozen=True)
class _Side(Tree):
    """What a pass finds for the first of several estimators, and what the others give to the same rows."""

    first: Grouped
    others: tuple[Tensor, ...]


def judged(
    estimators: Sequence[Any],
    X: Any,
    test: Places | None = None,
    share: NDArray[np.float64] | None = None,
    weight: Array | None = None,
) -> tuple[Grouped, ...]:
    """Log-densities of the same rows under estimators, summed by groups of rows.

    Args:
        estimators: fitted.
        X: all rows, in memory or as a source; those of a source are judged where they are, in one pass for all
            estimators, and count by its weights.
        test: the rows to judge; all when omitted.
        share: by how much each of them counts; see :meth:`Grouped.of`.
        weight: of the rows to judge, for rows in memory.

    Raises:
        ValueError: log-densities that are NaN or +inf, or not one for each row.
        TypeError: an estimator without ``score_samples``.
    """
    if isinstance(X, AnySource):
        return _elsewhere(estimators, X, None if test is None else marked(test, X.n_rows), share)
    rows = X if test is None else taken(X, test)
    density = [log_densities(estimator, rows) for estimator in estimators]
    lengths = {len(values) for values in density}
    if len(lengths) > 1:
        raise ValueError(f"the models gave log-densities of different numbers of rows: {sorted(lengths)}")
    count = lengths.pop()
    places = np.arange(count) if test is None else placed(test, n_rows(X))
    n = count if test is None else n_rows(X)
    return tuple(Grouped.of(values, places, n, weight, share) for values in density)


def _elsewhere(
    estimators: Sequence[Any], source: Source, marks: RowSelection | None, share: NDArray[np.float64] | None
) -> tuple[Grouped, ...]:
    n, names = source.n_rows, source.names

    def tile(rows: Tensor, weight: Tensor, start: int) -> _Side | None:
        places, counts = torch.arange(start, start + len(weight)), share
        if marks is not None:
            chosen, first = marks.mask_between(start, start + len(weight)), marks.count_before(start)
            places, rows, weight = (part[chosen.to(part.device)] for part in (places, rows, weight))
            counts = None if share is None else share[first : first + len(weight)]
        if not len(weight):
            return None
        table, mass = ArraySource(rows, None, names), weight.double().cpu().numpy()
        found = [
            Grouped.of(log_densities(estimator, table, places.numpy()), places.numpy(), n, mass, counts)
            for estimator in estimators
        ]
        return _Side(found[0], tuple(one.total for one in found[1:]))

    # A sum over no tile at all is refused where the tiles are added.
    found: _Side = source.reduce_at(tile)  # type: ignore[type-var,assignment]
    return found.first, *(replace(found.first, total=total) for total in found.others)
