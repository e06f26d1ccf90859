"""Norms of symmetric gaps against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from boxloop.criticise import entrywise, operator, schatten
from boxloop.numeric import generator, normal


@settings(max_examples=60, deadline=None)
@given(d=st.integers(1, 8), seed=st.integers(0, 10_000), low=st.booleans())
def test_the_operator_norm_is_the_largest_absolute_eigenvalue(d, seed, low):
    root = normal((d, d), generator(seed))
    gap = -root[:, :1] @ root[:, :1].mT if low else root + root.mT
    value, direction = operator(gap, max_iter=100_000, tol=1e-13)
    values = torch.linalg.eigvalsh(gap)
    assert float(value) == pytest.approx(float(values.abs().max()), rel=1e-5)
    assert float(direction.norm()) == pytest.approx(1.0)
    assert float((direction @ gap @ gap @ direction).sqrt()) == pytest.approx(float(value), rel=1e-4)


def test_opposite_eigenvalues_and_zero():
    assert float(operator(torch.diag(torch.tensor([2.0, -2.0])).double())[0]) == pytest.approx(2.0)
    assert float(operator(torch.zeros(3, 3).double())[0]) == 0.0
    assert float(operator(torch.tensor([3.0, 4.0]).double())[0]) == 5.0


def test_families_of_norms_meet_at_two():
    gap = normal((5, 5), generator(0))
    gap = gap + gap.mT
    frobenius = torch.linalg.matrix_norm(gap)
    torch.testing.assert_close(entrywise(gap), frobenius)
    torch.testing.assert_close(schatten(gap), frobenius)
    torch.testing.assert_close(schatten(gap, float("inf")), torch.linalg.matrix_norm(gap, 2))
    torch.testing.assert_close(schatten(gap, 1.0), torch.linalg.matrix_norm(gap, "nuc"))


@pytest.mark.parametrize("norm", [entrywise, schatten])
def test_orders_below_one_are_no_norms(norm):
    with pytest.raises(ValueError, match="at least 1"):
        norm(torch.eye(2), 0.5)
