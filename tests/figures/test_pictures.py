"""Every picture draws on the axes it is given and returns them, whatever the names and numbers."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from boxloop import figures
from boxloop.figures import PLENTY, make_ellipse, new_axes, png, short

ODD = ["$x_1$", "a<b>&", "n" * 60, "", r"\frac{$", "two\nlines"]
RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(6, 6))
MISSING = np.where(np.eye(6) > 0, np.nan, NORMAL)
UNIFORM = RNG.random((50, 6))
EYES = np.tile(np.eye(2), (2, 1, 1))
MEANS = np.array([[0.0, 0.0], [1.0, 2.0]])

Draw = Callable[[Axes | None], Axes]
PICTURES: dict[str, Draw] = {
    "heat map": lambda ax: figures.heat_map(NORMAL, ODD, ax, title=ODD[0]),
    "heat map with missing values": lambda ax: figures.heat_map(MISSING, ODD, ax),
    "heat map of nothing known": lambda ax: figures.heat_map(np.full((1, 1), np.nan), [""], ax),
    "heat map of many": lambda ax: figures.heat_map(np.zeros((50, 50)), ["c"] * 50, ax),
    "dots": lambda ax: figures.dots(NORMAL[0], ODD, ax),
    "dots with missing values": lambda ax: figures.dots(MISSING[0], ODD, ax, marked=[True] * 6),
    "dots, none known": lambda ax: figures.dots(np.array([np.nan]), [""], ax),
    "forest": lambda ax: figures.forest(ODD, NORMAL[0], np.abs(NORMAL[1]), ax, marked=[True] + [False] * 5),
    "forest with failures": lambda ax: figures.forest(
        ["a", "b", "c"], [np.nan, -np.inf, 0.0], [np.nan] * 3, ax
    ),
    "curves": lambda ax: figures.curves(
        {ODD[0]: ([1, 2], [0.0, np.nan], [0.1, np.nan]), ODD[2]: ([1, 2], [0.5, -np.inf], [0.1, 0.1])}, ax
    ),
    "one point": lambda ax: figures.curves({"": ([2], [0.0], [0.0])}, ax, best=(2, 0.0), label=ODD[0]),
    "path": lambda ax: figures.path_lines(
        np.array([-4.0, -3.0, -2.9, -np.inf]),
        np.array([0.0, 0.1, 0.5, 0.2]),
        ODD[:4],
        [2, 1, 0],
        np.array([0.25, 10.0]),
        ax,
        error=np.array([0.1, np.nan]),
    ),
    "path without breaks": lambda ax: figures.path_lines(
        np.array([-1.0]), np.array([0.0]), [""], [0], np.array([]), ax
    ),
    "choice": lambda ax: figures.path_choice(ODD, [2, 1, 0], np.array([0.25, 0.5]), ax, error=np.ones(2)),
    "ellipses": lambda ax: figures.ellipses(NORMAL[:, :2], MEANS, EYES, ODD[:2], ax, title=ODD[2]),
    "ellipses, rows with missing values": lambda ax: figures.ellipses(
        MISSING[:, :2],
        MEANS,
        EYES,
        ODD[2:4],
        ax,
        component=np.arange(6) % 2,
        group=np.arange(6) % 3,
        groups=ODD[:3],
    ),
    "ellipses, one row, flat": lambda ax: figures.ellipses(
        np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2, 2)), ODD[:2], ax
    ),
    "ellipses, many rows": lambda ax: figures.ellipses(
        RNG.normal(size=(PLENTY + 1, 2)), MEANS, EYES, ODD[:2], ax
    ),
    "loadings": lambda ax: figures.loadings(NORMAL, ODD, np.abs(MISSING), ax),
    "loadings of one column": lambda ax: figures.loadings(np.ones((1, 1)), [""], None, ax),
    "loadings of many columns": lambda ax: figures.loadings(np.ones((2, 90)), ["c"] * 90, None, ax),
    "probability": lambda ax: figures.probability_lines(UNIFORM, ODD, 0.1, ax),
    "probability, one row": lambda ax: figures.probability_lines(np.full((1, 2), np.nan), ODD[:2], 0.9, ax),
    "probability, many columns": lambda ax: figures.probability_lines(
        RNG.random((3000, 12)), ["c"] * 12, 0.1, ax
    ),
    "histogram": lambda ax: figures.uniform_histogram(UNIFORM[:, 0], (0.5, 1.5), 5, ax, title=ODD[0]),
    "histogram of nothing": lambda ax: figures.uniform_histogram([np.nan], (0.5, 1.5), 5, ax),
    "coverage": lambda ax: figures.coverage(
        np.linspace(0, 1, 5), np.sort(UNIFORM[:5], 0), ODD, np.full(5, 0.1), ax
    ),
    "coverage of nothing": lambda ax: figures.coverage(
        np.linspace(0, 1, 5), np.full((5, 1), np.nan), [""], np.full(5, 0.1), ax
    ),
    "outliers": lambda ax: figures.outlier_scores([-1.0, -9.0, -np.inf, np.nan, -2.0], -5.0, ax),
    "outliers, no threshold": lambda ax: figures.outlier_scores([-1.0], -np.inf, ax),
    "outliers, constant": lambda ax: figures.outlier_scores(np.zeros(10), 0.0, ax),
    "outliers, none finite": lambda ax: figures.outlier_scores([np.nan, -np.inf], -1.0, ax),
    "outliers, many rows": lambda ax: figures.outlier_scores(RNG.normal(size=3 * PLENTY), -2.0, ax),
    "relevance": lambda ax: figures.relevance_spectrum(
        np.linspace(0.9, 0.0, 6),
        UNIFORM[0] / 20,
        ax,
        training=np.linspace(1.0, 0.3, 6),
        exact=np.linspace(0.9, 0.0, 6),
        marked=[True] * 4 + [False] * 2,
        title=ODD[0],
    ),
    "relevance, one variable": lambda ax: figures.relevance_spectrum([0.5], [np.nan], ax),
    "relevance, none known": lambda ax: figures.relevance_spectrum([np.nan, 0.0], [np.nan, 0.0], ax),
    "spectrum": lambda ax: figures.spectrum(
        np.array([1.0, 0.3, 0.01, -0.01]), np.abs(NORMAL[:2]) / 100, 2, ax, title=ODD[0]
    ),
    "spectrum, nothing tested": lambda ax: figures.spectrum(np.array([1.0, 0.0]), np.zeros((0, 5)), 1, ax),
    "trace": lambda ax: figures.trace([-50.0, -2.0, -1.5, -1.4, -1.39, -1.389, -1.3889], ax, label=ODD[0]),
    "trace, one iteration": lambda ax: figures.trace([-1.0], ax),
    "trace, no iterations": lambda ax: figures.trace([np.nan, -np.inf], ax),
}


def size_of(image: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(image)) as opened:
        opened.load()
        return opened.size


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_where_they_should_be(name: str) -> None:
    given = new_axes(5, 4)
    assert PICTURES[name](given) is given
    assert size_of(png(given)) == (800, 640)
    own = PICTURES[name](None).figure
    assert min(own.get_size_inches()) > 1.25
    own.draw_without_rendering()  # finds a place for everything, or warns


def test_the_grid_of_pairs_has_a_figure_of_its_own() -> None:
    rows = np.where(RNG.random((40, 3)) < 0.1, np.nan, RNG.normal(size=(40, 3)))
    grid = figures.pair_grid(
        rows,
        np.array([0.5, 0.5]),
        np.zeros((2, 3)),
        np.tile(np.eye(3), (2, 1, 1)),
        ODD[:3],
        component=np.arange(40) % 2,
        title=ODD[0],
    )
    assert grid.shape == (3, 3)
    assert not grid[0, 1].axison
    assert min(size_of(png(grid[0, 0]))) > 200
    alone = figures.pair_grid(np.zeros((1, 1)), np.ones(1), np.zeros((1, 1)), np.zeros((1, 1, 1)), [""])
    assert min(size_of(png(alone[0, 0]))) > 200


def texts(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def test_names_are_text_on_one_line_and_not_too_long() -> None:
    shown = texts(figures.dots(NORMAL[0], ODD))
    assert shown[:2] == ["$x_1$", "a<b>&"]
    assert shown[2] == "n" * 39 + "…"
    assert shown[3:] == ["", r"\frac{$", "two lines"]
    assert short("abc", 3) == "abc"


def test_ellipses_have_the_axes_of_the_covariance() -> None:
    turn = np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    covariance = turn @ np.diag([1.0, 9.0]) @ turn.T
    found = make_ellipse(np.zeros(2), covariance, 2.0, "#0072B2", 0.1)
    edge = found.get_patch_transform().transform(found.get_path().vertices[:1])[0]
    assert edge @ np.linalg.solve(covariance, edge) == pytest.approx(4.0)
    assert sorted([found.width, found.height]) == pytest.approx([4.0, 12.0])


def test_flagged_rows_are_all_drawn_however_many_others() -> None:
    scores = np.concatenate([np.zeros(10 * PLENTY), np.full(7, -9.0)])
    other, flagged = figures.outlier_scores(scores, -5.0).collections[:2]
    assert len(flagged.get_offsets()) == 7
    assert len(other.get_offsets()) <= PLENTY


def test_the_chosen_model_runs_along_zero() -> None:
    value, cost = np.array([-4.0, -3.0, -2.9]), np.array([0.0, 0.1, 0.5])
    ax = figures.path_lines(value, cost, ["a", "b", "c"], [2, 1, 0], np.array([0.25, 10.0]))
    heights = np.array([line.get_ydata() for line in ax.lines if len(line.get_ydata()) > 600])
    assert np.abs(heights.max(0)).max() < 1e-12


def test_the_uniform_distribution_stays_in_its_band() -> None:
    """Every line starts and ends at zero; a column of one value strays by one."""
    ax = figures.probability_lines(
        np.stack([np.linspace(0, 1, 400), np.zeros(400)], 1), ["even", "zero"], 0.1
    )
    far = {line.get_color(): float(np.abs(line.get_ydata()).max()) for line in ax.lines[1:3]}
    assert sorted(far.values()) == pytest.approx([1 / 400, 1.0], abs=2e-3)
