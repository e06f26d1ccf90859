"""Identities of the shared linear algebra, against dense and slow ways of saying the same."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop.numeric import (
    ConditionError,
    covariance as forms,
    floor_covariance,
    from_log_factor,
    gram,
    log_factor,
    pack,
    pack_index,
    product,
    safe_cholesky,
    unpack,
    upper_gram,
    woodbury,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def positive(*shape: int, d: int, seed: int = 0) -> Tensor:
    root = normal(*shape, d, d + 2, seed=seed)
    return root @ root.mT / d


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_packing_keeps_the_upper_triangle(shape: tuple[int, ...]) -> None:
    matrix = positive(*shape, d=4)
    assert_close(unpack(pack(matrix), 4), matrix, rtol=0, atol=0)
    i, j = pack_index(4)
    assert list(zip(i.tolist(), j.tolist(), strict=True))[:5] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1)]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_factor_as_free_numbers_and_back(shape: tuple[int, ...]) -> None:
    factor = torch.linalg.cholesky(positive(*shape, d=4))
    assert_close(from_log_factor(log_factor(factor), 4), factor, **EXACT)
    free = normal(*shape, 10, seed=1)
    made = from_log_factor(free, 4)
    assert_close(log_factor(made), free, **EXACT)
    assert bool((made.diagonal(dim1=-2, dim2=-1) > 0).all())
    assert_close(made, made.tril(), rtol=0, atol=0)


def test_a_factor_is_differentiable_in_its_free_numbers() -> None:
    free = normal(2, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: from_log_factor(v, 3), (free,))


@pytest.mark.parametrize("d", [3, 512, 600])
@pytest.mark.parametrize("weighted", [False, True])
def test_gram_is_the_product_it_says(d: int, weighted: bool) -> None:
    rows, weight = normal(30, d), normal(30, seed=1).abs() if weighted else None
    left = rows if weight is None else rows * weight[:, None]
    assert_close(gram(rows, weight), left.mT @ rows, **EXACT)


@pytest.mark.parametrize("n", [0, 4])
def test_gram_of_no_columns_is_empty_and_silent(n: int, capfd: pytest.CaptureFixture[str]) -> None:
    """BLAS prints a complaint of its own, past Python, where it is asked for a product without columns."""
    rows = normal(n, 0)
    for made in (gram(rows), gram(rows.requires_grad_()), upper_gram(rows.detach(), normal(n).abs())):
        assert made.shape == (0, 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_product_is_a_matrix_product(dtype: torch.dtype) -> None:
    left, right = normal(5, 7).to(dtype), normal(9, 7, seed=1).to(dtype)
    assert_close(product(left, right.mT), left @ right.mT)
    assert_close(product(left[::2, ::3], right.mT[::3]), left[::2, ::3] @ right.mT[::3])
    assert product(left[:, :0], right.mT[:0]).eq(0).all()


def test_product_inside_and_outside_autograd() -> None:
    left, right = normal(3, 4).requires_grad_(), normal(4, 2, seed=1)
    assert product(left, right).requires_grad
    with torch.no_grad():
        assert not product(left, right).requires_grad
    assert torch.autograd.gradcheck(product, (left, right))


def test_a_matrix_that_is_not_positive_definite_is_named() -> None:
    matrix = positive(4, d=3)
    assert_close(safe_cholesky(matrix), torch.linalg.cholesky(matrix))
    matrix[2, 0, 0] = -1.0
    with pytest.raises(ConditionError, match="the thing 2 is not positive definite"):
        safe_cholesky(matrix, "the thing")


def test_the_floor_changes_only_what_is_below_it() -> None:
    matrix = positive(3, d=4)
    matrix[1] = matrix[1, :, :1] * matrix[1, :1, :]
    floored, low = floor_covariance(matrix, 1e-3)
    assert low.tolist() == [False, True, False]
    assert torch.equal(floored[[0, 2]], matrix[[0, 2]])
    assert_close(floored[1], floored[1].mT, rtol=0, atol=0)
    assert float(torch.linalg.eigvalsh(floored[1])[0]) == pytest.approx(1e-3, rel=1e-9)


def likelihood(covariance: Tensor, sample: Tensor) -> Tensor:
    return -torch.logdet(covariance) - torch.linalg.solve(covariance, sample).diagonal(dim1=-2, dim2=-1).sum(
        -1
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_floor_is_the_constrained_maximum(seed: int) -> None:
    """No admissible covariance, near or far, has a higher likelihood given the sample's."""
    floor, d = 0.5, 4
    sample = positive(d=d, seed=seed)
    best, low = floor_covariance(sample[None], floor)
    assert bool(low[0]), "a test of the floor needs one that binds"
    top = likelihood(best, sample[None])[0]
    eye = torch.eye(d, dtype=torch.float64)
    for size in (1e-4, 1e-2, 0.3, 2.0):
        noise = normal(200, d, d, seed=seed + 1)
        other = best + size * (noise + noise.mT)
        values, vectors = torch.linalg.eigh(other)
        other = (vectors * values.clamp(min=floor)[:, None]) @ vectors.mT
        assert float((likelihood(other, sample.expand_as(other)) - top).max()) <= 1e-12
        assert float(torch.linalg.eigvalsh(other - floor * eye).min()) > -1e-12
    ridge = sample + floor * eye
    assert float(likelihood(ridge[None], sample[None])[0]) < float(top) - 1e-3


@pytest.mark.parametrize(("d", "k"), [(5, 2), (3, 3), (2, 4), (6, 1)])
def test_woodbury_is_the_dense_answer(d: int, k: int) -> None:
    loadings, noise = normal(d, k), normal(d, seed=1).square() + 0.1
    dense = loadings @ loadings.mT + torch.diag(noise)
    factor, log_det = woodbury(loadings, noise)
    assert_close(log_det, torch.logdet(dense), **EXACT)
    inner = torch.cholesky_solve((loadings / noise[:, None]).mT, factor)
    inverse = torch.diag(1.0 / noise) - (loadings / noise[:, None]) @ inner
    assert_close(inverse, torch.linalg.inv(dense), **EXACT)


def test_every_form_of_a_covariance_knows_its_diagonal() -> None:
    loadings, noise = normal(2, 4, 3), normal(2, 4, seed=1).square()
    low = forms.LowRank(loadings, noise)
    expected = loadings @ loadings.mT + torch.diag_embed(noise)
    for form in (low, forms.Dense(expected), forms.Diagonal(noise)):
        assert_close(form.diagonal(), form.dense().diagonal(dim1=-2, dim2=-1), **EXACT)
    assert_close(low.dense(), expected, **EXACT)
    assert_close(forms.Diagonal(noise).dense(), torch.diag_embed(noise))
