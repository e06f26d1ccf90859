"""A progress bar that watches the loop. The library itself never prints: a caller asks for this observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from boxloop.loop import Observer, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar, TaskID

LONG = 1.0
"""Seconds after which a pass over a cluster is worth a line."""

_shared: ContextVar[Bar | None] = ContextVar("shared", default=None)


class ProgressBar:
    """An observer of :func:`boxloop.loop.run` that shows iteration, objective and change, on standard error.

    One bar serves several runs, one after another: a stage starts at its first iteration, and its line stays when the
    loop stops, full if it converged.

    Args:
        show: whether to draw; ``None`` draws only when standard error is a terminal.
        console: where to draw, instead of standard error.

    Example:
        >>> from boxloop.loop import Iteration, run
        >>> halve = lambda x: Iteration(x / 2, objective=-x)
        >>> bar = ProgressBar()
        >>> start = run(halve, 1.0, max_iter=3, observers=[bar.stage("initialisation")])
        >>> run(halve, start.state, max_iter=50, tol=1e-3, observers=[bar.stage("EM")]).n_iter
        8
    """

    def __init__(self, show: bool | None = None, console: Console | None = None) -> None:
        self.show = show
        self.console = console
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def stage(
        self, name: str, keep: bool = True, describe: Callable[[Progress[Any]], str] | None = None
    ) -> Observer[Any]:
        """The observer of one named stage.

        Args:
            name: of the stage.
            keep: false erases its line when the stage ends.
            describe: what the line says after an iteration, instead of how the objective changed.
        """
        return partial(self._observe, name, keep, describe or _describe_change)

    def __call__(self, progress: Progress[Any]) -> None:
        """Observe a stage without a name."""
        self._observe("fit", True, _describe_change, progress)

    def _observe(
        self, name: str, keep: bool, describe: Callable[[Progress[Any]], str], progress: Progress[Any]
    ) -> None:
        if self._bar is None and not progress.stopped:
            self._start(name, keep, progress.max_iter)
        if self._bar is None or self._task is None:
            return
        bar, task, trace = self._bar, self._task, progress.trace
        bar.update(
            task,
            completed=progress.iteration,
            total=progress.iteration if progress.converged else progress.max_iter,
            objective=f"objective {trace[-1]:.8g}" if trace else "objective -",
            note=describe(progress),
        )
        if progress.stopped:
            self._bar = self._task = None
            _end_stage(bar, task, keep)

    def _start(self, name: str, keep: bool, max_iter: int) -> None:
        self._bar = _shared.get() or _make_bar(self.show, self.console, keep)
        self._task = self._bar.add_task(name, total=max_iter, objective="objective -", note="")
        self._bar.start()


@contextmanager
def passes(console: Console | None = None) -> Iterator[None]:
    """Show how far long passes over a cluster are, below the iterations of what runs in the block, in one display."""
    from boxloop.data import watch_partitions

    bar = _make_bar(True, console, keep=True)
    token, shown = _shared.set(bar), _PassDisplay(bar)
    try:
        with watch_partitions(shown):
            yield
    finally:
        _shared.reset(token)
        shown.end()
        if bar.live.is_started:
            bar.stop()


class _PassDisplay:
    """A line for the pass that is under way, once it is long; gone when all its partitions are done."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.task: TaskID | None = None
        self.started: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.started is None:
            self.started = now
        if done == total:
            self.end()
        elif self.task is not None:
            self.bar.update(self.task, completed=done, total=total)
        elif now - self.started >= LONG:
            self.task = self.bar.add_task("partitions", completed=done, total=total, objective="", note="")
            self.bar.start()

    def end(self) -> None:
        """Take the line away."""
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.started = None


def _make_bar(show: bool | None, console: Console | None, keep: bool) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeElapsedColumn

    console = console or Console(stderr=True)
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[objective]}", markup=False),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=not keep,
        disable=not (console.is_terminal if show is None else show),
    )


def _end_stage(bar: Bar, task: TaskID, keep: bool) -> None:
    """End a stage; a display that others share goes on."""
    if bar.disable:
        return  # older releases of rich print an empty line where a bar that was never drawn stops
    if bar is not _shared.get():
        bar.stop()
    elif keep:
        bar.stop_task(task)
    else:
        bar.remove_task(task)


def _describe_change(progress: Progress[Any]) -> str:
    trace = progress.trace
    return f"change {trace[-1] - trace[-2]:+.2e}" if len(trace) > 1 else "change -"
