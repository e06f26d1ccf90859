from .compare import Comparison, compare
from .cross_validation import (
    Fold as Fold,
    FoldFit as FoldFit,
    FoldFits as FoldFits,
    cross_validate as cross_validate,
    fit_and_score as fit_and_score,
    to_json as to_json,
)
from .outliers import (
    DetectorState as DetectorState,
    OutlierDetector,
    conformal_p_values as conformal_p_values,
)
from .penalty_path import PenaltyPath, penalised_path
from .rows import to_indices as to_indices
from .rule import one_standard_error
from .scores import (
    Array as Array,
    GroupedSums as GroupedSums,
    SelectionWarning,
    aic_bic as aic_bic,
    conditional_log_densities as conditional_log_densities,
    count_parameters as count_parameters,
    log_densities as log_densities,
    measure_gaps_to_best as measure_gaps_to_best,
)
from .search import ModelSearchCV
from .topics import TopicSpectrum, topic_spectrum

__all__ = [
    "Comparison",
    "ModelSearchCV",
    "OutlierDetector",
    "PenaltyPath",
    "SelectionWarning",
    "TopicSpectrum",
    "compare",
    "one_standard_error",
    "penalised_path",
    "topic_spectrum",
]
