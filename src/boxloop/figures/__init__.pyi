from .calibration import (
    coverage,
    predictor_coverage as predictor_coverage,
    probability_lines,
    reliability_diagram as reliability_diagram,
    standard_deviation_ratios as standard_deviation_ratios,
    uniform_histogram,
)
from .chains import chain_ranks, chain_traces, correlogram as correlogram
from .curves import curves, trace
from .ellipses import ellipses, make_ellipse as make_ellipse, pair_grid
from .forest import dots, forest, score_differences as score_differences
from .grids import image_grid, image_pairs
from .heat import heat_map
from .loadings import loadings
from .outliers import outlier_scores
from .path import path_choice, path_lines
from .predictions import (
    BARS as BARS,
    class_probability_bands as class_probability_bands,
    regression_bands as regression_bands,
    tuning_curve as tuning_curve,
)
from .spectrum import relevance_spectrum, spectrum
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
    label_lines as label_lines,
    new_axes,
    new_figure,
    png,
    short,
    write_message as write_message,
)

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
