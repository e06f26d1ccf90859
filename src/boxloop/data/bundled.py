"""Small real data sets that are there after installation: those that scikit-learn carries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOADERS = {
    "breast_cancer": "load_breast_cancer",
    "diabetes": "load_diabetes",
    "digits": "load_digits",
    "iris": "load_iris",
    "wine": "load_wine",
}
"""Each data set and the function of ``sklearn.datasets`` that loads it."""


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
        name: one of :data:`LOADERS`.

    Raises:
        ValueError: there is none of this name.

    Example:
        >>> data = bundled("iris")
        >>> data.rows.shape, data.names[0], data.classes[0]
        ((150, 4), 'sepal length (cm)', 'setosa')
    """
    if name not in LOADERS:
        raise ValueError(f"there is no bundled data set {name!r}; there are {', '.join(LOADERS)}")
    from sklearn import datasets

    found = getattr(datasets, LOADERS[name])()
    classes = tuple(str(c) for c in found.get("target_names", ()))
    return Bundled(
        tuple(str(column) for column in found.feature_names),
        np.asarray(found.data, dtype=np.float64),
        np.asarray(found.target, dtype=np.float64),
        classes,
    )
