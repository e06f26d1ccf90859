"""The ``plot`` methods of results: axes in, axes out, and what they show."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from boxloop import FactorAnalysis, GaussianMixture, PoissonMixture, ProbabilisticPCA, mega
from boxloop.criticise import Calibration, First, Fourier, Power, Second, calibration
from boxloop.figures import new_axes, png
from boxloop.select import ModelSearchCV, OutlierDetector, SelectionWarning, compare, penalised_path

NAMES = ["$x_1$", "a<b>&", "n" * 60]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(200, 3)) + 4.0 * rng.integers(2, size=(200, 1)), columns=NAMES)


@pytest.fixture(scope="module")
def mixture(rows: pd.DataFrame) -> GaussianMixture:
    return GaussianMixture(2, random_state=0).fit(rows)


def drawn(axes: Axes, given: Axes | None = None) -> Axes:
    """The same axes, after they were rendered."""
    assert given is None or axes is given
    assert png(axes).startswith(b"\x89PNG")
    return axes


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_gaps_are_heat_maps_or_dots(rows: pd.DataFrame, mixture: GaussianMixture) -> None:
    result = mega(mixture, rows, functions=[First(), Second(), Power(3), Fourier(50)], train=rows, draws=19)
    given = new_axes()
    pairs = drawn(result["second"].plot(given), given)
    shown = np.asarray(pairs.images[0].get_array())
    assert shown.shape == (3, 3)
    np.testing.assert_array_equal(shown, shown.T)
    np.testing.assert_array_equal(shown[np.triu_indices(3)], result["second"].z.numpy())
    assert labels(drawn(result["third"].plot()))[:2] == NAMES[:2]
    waves = drawn(result["fourier"].plot(top=5))
    assert len(labels(waves)) == 5
    assert "5 of 50" in waves.get_title(loc="left")
    assert len(labels(drawn(result.plot(top=7)))) == 7


def test_gaps_of_one_column_and_of_a_constant() -> None:
    one = np.random.default_rng(0).normal(size=(50, 1))
    result = mega(GaussianMixture(1).fit(one), one, train=one, draws=0)
    drawn(result["second"].plot())
    drawn(result.plot())


def test_the_path_is_drawn_with_its_errors() -> None:
    rng = np.random.default_rng(0)
    density = rng.normal(size=(100, 3)) + np.array([0.0, 1.0, 1.5])
    path = penalised_path(density, [0.0, 1.0, 3.0], names=["$K_1$", 2, ("a", 3)])
    assert path.breakpoint_errors is not None
    given = new_axes()
    drawn(path.plot(given), given)
    assert labels(drawn(path.plot_choice())) == ["$K_1$", "2", "('a', 3)"]


def test_a_comparison_marks_the_best(rows: pd.DataFrame, mixture: GaussianMixture) -> None:
    models = {"$one$": GaussianMixture(1, covariance_type="diag").fit(rows), "two": mixture}
    result = compare(models, rows)
    given = new_axes()
    axes = drawn(result.plot(given), given)
    assert labels(axes) == list(result.names)
    assert axes.get_title(loc="left") == "two is best"
    alone = compare({"two": mixture}, rows.iloc[:1])
    drawn(alone.plot())


def test_a_search_is_lines_over_a_number_or_a_list(rows: pd.DataFrame) -> None:
    grid = {"n_components": [1, 2, 3], "covariance_type": ["full", "diag"]}
    lines = drawn(ModelSearchCV(GaussianMixture(), grid, cv=2).fit(rows).plot())
    assert lines.get_xlabel() == "n_components"
    legend = [text.get_text() for text in lines.get_legend().get_texts()]
    assert {"covariance_type=full", "covariance_type=diag"} < set(legend)
    listed = drawn(
        ModelSearchCV(GaussianMixture(), {"covariance_type": ["full", "diag"]}, cv=2).fit(rows).plot()
    )
    assert sorted(labels(listed)) == ["diag", "full"]
    alone = drawn(
        ModelSearchCV(GaussianMixture(), {"n_components": [1]}, cv=2, criterion="bic").fit(rows).plot()
    )
    assert labels(alone) == ["n_components=1"]
    assert alone.get_xlabel().startswith("-BIC / 2n")


def test_a_candidate_that_failed_leaves_a_gap(rows: pd.DataFrame) -> None:
    search = ModelSearchCV(
        GaussianMixture(), {"n_components": [1, 2, 500]}, cv=2, criterion=lambda m, X: m.score(X)
    )
    with pytest.warns(SelectionWarning, match="500"):
        search.fit(rows)
    given = new_axes()
    assert drawn(search.plot(given), given).get_ylabel().startswith("score")


def test_outliers_below_the_threshold_are_flagged(rows: pd.DataFrame, mixture: GaussianMixture) -> None:
    detector = OutlierDetector(mixture, level=0.1).fit(rows)
    given = new_axes()
    axes = drawn(detector.plot(rows, given), given)
    flagged = axes.collections[1].get_offsets()
    assert len(flagged) == (detector.predict(rows) == -1).sum()
    drawn(detector.plot(rows.iloc[:1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelectionWarning)
        drawn(OutlierDetector(GaussianMixture(), level=0.001).fit(rows).plot(rows))


def test_calibration_has_three_pictures(rows: pd.DataFrame, mixture: GaussianMixture) -> None:
    found = calibration(mixture, rows.mask(rows < -2.0))
    for plot in (found.plot, found.plot_coverage):
        given = new_axes()
        drawn(plot(given), given)
    drawn(found.plot_histogram("a<b>&", bins=4))
    with pytest.raises(ValueError, match="no column 'lost'"):
        found.plot_histogram("lost")
    empty = Calibration(np.full((1, 2), np.nan), ("a", "b"))
    for axes in (empty.plot(), empty.plot_coverage(), empty.plot_histogram()):
        drawn(axes)


@pytest.mark.parametrize("shape", ["full", "tied", "diag", "spherical"])
def test_mixtures_of_every_shape_are_ellipses(rows: pd.DataFrame, shape: str) -> None:
    fit = GaussianMixture(2, covariance_type=shape, random_state=0).fit(rows)
    given = new_axes()
    axes = drawn(fit.plot(rows, given, columns=("$x_1$", 2)), given)
    assert axes.get_xlabel() == "$x_1$"
    assert len(axes.patches) == 4
    widths = sorted(patch.width for patch in axes.patches)
    assert widths[-1] > widths[0] > 0
    assert fit.plot_pairs(rows, columns=[2, 0]).shape == (2, 2)
    with pytest.raises(ValueError, match="two columns, got 1"):
        fit.plot(rows, columns=[0])


def test_the_columns_that_part_the_components_are_drawn() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    X[:, [1, 4]] += 8.0 * rng.integers(2, size=(300, 1))
    X[0, 1] = np.nan
    axes = GaussianMixture(2, random_state=0).fit(X).plot(X)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x1", "x4")


def test_one_column_has_no_pair() -> None:
    one = np.random.default_rng(0).normal(size=(50, 1))
    fit = GaussianMixture(1).fit(one)
    with pytest.raises(ValueError, match="two columns"):
        fit.plot(one)
    drawn(fit.plot_pairs(one)[0, 0])


def test_loadings_are_correlations(rows: pd.DataFrame) -> None:
    fit = FactorAnalysis(1).fit(rows)
    axes = drawn(fit.plot(rows, top=2))
    assert len(labels(axes)) == 2
    points = np.abs(axes.lines[1].get_xdata())
    assert points[0] ** 2 == pytest.approx(fit.communalities_.max(), rel=1e-6)
    given = new_axes()
    drawn(ProbabilisticPCA(2).fit(rows).plot(ax=given), given)
    turned = FactorAnalysis(1, rotation="varimax").fit(rows)
    drawn(turned.plot())
    with pytest.raises(ValueError, match="canonical rotation"):
        turned.plot(rows)


def test_every_estimator_has_a_trace(rows: pd.DataFrame, mixture: GaussianMixture) -> None:
    given = new_axes()
    assert "converged" in drawn(mixture.plot_trace(given), given).get_legend().get_texts()[0].get_text()
    counts = np.random.default_rng(0).poisson(3.0, size=(50, 2))
    drawn(PoissonMixture(2, random_state=0).fit(counts).plot_trace())
    drawn(ProbabilisticPCA(1).fit(rows).plot_trace())
