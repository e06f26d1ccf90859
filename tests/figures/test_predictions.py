"""Predictions over one input: what is drawn, and how much of it."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from boxloop.figures import BARS, class_probability_bands, new_axes, png, regression_bands, tuning_curve
from boxloop.networks import ClassificationPrediction, DrawAllocation, RegressionPrediction

RNG = np.random.default_rng(0)
AT = RNG.permutation(np.linspace(-3.0, 3.0, 60))
STRATA = DrawAllocation.allocate_proportionally([1.0], [False], 20)


def drawn(axes: Axes) -> Axes:
    assert png(axes).startswith(b"\x89PNG")
    return axes


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def numbers(noise: float | None = 0.5) -> RegressionPrediction:
    slopes = 1.0 + 0.3 * RNG.normal(size=(20, 1, 1))
    return RegressionPrediction(slopes * AT[:, None], STRATA, None if noise is None else np.array([noise]))


def heights(band: PolyCollection) -> np.ndarray:
    corners = band.get_paths()[0].vertices
    return np.array([np.ptp(corners[corners[:, 0] == at, 1]) for at in np.sort(AT)])


def test_bands_are_two_standard_deviations_in_order_of_the_input() -> None:
    found = numbers()
    given = new_axes()
    axes = drawn(found.plot(AT, found.mean[:, 0], name="$x$", ax=given))
    assert axes is given
    order = np.argsort(AT)
    wide, narrow = (part for part in axes.collections if isinstance(part, PolyCollection))
    np.testing.assert_allclose(heights(wide), 4.0 * found.std[order, 0], rtol=1e-6)
    np.testing.assert_allclose(heights(narrow), 4.0 * found.epistemic_std[order, 0], rtol=1e-6, atol=1e-12)
    assert words(axes) == ["observed", "weights and noise, ± 2 s.d.", "weights, ± 2 s.d.", "mean"]
    np.testing.assert_array_equal(axes.lines[1].get_xdata(), AT[order])
    assert axes.get_xlabel() == "$x$"


def test_without_noise_there_is_one_band() -> None:
    axes = drawn(numbers(None).plot(AT))
    assert words(axes) == ["weights, ± 2 s.d.", "mean"]


def test_rows_whose_other_columns_vary_have_bars() -> None:
    n = 3 * BARS
    X = RNG.normal(size=(n, 2))
    axes = drawn(regression_bands(X, X[:, 0], np.full(n, 0.1), np.full(n, 0.5), column=1))
    bars = [part for part in axes.collections if isinstance(part, LineCollection)]
    assert [len(part.get_segments()) for part in bars] == [BARS, BARS]
    assert axes.get_xlabel() == "input 1"
    with pytest.raises(ValueError, match="column 2 of 2"):
        regression_bands(X, X[:, 0], X[:, 0], X[:, 0], column=2)


def test_a_constant_other_column_does_not_matter() -> None:
    axes = numbers().plot(np.column_stack([np.ones(60), AT]), column=1)
    assert any(isinstance(part, PolyCollection) for part in axes.collections)


def test_classes_have_lines_with_bands_that_hold_them() -> None:
    logits = np.stack([AT, -AT, np.zeros(60)], 1) + RNG.normal(size=(20, 1, 3))
    found = ClassificationPrediction(logits, STRATA)
    axes = drawn(found.plot(AT[:, None], names=["a$", "b", "c"]))
    assert words(axes) == ["a$", "b", "c"]
    assert len([part for part in axes.collections if isinstance(part, PolyCollection)]) == 3
    np.testing.assert_allclose(axes.lines[1].get_ydata(), found.probability[np.argsort(AT), 1])
    assert words(found.plot(RNG.normal(size=(60, 2))))[0] == "class 0"


def test_of_many_classes_the_likely_are_shown() -> None:
    share = RNG.dirichlet(np.arange(1.0, 13.0), size=30)
    axes = drawn(class_probability_bands(np.arange(30.0), share, share, share, [str(c) for c in range(12)]))
    assert words(axes)[-1] == "5 others not shown"
    assert "11" in words(axes)


def test_the_tuning_curve_rings_the_best() -> None:
    scales = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0])
    behind = np.array([-3.0, -0.4, -0.1, 0.0, -0.2, -0.9])
    axes = drawn(tuning_curve(scales, behind, np.full(6, 0.05), 3))
    assert words(axes) == ["best: 1"]
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert ticks == ["0", "0.25", "0.5", "1", "2", "4"]
    drawn(tuning_curve(np.array([0.0]), np.zeros(1), np.full(1, np.nan), 0))
