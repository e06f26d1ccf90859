"""How a command ends: exit codes, one line for an error, Ctrl-C and SIGTERM."""

from __future__ import annotations

import atexit
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from boxloop.report import escape_controls

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
TERMINATED = 143

EXIT_CODES = {
    OK: "done",
    FAILED: "the work failed: an error in the data, the model, a file or the cluster",
    USAGE: "the call was wrong: an unknown option or name, a missing argument",
    INTERRUPTED: "interrupted by Ctrl-C; what was complete is kept",
    TERMINATED: "terminated by SIGTERM; a checkpoint is kept where one was asked for",
}
"""What each exit code means, for the help and the documentation."""

FAULTS = (ValueError, OSError, ImportError, MemoryError)
"""What bad data, a bad model file, a missing extra or too little memory raises: the user's to mend, so no traceback."""


@contextmanager
def report_errors(debug: bool = False) -> Iterator[None]:
    """Run a command: its errors and warnings become one line each on standard error, and an exit code.

    SIGTERM raises ``SystemExit`` where the command is, so that checkpoints are written and files closed. An
    exception that is none of :data:`FAULTS` is a bug of ours and keeps its traceback.
    """
    previous = signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _show_warning
            yield
    except KeyboardInterrupt:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # more of them while Python ends
        click.echo("Interrupted.", err=True)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        raise
    except click.ClickException as error:
        vars(error)["message"] = escape_controls(error.message)
        raise
    except FAULTS as error:
        if debug:
            raise
        click.echo(f"Error: {format_error(error)}", err=True)
        raise SystemExit(FAILED) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def announce_checkpoint(checkpoint: str | Path | None) -> Iterator[None]:
    """Run what keeps its progress in a file: say that it goes on from there, and, when stopped, that it can."""
    from boxloop.data import ClusterError

    if checkpoint is not None and Path(checkpoint).exists():
        click.echo(f"Continuing from {format_error(str(checkpoint))}.", err=True)
    try:
        yield
    except (SystemExit, KeyboardInterrupt, ClusterError):
        if checkpoint is not None and Path(checkpoint).exists():
            click.echo(f"Stopped; the same command continues from {format_error(str(checkpoint))}.", err=True)
        raise


def format_error(error: BaseException | str) -> str:
    """A message on one line; that of a file names the file first.

    Example:
        >>> format_error(FileNotFoundError(2, "No such file or directory", "rows.csv"))
        'rows.csv: No such file or directory'
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return escape_controls(f"{error.filename}: {error.strerror}")
    return escape_controls(" ".join(str(error).split())) or type(error).__name__


def _exit_on_sigterm(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    click.echo(f"Warning: {format_error(message)}", err=True)
