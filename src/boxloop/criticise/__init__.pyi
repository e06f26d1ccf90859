from .adapt import PriorAndEmission as PriorAndEmission, as_model
from .calibration import Calibration, Reliability, calibration, reliability
from .distances import (
    energy_distance,
    frechet_distance,
    gaussian_wasserstein,
    relative_covariance_error,
    sliced_wasserstein,
)
from .forward_moments import (
    REPLICATES as REPLICATES,
    ForwardMoment,
    draw_latent_nodes as draw_latent_nodes,
    draw_rows as draw_rows,
    forward_moments,
    has_closed_form_moments as has_closed_form_moments,
    marginal_mixture as marginal_mixture,
    standardise_by_model as standardise_by_model,
)
from .gaps import Gap, Mega
from .information_criteria import Criteria, information_criteria
from .latent_codes import ActiveUnits, AggregateGap, active_units, aggregate_gap
from .mega import mega
from .mmd import median_bandwidth, mmd
from .norms import entrywise, operator, schatten
from .penalty import (
    MomentPenalty,
    fused_moment_gap as fused_moment_gap,
    is_low_rank_form_smaller as is_low_rank_form_smaller,
    moment_penalty,
    paper_gaps,
    second_gap_norm,
    second_moment as second_moment,
)
from .prediction_scores import (
    ClassificationScores,
    Difference,
    RegressionScores,
    classification_scores,
    crps_draws as crps_draws,
    crps_mixture as crps_mixture,
    crps_normal as crps_normal,
    regression_scores,
)
from .stein import kernel_stein, score_of
from .test_functions import (
    Below,
    BelowStatistic as BelowStatistic,
    Custom,
    First,
    Fourier,
    Lagged,
    ModelStandardisation as ModelStandardisation,
    NodeSums as NodeSums,
    Power,
    Second,
    Statistic as Statistic,
    TestFunction,
    cdf_of_counts as cdf_of_counts,
    moment_of_counts as moment_of_counts,
)
from .torch_distributions import TorchBatch as TorchBatch, from_torch as from_torch

__all__ = [
    "ActiveUnits",
    "AggregateGap",
    "Below",
    "Calibration",
    "ClassificationScores",
    "Criteria",
    "Custom",
    "Difference",
    "First",
    "ForwardMoment",
    "Fourier",
    "Gap",
    "Lagged",
    "Mega",
    "MomentPenalty",
    "Power",
    "RegressionScores",
    "Reliability",
    "Second",
    "TestFunction",
    "active_units",
    "aggregate_gap",
    "as_model",
    "calibration",
    "classification_scores",
    "energy_distance",
    "entrywise",
    "forward_moments",
    "frechet_distance",
    "gaussian_wasserstein",
    "information_criteria",
    "kernel_stein",
    "median_bandwidth",
    "mega",
    "mmd",
    "moment_penalty",
    "operator",
    "paper_gaps",
    "regression_scores",
    "relative_covariance_error",
    "reliability",
    "schatten",
    "score_of",
    "second_gap_norm",
    "sliced_wasserstein",
]
