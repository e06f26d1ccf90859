"""Selection: candidates, criteria with error bars, and the exact path over alpha."""

from boxloop.select.compare import Comparison, compare
from boxloop.select.outliers import OutlierDetector
from boxloop.select.path import Path, penalised_path
from boxloop.select.rule import one_standard_error
from boxloop.select.search import Select
from boxloop.select.spectrum import Spectrum, topic_spectrum
from boxloop.select.warned import SelectionWarning

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
