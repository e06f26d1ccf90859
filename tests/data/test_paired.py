"""Two sources side by side: rows stay together however each is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from boxloop.data import ArraySource, PairedSource, fit_standardisation, npy_source, pair_sources
from boxloop.numeric import generator
from boxloop.tree import Tree

N = 100


@dataclass(frozen=True)
class Sums(Tree):
    weight: Tensor
    second: Tensor


def sums(rows: Tensor, weight: Tensor) -> Sums:
    return Sums(weight.sum(), rows.double().mT @ (weight[:, None] * rows.double()))


@dataclass(frozen=True)
class Cut(ArraySource):
    """Rows in tiles of given sizes, over and over."""

    sizes: tuple[int, ...] = (7,)

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        start, turn = 0, 0
        weight = torch.ones(self.n_rows).double() if self.weight is None else self.weight
        while start < self.n_rows:
            step = min(self.sizes[turn % len(self.sizes)], size or self.n_rows)
            yield self.rows[start : start + step], weight[start : start + step]
            start, turn = start + step, turn + 1


def tables() -> tuple[Tensor, Tensor, Tensor]:
    stream = generator(0)
    left, right = (torch.randn(N, d, generator=stream, dtype=torch.float64) for d in (3, 2))
    return left, right, torch.rand(N, generator=stream, dtype=torch.float64)


@pytest.mark.parametrize(
    "sizes", [((7,), (7,)), ((7,), (13,)), ((50, 1), (3,)), ((1,), (100,)), ((99,), (2, 60))]
)
def test_rows_stay_together_wherever_the_sources_break(
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    left, right, weight = tables()
    pair = pair_sources(Cut(left, weight, sizes=sizes[0]), Cut(right, sizes=sizes[1]))
    lazy = PairedSource(Cut(left, weight, sizes=sizes[0]), Cut(right, sizes=sizes[1]))
    for source in (pair, lazy):
        tiles = list(source.chunks())
        assert torch.equal(torch.cat([rows for rows, _ in tiles]), torch.cat([left, right], 1))
        assert torch.equal(torch.cat([mass for _, mass in tiles]), weight)
    whole = sums(torch.cat([left, right], 1), weight)
    torch.testing.assert_close(lazy.reduce(sums).second, whole.second, rtol=1e-12, atol=1e-12)


def test_tiles_are_no_longer_than_asked() -> None:
    left, right, _ = tables()
    tiles = [len(rows) for rows, _ in PairedSource(ArraySource(left), ArraySource(right)).chunks(30)]
    assert tiles == [30, 30, 30, 10]


def test_rows_in_memory_are_joined_once() -> None:
    left, right, weight = tables()
    source = pair_sources(
        ArraySource(left, weight, ("a", "b", "c")), ArraySource(right.float(), None, ("d", "e"))
    )
    assert isinstance(source, ArraySource)
    assert source.names == ("a", "b", "c", "d", "e")
    assert source.rows.dtype == torch.float64
    assert source.weight is weight


def test_names_that_both_views_have_say_which() -> None:
    left, right, _ = tables()
    pair = PairedSource(ArraySource(left), ArraySource(right))
    assert pair.names == ("x:x0", "x:x1", "x:x2", "y:x0", "y:x1")
    assert (pair.n_rows, pair.n_columns) == (N, 5)


def test_files_are_paired_tile_by_tile(tmp_path: Path) -> None:
    left, right, _ = tables()
    np.save(tmp_path / "left.npy", left.numpy())
    np.save(tmp_path / "right.npy", right.float().numpy())
    source = pair_sources(npy_source(tmp_path / "left.npy"), npy_source(tmp_path / "right.npy"))
    assert not isinstance(source, ArraySource)
    found = torch.cat([rows for rows, _ in source.chunks(17)])
    assert torch.equal(found, torch.cat([left, right.float().double()], 1))
    torch.testing.assert_close(fit_standardisation(source).origin, found.mean(0))


def test_views_of_different_length_are_refused() -> None:
    left, right, _ = tables()
    with pytest.raises(ValueError, match="first view has 100 rows and the second 99"):
        pair_sources(ArraySource(left), ArraySource(right[:-1]))
