"""Row selections: the same rows however the table is cut, and stored in next to nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold

from boxloop.data import (
    ArraySource,
    ConcatenatedRows,
    Folds,
    IndexSelection,
    MaskSelection,
    RowSelection,
    SelectedRows,
    pickle_value,
    select_rows,
    unpickle_value,
)

N = 9001


@pytest.fixture(params=["mask", "places", "others", "held", "all but held"])
def marks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RowSelection:
    monkeypatch.setattr("boxloop.data.selection.SHUFFLE_BLOCK", 700)
    chosen = torch.rand(N, generator=torch.Generator().manual_seed(0)) < 0.3
    places, folds = chosen.nonzero()[:, 0], Folds(N, 3, 5)
    kinds = {
        "mask": MaskSelection(chosen),
        "places": IndexSelection(places),
        "others": IndexSelection(places, complement=True),
    }
    return {**kinds, "held": folds.test_rows(1), "all but held": folds.train_rows(1)}[request.param]


def test_rows_are_counted_and_found_from_anywhere(marks: RowSelection) -> None:
    whole = marks.mask_between(0, N)
    count = [0, *whole.cumsum(0).tolist()]
    rng = np.random.default_rng(0)
    for start, stop in np.sort(rng.integers(0, N + 1, (200, 2)), axis=1).tolist():
        assert torch.equal(marks.mask_between(start, stop), whole[start:stop])
        assert marks.count_before(start) == count[start]
    assert marks.count_before(N) == count[-1]


def test_a_source_keeps_them_however_it_is_cut(marks: RowSelection) -> None:
    class Cut(ArraySource):
        def chunks(self, size: int | None = None):
            return super().chunks(97)

    rows = torch.arange(float(N))[:, None]
    expected = rows[marks.mask_between(0, N)]
    some = SelectedRows(Cut(rows), marks)
    assert some.n_rows == len(expected)
    assert torch.equal(some.reduce(lambda tile, weight: ConcatenatedRows.of(tile)).concatenate(), expected)
    at = some.reduce_at(
        lambda tile, weight, start: ConcatenatedRows.of(torch.arange(start, start + len(weight)))
    )
    assert torch.equal(at.concatenate(), torch.arange(len(expected)))
    held = select_rows(ArraySource(rows), marks)
    assert torch.equal(held.rows, expected)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("n", "count"), [(6, 3), (50, 7), (65_535, 5)])
def test_a_short_table_is_dealt_as_scikit_learn_deals_it(n: int, count: int) -> None:
    folds = Folds(n, count, 3)
    for fold, (train, test) in enumerate(KFold(count, shuffle=True, random_state=3).split(np.empty(n))):
        assert np.array_equal(folds.test_rows(fold).mask_between(0, n).nonzero()[:, 0], test)
        assert np.array_equal(folds.train_rows(fold).mask_between(0, n).nonzero()[:, 0], train)


@pytest.mark.parametrize("count", [2, 5, 13])
def test_folds_of_a_long_table_differ_by_one_row_at_most(count: int) -> None:
    n = 3 * 65_536 + 7
    labels = Folds(n, count, 0).labels(0, n)
    sizes = torch.bincount(labels, minlength=count)
    assert int(sizes.max() - sizes.min()) <= 1
    assert not torch.equal(labels[: 60_000 // count], labels[65_536 // count * count :][: 60_000 // count])
    followed = (labels[1:] == labels[:-1]).double().mean()
    assert abs(float(followed) - 1.0 / count) < 5.0 * (1.0 / count / n) ** 0.5, (
        "neighbours are dealt apart by chance"
    )


def test_folds_of_any_table_travel_as_a_few_numbers() -> None:
    far = Folds(10**12, 5, 7)
    assert len(pickle_value(far.test_rows(2))) < 500
    start = 10**12 - 300
    assert torch.equal(
        unpickle_value(pickle_value(far.test_rows(2))).mask_between(start, 10**12),
        far.test_rows(2).mask_between(start, 10**12),
    )
    assert abs(far.test_rows(2).count_before(10**12) - 2 * 10**11) <= 1


def test_as_many_folds_as_rows() -> None:
    assert sorted(Folds(70_000, 70_000, 0).labels(0, 70_000).tolist()) == list(range(70_000))


@pytest.mark.parametrize(("n", "count"), [(3, 4), (3, 1), (1, 2), (5, 0)])
def test_too_few_rows_or_folds(n: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"n_splits=\d+ greater than the number of samples|at least 2 folds"):
        Folds(n, count, 0)
