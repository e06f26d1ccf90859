"""Partitions summed where they live: one Dask task for each, added in a fixed tree, with an end to every wait.

Parameters travel out once for every pass, as one task that all others depend on, so that a scheduler can make them
again for a worker that was lost; statistics travel back. A task that runs twice gives the same value under the same
name, of which the tree takes one: nothing is counted twice, and the number of rows that came back is checked.

Graphs are written down task by task: ``delayed`` would ask of every argument of every task what it is made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from boxloop.data.blame import deaths, killed, part_key
from boxloop.data.graph import Graph, contents
from boxloop.data.parts import Part
from boxloop.data.tiles import total
from boxloop.data.travel import Carried, packed, unpacked
from boxloop.tree import Tree

T = TypeVar("T", bound=Tree)

FAN = 16
"""Sums added by one task."""

PATIENCE = 30.0
"""Seconds without any worker, or without a scheduler, before a pass is given up."""

POLL, LOOK = 0.25, 5.0
"""Seconds between two looks at the tasks, and at the scheduler."""

LOST = "lost dependencies"
"""Dask's words where a task needs what no worker has and nobody can make again."""

GO_ON = "; with checkpoint= the fit goes on from its last round on another cluster"

Watch = Callable[[int, int], None]
"""Told how many partitions of a pass are done, and of how many."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


class ClusterError(RuntimeError):
    """A pass cannot be finished: its scheduler or its workers are gone. A checkpoint goes on from the last round."""


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Be told how each pass over a cluster goes on."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


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
    from dask.task_spec import DataNode, List, Task, TaskRef

    token, starts = uuid4().hex, [0, *accumulate(counts)]
    some = [i for i in range(len(parts)) if counts[i]]
    if not some:
        raise ValueError("the source has no rows")
    held, graph = contents([parts[i] for i in some])
    grad, carried, leaves = torch.is_grad_enabled(), f"boxloop-carried-{token}", []
    graph[carried] = DataNode(carried, Carried(packed((function, grad), detached=not grad)))
    for i, content in zip(some, held, strict=True):
        leaves.append(key := part_key(i, token))
        part = packed((parts[i].sent(), starts[i], counts[i]))
        graph[key] = Task(key, _leaf, TaskRef(carried), part, content)
    level, height = leaves, 0
    while len(level) > 1:
        blocks = [level[i : i + FAN] for i in range(0, len(level), FAN)]
        level = [f"boxloop-sum-{height}-{i}-{token}" for i in range(len(blocks))]
        for key, block in zip(level, blocks, strict=True):
            graph[key] = Task(key, _added, List(*map(TaskRef, block)))
        height += 1
    found: Partial = unpacked(_computed(graph, level[0], leaves, parts))
    if found.rows != starts[-1]:
        raise ClusterError(f"{found.rows} rows were summed where {starts[-1]} were counted")
    return found


def each(function: Callable[..., Any], parts: Sequence[Part]) -> list[Any]:
    """``function(part, content)`` of every partition, on the cluster, in order."""
    from dask.task_spec import List, Task, TaskRef

    token = uuid4().hex
    held, graph = contents(parts)
    keys, whole = [part_key(i, token) for i in range(len(parts))], f"boxloop-each-{token}"
    for key, part, content in zip(keys, parts, held, strict=True):
        graph[key] = Task(key, _called, packed((function, part.sent())), content)
    graph[whole] = Task(whole, list, List(*map(TaskRef, keys)))
    return list(_computed(graph, whole, keys, parts))


def _called(data: bytes, content: Any) -> Any:
    function, part = unpacked(data)
    return function(part, content)


def _leaf(carried: Carried, data: bytes, content: Any) -> bytes:
    """The sum over one partition."""
    function, grad = carried.opened()
    part, start, count = unpacked(data)
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


def _computed(graph: Graph, key: str, leaves: Sequence[str], parts: Sequence[Part]) -> Any:
    """The value of a task: on the current client's cluster, else by Dask's scheduler on this machine."""
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    client, whole = _client(), HighLevelGraph.from_collections(key, graph)
    if client is None:
        return Delayed(key, whole).compute()
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    address, watch = client.scheduler.address, _watch.get()
    try:
        keys = [key, *leaves] if watch else [key]
        futures = client.compute([Delayed(one, whole, layer=key) for one in keys])
        try:
            with _aside():
                _wait(client, futures, watch)
                return futures[0].result()
        finally:
            for future in futures:  # which does not wait for a scheduler that may be gone, as cancel does
                future.release()
    except KilledWorker as error:
        raise ClusterError(killed(error, parts, deaths(client))) from error
    except (FutureCancelledError, FuturesCancelledError, CommClosedError) as error:
        if LOST in str(error):
            raise ClusterError(
                "partitions that were persisted are no longer on the workers: persist the collection again, with the "
                f"client that is in use, and keep it{GO_ON}"
            ) from error
        raise ClusterError(
            f"the scheduler at {address} was lost, or told to drop the tasks{GO_ON}"
        ) from error


@contextmanager
def _aside() -> Iterator[None]:
    """Where this is a task of a cluster itself: let others have its thread while it waits for them."""
    from distributed import get_worker, rejoin, secede

    try:
        get_worker()
    except ValueError:
        yield
        return
    secede()
    try:
        yield
    finally:
        rejoin()


def _client() -> Any:
    """The current client of a cluster; None where there is none."""
    try:
        from distributed import default_client

        return default_client()
    except (ImportError, ValueError):
        return None


def _wait(client: Any, futures: list[Any], watch: Watch | None) -> None:
    """Until the first future is done, or nobody is there to do it."""
    from distributed import wait

    address, alive, last = client.scheduler.address, time.monotonic(), time.monotonic()
    while not futures[0].done():
        with suppress(TimeoutError):
            wait(futures[0], timeout=POLL)
        if watch:
            watch(sum(future.done() for future in futures[1:]), len(futures) - 1)
        now = time.monotonic()
        if now - last < LOOK:
            continue
        workers, last = _workers(client), now
        if workers:
            alive = now
        elif now - alive > PATIENCE:
            what = "does not answer any more" if workers is None else "has no worker"
            raise ClusterError(f"the scheduler at {address} {what}{GO_ON}")


def _workers(client: Any) -> int | None:
    """How many there are; None where no answer comes."""
    try:
        found = client.sync(client.scheduler.identity, n_workers=1, callback_timeout=LOOK)
    except (TimeoutError, OSError):
        return None
    return len(found["workers"])
