"""Reports on few candidates, so that one takes a second or two and not half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

SMALL = {
    "candidates.SIZES": (1, 2),
    "candidates.RANKS": (1,),
    "candidates.PASSES": (5, 20),
    "candidates.DRAWS": 8,
    "examine.DRAWS": 99,
    "examine.FEW_DRAWS": 49,
    "examine.MANY": 0,
}


@contextmanager
def few_candidates(most: int = 2) -> Iterator[None]:
    """Two sizes of each family, at most ``most`` components for a Bayesian mixture, few draws and three folds."""
    with ExitStack() as stack:
        for name, value in {**SMALL, "candidates.MOST": most}.items():
            stack.enter_context(patch(f"boxloop.report.{name}", value))
        yield
