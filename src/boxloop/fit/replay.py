"""Rounds as CUDA graphs: a hundred operations are started at once.

On a small table it takes longer to start the operations of a round than to do them. A round taken in hope (see
:mod:`boxloop.asking`) asks nothing of the device, so that it can be captured, and the next ones of its kind are
replayed: the same operations on the same numbers.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from boxloop.asking import hoping
from boxloop.fit.train import uncollected
from boxloop.run import Round
from boxloop.tree import Tree

S = TypeVar("S", bound=Tree)
Hoped = tuple[Round[S], list[Tensor]]
"""A round taken in hope, and its doubts."""

OFTEN = 8
"""Rounds of a kind that are taken as they are before the next is captured."""


def hoped(step: Callable[[S], Round[S]], state: S) -> Hoped[S]:
    """One round in hope, from a copy: what a model remembers of its answers goes with it."""
    with hoping() as watch:
        return step(state.map(lambda leaf: leaf)), watch.doubts


class Replays(Generic[S]):
    """A step in hope, captured for each kind of state that comes often.

    The first of a kind are taken as they are: what is computed once and kept must not be part of a graph, and a graph
    costs as much as some rounds.

    Args:
        step: one round; all that it reads but the state stays where it is in the device's memory.
    """

    def __init__(self, step: Callable[[S], Round[S]]) -> None:
        self.step = step
        self.refusal = ""
        self._met: Counter[Any] = Counter()
        self._graphs: dict[Any, CapturedGraph[S]] = {}
        self._pool: Any = None  # memory that all of them share, as they run one after the other

    def __call__(self, state: S) -> Hoped[S]:
        """As :func:`hoped`, of the step."""
        kind = kind_of(state)
        self._met[kind] += 1
        if self._met[kind] > OFTEN and kind not in self._graphs and not self.refusal:
            self._capture(kind, state)
        graph = self._graphs.get(kind)
        return hoped(self.step, state) if graph is None else graph(state)

    def _capture(self, kind: Any, state: S) -> None:
        """Nothing is captured where that cannot be; ``refusal`` then says why."""
        still, self._pool = state.map(torch.clone), self._pool or torch.cuda.graph_pool_handle()
        try:
            with _recorded(self._pool) as graph:
                done, doubts = hoped(self.step, still)
                doubts = [torch.stack(doubts).any()] if doubts else []
        except RuntimeError as error:
            self.refusal = str(error.__context__ or error).splitlines()[0]
            torch.cuda.synchronize()
            return
        self._graphs[kind] = CapturedGraph(graph, [leaf for _, leaf in still.leaves()], done, doubts)


@contextmanager
def _recorded(pool: Any) -> Iterator[Any]:
    """What is started within becomes a graph, and is not done.

    ``torch.cuda.graph`` does this too, but first it collects garbage and gives memory back, which takes longer than the
    rounds of most fits.
    """
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    side = torch.cuda.Stream(here.device)
    side.wait_stream(here)
    with warnings.catch_warnings(), uncollected(), torch.cuda.stream(side):
        warnings.simplefilter("ignore", UserWarning)  # a capture that failed is an error too
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield graph
        finally:
            graph.capture_end()
    here.wait_stream(side)


@dataclass(frozen=True, eq=False)
class CapturedGraph(Generic[S]):
    """A graph, the memory that it reads a state from, and the memory that it writes a round to."""

    graph: Any
    places: list[Tensor]
    done: Round[S]
    doubts: list[Tensor]

    def __call__(self, state: S) -> Hoped[S]:
        """The round from this state, in memory of its own."""
        for place, (_, leaf) in zip(self.places, state.leaves(), strict=True):
            place.copy_(leaf)
        self.graph.replay()
        copies: dict[int, Any] = {}

        def copied(value: Any) -> Any:  # what was one tensor in two places still is
            if isinstance(value, Tensor) and id(value) not in copies:
                copies[id(value)] = value.clone()
            return copies.get(id(value), value)

        done, doubts = self.done, [copied(doubt) for doubt in self.doubts]
        objective, rejected = copied(done.objective), copied(done.rejected)
        return replace(done, state=done.state.map(copied), objective=objective, rejected=rejected), doubts


def kind_of(value: Any) -> Any:
    """All of a state but the numbers in its tensors: states of one kind go through the same operations."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, Tree):
        return type(value), *(kind_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return tuple, *map(kind_of, value)
    return value
