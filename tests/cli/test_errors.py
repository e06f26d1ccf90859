"""How commands end: codes, one line on standard error, signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from boxloop.cli import errors, group


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run ``boxloop fail`` with a given body in place of a command."""

    def run(body: Callable[[], object], *options: str) -> Result:
        command = click.command("fail")(lambda: body())
        monkeypatch.setattr(group.LazyGroup, "get_command", lambda *_: command)
        return CliRunner().invoke(group.main, [*options, "fail"])

    return run


def raises(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("column 'age':\n  a text"), "Error: column 'age': a text\n"),
        (
            FileNotFoundError(2, "No such file or directory", "x.csv"),
            "Error: x.csv: No such file or directory\n",
        ),
        (OSError("disk full"), "Error: disk full\n"),
        (ImportError("reading Parquet needs pyarrow"), "Error: reading Parquet needs pyarrow\n"),
        (ValueError(), "Error: ValueError\n"),
    ],
)
def test_faults_become_one_line(invoke: Callable[..., Result], error: BaseException, message: str) -> None:
    result = invoke(raises(error))
    assert result.stderr == message
    assert result.stdout == ""
    assert result.exit_code == errors.FAILED


def test_debug_keeps_the_error(invoke: Callable[..., Result]) -> None:
    result = invoke(raises(ValueError("bad")), "--debug")
    assert isinstance(result.exception, ValueError)
    assert result.exit_code == errors.FAILED


def test_a_bug_keeps_its_traceback(invoke: Callable[..., Result]) -> None:
    assert isinstance(invoke(raises(RuntimeError("a bug"))).exception, RuntimeError)


def test_usage_errors_of_a_command_exit_with_2(invoke: Callable[..., Result]) -> None:
    assert invoke(raises(click.UsageError("which?"))).exit_code == errors.USAGE


def test_warnings_become_one_line(invoke: Callable[..., Result]) -> None:
    def body() -> None:
        warnings.simplefilter("default")
        warnings.warn("not converged\nafter 3 iterations", UserWarning, stacklevel=1)

    result = invoke(body)
    assert result.stderr == "Warning: not converged after 3 iterations\n"
    assert result.exit_code == errors.OK


def test_ctrl_c_exits_with_130(invoke: Callable[..., Result]) -> None:
    result = invoke(raises(KeyboardInterrupt()))
    assert result.exit_code == errors.INTERRUPTED
    assert result.stderr == "Interrupted.\n"


def test_the_handler_of_sigterm_is_put_back(invoke: Callable[..., Result]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    invoke(raises(ValueError("bad")))
    assert signal.getsignal(signal.SIGTERM) is before


FOREVER = """
    import sys, time
    from pathlib import Path
    import click
    from boxloop.cli import group
    from boxloop.loop import Iteration, run

    @click.command()
    @click.argument("started")
    def command(started):
        def step(n):
            Path(started).touch()
            time.sleep(0.01)
            return Iteration(n + 1, 0.0)

        def tell(progress):
            if progress.stopped:
                click.echo("stopped cleanly")

        if run(step, 0, max_iter=10**6, observers=[tell]).interrupted:
            raise KeyboardInterrupt

    group.LazyGroup.get_command = lambda *_: command
    group.main(["forever", sys.argv[1]])
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, errors.TERMINATED), (signal.SIGINT, errors.INTERRUPTED)]
)
def test_signals_stop_a_run_cleanly(number: signal.Signals, code: int, tmp_path: Path) -> None:
    started = tmp_path / "started"
    arguments = [sys.executable, "-c", textwrap.dedent(FOREVER), str(started)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not started.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == "stopped cleanly\n"
    assert "Traceback" not in err
