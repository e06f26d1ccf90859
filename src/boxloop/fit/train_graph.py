"""Training steps as CUDA graphs: a hundred small operations are started at once.

A step of a small network keeps a GPU waiting for its host. All steps with batches of one size do the same operations,
so they are captured once and replayed: parameters and accounts lie in fixed places, rows and rates are copied in, and
random numbers go on from the seed that a block is given, as they do without a graph.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.fit.adam import Adam
from boxloop.tree import Tree


@dataclass(frozen=True)
class Walk(Tree):
    """A block of steps under way; all of it on the device.

    Args:
        point: parameters, (p,).
        adam: their running means.
        taken: steps that were not refused.
        slower: factor of the learning rate.
        refused: steps refused in a row.
        worst: most of these in the block.
        totals: rows seen, then each number that is told times its rows; empty before the first step.
    """

    point: Tensor
    adam: Adam
    taken: Tensor
    slower: Tensor
    refused: Tensor
    worst: Tensor
    totals: Tensor


@dataclass(frozen=True)
class Turn:
    """One step's input: rows, weights, learning rate, weight of the penalty, and whether that is in force."""

    rows: Tensor
    weight: Tensor
    rate: float | Tensor
    heavy: float | Tensor
    penalised: bool


Moved = Callable[[Walk, Turn, Generator, Generator], tuple[Walk, tuple[str, ...]]]
"""(walk, input, streams of loss and penalty) -> the walk after one step, and names of the numbers told."""


@dataclass(frozen=True)
class CapturedGraph:
    graph: Any
    turn: Turn


@dataclass(eq=False)
class Graphs:
    """Steps that are captured as they are met, by size of their batch.

    Args:
        refusal: why steps cannot be captured, where they cannot.
    """

    refusal: str = ""
    _graphs: dict[tuple[int, bool], CapturedGraph] = field(default_factory=dict)
    _walk: Walk | None = None
    _streams: tuple[Generator, ...] = ()
    _names: tuple[str, ...] = ()

    def block(
        self, moved: Moved, walk: Walk, turns: Iterable[Turn], streams: list[Generator]
    ) -> tuple[Walk, tuple[str, ...]]:
        """Take one step after another.

        Args:
            moved: one step, the same at every call. It is not kept: a graph in a cycle of references would be freed
                by the collector at any time, and during a capture that is an error.
            walk: where to begin.
            turns: inputs of the steps.
            streams: those of a block that is run without graphs.

        Raises:
            RuntimeError: a step cannot be captured; ``refusal`` says why, and nothing has moved.
        """
        for turn in turns:
            key = (len(turn.rows), turn.penalised)
            if key not in self._graphs:
                self._graphs[key] = self._captured(moved, walk, turn)
            if streams:
                self._begin(walk, streams)
                streams = []
            found = self._graphs[key]
            for place, value in ((found.turn.rows, turn.rows), (found.turn.weight, turn.weight)):
                place.copy_(value)
            for name in ("rate", "heavy"):
                getattr(found.turn, name).fill_(getattr(turn, name))
            found.graph.replay()
        assert self._walk is not None
        return self._walk.map(torch.clone), self._names

    def _begin(self, walk: Walk, streams: list[Generator]) -> None:
        """Put a walk and its seeds in their places."""
        assert self._walk is not None
        for own, stream in zip(self._streams, streams, strict=True):
            own.manual_seed(stream.initial_seed())
        for (_, place), (_, value) in zip(self._walk.leaves(), walk.leaves(), strict=True):
            place.copy_(value) if value.numel() else place.zero_()

    def _captured(self, moved: Moved, walk: Walk, turn: Turn) -> CapturedGraph:
        device = walk.point.device
        rate, heavy = (walk.slower.new_zeros(()), walk.point.new_zeros(()))
        still = Turn(turn.rows.clone(), turn.weight.clone(), rate, heavy, turn.penalised)
        if not self._streams:
            self._streams = (Generator(device), Generator(device))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what is allocated and chosen at a first call must not be captured
            for _ in range(2):
                after, self._names = moved(walk, still, Generator(device), Generator(device))
        torch.cuda.current_stream().wait_stream(side)
        if self._walk is None:
            self._walk = after.map(torch.zeros_like)
        graph = torch.cuda.CUDAGraph()
        for stream in self._streams:
            graph.register_generator_state(stream)
        try:
            with warnings.catch_warnings(), uncollected(), torch.cuda.graph(graph):
                warnings.simplefilter("ignore", UserWarning)  # a capture that failed is an error too
                fresh, _ = moved(self._walk, still, *self._streams)
                for (_, place), (_, value) in zip(self._walk.leaves(), fresh.leaves(), strict=True):
                    place.copy_(value)
        except RuntimeError as error:
            self.refusal = str(error.__context__ or error).splitlines()[0]
            torch.cuda.synchronize()
            raise
        return CapturedGraph(graph, still)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected within: graphs of others that it frees would end a capture."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
