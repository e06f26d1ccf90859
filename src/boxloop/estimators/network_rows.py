"""Rows of network estimators: in standard units, some of them held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.data import ArraySource, check_weight
from boxloop.fit import coordinates
from boxloop.tree import Tree

Array = NDArray[np.float64]

FEWEST_HELD, ENOUGH, SHARE = 8, 50, 0.25
"""Rows below which holding out tells nothing; rows that are held out at least, unless they are more than this share."""


@dataclass(frozen=True)
class Units(Tree):
    """Origin and scale of columns, (d,) each, float64; a constant column may have an infinite scale, and counts 0."""

    origin: Tensor
    scale: Tensor

    @classmethod
    def of(cls, table: Array, names: list[str], weight: Tensor | None = None) -> Units:
        """Of a table (n, d); constant columns count 0.

        Args:
            table: finite.
            names: of its columns, for messages.
            weight: of its rows.
        """
        frame = coordinates(ArraySource(_tensor(table), weight, columns=tuple(names)), "columns")
        return cls(frame.origin.double(), torch.where(frame.constant, torch.inf, frame.scale.double()))

    def still(self, names: list[str]) -> list[str]:
        """Which columns are constant."""
        return [name for name, scale in zip(names, self.scale.tolist(), strict=True) if scale == np.inf]

    def counted(self) -> Units:
        """The same, with a scale of 1 where columns are constant."""
        return Units(self.origin, torch.where(self.scale.isinf(), 1.0, self.scale))

    def standard(self, table: Array, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Rows in these units."""
        rows = (_tensor(table) - self.origin) / self.scale
        return rows.to(device=device, dtype=dtype)


def weighted_rows(X: Array, y: NDArray[Any], sample_weight: Any) -> tuple[Array, NDArray[Any], Tensor | None]:
    """Rows, what belongs to them, and their weights (n,), without rows of weight zero; None where there are no weights.

    Args:
        X: rows, (n, d).
        y: numbers or labels, (n, ...).
        sample_weight: one non-negative weight a row; None where each counts once.
    """
    if sample_weight is None:
        return X, y, None
    weight = check_weight(sample_weight, len(X)).cpu()
    counted = (weight > 0.0).numpy()
    return X[counted], y[counted], weight[counted]


def mark_of(X: Array, y: Array | NDArray[np.int64], x_units: Units, y_units: Units | None) -> list[float]:
    r"""A few numbers that tell these rows in this order from others: n, and :math:`\sum_i \cos(i) x_i` of every column.

    Args:
        X: rows, (n, d).
        y: numbers, (n, q), or classes, (n,).
        x_units: of the columns.
        y_units: of the numbers.
    """
    cpu = torch.device("cpu")
    places = torch.arange(len(X), dtype=torch.float64).cos()
    numbers = y.astype(np.float64)
    t = _tensor(numbers[:, None]) if y_units is None else y_units.standard(numbers, torch.float64, cpu)
    return [
        float(len(X)),
        *(places @ x_units.standard(X, torch.float64, cpu)).tolist(),
        *(places @ t).tolist(),
    ]


@dataclass(frozen=True)
class Rows:
    """What networks learn from.

    Args:
        x: rows in standard units, (n, d).
        y: numbers in standard units, (n, q), or classes, (n,).
        held_x: rows held out, None without.
        held_y: what belongs to them.
        outputs: of a network.
        ignorance: loss of a network that knows nothing.
        weight: of the rows, (n,); None where all count once.
        held_weight: of those held out.
    """

    x: Tensor
    y: Tensor
    held_x: Tensor | None
    held_y: Tensor | None
    outputs: int
    ignorance: float
    weight: Tensor | None = None
    held_weight: Tensor | None = None

    @property
    def classified(self) -> bool:
        """Whether y holds classes."""
        return not self.y.is_floating_point()

    @property
    def count(self) -> float:
        """N, the sum of the weights."""
        return float(len(self.x) if self.weight is None else self.weight.sum())


def held_out(y: Array | NDArray[np.int64], share: float, stream: Generator) -> NDArray[np.bool_]:
    """Which rows are held out, (n,): at random, and of classes the same share of each, rounded down.

    At least 50, or a quarter where that is less, as fewer tell little about noise; none where even that is below 8.

    Args:
        y: numbers, (n, q), or classes, (n,).
        share: of the rows.
        stream: of the choice.
    """
    share = max(share, min(ENOUGH / len(y), SHARE)) if share > 0.0 else 0.0
    order = torch.randperm(len(y), generator=stream).numpy()
    mask = np.zeros(len(y), dtype=bool)
    groups = [order] if y.ndim > 1 else [order[y[order] == label] for label in np.unique(y)]
    for group in groups:
        mask[group[: int(share * len(group) + 1e-9)]] = True
    return mask if mask.sum() >= FEWEST_HELD else np.zeros_like(mask)


def _tensor(table: Array) -> Tensor:
    """A table as a tensor, copied where it cannot be written to, of which torch warns."""
    return torch.from_numpy(np.require(table, dtype=np.float64, requirements=["C", "W"]))


def check_outputs(outputs: Array, start: int) -> None:
    """Refuse outputs of the networks, (m, n, ...), that overflowed, naming the row; ``start`` is that of row 0."""
    bad = ~np.isfinite(outputs).all(axis=(0, *range(2, outputs.ndim)))
    if bad.any():
        raise ValueError(
            f"row {start + int(bad.argmax())} (counted from 0) of X lies so far from the rows of the fit that the "
            "networks overflow: leave it out or bring it to the scale of the fit"
        )
