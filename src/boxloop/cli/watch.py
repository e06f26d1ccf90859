"""Progress of work that is no fit: one bar on standard error, gone when the work is done.

Where rows are on a cluster, the bar moves with the partitions of each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int | None, str], None]
"""Told how much is done, of how much (None where nobody knows), and what is being done."""


@contextmanager
def watched(what: str, show: bool) -> Iterator[Tell]:
    """Show a bar while a block runs.

    Args:
        what: the work, in a word or two.
        show: whether to draw at all.

    Yields:
        A function that moves the bar.
    """
    if not show:
        yield lambda done, total, now: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from boxloop.data import watch_partitions as told_of_passes

    parts = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        partitions = f"{what}: partitions"
        with told_of_passes(
            lambda done, of: bar.update(task, completed=done, total=of, description=partitions)
        ):
            yield lambda done, total, now: bar.update(task, completed=done, total=total, description=now)
