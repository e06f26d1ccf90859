"""The examples of a page: its blocks of Python, and the commands in its other blocks. Needs nothing to be installed."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python of a page: each block with the number of lines before it."""
    fences = re.finditer(r"^```python\n(.*?)^```", page, re.S | re.M)
    return [(page[: match.start(1)].count("\n"), match.group(1)) for match in fences]


def commands(page: str) -> list[str]:
    """The lines that call boxloop in blocks without a language, with their comments."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", page, re.S | re.M)
    lines = [line for language, block in fences if not language for line in block.splitlines()]
    return [line for line in lines if line.startswith("boxloop ")]


def run_block(page: Path, line: int, block: str, names: dict[str, object]) -> None:
    """Run a block with the names of those before it, and with the page's own lines in tracebacks."""
    tree = ast.increment_lineno(ast.parse(block), line)
    exec(compile(tree, str(page), "exec"), names)


def run_blocks(page: Path, text: str) -> None:
    """Run the blocks of a page's text one after another."""
    names: dict[str, object] = {"__name__": page.stem}
    for line, block in blocks(text):
        run_block(page, line, block, names)
