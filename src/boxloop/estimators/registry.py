"""Registry of the estimators that model files may hold, and ``load``, which reads any of them."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import Any

from boxloop.persist import FileMixin, load_registered

META_ESTIMATORS = ("ModelSearchCV", "OutlierDetector")
"""Classes of ``boxloop.select`` whose files hold one of the estimators."""


def find_estimator(name: str) -> type[FileMixin] | None:
    """The class of this name; None where no file may name it."""
    room = import_module("boxloop.select" if name in META_ESTIMATORS else "boxloop.estimators")
    found = getattr(room, name) if name in room.__all__ else None
    return found if isinstance(found, type) and issubclass(found, FileMixin) else None


def load(path: str | PathLike[str]) -> Any:
    """Read an estimator written by ``save``. Nothing in the file can run.

    Args:
        path: the file.

    Returns:
        The fitted estimator.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from boxloop import FactorAnalysis, load
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(50, 1)) + rng.normal(size=(50, 3))
        >>> with TemporaryDirectory() as folder:
        ...     FactorAnalysis(1).fit(X).save(f"{folder}/fa.boxloop")
        ...     load(f"{folder}/fa.boxloop").components_.shape
        (1, 3)
    """
    return load_registered(path, find_estimator)
