"""Moments in one pass: the same frame and the same covariance as two passes, without loss of digits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from boxloop.data import ArraySource, MaskSelection, SelectedRows, fit_standardisation, summarise_moments
from boxloop.numeric import generator, normal


def table(offset: float = 0.0, n: int = 20_000) -> torch.Tensor:
    scale = torch.tensor([1.0, 1e-8, 1e8, 0.1], dtype=torch.float64)
    mix = normal((4, 4), generator(1), torch.float64)
    return offset + (normal((n, 4), generator(0), torch.float64) @ mix) * scale


def test_the_frame_is_that_of_a_survey():
    source = ArraySource(table(), torch.rand(20_000, generator=generator(2), dtype=torch.float64))
    summary, frame = summarise_moments(source), fit_standardisation(source)
    assert summary is not None
    torch.testing.assert_close(summary.frame.origin, frame.origin, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(summary.frame.scale, frame.scale, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(summary.frame.observed, frame.observed)
    assert summary.frame.weight == pytest.approx(frame.weight, rel=1e-12)


@pytest.mark.parametrize("drift", [0.0, 1.0], ids=["shuffled", "sorted"])
def test_values_far_from_zero_keep_their_digits(drift):
    """Near 1e7 with spread 0.1, and sorted so that the first tile is far from the mean of all."""
    rows = 0.1 * table()[:, [0, 0, 0]] * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    rows = rows + drift * torch.linspace(0, 1, len(rows), dtype=torch.float64)[:, None]
    far = rows + 1e7
    summary = summarise_moments(ArraySource(far))
    assert summary is not None
    frame = summary.frame
    seen = summary.rows(frame.origin, frame.scale).rows
    exact = torch.corrcoef((far - 1e7).mT)
    found = seen.mT @ seen / len(seen)
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-11)


def test_a_constant_column_is_marked():
    rows = table(n=100)
    rows[:, 2] = 0.1
    summary = summarise_moments(ArraySource(rows))
    assert summary is not None
    assert summary.frame.constant.tolist() == [False, False, True, False]
    assert float(summary.frame.scale[2]) == 1.0


@pytest.mark.parametrize("where", [0, -1])
def test_missing_values_cannot_be_summarised(where):
    rows = table()
    rows[where, 1] = torch.nan
    assert summarise_moments(ArraySource(rows)) is None


def test_neither_can_a_table_too_wide(monkeypatch):
    monkeypatch.setattr("boxloop.data.moments.MOMENT_COLUMNS", 3)
    assert summarise_moments(ArraySource(table(n=50))) is None


def test_tiles_of_which_the_first_is_the_smallest():
    """As folds leave them: a mask keeps more rows of one tile than of the one before."""
    rows = table()[:, [0, 3]]
    mask = torch.arange(len(rows)) >= 9000
    summary, plain = (
        summarise_moments(seen)
        for seen in (SelectedRows(ArraySource(rows), MaskSelection(mask)), ArraySource(rows[mask]))
    )
    assert summary is not None
    assert plain is not None
    torch.testing.assert_close(summary.frame.origin, plain.frame.origin, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(summary.covariance, plain.covariance, rtol=1e-10, atol=1e-12)


def test_the_volume_of_a_frame_weighs_columns_by_the_values_they_have():
    summary = summarise_moments(ArraySource(table()))
    assert summary is not None
    scale, observed = torch.tensor([1.0, 2.0, 8.0]).double(), torch.tensor([5.0, 3.0, 2.0]).double()
    frame = replace(summary.frame, scale=scale, observed=observed)
    assert frame.log_volume == pytest.approx(9.0 * math.log(2.0), rel=1e-12)  # 3 * 1 + 2 * 3


def test_units_are_those_of_the_first_rows_about_their_mean():
    rows = table(n=200)
    rows = rows + 30.0 * rows.std(0)
    summary = summarise_moments(ArraySource(rows), torch.float32)
    assert summary is not None
    torch.testing.assert_close(summary.scale, rows.std(0, correction=0), rtol=1e-9, atol=0.0)
