"""Partitions summed where they live: one Dask task for each, added in a fixed tree.

Parameters travel out once for every pass, as one task that all others depend on, so that a scheduler can make them
again for a worker that was lost; statistics travel back. A task that runs twice gives the same value under the same
name, of which the tree takes one: nothing is counted twice, and the number of rows that came back is checked.

Graphs are written down task by task: ``delayed`` would ask of every argument of every task what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from boxloop.data.blame import part_key
from boxloop.data.graph import Graph, contents
from boxloop.data.parts import Part
from boxloop.data.tasks import ClusterError, computed, in_order, kept
from boxloop.data.tiles import total
from boxloop.data.travel import Carried, packed, unpacked
from boxloop.tree import Tree

T = TypeVar("T", bound=Tree)

FAN = 16
"""Sums added by one task."""


@dataclass(frozen=True)
class Partial:
    """What a task sends back: a sum, the rows behind it and their weight."""

    value: Any
    rows: int
    mass: float

    def __add__(self, other: Partial) -> Partial:
        if self.value is None or other.value is None:
            value = other.value if self.value is None else self.value
        else:
            value = self.value + other.value
        return Partial(value, self.rows + other.rows, self.mass + other.mass)


def summed(
    parts: Sequence[Part], counts: Sequence[int], function: Callable[[Tensor, Tensor, int], Any]
) -> Partial:
    """Sum ``function(rows, weight, number of the first row)`` over all partitions, on the cluster.

    Args:
        parts: in order.
        counts: rows of each.
        function: pure, as a thread calls the same for all its partitions; it travels with all it closes over.
    """
    from dask.task_spec import List, Task, TaskRef

    token, some = uuid4().hex, [i for i in range(len(parts)) if counts[i]]
    if not some:
        raise ValueError("the source has no rows")
    held, graph = contents([parts[i] for i in some])
    graph |= _carried(function, token)
    starts, leaves = [0, *accumulate(counts)], [part_key(i, token) for i in some]
    for i, key, content in zip(some, leaves, held, strict=True):
        graph[key] = _task(key, token, parts[i], starts[i], counts[i], content)
    level, height = leaves, 0
    while len(level) > 1:
        blocks = [level[i : i + FAN] for i in range(0, len(level), FAN)]
        level = [f"boxloop-sum-{height}-{i}-{token}" for i in range(len(blocks))]
        for key, block in zip(level, blocks, strict=True):
            graph[key] = Task(key, _added, List(*map(TaskRef, block)))
        height += 1
    found: Partial = unpacked(computed(graph, level[0], leaves, parts))
    if found.rows != starts[-1]:
        raise ClusterError(f"{found.rows} rows were summed where {starts[-1]} were counted")
    return found


def partials(
    parts: Sequence[Part], counts: Sequence[int], function: Callable[[Tensor, Tensor, int], Any]
) -> Iterator[Partial]:
    """The sums that :func:`summed` adds up, one for each partition that has rows, in order."""
    token = uuid4().hex
    carried = kept(_carried(function, token))

    def leaves() -> Iterator[tuple[str, Graph]]:
        for i, (part, start, count) in enumerate(
            zip(parts, accumulate(counts, initial=0), counts, strict=False)
        ):
            if count:
                (content,), graph = contents([part])
                key = part_key(i, token)
                yield key, {**graph, **carried, key: _task(key, token, part, start, count, content)}

    yield from map(unpacked, in_order(leaves(), parts))


def each(function: Callable[..., Any], parts: Sequence[Part]) -> list[Any]:
    """``function(part, content)`` of every partition, on the cluster, in order."""
    return _gathered(parts, [packed((function, part.sent())) for part in parts])


def spread(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """``function(item)`` of every item, on the cluster, in order."""
    return _gathered((), [packed((function, item)) for item in items])


def _gathered(parts: Sequence[Part], calls: Sequence[bytes]) -> list[Any]:
    """What calls give, each with the content of its part where there are parts."""
    from dask.task_spec import List, Task, TaskRef

    token = uuid4().hex
    held, graph = contents(parts)
    keys, whole = [part_key(i, token) for i in range(len(calls))], f"boxloop-each-{token}"
    for key, call, content in zip(keys, calls, [[one] for one in held] or [[]] * len(calls), strict=True):
        graph[key] = Task(key, _called, call, *content)
    graph[whole] = Task(whole, list, List(*map(TaskRef, keys)))
    return list(computed(graph, whole, keys, parts))


def _called(data: bytes, *content: Any) -> Any:
    function, first = unpacked(data)
    return function(first, *content)


def _carried(function: Callable[..., Any], token: str) -> Graph:
    """The task that all others of a pass take the function from."""
    from dask.task_spec import DataNode

    grad, key = torch.is_grad_enabled(), f"boxloop-carried-{token}"
    return {key: DataNode(key, Carried(packed((function, grad), detached=not grad)))}


def _task(key: str, token: str, part: Part, start: int, count: int, content: Any) -> Any:
    """The task that sums one partition."""
    from dask.task_spec import Task, TaskRef

    return Task(key, _leaf, TaskRef(f"boxloop-carried-{token}"), packed((part.sent(), start, count)), content)


def _leaf(carried: Carried, data: bytes, content: Any) -> bytes:
    """The sum over one partition."""
    function, grad = carried.opened()
    part, start, count = unpacked(data)
    seen, mass = 0, torch.zeros((), dtype=torch.float64)

    def counted(rows: Tensor, weight: Tensor, place: int) -> Any:
        nonlocal seen, mass
        seen, mass = (
            seen + len(weight),
            mass.to(weight.device) + weight.sum(),
        )  # a device is waited for once, at the end
        return function(rows, weight, place)

    with naming(part), torch.set_grad_enabled(grad):
        value = total(counted, part.open(content).chunks(), start)
        if seen != count:
            raise ValueError(f"{count} rows were counted, and {seen} read: the data changed")
    return packed(Partial(value, seen, float(mass)), detached=True)


def _added(level: list[bytes]) -> bytes:
    return packed(reduce(lambda a, b: a + b, map(unpacked, level)))


@contextmanager
def naming(part: Part) -> Iterator[None]:
    """Name the partition in an error about its rows."""
    try:
        yield
    except ValueError as error:
        if part.named(str(error)):
            raise
        if type(error) is not ValueError:  # one of its own kind, by which somebody knows it
            error.add_note(f"It was raised for {part.label}.")
            raise
        raise ValueError(f"{part.label}: {error}") from error
