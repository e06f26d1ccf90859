"""What commands print: tables for people, JSON for programs, and checks of where files go."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import click

LONG, WIDEST = 16, 1000
"""Letters of a word that is kept whole where room is short, and of a line where there is all the room there is."""

TABLE_ENDS = (".csv", ".csv.gz", ".parquet", ".pq")


def tell(
    facts: Mapping[str, Any], json_to: str | None, show: Callable[[], None], quiet: bool = False
) -> None:
    """Say what was found: as JSON where that was asked for, as tables unless JSON takes their place.

    Args:
        facts: the findings, under the same keys at every call; what is not finite becomes null.
        json_to: the value of ``--json``: None, ``-`` for standard output, or a file.
        show: prints the tables.
        quiet: whether to leave the tables out.
    """
    from boxloop.report.plain import plain

    text = json.dumps(plain(facts), indent=2, ensure_ascii=False)
    if json_to == "-":
        click.echo(text)
        return
    if json_to is not None:
        from boxloop.persist import write_atomic

        write_atomic(Path(json_to), f"{text}\n".encode())
    if not quiet:
        show()


def echo_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print named facts as a table of two columns."""
    echo_table(title, ["", ""], [list(fact) for fact in facts], header=False)


def echo_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    header: bool = True,
    words: Collection[str] = (),
    lines: bool = False,
) -> None:
    """Print a table on standard output; text is never taken for markup.

    Args:
        title: over the table.
        heads: of the columns; the first holds names, the others numbers.
        rows: the cells.
        header: whether to print the heads.
        words: heads of columns that hold sentences instead of numbers.
        lines: whether to part the rows by lines, for cells of several lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE if lines else box.SIMPLE_HEAD,
        show_header=header,
        show_lines=lines,
    )
    for j, head in enumerate(heads):
        if header:
            side: Literal["left", "right"] = "right" if j > 0 and head not in words else "left"
            # Where room is short cells break between words, and no column is narrower than its longest word.
            least = max(
                (len(word) for cell in (head, *(row[j] for row in rows)) for word in cell.split()), default=0
            )
            table.add_column(Text(head), justify=side, overflow="fold", min_width=min(least, LONG))
        else:
            table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:  # a file has all the room there is
        console = Console(width=max(console.width, Console(width=WIDEST).measure(table).maximum))
    console.print(table)


def check_output(path: Path, *others: str | Path) -> None:
    """Refuse, before any work is done, an output whose folder is not there or which is another file of the call."""
    if not path.parent.is_dir():
        raise click.UsageError(f"the folder of {path} does not exist")
    if path.is_dir():
        raise click.UsageError(f"{path} is a folder; the name of a file is needed")
    if any(path.resolve() == Path(other).resolve() for other in others):
        raise click.UsageError(f"{path} is given twice: the output needs a name of its own")


def check_outputs(outputs: Sequence[str | Path | None], *inputs: str | Path) -> None:
    """Check every place that a call writes to; None and standard output need no check."""
    places = [Path(place) for place in outputs if place is not None and place != "-"]
    for place in places:
        check_output(place, *inputs)
    for one, other in combinations(places, 2):
        check_output(one, other)


def check_table(path: Path | None) -> None:
    """Refuse, before any work is done, a table of a kind that cannot be written."""
    if path is not None and not path.name.lower().endswith(TABLE_ENDS):
        raise click.UsageError(f"{path}: the name of a table must end in .csv, .csv.gz or .parquet")
