"""Learning rates, and generators of positions in a fit."""

from __future__ import annotations

import torch

from boxloop.fit import Constant, Cooling, make_generator_at


def test_rates():
    assert [Constant(0.2)(t) for t in (0, 9)] == [0.2, 0.2]
    cooling = Cooling(1.0, 100)
    assert cooling(0) == 1.0
    assert cooling(100) == cooling(500) == 0.0
    assert all(cooling(t) > cooling(t + 1) for t in range(99))


def test_generators_of_positions_differ():
    """Neighbouring places, and places of other depth, must not share numbers."""
    firsts = [float(torch.rand((), generator=make_generator_at(*place), dtype=torch.float64))
              for place in [(0,), (1,), (0, 0), (0, 1), (1, 0), (2**61, 5), (0, 0, 1)]]  # fmt: skip
    assert len(set(firsts)) == len(firsts)
