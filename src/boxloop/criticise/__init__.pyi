from .adapt import Pair as Pair, as_model, chosen_estimator as chosen_estimator
from .aggregate import AggregateGap, aggregate_gap
from .calibration import Calibration, calibration
from .classified import ClassificationScores, classification_scores
from .closed import (
    averaged as averaged,
    count_below as count_below,
    count_power as count_power,
    projected_variance as projected_variance,
)
from .crps import crps_draws as crps_draws, crps_mixture as crps_mixture, crps_normal as crps_normal
from .distances import (
    energy_distance,
    frechet_distance,
    gaussian_wasserstein,
    relative_covariance_error,
    sliced_wasserstein,
)
from .distributions import (
    DistributionLaw as DistributionLaw,
    distribution_law as distribution_law,
    has_moments as has_moments,
)
from .forward import (
    REPLICATES as REPLICATES,
    Forward,
    forward_moments,
    latent_nodes as latent_nodes,
    marginal as marginal,
)
from .functions import Below, Custom, First, Fourier, Lagged, Power, Second, TestFunction
from .fused import fused_gap as fused_gap
from .gaps import Gap, Mega
from .information import Criteria, information_criteria
from .latent import ActiveUnits, active_units
from .mega import mega
from .mmd import median_bandwidth, mmd
from .norms import entrywise, operator, schatten
from .paired import Difference
from .penalty import MomentPenalty, moment_penalty, paper_gaps, second_moment as second_moment
from .predictive import RegressionScores, regression_scores
from .probes import BelowProbe as BelowProbe
from .reliability import Reliability, reliability
from .sampling import sample_rows as sample_rows
from .scene import model_scene as model_scene
from .stein import kernel_stein, score_of
from .tally import NodeSums as NodeSums, Scene as Scene, tally_values as tally_values
from .wide import narrow as narrow, second_gap_norm

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
    "Forward",
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
