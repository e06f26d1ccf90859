"""Small data sets that are there after installation: those that scikit-learn carries, and some drawn here."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data.checks import near_misses
from boxloop.data.synthetic import overlapping_clusters, planted_outliers
from boxloop.numeric import generator

CATALOGUE: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""Each data set: what it is, how many rows and columns, where from, and the seed of one that is drawn."""


@dataclass(frozen=True)
class Bundled:
    """A table with names, and what its collectors wanted to tell from it.

    Args:
        names: the d column names.
        rows: (n, d).
        target: (n,), the class or response of each row; no part of the rows.
        classes: the names of the classes; empty where the target is a number.
    """

    names: tuple[str, ...]
    rows: NDArray[np.float64]
    target: NDArray[np.float64]
    classes: tuple[str, ...]


def bundled(name: str) -> Bundled:
    """Load a data set by name; nothing is downloaded.

    Args:
        name: one of :data:`CATALOGUE`.

    Raises:
        ValueError: there is none of this name.

    Example:
        >>> data = bundled("iris")
        >>> data.rows.shape, data.names[0], data.classes[0]
        ((150, 4), 'sepal length (cm)', 'setosa')
    """
    if name not in CATALOGUE:
        near = near_misses(name, CATALOGUE)
        raise ValueError(f"there is no bundled data set {name!r}{near}; there are {', '.join(CATALOGUE)}")
    if name in DRAWN:
        return DRAWN[name](CATALOGUE[name])
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return Bundled(
        tuple(str(column) for column in found.feature_names),
        np.asarray(found.data, dtype=np.float64),
        np.asarray(found.target, dtype=np.float64),
        tuple(str(c) for c in found.get("target_names", ())),
    )


def _long_clusters(facts: dict[str, Any]) -> Bundled:
    rows, label = overlapping_clusters(facts["rows"], 3, facts["columns"], generator(facts["seed"]))
    return Bundled(("x", "y", "z"), rows.numpy(), label.to(rows.dtype).numpy(), ("first", "second", "third"))


def _planted_outliers(facts: dict[str, Any]) -> Bundled:
    rows, planted = planted_outliers(facts["rows"], facts["columns"], 10, generator(facts["seed"]))
    names = tuple(f"gauge {j + 1}" for j in range(facts["columns"]))
    return Bundled(names, rows.numpy(), planted.to(rows.dtype).numpy(), ("ordinary", "planted"))


DRAWN: dict[str, Callable[[dict[str, Any]], Bundled]] = {
    "long_clusters": _long_clusters,
    "planted_outliers": _planted_outliers,
}
"""Data sets that are drawn, always the same: their seeds are in the catalogue."""
