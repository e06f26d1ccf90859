"""The examples of a page: its blocks of Python, and the commands in its other blocks. Needs nothing to be installed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES_WITH_OUTPUT = [
    DOCS / name for name in ("tutorial.md", "from_mclust.md", "from_lavaan.md", "from_laplace_torch.md")
]
"""Pages that show what their blocks print, which ``docs/outputs.py`` writes."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python of a page: each block with the number of lines before it."""
    fences = re.finditer(r"^```python\n(.*?)^```", page, re.S | re.M)
    return [(page[: match.start(1)].count("\n"), match.group(1)) for match in fences]


README_NAMES = """
import os
import boxloop
from boxloop import *
import numpy as np
x, y = np.nan_to_num(X[:120, :2]), X[:120, 1:]
counts = rng.poisson(3.0, (500, 12))
start = [0.0]
def equation(theta, rows):
    return rows[:, :1] - theta
def log_density(values):
    return -0.5 * values.square().sum(-1)
os.makedirs("folder", exist_ok=True)
np.save("folder/0.npy", np.nan_to_num(X))
"""
"""What the code in the README's table may use beside the names of its block."""


def table_code(page: str) -> list[str]:
    """The Python expressions in the second column of the README's table of tasks; commands are left out."""
    cells = re.findall(r"^\| [^|`]* \| `([^`]*)` \| \[", page, re.M)
    return [cell for cell in cells if not cell.startswith("boxloop ")]


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


def same_words(printed: str, shown: str) -> bool:
    """Whether two texts agree, numbers within 2% or two units of their last digit: machines round differently."""
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(abs(float(a) - float(b)) <= max(0.02 * abs(float(b)), 2.1 * last_digit(b)) for a, b in pairs)


def last_digit(number: str) -> float:
    decimals = len(number.partition(".")[2])
    return 10.0**-decimals if decimals else 0.0
