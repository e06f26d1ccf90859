"""Blocks, tiles and deviations against the plain operation on whole tensors."""

from __future__ import annotations

import pytest
import torch

from boxloop.fit import (
    choose_tile_width,
    draw_orthonormal_rows,
    multiply_in_blocks,
    prepare_outer_sum,
    prepare_product,
    split_into_tiles,
    update_mean_and_deviations,
)

WIDTHS = [1, 63, 64, 4096, 4097, 9000]


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rank", [1, 10, 70])
def test_blocks_make_up_the_whole_product(width: int, rank: int) -> None:
    sheet, small, out = normals(rank + 1, 2 * width), normals(rank, rank + 1, seed=1), normals(rank, width)
    rows, total = sheet[:, width:], torch.ones(rank, rank + 1, dtype=torch.float64)
    run = prepare_product(small, rows, out)
    add = prepare_outer_sum(out, rows, total)
    small *= 2.0
    run()
    add()
    torch.testing.assert_close(out, small @ rows, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total, 1.0 + out @ rows.mT, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [*WIDTHS, 1023, 1024, 1025])
def test_blocks_of_a_device_make_up_the_whole_product(width: int) -> None:
    left, right = normals(3, width), normals(5, 2 * width, seed=1)[:, width:]
    torch.testing.assert_close(multiply_in_blocks(left, right), left @ right.mT, rtol=1e-10, atol=1e-10)


def test_float32_products_are_summed_in_float64() -> None:
    left = torch.full((1, 40_000), 1.0)
    total = torch.full((1, 1), 2.0**40, dtype=torch.float64)
    prepare_outer_sum(left, left, total)()
    assert float(total) == 2.0**40 + 40_000.0


@pytest.mark.parametrize("columns", [1, 64, 1000, 123_457])
@pytest.mark.parametrize("height", [2, 11, 200])
def test_tiles_cover_every_column_once(columns: int, height: int) -> None:
    rows, mean, noise = torch.zeros(height, columns), torch.zeros(columns), torch.zeros(columns)
    tiles = split_into_tiles(rows, mean, noise, height - 1, choose_tile_width(rows))
    for tile in tiles:
        for view in (tile.upper, tile.lower, tile.mean, tile.noise):
            view += 1.0
    assert all(bool((x == 1.0).all()) for x in (rows, mean, noise))


@pytest.mark.parametrize("batch", [1, 6])
def test_deviations_make_up_the_covariance_of_all_values(batch: int) -> None:
    """With kappa = sqrt(1 - gamma) and gamma = 1/t the mean of d dᵀ is the covariance about the final mean."""
    values = 3.0 + normals(20 * batch, 4)
    rows, mean, noise = (torch.zeros(*shape, dtype=torch.float64) for shape in ((1 + batch, 4), (4,), (4,)))
    (tile,) = split_into_tiles(rows, mean, noise, 1, 4)
    second = torch.zeros(4, 4, dtype=torch.float64)
    for t, part in enumerate(values.split(batch), 1):
        update_mean_and_deviations(tile, part, 1.0 / t, (1.0 - 1.0 / t) ** 0.5, tile.lower)
        second += (tile.lower.mT @ tile.lower / batch - second) / t
    torch.testing.assert_close(mean, values.mean(0), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(second, values.T.cov(correction=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rank", "columns"), [(1, 1), (3, 3), (10, 5000)])
def test_rows_are_orthonormal(rank: int, columns: int) -> None:
    stream = torch.Generator().manual_seed(2)
    rows = draw_orthonormal_rows(rank, columns, stream, torch.zeros(0, dtype=torch.float64))
    torch.testing.assert_close(rows @ rows.mT, torch.eye(rank).double(), rtol=1e-10, atol=1e-10)
