"""A table as a network takes it: columns to predict from, and one to be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from boxloop.cli.columns import SelectedColumns, read_columns
from boxloop.data import choose_columns, open_named_reader, open_table
from boxloop.estimators import Array
from boxloop.numeric import generator, spawn
from boxloop.report import Problem, fingerprint

FEWEST, FEWEST_JUDGES = 40, 8
"""Rows below which a network is neither fitted nor judged, and rows that judge."""
FEW = 20
"""Different values up to which numbers might be classes: it is said how to take them so."""


def read_problem(
    data: str,
    target: str,
    columns: Sequence[str] | None,
    drop: Sequence[str],
    kind: str,
    share: float,
    seed: int,
) -> Problem:
    """Read a table, and set rows apart.

    Args:
        data: a path or a bundled data set.
        target: column to predict; ``target`` is what bundled data were collected for.
        columns: to predict from; all that hold numbers when omitted.
        drop: columns to leave out.
        kind: ``auto``, ``regression`` or ``classification``.
        share: of the rows that judge.
        seed: of the choice of rows.

    Raises:
        ValueError: a column that is not there or cannot be used, an empty cell, too few rows.
    """
    side = read_columns(data, [target], (), "--target")
    names, left_out = inputs(data, target, columns, drop)
    X = _table(data, names)
    said, kind, y = outputs(side, kind)
    _check_whole(data, X, names)
    if side.labels is None:
        _check_whole(data, _numbers(side)[:, None], (target,))
    if len(X) < FEWEST:
        raise ValueError(f"{data}: {len(X)} rows are too few to fit and to judge: {FEWEST} are needed")
    held = set_rows_apart(y, kind, share, seed)
    if held.sum() < FEWEST_JUDGES:
        raise ValueError(
            f"{data}: --held-out {share:g} leaves fewer than {FEWEST_JUDGES} rows to judge: raise it, or give more rows"
        )
    whole = np.column_stack([X, _codes(y)])
    return Problem(data, names, target, X, y, kind, said, left_out, fingerprint(data, whole), held)


def inputs(
    data: str, target: str, columns: Sequence[str] | None, drop: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The columns to predict from, and those left out as they hold no numbers; such a one must not be asked for."""
    reader = open_named_reader(data)
    choose_columns(reader.names, [*(columns or ()), *drop], None, reader.label)
    if target in (columns or ()):
        raise click.UsageError(f"--columns names {target!r}, which is to be predicted")
    wanted = [name for name in columns or reader.names if name not in drop and name != target]
    words = {name: what for name, what in reader.non_numeric.items() if name in wanted}
    if words and columns is not None:
        name, what = next(iter(words.items()))
        raise ValueError(f"{reader.label}: column {name!r} holds no numbers ({what}): leave it out")
    names = tuple(name for name in wanted if name not in words)
    if not names:
        raise ValueError(f"{reader.label}: no column of numbers is left to predict from")
    return choose_columns(names, None, None, reader.label), words


def outputs(side: SelectedColumns, kind: str) -> tuple[str, str, NDArray[Any]]:
    """What is predicted: why it is numbers or classes, which, and the values."""
    if side.labels is not None:
        if kind == "regression":
            raise click.UsageError(f"--kind regression: {side.names[0]!r} holds labels, not numbers")
        return f"{side.n_values} classes, as it holds labels", "classification", side.labels
    values = _numbers(side)
    different = np.unique(values[np.isfinite(values)])
    whole = bool((different == np.round(different)).all())
    count = len(different)
    if kind == "classification" or (kind == "auto" and whole and count == 2):
        why = (
            "--kind says so" if kind != "auto" else "it has two values; --kind regression takes it as numbers"
        )
        return f"{count} classes, as {why}", "classification", values.astype(np.int64) if whole else values
    if kind == "regression":
        return "numbers, as --kind says so", "regression", values
    hint = f"; --kind classification takes its {count} values for classes" if whole and count <= FEW else ""
    return f"numbers{hint}", "regression", values


def _table(data: str, names: Sequence[str]) -> Array:
    source = open_table(data, columns=names)
    found: Array = torch.cat([rows for rows, _ in source.chunks()]).double().numpy()
    return found


def _numbers(side: SelectedColumns) -> Array:
    assert side.source is not None
    found: Array = torch.cat([rows[:, 0] for rows, _ in side.source.chunks()]).double().numpy()
    return found


def _check_whole(data: str, table: Array, names: Sequence[str]) -> None:
    empty = np.argwhere(np.isnan(table))
    if len(empty):
        row, column = empty[0].tolist()
        raise ValueError(
            f"{data}: column {names[column]!r} has an empty cell in row {row} (counted from 0): a network needs whole "
            "rows; leave the column out with --drop, or such rows"
        )


def set_rows_apart(y: NDArray[Any], kind: str, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows judge, (n,): by chance; of classes the same share of each, rounded down.

    Args:
        y: numbers or labels, (n,).
        kind: ``regression`` or ``classification``.
        share: of the rows.
        seed: of the choice.
    """
    # the first streams of the seed are the estimator's
    order = torch.randperm(len(y), generator=spawn(generator(seed), 4)[3]).numpy()
    codes = _codes(y)[order] if kind == "classification" else np.zeros(len(y), dtype=np.int64)
    mask = np.zeros(len(y), dtype=bool)
    for code in np.unique(codes):
        group = order[codes == code]
        mask[group[: int(share * len(group) + 1e-9)]] = True
    return mask


def _codes(y: NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(y, return_inverse=True)[1].astype(np.int64)
