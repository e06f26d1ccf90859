"""Dask tasks on the current client's cluster: an end to every wait, and errors that say what to do."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from typing import Any

from boxloop.data.dask.partitions import Partition
from boxloop.numeric import join_words

TASKS_PER_THREAD = 2
"""Tasks per thread of the workers that are computed before their values are asked for."""

PATIENCE = 30.0
"""Seconds without any worker, or without a scheduler, before a pass is given up."""

POLL, CHECK = 0.25, 5.0
"""Seconds between two checks of the tasks, and of the scheduler."""

LOST = "lost dependencies"
"""Part of Dask's message where a task needs what no worker has and nobody can compute again."""

RESUME_HINT = "; with checkpoint= the fit goes on from its last iteration on another cluster"

Graph = dict[Any, Any]
"""Tasks by name, as Dask takes them."""

Watch = Callable[[int, int], None]
"""Called with the number of partitions of a pass that are done, and the number of all."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


class ClusterError(RuntimeError):
    """The scheduler or the workers of a pass are gone. A checkpoint goes on from the last iteration."""


@contextmanager
def watch_partitions(watch: Watch) -> Iterator[None]:
    """Call ``watch(done, of)`` while a pass over a cluster goes on: how many of its partitions are summed."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def plan_contents(parts: Sequence[Partition]) -> tuple[list[Any], Graph]:
    """One argument for each partition, for the tasks that read them, and the tasks that these refer to.

    A partition that nobody else needs is made within that task, which spares the scheduler a second one and the worker
    the wait for it. What it is made of stays a task of its own, so that workers share the work as Dask planned it.
    """
    graph, uses = _required_tasks([task for part in parts for task in part.tasks()])
    return [_content_argument(part.content, graph, uses) for part in parts], graph


def _content_argument(content: Any, graph: Graph, uses: Counter[Any]) -> Any:
    """What stands for a content: a task that is taken out of the graph, or a reference to one that stays there."""
    from dask.task_spec import Alias, DataNode, List, Task, TaskRef

    if content is None:
        return None
    if isinstance(content, list):
        return List(*(_content_argument(one, graph, uses) for one in content))
    key = content.key
    while uses[key] == 1 and isinstance(graph.get(key), Alias):
        key = graph.pop(key).target
    alone = uses[key] == 1 and isinstance(graph.get(key), Task | DataNode)
    return graph.pop(key) if alone else TaskRef(key)


def _required_tasks(tasks: Sequence[Any]) -> tuple[Graph, Counter[Any]]:
    """All that tasks need, themselves included, and how many need each; what was persisted is on the workers."""
    from dask.core import get_dependencies

    graph: Graph = {}
    uses: Counter[Any] = Counter()
    for task in tasks:
        wanted = [task.key]
        while wanted:
            key = wanted.pop()
            uses[key] += 1
            if uses[key] == 1 and key in task.dask:
                graph[key] = task.dask[key]
                wanted += get_dependencies(task.dask, key)
    return graph, uses


def compute_task(graph: Graph, key: str, leaves: Sequence[str], parts: Sequence[Partition]) -> Any:
    """The value of a task: on the current client's cluster, else by Dask's scheduler on this machine.
    ``leaves`` are the tasks of partitions behind it, whose progress is reported."""
    client, watch = _current_client(), _watch.get()
    tasks = _make_delayed(graph, [key, *leaves] if watch else [key])
    if client is None:
        return tasks[0].compute()
    with _translate_errors(client, parts), _release_thread():
        futures = client.compute(tasks)
        try:
            _wait_for_first(client, futures, watch)
            return futures[0].result()
        finally:
            _release_futures(futures)


def compute_in_order(tasks: Iterable[tuple[str, Graph]], parts: Sequence[Partition]) -> Iterator[Any]:
    """Yield the values of tasks in order; few are computed before they are asked for, and wait on the workers."""
    client, left = _current_client(), (_make_delayed(graph, [key])[0] for key, graph in tasks)
    if client is None:
        yield from (task.compute() for task in left)
        return
    waiting = deque[Any]()
    try:
        while True:
            with _translate_errors(client, parts), _release_thread():
                room = TASKS_PER_THREAD * max(1, _count_threads(client) or 0) - len(waiting)
                waiting.extend(client.compute(list(islice(left, max(0, room)))))
                if not waiting:
                    return
                _wait_for_first(client, [waiting[0]], None)
                value = waiting[0].result()
            waiting.popleft().release()
            yield value
    finally:
        _release_futures(waiting)


def persist_task(graph: Graph) -> Graph:
    """A task whose value stays on the cluster as long as somebody holds it; the task itself where there is none."""
    client = _current_client()
    return graph if client is None else dict(client.persist(_make_delayed(graph, list(graph))[0]).dask)


