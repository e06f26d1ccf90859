"""Reports on few candidates, so that a test takes a second."""

from __future__ import annotations

from unittest.mock import patch

import pytest

SMALL = {
    "candidates.SIZES": (1, 2),
    "candidates.RANKS": (1,),
    "candidates.MOST": 2,
    "candidates.PASSES": (5, 20),
    "candidates.DRAWS": 8,
    "examine.DRAWS": 99,
    "examine.FEW_DRAWS": 49,
}


@pytest.fixture(scope="module", autouse=True)  # a wider one would outlast these tests
def few_candidates():
    """Two sizes of each family, and few draws."""
    patches = [patch(f"boxloop.report.{name}", value) for name, value in SMALL.items()]
    for each in patches:
        each.start()
    yield
    for each in patches:
        each.stop()
