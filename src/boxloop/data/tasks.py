"""Dask tasks on the current client's cluster: an end to every wait, and errors that say what to do."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from typing import Any

from boxloop.data.blame import deaths, killed
from boxloop.data.graph import Graph
from boxloop.data.parts import Part

AHEAD = 2
"""Tasks for each thread of the workers that are made before their values are asked for."""

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


def computed(graph: Graph, key: str, leaves: Sequence[str], parts: Sequence[Part]) -> Any:
    """The value of a task: on the current client's cluster, else by Dask's scheduler on this machine.

    Args:
        graph: all tasks.
        key: the one that is wanted.
        leaves: those behind it that are counted, one for each partition.
        parts: the partitions, for what is said when workers die.
    """
    client, watch = _client(), _watch.get()
    tasks = _delayed(graph, [key, *leaves] if watch else [key])
    if client is None:
        return tasks[0].compute()
    with _told(client, parts), _aside():
        futures = client.compute(tasks)
        try:
            _wait(client, futures, watch)
            return futures[0].result()
        finally:
            _let_go(futures)


def in_order(tasks: Iterable[tuple[str, Graph]], parts: Sequence[Part]) -> Iterator[Any]:
    """The values of tasks, one after the other; few are made before they are asked for, and stay where they were made.

    Args:
        tasks: one for each partition that has rows: its name, and the graph that it is in.
        parts: as in :func:`computed`.
    """
    client, left = _client(), (_delayed(graph, [key])[0] for key, graph in tasks)
    if client is None:
        yield from (task.compute() for task in left)
        return
    waiting = deque[Any]()
    try:
        while True:
            with _told(client, parts), _aside():
                room = AHEAD * max(1, _threads(client) or 0) - len(waiting)
                waiting.extend(client.compute(list(islice(left, max(0, room)))))
                if not waiting:
                    return
                _wait(client, [waiting[0]], None)
                value = waiting[0].result()
            waiting.popleft().release()
            yield value
    finally:
        _let_go(waiting)


def kept(graph: Graph) -> Graph:
    """A task whose value stays on the cluster as long as somebody holds it; the task itself where there is none."""
    client = _client()
    return graph if client is None else dict(client.persist(_delayed(graph, list(graph))[0]).dask)


def _delayed(graph: Graph, keys: Sequence[str]) -> list[Any]:
    """Tasks of a graph, as Dask's client takes them."""
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    whole = HighLevelGraph.from_collections(keys[0], graph)
    return [Delayed(key, whole, layer=keys[0]) for key in keys]


def _let_go(futures: Sequence[Any]) -> None:
    for future in futures:  # which does not wait for a scheduler that may be gone, as cancel does
        future.release()


@contextmanager
def _told(client: Any, parts: Sequence[Part]) -> Iterator[None]:
    """Say in words of ours that workers or the scheduler are gone."""
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    address = client.scheduler.address
    try:
        yield
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
    left = futures[1:]
    while not futures[0].done():
        with suppress(TimeoutError):
            wait(futures[0], timeout=POLL)
        if watch:
            _let_go([future for future in left if future.done()])  # or workers would hold what they sent on
            left = [future for future in left if not future.done()]
            watch(len(futures) - 1 - len(left), len(futures) - 1)
        now = time.monotonic()
        if now - last < LOOK:
            continue
        threads, last = _threads(client), now
        if threads:
            alive = now
        elif now - alive > PATIENCE:
            what = "does not answer any more" if threads is None else "has no worker"
            raise ClusterError(f"the scheduler at {address} {what}{GO_ON}")


def _threads(client: Any) -> int | None:
    """How many the workers have; None where no answer comes."""
    try:
        found = client.sync(client.scheduler.ncores, callback_timeout=LOOK)
    except (TimeoutError, OSError):
        return None
    return sum(found.values())
