"""Sums over tiles: what a function gives is never written to, and nothing is owed to how rows are cut."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from boxloop.data import (
    ArraySource,
    ConcatenatedRows,
    MaskSelection,
    RowSampler,
    SelectedRows,
    StandardisedSource,
    fingerprint_source,
    fit_standardisation,
    sample_rows,
    standardise_rows,
    sum_tiles,
)
from boxloop.tree import Tree

ROWS = torch.arange(60.0).double().reshape(20, 3)
WEIGHT = torch.linspace(0.0, 1.0, 20).double()


@dataclass(frozen=True)
class Sums(Tree):
    value: Tensor


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_what_a_function_gives_is_not_written_to(size: int) -> None:
    given = []

    def sums(rows: Tensor, weight: Tensor, start: int) -> Sums:
        given.append((Sums(weight @ rows), weight @ rows))
        return given[-1][0]

    found = sum_tiles(sums, ArraySource(ROWS, WEIGHT).chunks(size))
    torch.testing.assert_close(found.value, WEIGHT @ ROWS, rtol=1e-14, atol=0.0)
    assert all(torch.equal(tree.value, copy) for tree, copy in given)


@pytest.mark.parametrize("size", [3, 7, 20])
def test_tensors_add_as_trees_do(size: int) -> None:
    found = sum_tiles(lambda rows, weight, start: weight @ rows, ArraySource(ROWS, WEIGHT).chunks(size))  # type: ignore[type-var]
    torch.testing.assert_close(found, WEIGHT @ ROWS, rtol=1e-14, atol=0.0)


def test_a_sum_without_a_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        SelectedRows(ArraySource(ROWS), MaskSelection(torch.zeros(20, dtype=torch.bool))).reduce(
            lambda rows, weight: Sums(rows.sum(0))
        )


@pytest.mark.parametrize("n", [20, 9000])
def test_rows_of_rows_know_their_places(n: int) -> None:
    """A mask of a mask: the number of a row counts those that are kept before it."""
    rows = torch.arange(float(n)).double()[:, None]
    mask = torch.arange(n) % 3 != 0
    some = SelectedRows(ArraySource(rows), MaskSelection(mask))
    found = some.reduce_at(
        lambda tile, weight, start: ConcatenatedRows.of(torch.arange(start, start + len(weight)))
    ).concatenate()
    assert torch.equal(found, torch.arange(int(mask.sum())))
    again = torch.arange(some.n_rows) % 2 == 0
    twice = torch.cat([tile for tile, _ in SelectedRows(some, MaskSelection(again)).chunks(7)])
    assert torch.equal(twice, rows[mask][again])


def test_rows_kept_do_not_depend_on_tiles() -> None:
    """The places are drawn first: 500 of 5000, each as likely (chi-squared over ten parts, one run in 10,000)."""
    rows = torch.arange(5000.0).double()[:, None]
    kept = sample_rows(ArraySource(rows), 500, torch.Generator().manual_seed(0))
    lot = RowSampler.draw(5000, 500, torch.Generator().manual_seed(0))
    cut = sum_tiles(lot.take, ArraySource(rows).chunks(17)).concatenate()
    assert torch.equal(kept.rows[:, 0], kept.indices.double())
    assert torch.equal(cut[:, 0], kept.rows[:, 0])
    counts = torch.histc(kept.rows, 10, 0.0, 5000.0)
    assert float(((counts - len(kept.rows) / 10) ** 2).sum() / (len(kept.rows) / 10)) < 33.7
    assert len(kept.indices.unique()) == 500
    assert not kept.is_complete
    assert len(RowSampler.draw(10**15, 500, torch.Generator()).indices) == 500, "no work grows with the table"


def test_few_rows_of_many_tiles_are_not_left_lying_about() -> None:
    """Each would stand between two temporaries of tiles, and memory would grow with the rows that pass."""
    rows = torch.arange(90_000.0)[:, None]
    found = sum_tiles(lambda tile, weight, start: ConcatenatedRows.of(tile[:3]), ArraySource(rows).chunks(9))
    assert len(found.parts) == 1
    kept = torch.arange(90_000).reshape(-1, 9)[:, :3].flatten()
    assert torch.equal(found.concatenate()[:, 0], rows[kept, 0])
    wide = sum_tiles(lambda tile, weight, start: ConcatenatedRows.of(tile), ArraySource(rows).chunks(40_000))
    assert [len(part) for part in wide.parts] == [40_000, 50_000]
    assert torch.equal(wide.concatenate(), rows)


def test_a_digest_tells_any_change_and_no_cut() -> None:
    class Cut(ArraySource):
        def chunks(self, size: int | None = None):
            return super().chunks(3)

    known = fingerprint_source(ArraySource(ROWS, WEIGHT))
    assert fingerprint_source(Cut(ROWS, WEIGHT)) == known
    changed = ROWS.clone()
    changed[7, 1] += 1e-12
    swapped = ROWS[torch.tensor([1, 0, *range(2, 20)])]
    turned = ROWS[:, [1, 0, 2]]
    missing = ROWS.clone()
    missing[0, 0] = torch.nan
    others = [ArraySource(rows, WEIGHT) for rows in (changed, swapped, turned, missing)]
    found = {
        fingerprint_source(source)
        for source in (*others, ArraySource(ROWS[:-1], WEIGHT[:-1]), ArraySource(ROWS))
    }
    assert known not in found
    assert len(found) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_standardised_at_once_are_those_standardised_by_tile(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 7.0 + 1e4
    rows[17, 1] = torch.nan
    source = ArraySource(rows, torch.arange(5000.0).double(), ("a", "b", "c"))
    frame = fit_standardisation(source)
    once = standardise_rows(source, frame, dtype)
    monkeypatch.setattr("boxloop.data.standardise.HELD_VALUES", 14_999)
    tiled = standardise_rows(source, frame, dtype)
    assert isinstance(once, ArraySource)
    assert isinstance(tiled, StandardisedSource)
    assert once.names == tiled.names == ("a", "b", "c")
    for one, other in zip(once.chunks(700), tiled.chunks(700), strict=True):
        assert one[0].dtype == other[0].dtype == dtype
        assert torch.equal(one[0].nan_to_num(1e9), other[0].nan_to_num(1e9))
        assert torch.equal(one[1], other[1])
