"""Finished cells of a search on disk, so that a search that was killed goes on where it stopped.

One JSON file a cell in one folder, each written whole or not at all; the name is a digest of all that decides the
cell: the estimator with its parameters, the rows fitted to and judged on, the data. Another search may share the
folder, and one with more candidates or other folds reuses what is the same.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from boxloop.data import fingerprint_values
from boxloop.persist import write_atomic
from boxloop.select.cells import Cell, Criterion, Fold
from boxloop.select.grouped import Grouped
from boxloop.version import __version__

FORMAT = 2
PARTS = ("weight", "square", "total")
"""Of the log-densities of a cell."""
WATCHING = {"verbose", "n_jobs", "checkpoint", "warm_start"}
"""Parameters that do not change what is fitted, only how it is watched."""


class CellStore:
    """Cells in a folder.

    Args:
        folder: made where it is not there yet.
        data: digest of the data.
    """

    def __init__(self, folder: str | os.PathLike[str], data: str) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint={str(folder)!r} is a file: a folder is needed, one file a cell")
        self.folder.mkdir(exist_ok=True)
        self.data = data

    def key(self, estimator: Any, fold: Fold, criterion: Criterion | None) -> dict[str, Any]:
        """All that decides a cell, as JSON."""
        params = estimator.get_params(deep=True)
        return {
            "boxloop": __version__,
            "data": self.data,
            "estimator": plain(type(estimator)),
            "parameters": {k: plain(v) for k, v in params.items() if k.rpartition("__")[2] not in WATCHING},
            "fold": "all rows" if fold.train is None else fingerprint_values(fold.train, fold.test),
            "criterion": plain(criterion),
        }

    def read(self, key: Mapping[str, Any]) -> Cell | None:
        """The cell with this key, or None."""
        path = self._path(key)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path}: a damaged cell of a search, remove it: {error}") from error
        try:
            if document["format"] != FORMAT or document["key"] != key:
                raise ValueError("it belongs to another search or version")
            return Cell(
                density=Grouped(*(_tensor(document["density"][name]) for name in PARTS)),
                score=float(document["score"]),
                n_parameters=float(document["n_parameters"]),
                warnings=tuple(str(line) for line in document["warnings"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a cell of this search, remove it: {error}") from error

    def write(self, key: Mapping[str, Any], cell: Cell) -> None:
        """Keep a cell, unless it failed: a failure is tried again."""
        if cell.density is None:
            return
        document = {
            "format": FORMAT,
            "key": key,
            "density": {name: [_number(v) for v in part.tolist()] for name, part in cell.density.leaves()},
            "score": _number(cell.score),
            "n_parameters": _number(cell.n_parameters),
            "warnings": list(cell.warnings),
        }
        write_atomic(self._path(key), json.dumps(document, allow_nan=False).encode())

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{fingerprint_values(json.dumps(key, sort_keys=True))[:32]}.json"


def plain(value: Any) -> Any:
    """A parameter as JSON that is the same in another process.

    Example:
        >>> plain((1, None, "full")), plain(len), plain(float("nan"))
        ([1, None, 'full'], 'builtins.len', 'nan')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return fingerprint_values(value)
    if isinstance(value, BaseEstimator):
        return plain(type(value))  # its parameters are listed beside it
    return _name(value)


def _name(value: Any) -> str:
    """Of a class or function where it has one of its own, else what ``repr`` says."""
    named = getattr(value, "__qualname__", "<")
    if "<" not in named:
        return f"{value.__module__}.{named}"
    text = repr(value)
    if re.search(r"\bat 0x[0-9a-fA-F]+", text):
        raise ValueError(
            f"a checkpoint cannot tell {text} from another of its kind: "
            "give a plain value, an integer seed or a function with a name"
        )
    return text


def _tensor(values: list[float | str]) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
