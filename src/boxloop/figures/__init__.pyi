from .audit import (
    correlogram as correlogram,
    coverage_of as coverage_of,
    gains as gains,
    width_ratios as width_ratios,
)
from .chains import chain_ranks, chain_traces
from .curves import curves
from .dots import dots
from .ellipses import ellipse as ellipse, ellipses
from .forest import forest
from .grids import image_grid, image_pairs
from .heat import heat_map
from .loadings import loadings
from .outliers import outlier_scores
from .pairs import pair_grid
from .path import path_choice, path_lines
from .predictions import (
    BARS as BARS,
    classes_over_column as classes_over_column,
    numbers_over_column as numbers_over_column,
    tuning_curve as tuning_curve,
)
from .probability import coverage, probability_lines, uniform_histogram
from .relevance import relevance_spectrum
from .reliability import reliability_diagram as reliability_diagram
from .spectrum import spectrum
from .style import (
    COLOURS,
    DPI,
    FAINT,
    INK,
    MARKERS,
    PLENTY as PLENTY,
    add_legend,
    check_axes,
    dress,
    name_rows as name_rows,
    new_axes,
    new_figure,
    png,
    say as say,
    short,
)
from .trace import trace

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
