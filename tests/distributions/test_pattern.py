"""Which rows miss the same values: as torch finds distinct rows, in its order, whatever the number of columns."""

from __future__ import annotations

import pytest
import torch

from boxloop.distributions import find_missing_patterns
from boxloop.numeric import generator


@pytest.mark.parametrize("d", [1, 2, 7, 61, 62, 63, 70])
def test_patterns_are_the_distinct_rows_in_order(d: int) -> None:
    missing = torch.rand((300, d), generator=generator(d)) < 2.0 / d
    missing[0], missing[1] = False, True
    missing[2], missing[3] = torch.arange(d) == 0, torch.arange(d) == d - 1
    found = find_missing_patterns(missing)
    for one, other in zip(
        found, torch.unique(missing, dim=0, return_inverse=True, return_counts=True), strict=True
    ):
        assert torch.equal(one, other)
