"""What commands print: tables for people, JSON for programs, progress; and checks of where files go."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import click

from boxloop.cli.names import TABLES

LONG, WIDEST = 16, 1000
"""Letters of a word that is kept whole where room is short, and of a line where there is all the room there is."""

SAFE_CSV = "boxloop.safe_csv"
"""Where a call keeps that ``--safe-csv`` was given."""

_CONTROLS = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is, and a terminal may not."""

TABLE_ENDS = (".csv", ".csv.gz", ".parquet", ".pq")


def write_findings(
    facts: Mapping[str, Any], json_to: str | None, show: Callable[[], None], quiet: bool = False
) -> None:
    """Say what was found: as JSON where that was asked for, as tables unless JSON takes their place."""
    from boxloop.report import to_json_values

    text = json.dumps(to_json_values(facts), indent=2, ensure_ascii=False)
    if json_to == "-":
        click.echo(_CONTROLS.sub(lambda c: f"\\u{ord(c[0]):04x}", text))
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
    """Print a table on standard output; text is never taken for markup."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from boxloop.report import escape_controls

    heads, rows = (
        [escape_controls(head) for head in heads],
        [[escape_controls(cell) for cell in row] for row in rows],
    )
    table = Table(
        title=Text(escape_controls(title), style="bold"),
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


def echo_text(text: str = "", err: bool = False) -> None:
    """Print text of which parts may come from data or file names: what would steer a terminal is written out."""
    from boxloop.report import escape_controls

    click.echo(escape_controls(text), err=err)


def echo_written(*paths: Path | None) -> None:
    """Print which files were written; None is none."""
    for path in paths:
        if path is not None:
            echo_text(f"Written: {path}")


def echo_styled(head: str, style: str, text: str) -> None:
    """Print a sentence that begins with some words in a style of their own."""
    from rich.console import Console
    from rich.text import Text

    from boxloop.report import escape_controls

    Console().print(Text.assemble((escape_controls(head), style), escape_controls(text)))


def check_outputs(
    outputs: Sequence[str | Path | None], *inputs: str | Path | None, folders: Sequence[Path | None] = ()
) -> None:
    """Check, before any work is done, every place that a call writes to; None and standard output need no check."""
    places = [Path(place) for place in outputs if place is not None and place != "-"]
    read = [path for place in inputs if place is not None and (path := _local_path(place)) is not None]
    for place in places:
        if not place.parent.is_dir():
            raise click.UsageError(f"the folder of {place} does not exist")
        if place.is_dir():
            raise click.UsageError(f"{place} is a folder; the name of a file is needed")
        if place.exists() and not _is_ordinary(place):
            raise click.UsageError(f"{place} is a device or pipe; the name of an ordinary file is needed")
        for source in read:
            _check_not_read(place, source)
    for folder in folders:
        if folder is not None and any(_is_same(folder, source) for source in read):
            raise click.UsageError(
                f"{folder} is read and would be written to: give another folder for the output"
            )
    for one, other in combinations(places, 2):
        if _is_same(one, other):
            raise click.UsageError(f"{one} is given twice: each output needs a name of its own")


def _local_path(source: str | Path) -> Path | None:
    """The path on this machine that a path or URL leads to; None where it leads elsewhere."""
    if not isinstance(source, str) or "://" not in source:
        return Path(source)
    protocol, _, path = source.rpartition("::")[2].partition("://")
    return Path(path).expanduser() if protocol in ("file", "local") else None


def _is_ordinary(place: Path) -> bool:
    """Whether a file that is there may be replaced: no device or pipe, and no entry of the system's own."""
    folder = place.absolute().parent
    own = folder in (Path("/dev"), Path("/dev/fd")) or folder.is_relative_to("/proc")
    return place.is_file() and not own


def _check_not_read(place: Path, source: Path) -> None:
    if _is_same(place, source):
        raise click.UsageError(
            f"{place} is given twice: the output needs a name of its own, as {source} is read"
        )
    if not source.is_dir():
        return
    inside = place.resolve().is_relative_to(source.resolve()) and place.name.lower().endswith(TABLES)
    tables = (file for file in source.iterdir() if file.name.lower().endswith(TABLES))
    if inside or any(_is_same(place, file) for file in tables):
        raise click.UsageError(
            f"{place} would be one of the tables of {source}, which are read: give a place outside this folder"
        )


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file or folder, by whatever names and links."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def check_table_name(path: Path | None) -> None:
    """Refuse, before any work is done, a table of a kind that cannot be written."""
    if path is not None and not path.name.lower().endswith(TABLE_ENDS):
        raise click.UsageError(f"{path}: the name of a table must end in .csv, .csv.gz or .parquet")


def escape_csv_formulas(path: Path | None, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a CSV file, or of standard output, whose names are no formulas; nor are its texts with ``--safe-csv``.

    Parquet keeps all names and texts as they are.
    """
    from boxloop.data import escape_formulas

    if path is not None and ".csv" not in path.name.lower():
        return dict(columns)
    context = click.get_current_context(silent=True)
    return escape_formulas(columns, cells=context is not None and SAFE_CSV in context.meta)


def write_figure(path: Path | None, draw: Callable[[], Any]) -> None:
    """Draw a picture, as axes or as a PNG, and write it whole where one was asked for."""
    if path is not None:
        from boxloop.figures import png
        from boxloop.persist import write_atomic

        drawn = draw()
        write_atomic(path, drawn if isinstance(drawn, bytes) else png(drawn))


Tell = Callable[[int, int | None, str], None]
"""Called with how much is done, of how much (None if unknown), and what is being done."""


@contextmanager
def show_progress(what: str, show: bool) -> Iterator[Tell]:
    """Show a bar while a block runs."""
    if not show:
        yield lambda done, total, now: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from boxloop.data import watch_partitions

    parts = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        partitions = f"{what}: partitions"
        with watch_partitions(
            lambda done, of: bar.update(task, completed=done, total=of, description=partitions)
        ):
            yield lambda done, total, now: bar.update(task, completed=done, total=total, description=now)
