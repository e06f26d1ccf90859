from .cells import Cell as Cell, Fold as Fold, evaluate as evaluate
from .compare import Comparison, compare
from .conditional import conditional as conditional
from .conformal import conformal as conformal
from .grid import Cells as Cells, fill as fill
from .grouped import Grouped as Grouped, behind as behind
from .outliers import OutlierDetector
from .path import Path, penalised_path
from .rows import placed as placed
from .rule import one_standard_error
from .scores import (
    Array as Array,
    information as information,
    log_densities as log_densities,
    n_parameters as n_parameters,
)
from .search import Select
from .spectrum import Spectrum, topic_spectrum
from .store import plain as plain
from .warned import SelectionWarning

__all__ = [
    "Comparison",
    "OutlierDetector",
    "Path",
    "Select",
    "SelectionWarning",
    "Spectrum",
    "compare",
    "one_standard_error",
    "penalised_path",
    "topic_spectrum",
]
