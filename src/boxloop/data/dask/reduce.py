"""Sums over partitions where they live: one Dask task for each, added in a fixed tree.

Parameters travel out once for every pass, as one task that all others depend on, so that a scheduler can make them
again for a worker that was lost; statistics travel back. A task that runs twice gives the same value under the same
name, of which the tree takes one: nothing is counted twice, and the number of rows that came back is checked.

Graphs are written down task by task: ``delayed`` would inspect every argument of every task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from boxloop.data.dask.partitions import Partition, partition_key
from boxloop.data.dask.pickling import Broadcast, pickle_value, unpickle_value
from boxloop.data.dask.tasks import (
    ClusterError,
    Graph,
    compute_in_order,
    compute_task,
    persist_task,
    plan_contents,
)
from boxloop.data.source import sum_tiles

FAN = 16
"""Sums added by one task."""


@dataclass(frozen=True)
class PartialSum:
    """What a task sends back: a sum, the number of rows behind it and their weight."""

    value: Any
    rows: int
    weight: float

    def __add__(self, other: PartialSum) -> PartialSum:
        if self.value is None or other.value is None:
            value = other.value if self.value is None else self.value
        else:
            value = self.value + other.value
        return PartialSum(value, self.rows + other.rows, self.weight + other.weight)


def sum_partitions(
    parts: Sequence[Partition], counts: Sequence[int], function: Callable[[Tensor, Tensor, int], Any]
) -> PartialSum:
    """Sum ``function(rows, weight, number of the first row)`` over all partitions, on the cluster.
    The function must be pure: a thread calls the same for all its partitions."""
    from dask.task_spec import List, Task, TaskRef

    token, nonempty = uuid4().hex, [i for i in range(len(parts)) if counts[i]]
    if not nonempty:
        raise ValueError("the source has no rows")
    contents, graph = plan_contents([parts[i] for i in nonempty])
    graph |= _broadcast_task(function, token)
    starts, leaves = [0, *accumulate(counts)], [partition_key(i, token) for i in nonempty]
    for i, key, content in zip(nonempty, leaves, contents, strict=True):
        graph[key] = _partition_task(key, token, parts[i], starts[i], counts[i], content)
    level, height = leaves, 0
    while len(level) > 1:
        blocks = [level[i : i + FAN] for i in range(0, len(level), FAN)]
        level = [f"boxloop-sum-{height}-{i}-{token}" for i in range(len(blocks))]
        for key, block in zip(level, blocks, strict=True):
            graph[key] = Task(key, _add_partial_sums, List(*map(TaskRef, block)))
        height += 1
    total: PartialSum = unpickle_value(compute_task(graph, level[0], leaves, parts))
    if total.rows != starts[-1]:
        raise ClusterError(f"{total.rows} rows were summed where {starts[-1]} were counted")
    return total


def iterate_partial_sums(
    parts: Sequence[Partition], counts: Sequence[int], function: Callable[[Tensor, Tensor, int], Any]
) -> Iterator[PartialSum]:
    """The sums that :func:`sum_partitions` adds up, one for each partition that has rows, in order."""
    token = uuid4().hex
    broadcast = persist_task(_broadcast_task(function, token))

    def partition_tasks() -> Iterator[tuple[str, Graph]]:
        for i, (part, start, count) in enumerate(
            zip(parts, accumulate(counts, initial=0), counts, strict=False)
        ):
            if count:
                (content,), graph = plan_contents([part])
                key = partition_key(i, token)
                yield (
                    key,
                    {**graph, **broadcast, key: _partition_task(key, token, part, start, count, content)},
                )

    yield from map(unpickle_value, compute_in_order(partition_tasks(), parts))


def map_partitions(function: Callable[..., Any], parts: Sequence[Partition]) -> list[Any]:
    """``function(part, content)`` of every partition, on the cluster, in order."""
    return _compute_calls(parts, [pickle_value((function, part.without_content())) for part in parts])


def map_on_cluster(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """``function(item)`` of every item, on the cluster, in order."""
    return _compute_calls((), [pickle_value((function, item)) for item in items])


def _compute_calls(parts: Sequence[Partition], calls: Sequence[bytes]) -> list[Any]:
    """The values of calls, each with the content of its partition where there are partitions."""
    from dask.task_spec import List, Task, TaskRef

    token = uuid4().hex
    contents, graph = plan_contents(parts)
    keys, whole = [partition_key(i, token) for i in range(len(calls))], f"boxloop-each-{token}"
    for key, call, content in zip(keys, calls, [[one] for one in contents] or [[]] * len(calls), strict=True):
        graph[key] = Task(key, _call_pickled, call, *content)
    graph[whole] = Task(whole, list, List(*map(TaskRef, keys)))
    return list(compute_task(graph, whole, keys, parts))


def _call_pickled(data: bytes, *content: Any) -> Any:
    function, first = unpickle_value(data)
    return function(first, *content)


def _broadcast_task(function: Callable[..., Any], token: str) -> Graph:
    """The task that all others of a pass take the function from."""
    from dask.task_spec import DataNode

    grad, key = torch.is_grad_enabled(), f"boxloop-carried-{token}"
    return {key: DataNode(key, Broadcast(pickle_value((function, grad), detached=not grad)))}


def _partition_task(key: str, token: str, part: Partition, start: int, count: int, content: Any) -> Any:
    """The task that sums one partition."""
    from dask.task_spec import Task, TaskRef

    data = pickle_value((part.without_content(), start, count))
    return Task(key, _sum_partition, TaskRef(f"boxloop-carried-{token}"), data, content)


def _sum_partition(broadcast: Broadcast, data: bytes, content: Any) -> bytes:
    function, grad = broadcast.value()
    part, start, count = unpickle_value(data)
    n_rows, total_weight = 0, torch.zeros((), dtype=torch.float64)

    def count_and_call(rows: Tensor, weight: Tensor, place: int) -> Any:
        nonlocal n_rows, total_weight
        n_rows += len(weight)
        total_weight = total_weight.to(weight.device) + weight.sum()  # waits for a device once, at the end
        return function(rows, weight, place)

    with name_partition(part), torch.set_grad_enabled(grad):
        value = sum_tiles(count_and_call, part.open(content).chunks(), start)
        if n_rows != count:
            raise ValueError(f"{count} rows were counted, and {n_rows} read: the data changed")
    return pickle_value(PartialSum(value, n_rows, float(total_weight)), detached=True)


def _add_partial_sums(sums: list[bytes]) -> bytes:
    return pickle_value(reduce(lambda a, b: a + b, map(unpickle_value, sums)))


@contextmanager
def name_partition(part: Partition) -> Iterator[None]:
    """Name the partition in an error about its rows."""
    try:
        yield
    except ValueError as error:
        if part.is_named_in(str(error)):
            raise
        if type(error) is not ValueError:  # a subclass, by which somebody may catch it
            error.add_note(f"It was raised for {part.label}.")
            raise
        raise ValueError(f"{part.label}: {error}") from error
