"""Criticism: where a fitted model fails, with error bars."""

from boxloop.criticise.adapt import as_model
from boxloop.criticise.aggregate import AggregateGap, aggregate_gap
from boxloop.criticise.calibration import Calibration, calibration
from boxloop.criticise.classified import ClassificationScores, classification_scores
from boxloop.criticise.distances import (
    energy_distance,
    frechet_distance,
    gaussian_wasserstein,
    relative_covariance_error,
    sliced_wasserstein,
)
from boxloop.criticise.forward import Forward, forward_moments
from boxloop.criticise.functions import Below, Custom, First, Fourier, Lagged, Power, Second, TestFunction
from boxloop.criticise.gaps import Gap, Mega
from boxloop.criticise.information import Criteria, information_criteria
from boxloop.criticise.latent import ActiveUnits, active_units
from boxloop.criticise.mega import mega
from boxloop.criticise.mmd import median_bandwidth, mmd
from boxloop.criticise.norms import entrywise, operator, schatten
from boxloop.criticise.paired import Difference
from boxloop.criticise.penalty import MomentPenalty, moment_penalty, paper_gaps
from boxloop.criticise.predictive import RegressionScores, regression_scores
from boxloop.criticise.reliability import Reliability, reliability
from boxloop.criticise.stein import kernel_stein, score_of
from boxloop.criticise.wide import second_gap_norm

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
