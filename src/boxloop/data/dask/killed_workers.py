"""Which partitions killed the workers that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boxloop.data.dask.partitions import Partition
from boxloop.numeric import join_words


def lost_tasks(client: Any) -> list[set[Any]]:
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
    """The message: it names the task that Dask gave up, and those that were on the same worker each time it died.

    Args:
        error: Dask's ``KilledWorker``.
        parts: all partitions, in order.
        lost: what :func:`lost_tasks` gave.
    """
    times = error.allowed_failures + 1
    groups = [tasks for tasks in lost if error.task in tasks][-times:]
    suspects = _labels_of(set.intersection(*groups) if groups else {error.task}, parts)
    names = join_words(suspects, "or", most=3)
    one = "it" if len(suspects) <= 1 else "one of them"
    return (
        f"every worker that was given {names or 'a sum of partitions'} died, {times} in a row: {one} may not fit in "
        "a worker's memory (use smaller partitions or larger workers), or kill the process that reads it"
    )


def _labels_of(keys: set[Any], parts: Sequence[Partition]) -> list[str]:
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
