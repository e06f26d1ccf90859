"""Text and values as pages, terminals and JSON take them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need."""


def count_of(count: int, what: str) -> str:
    """A number of things, in the plural where it is due.

    Example:
        >>> count_of(1, "component"), count_of(3, "component")
        ('1 component', '3 components')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def escape_controls(text: str, keep: str = "\n") -> str:
    r"""Text with its control characters written out: they could move the cursor, hide words or turn their direction.

    Example:
        >>> escape_controls("a\x1b[2Jb\u202ec")
        'a\\x1b[2Jb\\u202ec'
    """
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in hidden and c not in keep and c not in JOINERS
        else c
        for c in text
    )


def to_json_values(value: Any) -> Any:
    """A value of NumPy's and Python's as JSON knows it.

    Example:
        >>> import numpy as np
        >>> to_json_values({"a": np.array([1.0, np.nan]), "b": (np.int64(2), Path("c"))})
        {'a': [1.0, None], 'b': [2, 'c']}
    """
    if hasattr(value, "tolist"):  # an array or a number of NumPy's, whose import --help must not wait for
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
