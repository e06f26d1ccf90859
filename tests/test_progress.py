"""The progress bar: what it shows, where, and when it keeps quiet."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from rich.console import Console

from boxloop import ProgressBar
from boxloop.loop import Iteration, run
from boxloop.progress import passes


def halve(x: float) -> Iteration[float]:
    return Iteration(x / 2, objective=-x)


def drawn(terminal: bool = True) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100, color_system=None), file


def test_shows_round_objective_and_change() -> None:
    console, file = drawn(terminal=False)
    run(halve, 1.0, max_iter=3, observers=[ProgressBar(show=True, console=console)])
    line = file.getvalue()
    assert "fit" in line
    assert "3/3" in line
    assert "objective -0.25" in line
    assert "change +2.50e-01" in line


def test_consecutive_stages_each_keep_their_line() -> None:
    console, file = drawn(terminal=False)
    bar = ProgressBar(show=True, console=console)
    start = run(halve, 1.0, max_iter=2, observers=[bar.stage("initialisation")])
    run(halve, start.state, max_iter=4, observers=[bar.stage("EM")])
    lines = file.getvalue().strip().splitlines()
    assert [line.split()[0] for line in lines] == ["initialisation", "EM"]
    assert "2/2" in lines[0]
    assert "4/4" in lines[1]


def test_a_stage_can_be_erased() -> None:
    console, file = drawn(terminal=False)
    run(halve, 1.0, max_iter=2, observers=[ProgressBar(True, console).stage("restart 1", keep=False)])
    assert file.getvalue().strip() == ""


def test_a_converged_stage_is_full() -> None:
    console, file = drawn(terminal=False)
    outcome = run(halve, 1.0, max_iter=100, tol=0.1, observers=[ProgressBar(True, console)])
    assert outcome.converged
    assert f"{outcome.n_iter}/{outcome.n_iter}" in file.getvalue()


def test_an_interrupted_stage_is_not_full_and_the_next_one_starts() -> None:
    console, file = drawn(terminal=False)
    bar = ProgressBar(True, console)

    def press_ctrl_c(x: float) -> Iteration[float]:
        if x < 0.5:
            raise KeyboardInterrupt
        return halve(x)

    assert run(press_ctrl_c, 1.0, max_iter=9, observers=[bar]).interrupted
    run(halve, 1.0, max_iter=4, observers=[bar])
    lines = file.getvalue().strip().splitlines()
    assert "2/9" in lines[0]
    assert "4/4" in lines[1]


def test_a_run_without_iterations_draws_nothing() -> None:
    console, file = drawn()
    run(halve, 1.0, max_iter=0, observers=[ProgressBar(True, console)])
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("show", "terminal", "speaks"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_quiet_when_not_a_terminal_unless_asked(show: bool | None, terminal: bool, speaks: bool) -> None:
    console, file = drawn(terminal)
    run(halve, 1.0, max_iter=3, observers=[ProgressBar(show, console)])
    assert bool(file.getvalue()) is speaks


def test_writes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    run(halve, 1.0, max_iter=3, observers=[ProgressBar(show=True)])
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/3" in err


def test_passes_and_iterations_share_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for a pass that takes long, below that of the iterations; it goes with the pass."""
    watchers: list[Callable[[int, int], None]] = []
    monkeypatch.setattr("boxloop.progress.LONG", 0.0)
    monkeypatch.setattr("boxloop.data.watch_partitions", lambda watch: nullcontext(watchers.append(watch)))
    console, file = drawn()

    def step(x: float) -> Iteration[float]:
        watchers[0](3, 7)
        watchers[0](7, 7)
        return halve(x)

    with passes(console):
        run(step, 1.0, max_iter=2, observers=[ProgressBar(True).stage("EM")])
        run(step, 1.0, max_iter=3, observers=[ProgressBar(True).stage("restart", keep=False)])
        watchers[0](5, 7)  # a pass that fails leaves no line, either
    shown = file.getvalue()
    assert "3/7" in shown
    assert "restart" in shown
    last = shown[shown.rindex("EM") :]
    assert "2/2" in last
    assert "partitions" not in last
    assert "restart" not in last


def test_a_short_pass_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "boxloop.data.watch_partitions", lambda watch: nullcontext([watch(k, 3) for k in (1, 2, 3)])
    )
    console, file = drawn()
    with passes(console):
        pass
    assert file.getvalue() == ""
