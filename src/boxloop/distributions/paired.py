"""One row a member: the log-density that an evidence bound needs, at the cost of one pass over the rows.

:meth:`boxloop.types.Law.log_prob` gives every row under every member, (m, n). A decoder makes one law for each row, and
only the diagonal of that matrix is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from boxloop.types import Law

TILE = 1 << 22
"""Values (members x rows x columns) that are held at once."""


class PairedLaw(Law, Protocol):
    """A batch of laws that can be met by one row each."""

    def paired(self, rows: Tensor) -> Tensor:
        """Log-density of row i under member i: (m, d) -> (m,). NaN in a row makes its result NaN."""


def under_every_member(
    entries: Callable[[Tensor, Tensor], Tensor], parameter: Tensor, rows: Tensor
) -> Tensor:
    """Log-density of every row under every member, (m, n), a tile of members at a time.

    Args:
        entries: parameters (b, 1, p) and rows (n, d) -> log-density of each value, (b, n, d).
        parameter: of the members, (m, p).
        rows: (n, d); missing values are left out.
    """
    missing = torch.isnan(rows)
    known = torch.where(missing, 0.0, rows)
    step = max(1, TILE // max(1, len(rows) * parameter.shape[1]))
    parts = [
        entries(part[:, None], known).masked_fill(missing, 0.0).sum(-1) for part in parameter.split(step)
    ]
    return torch.cat(parts)
