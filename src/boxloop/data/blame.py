"""Which partitions killed their workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boxloop.data.parts import Part


def part_key(number: int, token: str) -> str:
    """Name of the task that reads a partition."""
    return f"boxloop-part-{number}-{token}"


def deaths(client: Any) -> list[set[Any]]:
    """The tasks of every worker that died so far, in order; none where no answer comes."""
    try:
        events = client.get_events("all")
    except (TimeoutError, OSError):
        return []
    lost = [
        event for _, event in events if isinstance(event, dict) and event.get("action") == "remove-worker"
    ]
    return [set(event["processing-tasks"]) for event in lost if not event["expected"]]


def killed(error: Any, parts: Sequence[Part], lost: list[set[Any]]) -> str:
    """Whom to blame: the task that Dask gave up, and those that died each time beside it on the same worker.

    Args:
        error: Dask's ``KilledWorker``.
        parts: of the pass, in order.
        lost: what :func:`deaths` gave.
    """
    times = error.allowed_failures + 1
    beside = [tasks for tasks in lost if error.task in tasks][-times:]
    found = _places(set.intersection(*beside) if beside else {error.task}, parts)
    names = " or ".join(found[:3]) + (f" or {len(found) - 3} more" if len(found) > 3 else "")
    one = "it" if len(found) <= 1 else "one of them"
    return (
        f"every worker that was given {names or 'a sum of partitions'} died, {times} in a row: {one} may not fit in "
        "a worker's memory (use smaller partitions or larger workers), or kill the process that reads it"
    )


def _places(keys: set[Any], parts: Sequence[Part]) -> list[str]:
    """The partitions that tasks are for, in order."""
    from dask.core import get_deps

    graphs = {id(task.dask): task.dask for part in parts for task in part.tasks()}  # often one for all
    above = get_deps({key: node for graph in graphs.values() for key, node in graph.items()})[1]
    wanted, found = list(keys), set()
    while wanted:
        found.add(one := wanted.pop())
        wanted += [other for other in above.get(one, ()) if other not in found]
    numbers = {int(words[2]) for key in keys if (words := str(key).split("-"))[:2] == ["boxloop", "part"]}
    return [
        part.label
        for number, part in enumerate(parts)
        if number in numbers or any(task.key in found for task in part.tasks())
    ]
