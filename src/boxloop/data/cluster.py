"""Partitions summed where they live: one Dask task for each, added in a fixed tree.

Parameters travel out once for every pass, as one task that all others depend on, so that a scheduler can make them
again for a worker that was lost; statistics travel back. A task that runs twice gives the same value under the same
name, of which the tree takes one: nothing is counted twice, and the number of rows that came back is checked.
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

from boxloop.data.parts import Part
from boxloop.data.tasks import ClusterError, computed, in_order, kept
from boxloop.data.tiles import total
from boxloop.data.travel import packed, unpacked
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
        function: pure; it travels with all it closes over.
    """
    from dask import delayed

    token = uuid4().hex
    leaves = _leaves(parts, counts, _carried(function, token), token)
    if not leaves:
        raise ValueError("the source has no rows")
    add, level, height = delayed(_added, pure=False), leaves, 0
    while len(level) > 1:
        level = [
            add(level[i : i + FAN], dask_key_name=f"boxloop-sum-{height}-{i // FAN}-{token}")
            for i in range(0, len(level), FAN)
        ]
        height += 1
    found: Partial = unpacked(computed(level[0], leaves, parts))
    if found.rows != sum(counts):
        raise ClusterError(f"{found.rows} rows were summed where {sum(counts)} were counted")
    return found


def partials(
    parts: Sequence[Part], counts: Sequence[int], function: Callable[[Tensor, Tensor, int], Any]
) -> Iterator[Partial]:
    """The sums that :func:`summed` adds up, one for each partition that has rows, in order."""
    token = uuid4().hex
    leaves = _leaves(parts, counts, kept(_carried(function, token)), token)
    yield from map(unpacked, in_order(leaves, parts))


def each(function: Callable[..., Any], parts: Sequence[Part]) -> list[Any]:
    """``function(part, content)`` of every partition, on the cluster, in order."""
    from dask import delayed

    token = uuid4().hex
    call = delayed(function, pure=False)
    tasks = [call(p.sent(), p.content, dask_key_name=_key(i, token)) for i, p in enumerate(parts)]
    return list(computed(delayed(list)(tasks), tasks, parts))


def spread(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """``function(item)`` of every item, on the cluster, in order."""
    from dask import delayed

    token = uuid4().hex
    call = delayed(function, pure=False)
    tasks = [call(item, dask_key_name=_key(i, token)) for i, item in enumerate(items)]
    return list(computed(delayed(list)(tasks), tasks, ()))


def _carried(function: Callable[..., Any], token: str) -> Any:
    """The task that all others of a pass take the function from."""
    from dask import delayed

    grad = torch.is_grad_enabled()
    return delayed(packed((function, grad), detached=not grad), name=f"boxloop-carried-{token}")


def _leaves(parts: Sequence[Part], counts: Sequence[int], carried: Any, token: str) -> list[Any]:
    """The tasks that sum one partition each, of those that have rows."""
    from dask import delayed

    leaf, starts = delayed(_leaf, pure=False), accumulate(counts, initial=0)
    return [
        leaf(carried, part.sent(), part.content, start, count, dask_key_name=_key(i, token))
        for i, (part, start, count) in enumerate(zip(parts, starts, counts, strict=False))
        if count
    ]


def _key(number: int, token: str) -> str:
    return f"boxloop-part-{number}-{token}"


def _leaf(carried: bytes, part: Part, content: Any, start: int, count: int) -> bytes:
    """The sum over one partition."""
    function, grad = unpacked(carried)
    seen, mass = 0, 0.0

    def counted(rows: Tensor, weight: Tensor, place: int) -> Any:
        nonlocal seen, mass
        seen, mass = seen + len(weight), mass + float(weight.sum())
        return function(rows, weight, place)

    with naming(part), torch.set_grad_enabled(grad):
        value = total(counted, part.open(content).chunks(), start)
        if seen != count:
            raise ValueError(f"{count} rows were counted, and {seen} read: the data changed")
    return packed(Partial(value, seen, mass), detached=True)


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
