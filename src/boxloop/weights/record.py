"""A few weights of every vector seen, in order: what autocorrelation and drift are measured on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.tree import Tree

PROBES = 64
"""Weights that are watched."""
MOST = 8192
"""Rows kept; at twice as many, every other one goes."""


@dataclass(frozen=True)
class Record(Tree):
    """Some weights along a trajectory.

    Args:
        places: of the weights that are watched, (p,), int64, sorted.
        rows: their values at every ``stride``-th vector, (t, p), float64, oldest first.
        stride: vectors between two rows.
        seen: vectors so far.
    """

    places: Tensor
    rows: Tensor
    stride: int = 1
    seen: int = 0

    @classmethod
    def start(cls, size: int, generator: Generator) -> Record:
        """Watch weights chosen at random, all of them where they are few."""
        chosen = torch.randint(size, (4 * PROBES,), generator=generator).unique() if size > PROBES else None
        places = torch.arange(size) if chosen is None else _some(chosen, generator)
        return cls(places, torch.zeros(0, len(places), dtype=torch.float64))


class Recorder:
    """A record that grows; the rows not yet in its table wait in a list."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._places = record.places  # where the vectors are
        self._waiting: list[Tensor] = []

    @property
    def seen(self) -> int:
        """Vectors so far."""
        return self._record.seen

    def observe(self, vector: Tensor) -> None:
        """Note the watched weights of one vector (D,)."""
        record = self._record
        if record.seen % record.stride == 0:
            self._places = self._places.to(vector.device)
            self._waiting.append(vector[self._places].double())
        self._record = replace(record, seen=record.seen + 1)
        if len(record.rows) + len(self._waiting) >= 2 * MOST:
            self._thin()

    def record(self) -> Record:
        """All that was noted."""
        if self._waiting:
            fresh = torch.stack(self._waiting).cpu()
            self._record = replace(self._record, rows=torch.cat([self._record.rows, fresh]))
            self._waiting = []
        return self._record

    def _thin(self) -> None:
        record = self.record()
        self._record = replace(record, rows=record.rows[::2].clone(), stride=2 * record.stride)


def _some(chosen: Tensor, generator: Generator) -> Tensor:
    order = torch.randperm(len(chosen), generator=generator)[:PROBES]
    return chosen[order].sort().values
