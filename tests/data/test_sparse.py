"""Sparse counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from boxloop.data import SparseSource, open_source

RNG = np.random.default_rng(2)
COUNTS = RNG.poisson(0.2, (1300, 30))


def dense(source: SparseSource, size: int | None = None) -> np.ndarray:
    tiles = [rows for rows, _ in source.chunks(size)]
    assert all(rows.layout == torch.sparse_csr and rows.dtype == torch.float64 for rows in tiles)
    return torch.cat([rows.to_dense() for rows in tiles]).numpy()


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32, np.float64, bool])
def test_every_format_and_type(kind: str, dtype: type) -> None:
    counts = (COUNTS[:60] > 0) if dtype is bool else COUNTS[:60]
    for wrap in (sparse.coo_array, sparse.coo_matrix):
        np.testing.assert_array_equal(dense(open_source(wrap(counts.astype(dtype)).asformat(kind))), counts)


@pytest.mark.parametrize("size", [None, 1, 100, 1300, 5000])
def test_tiles(size: int | None) -> None:
    weight = RNG.random(1300)
    source = open_source(sparse.csr_array(COUNTS), weight, [f"word{j}" for j in range(30)])
    assert (source.n_rows, source.n_columns, source.names[3]) == (1300, 30, "word3")
    np.testing.assert_array_equal(dense(source, size), COUNTS)
    np.testing.assert_array_equal(torch.cat([w for _, w in source.chunks(size)]).numpy(), weight)


def test_a_tile_multiplies_like_its_dense_form() -> None:
    rows, _ = next(open_source(sparse.csr_array(COUNTS)).chunks(500))
    other = torch.from_numpy(RNG.normal(size=(30, 4)))
    torch.testing.assert_close(rows @ other, rows.to_dense() @ other)


def test_entries_given_twice_are_added_and_the_matrix_is_left_alone() -> None:
    matrix = sparse.csr_array(
        (np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2]), np.array([0, 3, 3])), shape=(2, 3)
    )
    np.testing.assert_array_equal(dense(open_source(matrix)), [[2.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(matrix.data, [1.0, 2.0, 3.0])
    assert matrix.nnz == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
def test_values_that_are_no_counts_are_refused(value: float) -> None:
    counts = COUNTS.astype(float)
    counts[700, 4] = value
    with pytest.raises(ValueError, match=rf"column 'x4' holds {value} at row 700"):
        open_source(sparse.csr_array(counts))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (sparse.csr_array((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\)"),
        (sparse.csr_array((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\)"),
        (sparse.csr_array(np.eye(2) * 1j), "Complex data not supported"),
        (sparse.coo_array(np.ones(3)), "Expected 2D array, got 1D"),
    ],
)
def test_refusals(matrix: sparse.sparray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(matrix)


def test_a_row_without_counts_is_still_a_row() -> None:
    np.testing.assert_array_equal(dense(open_source(sparse.csr_array((5, 2))), 2), np.zeros((5, 2)))
