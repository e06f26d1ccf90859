"""A report in one call, from anything that holds rows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from os import PathLike
from typing import Any

from boxloop.data import check_count, check_list
from boxloop.numeric import single_threaded
from boxloop.report.examine import Tell, examine
from boxloop.report.read import MOST_ROWS, Table, read_table
from boxloop.report.whole import Report, written_up


@single_threaded
def make_report(
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    rows: int = MOST_ROWS,
    random_state: int = 0,
    jobs: int | None = None,
    deep: bool = False,
    tell: Tell = lambda what, share: None,
) -> Report:
    """Try models on a table, choose one on rows held out, and find where it fails on rows that took no part.

    Args:
        data: a path (CSV, Parquet, ``.npy``, or a folder of these), the name of a bundled data set, a data frame
            (pandas, polars, Arrow), an array, a Dask DataFrame or array, or a source: of the last two only the rows
            that are drawn come here. NaN marks a missing value; columns that no model can use are left out, with the
            reason.
        columns: the columns to look at; all when omitted.
        drop: columns to leave out.
        rows: most rows to work with; of more, so many are drawn.
        random_state: seed of every random choice: the same one gives the same report.
        jobs: fits at the same time; all cores when omitted.
        deep: try a small variational autoencoder, too, which takes longer; its score is a lower bound.
        tell: told what is being done, and which share of the whole is done.

    Returns:
        The report: print it for the verdict, ``save`` it for the page.

    Raises:
        ValueError: a table that cannot be read or has weights, too few rows, or no column that can be used.

    Example:
        >>> from boxloop import make_report
        >>> report = make_report("iris", columns=["petal length (cm)"], jobs=1)
        >>> print(str(report).split(":")[0])
        Which model? Bayesian Gaussian mixture, at most 10 components (uses 2)
    """
    for name, value in (("columns", columns), ("drop", drop)):
        if value is not None:
            check_list(value, name, "names")
    check_count(rows, "rows", 20)
    if jobs is not None:
        check_count(jobs, "jobs")
    table = read_table(data, columns, drop or (), rows, random_state)
    command = spelled(data, columns, drop, rows, random_state, deep)
    return report_on(table, command, random_state, jobs, deep, tell)


def report_on(table: Table, command: str, seed: int, jobs: int | None, deep: bool, tell: Tell) -> Report:
    """The report on rows that were read.

    Args:
        table: what :func:`boxloop.report.read.read_table` gave.
        command: that reproduces the report.
        seed: of every random choice.
        jobs: fits at the same time; all cores when None.
        deep: whether to try a small variational autoencoder, too.
        tell: told what is being done, and which share of the whole is done.
    """
    found = examine(table, seed, jobs or os.cpu_count(), tell, deep)
    tell("writing", 0.99)
    return written_up(found, command)


def spelled(
    data: Any, columns: Sequence[str] | None, drop: Sequence[str], rows: int, seed: int, deep: bool
) -> str:
    """The command, or the call, that gives the same report."""
    if not isinstance(data, str | PathLike):
        given = f", columns={list(columns)}" if columns else ""
        left = f", drop={list(drop)}" if drop else ""
        more = ", deep=True" if deep else ""
        return f"boxloop.make_report(data{given}{left}, rows={rows}, random_state={seed}{more})"
    words = ["boxloop", "report", str(data)]
    if columns:
        words += ["--columns", ",".join(f'"{c}"' if "," in c else c for c in columns)]
    for name in drop:
        words += ["--drop", name]
    return shlex.join([*words, "--rows", str(rows), "--seed", str(seed), *(["--deep"] if deep else [])])
