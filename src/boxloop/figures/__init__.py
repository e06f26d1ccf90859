"""Pictures: numpy arrays and matplotlib axes in, axes out. They know no model, so that every room may draw.

Result objects call them from their ``plot`` methods, and only there: importing this room loads matplotlib. Nothing
here touches pyplot; a figure that is made belongs to its caller, as ``axes.figure``.
"""

from boxloop.figures.chains import chain_ranks, chain_traces
from boxloop.figures.curves import curves
from boxloop.figures.dots import dots
from boxloop.figures.ellipses import ellipses
from boxloop.figures.forest import forest
from boxloop.figures.grids import image_grid, image_pairs
from boxloop.figures.heat import heat_map
from boxloop.figures.loadings import loadings
from boxloop.figures.outliers import outlier_scores
from boxloop.figures.pairs import pair_grid
from boxloop.figures.path import path_choice, path_lines
from boxloop.figures.probability import coverage, probability_lines, uniform_histogram
from boxloop.figures.relevance import relevance_spectrum
from boxloop.figures.spectrum import spectrum
from boxloop.figures.style import (
    COLOURS,
    DPI,
    FAINT,
    INK,
    MARKERS,
    add_legend,
    check_axes,
    dress,
    new_axes,
    new_figure,
    png,
    short,
)
from boxloop.figures.trace import trace

__all__ = [
    "COLOURS",
    "DPI",
    "FAINT",
    "INK",
    "MARKERS",
    "add_legend",
    "chain_ranks",
    "chain_traces",
    "check_axes",
    "coverage",
    "curves",
    "dots",
    "dress",
    "ellipses",
    "forest",
    "heat_map",
    "image_grid",
    "image_pairs",
    "loadings",
    "new_axes",
    "new_figure",
    "outlier_scores",
    "pair_grid",
    "path_choice",
    "path_lines",
    "png",
    "probability_lines",
    "relevance_spectrum",
    "short",
    "spectrum",
    "trace",
    "uniform_histogram",
]
