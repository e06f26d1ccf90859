"""How tasks come to the rows of their partitions: what only one task needs is made within it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from boxloop.data.parts import Part

Graph = dict[Any, Any]
"""Tasks by name, as Dask takes them."""


def contents(parts: Sequence[Part]) -> tuple[list[Any], Graph]:
    """The contents of partitions, as arguments of the tasks that read them.

    A partition that nobody else needs is made within that task, which spares the scheduler a second one and the worker
    the wait for it. What it is made of stays a task of its own, so that workers share the work as Dask planned it.

    Returns:
        One argument for each part, and the tasks that these refer to.
    """
    graph, uses = _needed([task for part in parts for task in part.tasks()])
    return [_argument(part.content, graph, uses) for part in parts], graph


def _argument(content: Any, graph: Graph, uses: Counter[Any]) -> Any:
    """What stands for a content: a task that is taken out of the graph, or a reference to one that stays there."""
    from dask.task_spec import Alias, DataNode, List, Task, TaskRef

    if content is None:
        return None
    if isinstance(content, list):
        return List(*(_argument(one, graph, uses) for one in content))
    key = content.key
    while uses[key] == 1 and isinstance(graph.get(key), Alias):
        key = graph.pop(key).target
    alone = uses[key] == 1 and isinstance(graph.get(key), Task | DataNode)
    return graph.pop(key) if alone else TaskRef(key)


def _needed(tasks: Sequence[Any]) -> tuple[Graph, Counter[Any]]:
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
