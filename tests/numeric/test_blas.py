"""Blocked products are the plain product, for every shape, layout and precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.numeric import blas
from boxloop.numeric.blas import lower_product, product, square_norms

SHAPES = [
    (1, 1, 1),
    (10, 66, 8192),
    (10, 8192, 66),
    (8192, 66, 10),
    (50, 51, 4097),
    (50, 5003, 50),
    (3, 0, 4),
    (0, 5, 9000),
    (5, 9000, 0),
    (200, 300, 400),
    (1, 70_000, 1),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_of_any_shape_and_layout(shape, dtype):
    m, inner, n = shape
    rng = torch.Generator().manual_seed(0)
    left = torch.randn(m, inner, dtype=dtype, generator=rng)
    right = torch.randn(inner, n, dtype=dtype, generator=rng)
    expected = left.double() @ right.double()
    bound = (1e-14 if dtype == torch.float64 else 1e-5) * (1 + inner) ** 0.5 * 10
    for a in (left, left.mT.contiguous().mT):
        for b in (right, right.mT.contiguous().mT):
            found = product(a, b)
            assert found.dtype == dtype
            assert found.shape == expected.shape
            assert found.numel() == 0 or float((found - expected).abs().max()) < bound


@pytest.mark.parametrize("shape", [(10, 66, 8192), (10, 8192, 66)], ids=str)
def test_long_products_are_cut_into_blocks(shape, monkeypatch):
    m, inner, n = shape
    seen = []
    plain = np.matmul
    monkeypatch.setattr(
        blas.np, "matmul", lambda *a, **k: (seen.append(a[0].ndim + a[1].ndim), plain(*a, **k))[1]
    )
    product(torch.ones(m, inner), torch.ones(inner, n))
    assert max(seen) > 4


def test_the_product_follows_gradients():
    left = torch.ones(2, 3, requires_grad=True)
    product(left, torch.ones(3, 5000)).sum().backward()
    assert left.grad is not None
    assert torch.equal(left.grad, torch.full((2, 3), 5000.0))


def test_square_norms_of_columns():
    matrix = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(square_norms(matrix), torch.tensor([9.0, 17.0, 29.0]))


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_products_with_a_triangle(size, ahead):
    rng = torch.Generator().manual_seed(1)
    lower = torch.randn(size, size + ahead, dtype=torch.float64, generator=rng).tril(ahead)
    right = torch.randn(size + ahead, 3000, dtype=torch.float64, generator=rng)
    assert torch.allclose(lower_product(lower, right), lower @ right, rtol=1e-12, atol=1e-12)
    lower.requires_grad_()
    assert lower_product(lower, right).requires_grad
