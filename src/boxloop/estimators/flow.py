"""Where a stream of rows stands between two calls of ``partial_fit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from boxloop.average import Running
from boxloop.data import Standardisation
from boxloop.fit import Fit, OnlineState


@dataclass(frozen=True)
class Buffered:
    """Rows kept until there are enough for a first model.

    ``raced`` is how many there were at the last fit from fresh starts; ``start`` a model from before the stream, which
    stays until there are enough rows to go on from it.
    """

    rows: Tensor
    weight: Tensor
    raced: int = 0
    start: Any = None


@dataclass(frozen=True)
class Flowing:
    """A model in motion: coordinates, online state, the weight of all rows seen and of those in the averaged path."""

    frame: Standardisation
    state: OnlineState[Any]
    seen: float
    since: float = 0.0


def continued(fit: Fit[Any]) -> Flowing | None:
    """A stream that goes on from a whole fit: its rows count as seen, and its statistics begin the averaged path."""
    if fit.statistics is None:
        return None
    state = OnlineState(fit.standard, Running(fit.statistics, 1), Running(fit.statistics, 1))
    return Flowing(fit.frame, state, fit.frame.weight, fit.frame.weight)
