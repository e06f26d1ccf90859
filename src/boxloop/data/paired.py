"""Two tables whose rows belong together, as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.data.array import tile_rows
from boxloop.data.tiles import Tile, Tiled
from boxloop.types import Source


@dataclass(frozen=True)
class Paired(Tiled):
    """Row i of one source beside row i of another: the columns of the first, then those of the second.

    Whatever works on a source then works on pairs: passes, mini-batches, rows held out. Weights are those of the first.

    Args:
        left: the first columns.
        right: the rest.

    Raises:
        ValueError: the two differ in their number of rows.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> pair = Paired(ArraySource(torch.zeros(3, 2)), ArraySource(torch.ones(3, 1)))
        >>> next(pair.chunks())[0][0]
        tensor([0., 0., 1.])
    """

    left: Source
    right: Source

    def __post_init__(self) -> None:
        if self.left.n_rows != self.right.n_rows:
            raise ValueError(
                f"the first view has {self.left.n_rows} rows and the second {self.right.n_rows}: row i of one "
                "must belong to row i of the other"
            )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.left.n_rows

    @property
    def n_columns(self) -> int:
        """Of both together."""
        return self.left.n_columns + self.right.n_columns

    @property
    def names(self) -> tuple[str, ...]:
        """Column names; where the views share one, each says which view it is of."""
        if not set(self.left.names) & set(self.right.names):
            return self.left.names + self.right.names
        return (*(f"x:{name}" for name in self.left.names), *(f"y:{name}" for name in self.right.names))

    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield joined tiles in row order; either file may break where it likes."""
        step = size or tile_rows(self.n_columns)
        others = self.right.chunks(step)
        rest: Tensor | None = None
        for rows, weight in self.left.chunks(step):
            found, missing = ([] if rest is None else [rest]), len(rows) - (0 if rest is None else len(rest))
            while missing > 0:
                found.append(next(others)[0])
                missing -= len(found[-1])
            beside = found[0] if len(found) == 1 else torch.cat(found)
            rest = beside[len(rows) :]
            kind = torch.promote_types(rows.dtype, beside.dtype)
            yield torch.cat([rows.to(kind), beside[: len(rows)].to(kind)], 1), weight
