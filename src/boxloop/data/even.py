"""Whether all rows weigh the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import Source


@dataclass(frozen=True)
class Ends(Tree):
    """The least and the largest weight; those of two tiles together are the ends of both."""

    least: Tensor
    largest: Tensor

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor) -> Self:
        """Of one tile."""
        return cls(*torch.aminmax(weight))

    def __add__(self, other: Self) -> Self:
        return type(self)(torch.minimum(self.least, other.least), torch.maximum(self.largest, other.largest))


def even(source: Source) -> bool:
    """Whether all rows weigh the same, in one pass where they live.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> even(ArraySource(torch.zeros(3, 2))), even(ArraySource(torch.zeros(2, 1), torch.tensor([1.0, 2.0])))
        (True, False)
    """
    ends = source.reduce(Ends.of)
    return bool(ends.least == ends.largest)
