"""Methods by name, for those who do not set them up themselves."""

from __future__ import annotations

from dataclasses import is_dataclass
from numbers import Integral
from typing import Any

from boxloop.weights.factor import FactorEM
from boxloop.weights.full import Full
from boxloop.weights.gradient import FactorGradient
from boxloop.weights.method import Method
from boxloop.weights.swa import SWA
from boxloop.weights.swag import SWAG

WORDS = ("factor", "gradient", "swag", "swa", "full")
"""What methods are called."""


def method_of(method: str | Method, rank: int, size: int) -> Method:
    """A method from its word.

    Args:
        method: a word, or a method, which is given back as it is.
        rank: of methods that have one.
        size: D; no law of D weights has more directions.

    Raises:
        ValueError: no such word, or a rank that its method cannot have; "window", which needs to know the rows and
            batches behind it.

    Example:
        >>> method_of("swag", 20, 5)
        SWAG(rank=5, floor=1e-30)
    """
    if not isinstance(method, str):
        given: object = method
        if isinstance(given, type) or not is_dataclass(given):
            raise ValueError(
                f"method must be one of {', '.join(WORDS)}, or a method such as SWAG(10), got {method!r}"
            )
        return method
    if method == "window":
        raise ValueError(
            "windows need a length: pass method=Windowed(50, Full()), or Windowed(n_rows=..., batch_size=...), "
            "from which it is found"
        )
    if method not in WORDS:
        raise ValueError(f"method must be one of {', '.join(WORDS)}, or a method, got {method!r}")
    if method == "full":
        return Full()
    if method == "swa":
        return SWA()
    asked: Any = rank
    if not isinstance(asked, Integral) or rank < 1:
        raise ValueError(f"rank must be at least 1, and a whole number, got {rank!r}")
    most = min(int(rank), size)
    match method:
        case "factor":
            return FactorEM(most)
        case "gradient":
            return FactorGradient(most)
        case _:
            if rank < 2:
                raise ValueError(
                    f"the rank of swag must be at least 2, as it divides by rank - 1, got {rank}"
                )
            return SWAG(max(2, most))
