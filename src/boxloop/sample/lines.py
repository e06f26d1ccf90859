"""Summaries whose every line says whether it depends on labels that draws may have exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.data import check_level, make_frame
from boxloop.sample.diagnostics import diagnose

FREE = "free"


@dataclass(frozen=True, eq=False)
class Lines:
    """Named numbers of c chains of n draws.

    Args:
        values: each (c, n).
        said: of all of them, ``free`` or how they were made comparable.
    """

    values: Mapping[str, Tensor]
    said: str

    def columns(self, level: float) -> dict[str, list[Any]]:
        """Mean, standard deviation, interval and diagnosis of each."""
        table = torch.stack(list(self.values.values()), 2).double().cpu().numpy()
        found = diagnose(table)
        flat = table.reshape(-1, table.shape[2])
        low, high = np.quantile(flat, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        numbers = {
            "mean": flat.mean(0),
            "sd": flat.std(0, ddof=1) if len(flat) > 1 else np.full(flat.shape[1], np.nan),
            "low": low,
            "high": high,
            "mcse": found.mcse,
            "ess_bulk": found.ess_bulk,
            "ess_tail": found.ess_tail,
            "r_hat": found.r_hat,
        }
        return {**{key: value.tolist() for key, value in numbers.items()}, "labels": [self.said] * len(low)}

    def worries(self) -> tuple[str, ...]:
        """What speaks against these numbers."""
        table = torch.stack(list(self.values.values()), 2).double().cpu().numpy()
        return diagnose(table).worries(tuple(self.values))


def summary_frame(parts: list[Lines], level: float) -> Any:
    """One line a number, as a frame.

    Args:
        parts: each with its own number of draws.
        level: of the central interval from ``low`` to ``high``.

    Example:
        >>> import torch
        >>> draws = torch.arange(8.0).reshape(2, 4)
        >>> summary_frame([Lines({"a": draws}, "free")], 0.5)[["mean", "low", "high", "labels"]]
           mean   low  high labels
        a   3.5  1.75  5.25   free
    """
    check_level(level)
    found = [part.columns(level) for part in parts]
    joined = {key: [item for columns in found for item in columns[key]] for key in found[0]}
    return make_frame(joined, [name for part in parts for name in part.values])


def evenly(count: int, most: int) -> Tensor:
    """At most so many places of ``count``, evenly apart, the last among them."""
    every = max(1, -(-count // most))
    return torch.arange(count - 1, -1, -every).flip(0)
