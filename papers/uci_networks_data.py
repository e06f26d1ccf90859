"""Tables for regression: those of UCI where they are at hand, else diabetes and a drawn one; and their splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import load_dataset

Array = NDArray[np.float64]

FILES = {
    "uci_regression_004.npz": ("energy", "boston", "concrete", "yacht"),
    "uci_regression_extra.npz": ("power", "kin8nm", "wine_red", "naval"),
}
HELD = 0.1
"""Share of all rows that is tested on, and of the others that is tuned on."""


@dataclass(frozen=True)
class Table:
    """Inputs (n, d) and one target (n,), as they came."""

    name: str
    x: Array
    y: Array


@dataclass(frozen=True)
class Splits:
    """S random splits of a table, each in units of its own training rows.

    Args:
        x: inputs, by part ``"train"``, ``"valid"`` or ``"test"``: (S, n, d).
        y: targets likewise, (S, n, 1).
        scale: standard deviation of the target among training rows, (S,): what y is in units of.
    """

    x: dict[str, Tensor]
    y: dict[str, Tensor]
    scale: Array

    @property
    def count(self) -> int:
        """S."""
        return len(self.scale)


def tables(folder: Path | None, rows: int | None, seed: int) -> list[Table]:
    """All tables.

    Args:
        folder: that has the files of UCI; diabetes and Friedman's first function when None.
        rows: of a table at most, the first of a random order; all when None.
        seed: of what is drawn.

    Raises:
        FileNotFoundError: a folder without any of the files.
    """
    found = _drawn(seed) if folder is None else _files(folder)
    rng = np.random.default_rng(seed)
    if rows is None:
        return found
    orders = [rng.permutation(len(table.y))[:rows] for table in found]
    return [Table(table.name, table.x[some], table.y[some]) for table, some in zip(found, orders)]


def _drawn(seed: int) -> list[Table]:
    from sklearn.datasets import make_friedman1

    table = load_dataset("diabetes")
    x, y = make_friedman1(n_samples=600, n_features=10, noise=1.0, random_state=seed)
    return [Table("diabetes", table.rows, table.target), Table("friedman", x, y)]


def _files(folder: Path) -> list[Table]:
    found = []
    for file, names in FILES.items():
        if (folder / file).exists():
            with np.load(folder / file) as arrays:
                found += [
                    Table(name, *(arrays[f"{name}_{part}"].astype(np.float64) for part in "Xy"))
                    for name in names
                ]
    if not found:
        raise FileNotFoundError(f"{folder} has none of {', '.join(FILES)}")
    return found


def split(table: Table, count: int, seed: int) -> Splits:
    """Rows in a random order, a tenth to test, a tenth of the others to tune with; in units of those that are left.

    Rows of some tables are ordered by design, so that no split goes by their order. A column that is constant among
    training rows stays as it is, but for its mean.

    Args:
        table: all rows.
        count: S.
        seed: of the orders.
    """
    n = len(table.y)
    test = max(round(HELD * n), 1)
    valid = max(round(HELD * (n - test)), 1)
    cuts = {"test": slice(0, test), "valid": slice(test, test + valid), "train": slice(test + valid, n)}
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(count)]
    train = [order[cuts["train"]] for order in orders]
    middle, spread = zip(*(_units(table.x[rows]) for rows in train))
    level, scale = zip(*(_units(table.y[rows, None]) for rows in train))
    x, y = {}, {}
    for part, cut in cuts.items():
        x[part] = _stacked([(table.x[o[cut]] - m) / s for o, m, s in zip(orders, middle, spread)])
        y[part] = _stacked([(table.y[o[cut], None] - m) / s for o, m, s in zip(orders, level, scale)])
    return Splits(x, y, np.concatenate(scale))


def _units(values: Array) -> tuple[Array, Array]:
    middle, spread = values.mean(0), values.std(0)
    constant = spread <= 1e-6 * (np.abs(middle) + np.finfo(float).tiny)
    return middle, np.where(constant, 1.0, spread)


def _stacked(parts: list[Array]) -> Tensor:
    return torch.from_numpy(np.stack(parts))
