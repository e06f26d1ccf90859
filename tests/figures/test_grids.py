"""Grids of images: drawn on the axes they are given, every image where it belongs, on one scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes

from boxloop.figures import image_grid, image_pairs, new_axes, png

RNG = np.random.default_rng(0)
GREY, COLOUR = RNG.random((7, 4, 5)), RNG.random((7, 4, 5, 3))
MISSING = np.where(GREY > 0.9, np.nan, GREY)

PICTURES: dict[str, Callable[[Axes | None], Axes]] = {
    "grid": lambda ax: image_grid(GREY, ax, title="$x_1$"),
    "grid in colour": lambda ax: image_grid(COLOUR, ax, columns=20),
    "grid of one": lambda ax: image_grid(GREY[:1], ax),
    "grid of none": lambda ax: image_grid(GREY[:0], ax),
    "grid with missing values": lambda ax: image_grid(MISSING, ax),
    "grid of nothing known": lambda ax: image_grid(np.full((2, 3, 3), np.nan), ax),
    "grid of one shade": lambda ax: image_grid(np.ones((2, 3, 3)), ax),
    "pairs": lambda ax: image_pairs(GREY, MISSING, ("$x_1$", "n" * 60), ax, columns=3),
    "pairs in colour": lambda ax: image_pairs(COLOUR, COLOUR, ax=ax),
    "one pair": lambda ax: image_pairs(GREY[:1], GREY[:1], ax=ax),
    "no pairs": lambda ax: image_pairs(GREY[:0], GREY[:0], ax=ax),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_where_they_should_be(name: str) -> None:
    given = new_axes(5, 4)
    assert PICTURES[name](given) is given
    assert png(given).startswith(b"\x89PNG")
    assert png(PICTURES[name](None)).startswith(b"\x89PNG")


def canvas(axes: Axes) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def test_every_image_is_in_its_place() -> None:
    shown = canvas(image_grid(GREY, columns=3, limits=(0.0, 2.0)))
    np.testing.assert_allclose(shown[:4, :5, 0], GREY[0] / 2)
    np.testing.assert_allclose(shown[5:9, 6:11, 1], GREY[4] / 2)
    assert (shown[10:, 6:] == 1.0).all()
    assert (shown[4] == 1.0).all()
    coloured = canvas(image_grid(COLOUR, columns=3, limits=(0.0, 1.0)))
    np.testing.assert_allclose(coloured[5:9, 6:11], COLOUR[4])


def test_partners_are_below_on_the_same_scale() -> None:
    shown = canvas(image_pairs(GREY, GREY + 1.0, columns=4, limits=(0.0, 2.0)))
    np.testing.assert_allclose(shown[:4, 6:11, 0], GREY[1] / 2)
    np.testing.assert_allclose(shown[5:9, 6:11, 0], (GREY[1] + 1.0) / 2)
    np.testing.assert_allclose(shown[12:16, :5, 0], GREY[4] / 2)
    np.testing.assert_allclose(shown[17:21, :5, 0], (GREY[4] + 1.0) / 2)
    assert shown.shape[0] == 21


def test_a_pixel_that_is_not_known_is_white_and_the_rest_fill_the_scale() -> None:
    shown = canvas(image_grid(MISSING, columns=7))[:4, :, 0]
    assert (shown[:, :5][np.isnan(MISSING[0])] == 1.0).all()
    assert shown.min() == 0.0


def test_bad_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="images must have the shape"):
        image_grid(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="images must have the shape"):
        image_grid(np.zeros((3, 4, 4, 2)))
    with pytest.raises(ValueError, match="the same shape"):
        image_pairs(GREY, GREY[:2])
