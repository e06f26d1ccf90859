"""A change of slope where there is one, with an interval that holds it, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from papers.generator import Knee, change_of_slope

X = np.array([1, 2, 3, 4, 6, 8, 11, 15, 19, 24, 32, 48, 64, 100.0])
TRIALS = 100


def two_lines(at: float, before: float, after: float) -> np.ndarray:
    far = np.log(X / at)
    return np.exp(before * np.minimum(far, 0.0) + after * np.maximum(far, 0.0))


def noisy(curve: np.ndarray, noise: float, seed: int, repetitions: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return curve[:, None] * np.exp(noise * rng.normal(size=(len(X), repetitions)))


def trials(curve: np.ndarray, noise: float) -> list[Knee]:
    return [change_of_slope(X, noisy(curve, noise, seed), draws=999) for seed in range(TRIALS)]


def binomial(hits: int, chance: float) -> float:
    """Two-sided p-value; tests fail below 1e-4."""
    return float(stats.binomtest(hits, TRIALS, chance).pvalue)


@pytest.mark.parametrize(
    "at", [pytest.param(5.0, marks=pytest.mark.slow), 19.0, pytest.param(40.0, marks=pytest.mark.slow)]
)
def test_planted_break_is_found_and_its_interval_covers_it(at: float) -> None:
    found = trials(two_lines(at, -0.7, -0.05), 0.04)
    assert all(knee.kind == "break" for knee in found)
    inside = sum(knee.low <= at <= knee.high for knee in found)
    assert binomial(inside, 0.95) > 1e-4
    assert abs(np.median([knee.at for knee in found]) / at - 1.0) < 0.02
    covered = sum(abs(knee.slopes[0] + 0.7) < 2 * knee.slope_errors[0] for knee in found)
    assert covered > 0.85 * TRIALS


def test_straight_curves_have_no_change_of_slope_at_the_level_promised() -> None:
    found = trials(X**-0.4, 0.05)
    assert binomial(sum(knee.kind != "line" for knee in found), 0.05) > 1e-4
    assert "no change of slope" in str(next(knee for knee in found if knee.kind == "line"))


@pytest.mark.slow
def test_smooth_bend_is_not_a_change_of_slope_at_one_place() -> None:
    found = trials(np.exp(0.08 * (np.log(X) - 5.0) ** 2), 0.03)
    assert sum(knee.kind == "bend" for knee in found) > 0.9 * TRIALS
    assert not any(knee.kind == "line" for knee in found)
    message = str(next(knee for knee in found if knee.kind == "bend"))
    assert "no change of slope at any one place" in message


def test_least_squares_agrees_with_a_general_optimiser() -> None:
    y = noisy(two_lines(12.0, -0.6, -0.1), 0.05, seed=4)
    knee = change_of_slope(X, y)
    t, v = np.log(X), np.log(y).mean(1)

    def misfit(p: np.ndarray) -> float:
        far = t - p[3]
        return float(np.square(v - p[0] - p[1] * np.minimum(far, 0) - p[2] * np.maximum(far, 0)).sum())

    start = [0.0, -0.6, -0.1, np.log(12.0)]
    best = optimize.minimize(misfit, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
    assert misfit(
        np.array([np.log(knee.lines([knee.at])[0][0]), *knee.slopes, np.log(knee.at)])
    ) == pytest.approx(best.fun, rel=1e-6)
    assert knee.at == pytest.approx(float(np.exp(best.x[3])), rel=1e-4)


def test_ends_of_the_interval_are_where_an_f_test_begins_to_refuse() -> None:
    y = noisy(two_lines(12.0, -0.6, -0.1), 0.03, seed=1)
    knee = change_of_slope(X, y, level=0.9)
    t, v = np.log(X), np.log(y).mean(1)

    def misfit(at: float) -> float:
        far = t - np.log(at)
        design = np.stack([np.ones_like(t), np.minimum(far, 0), np.maximum(far, 0)], 1)
        return float(np.linalg.lstsq(design, v, rcond=None)[1][0])

    least = misfit(knee.at)
    for end in (knee.low, knee.high):
        ratio = (misfit(end) - least) / (least / (len(X) - 4))
        assert ratio == pytest.approx(stats.f.ppf(0.9, 1, len(X) - 4), rel=1e-6)


def test_units_and_order_do_not_matter() -> None:
    y = noisy(two_lines(19.0, -0.7, 0.0), 0.02, seed=2)
    knee, other = change_of_slope(X, y), change_of_slope(10.0 * X[::-1], 3.0 * y[::-1])
    assert other.at == pytest.approx(10.0 * knee.at, rel=1e-6)
    assert other.slopes == pytest.approx(knee.slopes, rel=1e-6, abs=1e-9)
    assert other.p_value == knee.p_value


def test_both_lines_pass_through_the_fit_and_cross_at_the_change() -> None:
    knee = change_of_slope(X, noisy(two_lines(19.0, -0.7, 0.0), 0.02, seed=2))
    first, second = knee.lines(X)
    np.testing.assert_allclose(np.where(knee.at >= X, first, second), knee.fitted, rtol=1e-9)
    here = knee.lines([knee.at])
    assert here[0] == pytest.approx(here[1], rel=1e-12)


def test_exact_lines_without_noise() -> None:
    knee = change_of_slope(X, two_lines(19.0, -1.0, 0.0))
    assert knee.found
    assert knee.at == pytest.approx(19.0, rel=1e-4)
    assert change_of_slope(X, 1.0 + 0.0 * X).kind == "line"


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:5], X[:5], "at least 6"),
        (np.append(X, X[-1]), np.append(X, X[-1]), "none of them twice"),
        (X, -X, "positive"),
        (X, X[:-1], "must be"),
        (X, np.where(X < 2, np.nan, X), "positive"),
    ],
)
def test_curves_that_cannot_be_read_are_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change_of_slope(x, y)
