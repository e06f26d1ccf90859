"""Sums over groups of rows: the mean of all rows, and an error that is known as well as that of single rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.model_selection import RepeatedKFold, ShuffleSplit

import boxloop
from boxloop.numeric import mean_and_error
from boxloop.select import GroupedSums, measure_gaps_to_best, scores

N = 200_000


def values(n: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_exponential(n) - 2.0


def of(rows: np.ndarray, **more: Any) -> GroupedSums:
    return GroupedSums.from_values(rows, np.arange(len(rows)), len(rows), **more)


def test_a_row_is_a_group_where_there_are_few() -> None:
    rows, weight = values(500), np.random.default_rng(1).integers(0, 4, 500).astype(float)
    assert of(rows).mean_and_error() == pytest.approx(mean_and_error(rows), rel=1e-13)
    some = weight > 0
    assert of(rows, weight=weight).mean_and_error() == pytest.approx(
        mean_and_error(rows[some], weight[some]), rel=1e-13
    )
    other = rows + values(500, 2)
    apart = other - rows
    found = measure_gaps_to_best([of(rows), of(other)], 1)
    np.testing.assert_allclose(found, [[apart.mean(), 0.0], [apart.std(ddof=1) / 500**0.5, 0.0]], rtol=1e-12)


ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as drawn": lambda rows: rows,
    "sorted": np.sort,
    "in waves": lambda rows: np.sort(rows).reshape(-1, 100).T.ravel(),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_error_of_groups_is_that_of_rows(order: str) -> None:
    """Its own relative error is 1 / sqrt(2 x 65,536), a little more for these tails; five of these are allowed.

    Rows must meet by chance: where every 65,536th row meets, a table that is sorted seems to err a hundredth as much.
    """
    rows = ORDERS[order](values())
    mean, error = of(rows).mean_and_error()
    assert mean == pytest.approx(rows.mean(), rel=1e-12)
    assert error == pytest.approx(mean_and_error(rows)[1], rel=5 * 2 / (2 * 65_536) ** 0.5)


def test_errors_are_unbiased_with_few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 tables of 300 rows in 40 groups, with and without weights: squared errors in the mean, within five errors."""
    monkeypatch.setattr(scores, "MAX_GROUPS", 40)
    rng = np.random.default_rng(0)
    for weights in (None, rng.integers(0, 5, 300).astype(float)):
        count = 300.0 if weights is None else weights.sum()
        found = [
            of(rng.normal(size=300), weight=weights).mean_and_error()[1] ** 2 * count for _ in range(400)
        ]
        assert abs(np.mean(found) - 1.0) < 5.0 * np.std(found) / 20.0


def test_sums_add_up_over_tiles_and_folds() -> None:
    rows, cut = values(), np.sort(np.random.default_rng(3).integers(0, N, 9))
    parts = np.split(np.random.default_rng(4).permutation(N), cut)
    whole = of(rows)
    found = None
    for part in parts:
        here = GroupedSums.from_values(rows[part], part, N)
        found = here if found is None else found + here
    assert found is not None
    assert found.mean_and_error() == pytest.approx(whole.mean_and_error(), rel=1e-12)
    assert found.n_rows == N


def test_shares_make_one_value_of_several() -> None:
    rows = values(60)
    once = of(np.stack([rows, rows[::-1]]).mean(0))
    twice = of(rows, share=np.full(60, 0.5)) + of(rows[::-1], share=np.full(60, 0.5))
    assert twice.mean_and_error() == pytest.approx(once.mean_and_error(), rel=1e-12)


def table(n: int = 900) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.normal(size=(n, 2)) + 4.0 * rng.integers(2, size=(n, 1))


SPLITS = [
    3,
    RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
    ShuffleSplit(4, test_size=0.3, random_state=0),
]


@pytest.mark.parametrize("cv", SPLITS, ids=["folds", "repeated", "overlapping"])
@pytest.mark.parametrize("groups", [50, 1 << 16])
def test_a_choice_is_the_same_wherever_the_rows_are(
    cv: Any, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "MAX_GROUPS", groups)
    rows = table()
    search = boxloop.ModelSearchCV(
        boxloop.GaussianMixture(random_state=0), {"n_components": [1, 2, 3]}, cv=cv, refit=False
    )
    there = da.from_array(rows, chunks=(170, 2))
    if cv is SPLITS[2]:
        ordered = [
            tuple(map(np.sort, pair)) for pair in cv.split(rows)
        ]  # rows elsewhere are taken in their order
        search.set_params(cv=ordered)
    one, two = (search.fit(X).cv_results_ for X in (rows, there))
    for name in (
        "log_likelihood",
        "log_likelihood_error",
        "difference_error",
        "aic",
        "bic",
        "gap",
        "gap_error",
    ):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-8, atol=1e-12, err_msg=name)
    monkeypatch.setattr(scores, "MAX_GROUPS", 1 << 16)
    single = search.fit(rows).cv_results_
    np.testing.assert_allclose(one["log_likelihood"], single["log_likelihood"], rtol=1e-10)
    np.testing.assert_allclose(
        one["difference_error"], single["difference_error"], rtol=0.5
    )  # 50 groups: 10% each


def test_weights_of_a_source_count_in_its_judgement() -> None:
    rows, weight = table(400), np.random.default_rng(6).integers(0, 3, 400).astype(float)
    models = {f"K={k}": boxloop.GaussianMixture(k, random_state=0).fit(table(300)) for k in (1, 2)}
    repeated = boxloop.compare(models, np.repeat(rows, weight.astype(int), axis=0))
    there = da.from_array(rows, chunks=(90, 2))
    for found in (
        boxloop.compare(models, rows, sample_weight=weight),
        boxloop.compare(models, there, sample_weight=weight),
        boxloop.compare(models, boxloop.data.open_source(rows, weight)),
    ):
        assert found.n_rows == weight.sum()
        for name in ("log_likelihood", "error", "difference", "difference_error", "aic", "bic"):
            np.testing.assert_allclose(getattr(found, name), getattr(repeated, name), rtol=1e-9, err_msg=name)


def test_a_penalty_lowers_every_value() -> None:
    rng = np.random.default_rng(4)
    values, weight = rng.normal(size=30), rng.integers(1, 4, 30).astype(float)
    plain = GroupedSums.from_values(values, np.arange(30), 30, weight)
    lowered = plain.subtract(0.7)
    assert lowered.mean == pytest.approx(np.average(values, weights=weight) - 0.7, rel=1e-12)
    assert lowered.measure_gap_to(plain)[0] == pytest.approx(0.7, rel=1e-12)
