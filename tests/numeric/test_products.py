"""Blocked products are the plain product, for every shape, layout and precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.numeric import (
    generator,
    linalg,
    lower_norms,
    lower_product,
    normal,
    product,
    scatter,
    upper_gram,
)

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
        linalg.np, "matmul", lambda *a, **k: (seen.append(a[0].ndim + a[1].ndim), plain(*a, **k))[1]
    )
    product(torch.ones(m, inner), torch.ones(inner, n))
    assert max(seen) > 4


@pytest.mark.parametrize("multiply", [product, lower_product, lambda a, b: lower_norms(a[None], b)])
def test_what_overflows_is_no_warning_of_numpy(multiply):
    """Products of rows far from a model are infinite or undefined, as torch's are; warnings are errors here."""
    lower = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -1.0]]).double()
    assert not bool(multiply(1e200 * lower, 1e150 * torch.ones(3, 5).double()).isfinite().all())


def test_the_product_follows_gradients():
    left = torch.ones(2, 3, requires_grad=True)
    product(left, torch.ones(3, 5000)).sum().backward()
    assert left.grad is not None
    assert torch.equal(left.grad, torch.full((2, 3), 5000.0))


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_products_with_a_triangle(size, ahead):
    rng = torch.Generator().manual_seed(1)
    lower = torch.randn(size, size + ahead, dtype=torch.float64, generator=rng).tril(ahead)
    right = torch.randn(size + ahead, 3000, dtype=torch.float64, generator=rng)
    assert torch.allclose(lower_product(lower, right), lower @ right, rtol=1e-12, atol=1e-12)
    lower.requires_grad_()
    assert lower_product(lower, right).requires_grad


@pytest.mark.parametrize(
    ("k", "size", "n"), [(1, 1, 1), (3, 7, 2500), (4, 50, 1025), (2, 3, 0), (2, 300, 700)]
)
def test_norms_of_products_with_triangles(k, size, n, monkeypatch):
    rng = torch.Generator().manual_seed(2)
    lower = torch.randn(k, size, size + 1, dtype=torch.float64, generator=rng).tril(1)
    right = torch.randn(size + 1, n, dtype=torch.float64, generator=rng)
    expected = (lower @ right).square().sum(1)
    assert torch.allclose(lower_norms(lower, right), expected, rtol=1e-12)
    monkeypatch.setattr(linalg, "BLOCK_VALUES", 1)  # member by member
    assert torch.allclose(lower_norms(lower, right), expected, rtol=1e-12)
    tracked = lower_norms(lower.requires_grad_(), right)
    assert tracked.requires_grad
    assert torch.allclose(tracked, expected, rtol=1e-12)


@pytest.mark.parametrize("negligible", [0.0, 1e-14])
@pytest.mark.parametrize("n", [0, 1, 3000])
def test_moments_about_centres(n, negligible):
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(n, 4, dtype=torch.float64, generator=rng)
    centre = torch.randn(3, 4, dtype=torch.float64, generator=rng)
    share = (30.0 * torch.randn(3, n, dtype=torch.float64, generator=rng)).softmax(0)
    apart = rows - centre[:, None]
    expected = (share[..., None] * apart).sum(1), torch.einsum("kn,kni,knj->kij", share, apart, apart)
    for found in (
        scatter(rows, centre, share, negligible),
        scatter(rows.mT.contiguous().mT, centre, share, negligible),
        scatter(rows, centre, share.clone().requires_grad_(), negligible),
    ):
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("n", "d"), [(300, 13), (1000, 30), (5000, 100), (257, 256), (20, 30), (600, 300), (9, 1)]
)
@pytest.mark.parametrize("turned", [False, True])
def test_upper_gram_is_the_upper_half_of_a_product(n, d, dtype, turned):
    rows = normal((d, n) if turned else (n, d), generator(1), dtype)
    rows = rows.mT if turned else rows
    expected = torch.triu(rows.double().mT @ rows.double())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(
        torch.triu(upper_gram(rows)).double(), expected, rtol=tolerance, atol=tolerance * n
    )
