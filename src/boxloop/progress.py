"""A progress bar that watches the loop. The library itself never prints: a caller asks for this observer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from boxloop.run import Observer, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar


class ProgressBar:
    """An observer of :func:`boxloop.run.run` that shows round, objective and change, on standard error.

    One bar serves several runs, one after another: a stage starts at its first round, and its line stays when the
    loop stops, full if it converged.

    Args:
        show: whether to draw; ``None`` draws only when standard error is a terminal.
        console: where to draw, instead of standard error.

    Example:
        >>> from boxloop.run import Round, run
        >>> halve = lambda x: Round(x / 2, objective=-x)
        >>> bar = ProgressBar()
        >>> start = run(halve, 1.0, max_rounds=3, observers=[bar.stage("initialisation")])
        >>> run(halve, start.state, max_rounds=50, tol=1e-3, observers=[bar.stage("EM")]).rounds
        8
    """

    def __init__(self, show: bool | None = None, console: Console | None = None) -> None:
        self.show = show
        self.console = console
        self._bar: Bar | None = None

    def stage(
        self, name: str, keep: bool = True, told: Callable[[Progress[Any]], str] | None = None
    ) -> Observer[Any]:
        """The observer of one named stage.

        Args:
            name: of the stage.
            keep: false erases its line when the stage ends.
            told: what to say after a round, instead of how the objective changed.
        """
        return partial(self._observe, name, keep, told or _change)

    def __call__(self, progress: Progress[Any]) -> None:
        """Observe a stage without a name."""
        self._observe("fit", True, _change, progress)

    def _observe(
        self, name: str, keep: bool, told: Callable[[Progress[Any]], str], progress: Progress[Any]
    ) -> None:
        if self._bar is None and not progress.stopped:
            self._bar = self._start(name, keep, progress.max_rounds)
        if self._bar is None:
            return
        trace = progress.trace
        self._bar.update(
            self._bar.task_ids[0],
            completed=progress.round,
            total=progress.round if progress.converged else progress.max_rounds,
            objective=f"{trace[-1]:.8g}" if trace else "-",
            said=told(progress),
        )
        if progress.stopped:
            self._bar.stop()
            self._bar = None

    def _start(self, name: str, keep: bool, max_rounds: int) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = self.console or Console(stderr=True)
        bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("objective {task.fields[objective]}", markup=False),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=not keep,
            disable=not (console.is_terminal if self.show is None else self.show),
        )
        bar.add_task(name, total=max_rounds, objective="-", said="")
        bar.start()
        return bar


def _change(progress: Progress[Any]) -> str:
    trace = progress.trace
    return f"change {trace[-1] - trace[-2]:+.2e}" if len(trace) > 1 else "change -"
