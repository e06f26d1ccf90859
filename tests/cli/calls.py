"""Calls of the command line, in this process and, for signals, in one of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from boxloop.cli import main
from boxloop.data import write_table

NAMES = ("height", "width", "depth")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def done(*arguments: object) -> Result:
    """A call that must succeed."""
    result = call(*arguments)
    assert result.exit_code == 0, (result.output, result.exc_info)
    return result


def clusters(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 3)) + 4.0 * rng.integers(0, 2, (n, 1))
    rows[::17, 1] = np.nan
    return rows


def counts(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(1)
    rates = np.where(rng.integers(0, 2, (n, 1)) == 1, [1.0, 5.0, 9.0], [8.0, 2.0, 1.0])
    return rng.poisson(rates).astype(float)


def table(path: Path, rows: np.ndarray) -> Path:
    write_table(path, dict(zip(NAMES, rows.T, strict=True)))
    return path


def signalled(
    arguments: list[object], number: int, when: str, everyone: bool = False, times: int = 1
) -> tuple[int, str, str]:
    """Run a command with its progress on a terminal, and send it a signal once the terminal shows ``when``.

    Args:
        arguments: of the command.
        number: of the signal.
        when: a pattern.
        everyone: whether processes that the command started get the signal, too.
        times: how often it is sent, 0.2 seconds apart.

    Returns:
        Its exit code, what it printed, and what the terminal showed until the last of its processes was gone.
    """
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", "from boxloop.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown, sent = "", False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True, start_new_session=everyone
    ) as process:
        os.close(theirs)
        while (part := _read(ours)) != b"":
            shown += part.decode(errors="replace")
            if not sent and re.search(when, shown):
                for again in range(times):
                    time.sleep(0.2 * bool(again))
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number) if everyone else process.send_signal(number)
                sent = True
        out = process.communicate(timeout=60)[0]
    os.close(ours)
    assert sent, shown
    return process.returncode, out, shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the other end is closed
        return b""
