"""Sums over rows of inputs and outputs: all that linear regression needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from boxloop.data import (
    MOMENT_COLUMNS,
    MomentSummary,
    check_count,
    check_kind,
    check_source,
    summarise_moments,
)
from boxloop.numeric import gram, single_threaded
from boxloop.tree import Tree
from boxloop.types import Source

SMALLEST, LARGEST = 1e-152, 1e152
"""Sizes of values whose squares, and sums of them, float64 holds to the last digit."""


@dataclass(frozen=True)
class RegressionMoments(Tree):
    """Sums over rows; those of two sets of rows add.

    Args:
        gram: XᵀX, (d, d).
        cross: XᵀY, (d, k).
        square: sum of squares of each output, (k,).
        weight: number of rows, or the sum of their weights.

    Example:
        >>> import torch
        >>> x, y = torch.eye(2).double(), torch.tensor([[3.0], [4.0]]).double()
        >>> whole = RegressionMoments.of(x[:1], y[:1]) + RegressionMoments.of(x[1:], y[1:])
        >>> whole.square, float(whole.weight)
        (tensor([25.], dtype=torch.float64), 2.0)
    """

    gram: Tensor
    cross: Tensor
    square: Tensor
    weight: Tensor

    @classmethod
    def of(cls, rows: Tensor, targets: Tensor, weight: Tensor | None = None) -> RegressionMoments:
        """Sums over rows (n, d) with outputs (n, k) and, if any, weights (n,), in float64."""
        for name, given in (
            ("rows", rows),
            ("targets", targets),
            *(() if weight is None else (("weight", weight),)),
        ):
            check_kind(given, name, Tensor, f"torch.as_tensor({name}) makes one")
        n = len(rows) if rows.dim() else 0
        if (
            rows.dim() != 2
            or targets.dim() != 2
            or len(targets) != n
            or (weight is not None and weight.shape != (n,))
        ):
            shapes = [tuple(given.shape) for given in (rows, targets, weight) if given is not None]
            raise ValueError(
                f"rows (n, d), targets (n, k) and weights (n,) are needed, got the shapes {shapes}"
            )
        rows, targets = rows.double(), targets.double()
        weight = rows.new_ones(len(rows)) if weight is None else weight.to(rows)
        heavy = targets * weight[:, None]
        return cls(gram(rows, weight), rows.mT @ heavy, (heavy * targets).sum(0), weight.sum())


@dataclass(frozen=True)
class Centre(Tree):
    """What was taken out of rows before their sums were formed, and is given back to predictions.

    Args:
        origin: subtracted from the columns, (d,).
        scale: their units, (d,).
        level: subtracted from the outputs, (k,).
        free: whether the level is a parameter without a prior, with an error of its own.
    """

    origin: Tensor
    scale: Tensor
    level: Tensor
    free: bool

    @classmethod
    def none(cls, d: int, k: int) -> Centre:
        """Nothing was."""
        one = torch.ones(d, dtype=torch.float64)
        return cls(one * 0.0, one, torch.zeros(k, dtype=torch.float64), False)


@single_threaded
def regression_moments(
    source: Source, n_targets: int = 1, *, centred: bool = True, scaled: bool = False
) -> tuple[RegressionMoments, Centre]:
    """Sums over the rows of a source whose last columns are outputs, in one pass.

    Args:
        source: rows; sums run about the mean of the first ones, so values far from zero lose no digits.
        n_targets: k, columns that are outputs.
        centred: take out the means, for a level without a prior; the columns are as they are when False.
        scaled: count columns in units of their standard deviation.

    Returns:
        The sums, and what was taken out first.

    Raises:
        ValueError: a missing value, or more columns than a square matrix is worth.
    """
    check_source(source, "source")
    if check_count(n_targets, "n_targets") >= source.n_columns:
        raise ValueError(f"n_targets={n_targets} of {source.n_columns} columns leave none to regress on")
    if source.n_columns > MOMENT_COLUMNS:
        raise ValueError(f"exact regression on {source.n_columns} columns: the most is {MOMENT_COLUMNS}")
    found = summarise_moments(source)
    if found is None:
        raise ValueError("the rows have a missing value (NaN): exact regression needs whole rows")
    frame = found.frame
    sizes = torch.where(frame.constant & (frame.origin != 0.0), frame.origin.abs(), frame.scale)
    for name, size in zip(found.names, sizes.tolist(), strict=True):
        if not SMALLEST < size < LARGEST:
            raise ValueError(
                f"column {name!r} has values {_size_in_words(size)}, whose squares float64 cannot hold: rescale it"
            )
    return _placed(found, source.n_columns - n_targets, centred, scaled)


def _size_in_words(size: float) -> str:
    """About how large, or beyond the largest whose square is a number."""
    return f"of the size {size:.1e}" if isfinite(size) else f"above {LARGEST:g}"


def _placed(found: MomentSummary, d: int, centred: bool, scaled: bool) -> tuple[RegressionMoments, Centre]:
    frame = found.frame
    unit = torch.cat(
        [frame.scale[:d] if scaled else torch.ones_like(frame.scale[:d]), torch.ones_like(frame.scale[d:])]
    )
    factor = found.scale / unit
    second = factor[:, None] * found.covariance * factor
    if not centred:
        middle = frame.origin / unit
        second = second + middle[:, None] * middle
    second = second * found.weight
    moments = RegressionMoments(
        second[:d, :d], second[:d, d:], second.diagonal()[d:].clamp(min=0.0), second.new_tensor(found.weight)
    )
    origin = frame.origin if centred else torch.zeros_like(frame.origin)
    return moments.to("cpu"), Centre(origin[:d], unit[:d], origin[d:], centred).to("cpu")
