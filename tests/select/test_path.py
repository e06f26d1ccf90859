"""The path over alpha, against brute force in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import norm

from boxloop.select import penalised_path

whole = st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 20)), min_size=1, max_size=9)
number = st.floats(-1e6, 1e6, allow_subnormal=False)
cost = st.floats(0.0, 1e6, allow_subnormal=False)


def best(models: list[tuple[int, int]], alpha: Fraction) -> int:
    """The highest penalised likelihood; of equals the smaller penalty, then the first."""
    keys = [(ll - alpha * pen, -pen, -j) for j, (ll, pen) in enumerate(models)]
    return keys.index(max(keys))


@given(whole)
def test_every_alpha_that_matters_against_exact_arithmetic(models: list[tuple[int, int]]) -> None:
    path = penalised_path(*map(list, zip(*models)))
    crossings = {Fraction(a[0] - b[0], a[1] - b[1]) for a, b in combinations(models, 2) if a[1] != b[1]} | {
        Fraction(0)
    }
    alphas = sorted(alpha for alpha in crossings if alpha >= 0)
    alphas += [(a + b) / 2 for a, b in pairwise(alphas)] + [alphas[-1] + 1]
    assert [path.at(float(alpha)) for alpha in alphas] == [best(models, alpha) for alpha in alphas]


@given(whole)
def test_intervals_are_as_few_as_can_be(models: list[tuple[int, int]]) -> None:
    path = penalised_path(*map(list, zip(*models)))
    assert len(path.chosen) == len(path.breakpoints) + 1
    assert (np.diff(path.breakpoints) > 0.0).all()
    assert (path.breakpoints > 0.0).all()
    penalties = [models[j][1] for j in path.chosen]
    assert all(a > b for a, b in pairwise(penalties))


@given(st.lists(st.tuples(number, cost), min_size=1, max_size=12))
def test_a_grid_of_alphas_in_floating_point(models: list[tuple[float, float]]) -> None:
    ll, pen = (np.array(part) for part in zip(*models))
    path = penalised_path(ll, pen)
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1e9, 200), path.breakpoints])
    for alpha in grid[grid < 1e300]:
        objective = ll - alpha * pen
        room = 1e-12 * (np.abs(ll).max() + alpha * pen.max() + 1.0)
        assert objective[path.at(alpha)] >= objective.max() - room


def test_the_path_of_the_document() -> None:
    path = penalised_path([-4.0, -3.0, -2.9], [0.0, 0.1, 0.5], names=["1", "3", "20"])
    np.testing.assert_allclose(path.breakpoints, [0.25, 10.0])
    assert path.chosen == ("20", "3", "1")
    assert [path.at(a) for a in (0.0, 0.2, 1.0, 500.0, np.inf)] == ["20", "20", "3", "1", "1"]
    table = path.table()
    assert table["from"].tolist() == [0.0, *path.breakpoints]
    assert table["to"].tolist() == [*path.breakpoints, np.inf]
    assert table["chosen"].tolist() == ["20", "3", "1"]
    assert table["penalty"].tolist() == [0.5, 0.1, 0.0]
    assert table["log_likelihood"].tolist() == [-2.9, -3.0, -4.0]


def test_a_breakpoint_belongs_to_the_smaller_penalty() -> None:
    path = penalised_path([0.0, 1.0], [0.0, 1.0], names=["small", "large"])
    assert path.breakpoints.tolist() == [1.0]
    assert path.at(1.0) == "small"
    assert path.at(np.nextafter(1.0, 0.0)) == "large"


def test_ties_go_to_the_smaller_penalty_then_to_the_first() -> None:
    assert penalised_path([1.0, 1.0], [2.0, 1.0]).chosen == (1,)
    assert penalised_path([1.0, 1.0], [1.0, 1.0]).chosen == (0,)
    three = penalised_path([0.0, 1.0, 2.0], [0.0, 1.0, 2.0])  # all meet at alpha 1
    assert three.chosen == (2, 0)


def test_a_model_without_likelihood_is_never_chosen() -> None:
    assert penalised_path([-np.inf, -1.0], [0.0, 1.0]).chosen == (1,)


def test_penalties_that_hardly_differ() -> None:
    assert penalised_path([0.0, 1.0], [0.0, 5e-324]).chosen == (1,)
    path = penalised_path([[0.0, 1.5, 1.0], [0.0, 1.5, 1.0]], [0.0, 1e-308, 1e3])
    assert path.chosen == (1, 0)
    assert path.shares.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_rows_give_errors_of_breakpoints() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal([0.0, 0.3, 0.4], 1.0, (400, 3))
    penalty = np.array([0.0, 0.1, 0.4])
    path = penalised_path(rows, penalty)
    np.testing.assert_allclose(path.log_likelihood, rows.mean(0))
    apart = [
        (rows[:, b] - rows[:, a]) / (penalty[b] - penalty[a]) for a, b in zip(path.chosen[1:], path.chosen)
    ]
    np.testing.assert_allclose(path.breakpoints, [d.mean() for d in apart])
    np.testing.assert_allclose(path.breakpoint_errors, [d.std(ddof=1) / 20.0 for d in apart])
    assert "to error" in path.table()


def test_shares_of_a_bootstrap() -> None:
    """With two models the share is the chance that the mean difference stays above a threshold.

    It is normal with known mean and error up to the central limit, so 2000 samples give the share to within four
    binomial errors and 0.02 for the approximation; wrong in fewer than one run in ten thousand.
    """
    rng = np.random.default_rng(1)
    rows = np.column_stack([np.zeros(200), rng.normal(0.1, 1.0, 200)])
    path = penalised_path(rows, [0.0, 1.0], names=["a", "b"], n_bootstrap=2000)
    mean, error = rows[:, 1].mean(), rows[:, 1].std() / np.sqrt(200)
    expected = norm.cdf((mean - path.share_alphas) / error)
    assert path.shares.shape == (2, 2)
    np.testing.assert_allclose(path.shares.sum(1), 1.0)
    np.testing.assert_allclose(path.shares[:, 1], expected, atol=4 * 0.5 / np.sqrt(2000) + 0.02)
    assert path.table()["share b"].tolist() == path.shares[:, 1].tolist()


def test_the_bootstrap_is_reproducible_and_can_be_left_out() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    one, two = (penalised_path(rows, [0.0, 0.1, 0.2], random_state=3).shares for _ in range(2))
    assert (one == two).all()
    assert penalised_path(rows, [0.0, 0.1, 0.2], n_bootstrap=0).shares is None
    assert penalised_path(rows.mean(0), [0.0, 0.1, 0.2]).shares is None


def test_one_model_for_every_alpha() -> None:
    path = penalised_path(np.ones((5, 1)), [3.0])
    assert path.chosen == (0,)
    assert path.shares.tolist() == [[1.0]]
    assert path.table()["to"].tolist() == [np.inf]


@pytest.mark.parametrize(
    ("likelihood", "penalty", "names", "message"),
    [
        ([], [], None, "at least one model"),
        ([np.nan], [0.0], None, "NaN"),
        ([np.inf], [0.0], None, "inf"),
        ([-np.inf], [0.0], None, "every model"),
        ([0.0], [-1.0], None, "not negative"),
        ([0.0], [np.nan], None, "finite"),
        ([0.0], [np.inf], None, "finite"),
        ([0.0, 1.0], [0.0], None, "shapes"),
        ([[[0.0]]], [0.0], None, "shapes"),
        (np.empty((0, 2)), [0.0, 1.0], None, "one row"),
        ([0.0, 1.0], [0.0, 1.0], ["a"], "2 different names"),
        ([0.0, 1.0], [0.0, 1.0], ["a", "a"], "2 different names"),
    ],
)
def test_bad_input(likelihood: object, penalty: object, names: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        penalised_path(likelihood, penalty, names)


@pytest.mark.parametrize("alpha", [-1.0, np.nan])
def test_bad_alpha(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        penalised_path([0.0], [0.0]).at(alpha)
