"""Do the equations determine the parameters? A rank test that names the direction they leave free."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from boxloop.fit.equations.faults import NotIdentifiedError
from boxloop.numeric import join_words

RANK = 1e-10
"""Smallest singular value, beside the largest and in scaled coordinates, that is not zero."""
SHARE = 1e-4
"""Smallest share of a parameter in a direction that is worth naming."""
MOST_NAMED = 4


def check_identified(slope: Tensor, names: Sequence[str]) -> None:
    """Refuse a slope of less than full rank.

    Equations and parameters are scaled until every line and every column of the slope has length one, so that the
    answer does not depend on units.

    Args:
        slope: derivative of the mean equations, (q, p).
        names: of the p parameters.

    Raises:
        NotIdentifiedError: and the direction along which no equation changes.

    Example:
        >>> import torch
        >>> check_identified(torch.eye(2), ["a", "b"])
    """
    found = free_direction(slope, names)
    if found is not None:
        raise NotIdentifiedError(f"the equations do not determine the parameters: {found}")


def free_direction(slope: Tensor, names: Sequence[str]) -> str | None:
    """A sentence about the direction along which no equation changes; None where there is none."""
    if not bool(torch.isfinite(slope).all()):
        return "their derivative is not finite"
    absent = torch.nonzero(slope.abs().amax(0) == 0)[:, 0].tolist()
    if absent:
        which = join_words([names[j] for j in absent], most=MOST_NAMED)
        verb = "has" if len(absent) == 1 else "have"
        return (
            f"{which} {verb} no influence on any equation here (for a psi that is flat between jumps give smooth=; "
            "otherwise the root may lie at infinity)"
        )
    lines, columns = scales(slope)
    _, size, right = torch.linalg.svd(slope * lines[:, None] * columns, full_matrices=False)
    if float(size[-1]) > RANK * float(size[0]):
        return None
    direction = right[-1] * columns
    direction = direction / direction[direction.abs().argmax()]
    share = right[-1].abs()
    named = [j for j in share.argsort(descending=True).tolist() if float(share[j]) > SHARE]
    parts = ", ".join(f"{float(direction[j]):+.3g} {names[j]}" for j in sorted(named[:MOST_NAMED]))
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    which = join_words([names[j] for j in sorted(named[:MOST_NAMED])], total=len(named))
    return f"{which} enter only through a combination; moving along ({parts}{more}) changes no equation"


def scales(slope: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of lines and of columns that bring both to length one, nearly; ones where all is zero (Ruiz 2001)."""
    lines, columns = slope.new_ones(slope.shape[0]), slope.new_ones(slope.shape[1])
    for _ in range(10):
        scaled = slope * lines[:, None] * columns
        lines = lines * _root(scaled.norm(dim=1))
        columns = columns * _root(scaled.norm(dim=0))
    return lines, columns


def _root(length: Tensor) -> Tensor:
    return torch.where(length > 0, length.clamp(min=1e-300).rsqrt(), 1.0)
