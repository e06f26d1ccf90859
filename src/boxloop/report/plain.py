"""Values as JSON knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


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