def _make_delayed(graph: Graph, keys: Sequence[str]) -> list[Any]:
    """Tasks of a graph, as Dask's client takes them."""
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    whole = HighLevelGraph.from_collections(keys[0], graph)
    return [Delayed(key, whole, layer=keys[0]) for key in keys]


def _release_futures(futures: Sequence[Any]) -> None:
    for future in futures:  # which does not wait for a scheduler that may be gone, as cancel does
        future.release()


@contextmanager
def _translate_errors(client: Any, parts: Sequence[Partition]) -> Iterator[None]:
    """Raise :class:`ClusterError` where workers or the scheduler are gone."""
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    address = client.scheduler.address
    try:
        yield
    except KilledWorker as error:
        raise ClusterError(describe_killed_workers(error, parts, _list_lost_tasks(client))) from error
    except (FutureCancelledError, FuturesCancelledError, CommClosedError) as error:
        if LOST in str(error):
            raise ClusterError(
                "partitions that were persisted are no longer on the workers: persist the collection again, with the "
                f"client that is in use, and keep it{RESUME_HINT}"
            ) from error
        raise ClusterError(
            f"the scheduler at {address} was lost, or dropped the tasks on request{RESUME_HINT}"
        ) from error


@contextmanager
def _release_thread() -> Iterator[None]:
    """Where this is itself a task of a cluster: free its thread while it waits for other tasks."""
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


def _current_client() -> Any:
    """The current client of a cluster; None where there is none."""
    try:
        from distributed import default_client

        return default_client()
    except (ImportError, ValueError):
        return None


def _wait_for_first(client: Any, futures: list[Any], watch: Watch | None) -> None:
    """Wait until the first future is done; raise where no worker or no scheduler is left."""
    from distributed import wait

    address, alive, last = client.scheduler.address, time.monotonic(), time.monotonic()
    left = futures[1:]
    while not futures[0].done():
        with suppress(TimeoutError):
            wait(futures[0], timeout=POLL)
        if watch:
            _release_futures(
                [future for future in left if future.done()]
            )  # or workers would hold what they sent on
            left = [future for future in left if not future.done()]
            watch(len(futures) - 1 - len(left), len(futures) - 1)
        now = time.monotonic()
        if now - last < CHECK:
            continue
        threads, last = _count_threads(client), now
        if threads:
            alive = now
        elif now - alive > PATIENCE:
            what = "does not answer any more" if threads is None else "has no worker"
            raise ClusterError(f"the scheduler at {address} {what}{RESUME_HINT}")


def _count_threads(client: Any) -> int | None:
    """Number of threads of all workers; None where the scheduler does not answer."""
    try:
        cores = client.sync(client.scheduler.ncores, callback_timeout=CHECK)
    except (TimeoutError, OSError):
        return None
    return sum(cores.values())


def _list_lost_tasks(client: Any) -> list[set[Any]]:
    """The tasks of every worker that died so far, in order; empty where the scheduler does not answer."""
    try:
        events = client.get_events("all")
    except (TimeoutError, OSError):
        return []
    lost = [
        event for _, event in events if isinstance(event, dict) and event.get("action") == "remove-worker"
    ]
    return [set(event["processing-tasks"]) for event in lost if not event["expected"]]


def describe_killed_workers(error: Any, parts: Sequence[Partition], lost: list[set[Any]]) -> str:
    """The message for Dask's ``KilledWorker``: the task that Dask gave up, and those on the same worker each time
    it died."""
    times = error.allowed_failures + 1
    groups = [tasks for tasks in lost if error.task in tasks][-times:]
    suspects = _label_partitions(set.intersection(*groups) if groups else {error.task}, parts)
    names = join_words(suspects, "or", most=3)
    one = "it" if len(suspects) <= 1 else "one of them"
    return (
        f"every worker that was given {names or 'a sum of partitions'} died, {times} in a row: {one} may not fit in "
        "a worker's memory (use smaller partitions or larger workers), or kill the process that reads it"
    )


def _label_partitions(keys: set[Any], parts: Sequence[Partition]) -> list[str]:
    """The partitions that tasks are for, in order."""
    from dask.core import get_deps

    graphs = {id(task.dask): task.dask for part in parts for task in part.tasks()}  # often one for all
    above = get_deps({key: node for graph in graphs.values() for key, node in graph.items()})[1]
    wanted, seen = list(keys), set()
    while wanted:
        seen.add(one := wanted.pop())
        wanted += [other for other in above.get(one, ()) if other not in seen]
    numbers = {int(words[2]) for key in keys if (words := str(key).split("-"))[:2] == ["boxloop", "part"]}
    return [
        part.label
        for number, part in enumerate(parts)
        if number in numbers or any(task.key in seen for task in part.tasks())
    ]
