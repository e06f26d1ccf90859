"""Means, variances and errors over draws of a mixture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boxloop.networks import DrawAllocation
from contract.scores import assert_scores


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8), st.integers(0, 50))
def test_draws_are_shared_out_by_weight(raw: list[float], more: int) -> None:
    share = np.array(raw) / np.sum(raw)
    n = max(2, len(raw)) + more
    strata = DrawAllocation.allocate_proportionally(share.tolist(), [False] * len(raw), n)
    assert strata.n_draws == n
    assert min(strata.counts) >= 1
    np.testing.assert_allclose([strata.weight[place].sum() for place in strata.slices()], share, rtol=1e-12)
    quota = share * n
    if (quota >= 1.0).all():  # then nobody is given a draw out of turn
        assert (np.abs(np.array(strata.counts) - quota) < 1.0).all()


def test_a_part_without_spread_has_one_draw() -> None:
    assert DrawAllocation.allocate_proportionally([0.2, 0.8], [True, False], 7).counts == (1, 7)
    assert DrawAllocation.allocate_proportionally([0.2, 0.8], [True, True], 7).counts == (1, 1)


@pytest.mark.parametrize(
    ("shares", "draws", "words"),
    [
        ([0.5, 0.4], 9, "sum to 1"),
        ([1.0, 0.0], 9, "above 0"),
        ([], 9, "sum to 1"),
        ([1.0], 1, "at least 2"),
        ([0.25] * 4, 3, "at least 4"),
    ],
)
def test_shares_and_draws_that_cannot_be(shares: list[float], draws: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DrawAllocation.allocate_proportionally(shares, [False] * len(shares), draws)


def test_one_part_is_the_plain_formulas() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4))
    strata = DrawAllocation.allocate_proportionally([1.0], [False], 9)
    np.testing.assert_allclose(strata.mean(values), values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(strata.variance(values), values.var(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(strata.standard_error(values), values.std(0, ddof=1) / 3.0, rtol=1e-12)


def test_variance_and_error_are_without_bias_over_many_repetitions() -> None:
    """False-alarm rate 1e-6 (a share of ``contract.scores.FALSE_ALARM``)."""
    rng = np.random.default_rng(1)
    share, centre, sd = [0.5, 0.3, 0.2], np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 0.0])
    strata = DrawAllocation.allocate_proportionally(share, [False, False, True], 8)
    repeats = 20000
    place = np.repeat([0, 1, 2], strata.counts)
    values = centre[place, None] + sd[place, None] * rng.normal(size=(len(place), repeats))
    mean = np.dot(share, centre)
    variance = np.dot(share, sd**2 + (centre - mean) ** 2)
    of_mean = np.sum(np.array(share) ** 2 * sd**2 / strata.counts)
    seen = np.stack(
        [
            strata.mean(values) - mean,
            strata.variance(values) - variance,
            strata.standard_error(values) ** 2 - of_mean,
        ]
    )
    z = seen.mean(1) / seen.std(1) * repeats**0.5
    assert_scores(torch.from_numpy(z))


def test_a_single_draw_of_a_part_borrows_the_spread_of_all() -> None:
    strata = DrawAllocation.allocate_proportionally([0.5, 0.5], [False, False], 2)
    assert strata.counts == (1, 1)
    values = np.array([[0.0], [2.0]])
    np.testing.assert_allclose(strata.standard_error(values) ** 2, 0.25 * 1.0 * 2)
