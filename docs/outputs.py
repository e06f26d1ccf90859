"""Write what the code of a page prints into the page: ``python docs/outputs.py docs/tutorial.md ...``.

A block of Python, or of ``boxloop`` commands, is shown with its output where a block of text follows it. All blocks
of a page run in order, in one process and in one empty folder.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from click.testing import CliRunner

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COLUMNS = "100"
"""Width of the terminal that commands print to."""


class Output(NamedTuple):
    """What a block printed, and the place of the text that shows it."""

    line: int
    printed: str
    start: int
    end: int


def run_page(text: str, title: str = "page") -> Iterator[Output]:
    """Run the blocks of a page one after another; yield the output of each that has its output shown."""
    names: dict[str, object] = {"__name__": title}
    printed, end = "", 0
    for fence in FENCE.finditer(text):
        language, block = fence.groups()
        line = text.count("\n", 0, fence.start(2))
        if language == "text" and not text[end : fence.start()].strip():
            yield Output(line, printed, *fence.span(2))
        elif language == "python":
            printed = run_python("\n" * line + block, title, names)
        elif not language:
            printed = run_commands(block)
        end = fence.end()


def run_python(block: str, title: str, names: dict[str, object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        exec(compile(block, f"{title}.md", "exec"), names)
    return without_trailing_spaces(stream.getvalue())


def run_commands(block: str) -> str:
    """Run the lines of a block that call boxloop, each of which must succeed."""
    from boxloop.cli import main

    printed = ""
    for words in (
        shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("boxloop ")
    ):
        result = CliRunner(env={"COLUMNS": COLUMNS}).invoke(main, words[1:])
        if result.exit_code:
            raise RuntimeError(f"{shlex.join(words)} ended with code {result.exit_code}: {result.stderr}")
        printed += result.stdout
    return without_trailing_spaces(printed)


def without_trailing_spaces(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def fill_page(text: str, title: str = "page") -> str:
    """The page with its outputs replaced by what its blocks print now."""
    parts, end = [], 0
    for output in run_page(text, title):
        parts += [text[end : output.start], output.printed]
        end = output.end
    return "".join([*parts, text[end:]])


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            page.write_text(fill_page(page.read_text(encoding="utf-8"), page.stem), encoding="utf-8")
