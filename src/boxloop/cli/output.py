"""What commands print: tables for people, JSON for programs, and checks of where files go."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np


def echo_json(facts: Mapping[str, Any]) -> None:
    """Print facts as JSON on standard output; what is not finite becomes null."""
    click.echo(json.dumps(plain(facts), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value of NumPy's and Python's as JSON knows it.

    Example:
        >>> plain({"a": np.array([1.0, np.nan]), "b": (np.int64(2), Path("c"))})
        {'a': [1.0, None], 'b': [2, 'c']}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def echo_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print named facts as a table of two columns."""
    echo_table(title, ["", ""], [list(fact) for fact in facts], header=False)


def echo_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], header: bool = True) -> None:
    """Print a table on standard output; text is never taken for markup."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_header=header
    )
    for j, head in enumerate(heads):
        if header:
            side: Literal["left", "right"] = "right" if j else "left"
            # Where room is short, a column that may wrap gives way first: names before numbers.
            table.add_column(Text(head), justify=side, overflow="ellipsis", no_wrap=j > 0)
        else:
            table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def check_output(path: Path, *others: str | Path) -> None:
    """Refuse, before any work is done, an output whose folder is not there or which is another file of the call."""
    if not path.parent.is_dir():
        raise click.UsageError(f"the folder of {path} does not exist")
    if path.is_dir():
        raise click.UsageError(f"{path} is a folder; the name of a file is needed")
    if any(path.resolve() == Path(other).resolve() for other in others):
        raise click.UsageError(f"{path} is given twice: the output needs a name of its own")
