"""Engines that fit any model of the contract."""

from boxloop.estimate.documents import SpectralError
from boxloop.estimate.em import EMState, accelerated_em, em
from boxloop.estimate.equations.faults import EquationError, EstimateWarning, NoRootError, NotIdentifiedError
from boxloop.estimate.equations.functions import (
    huber,
    linear_regression,
    mean_equation,
    quantile,
    quantile_step,
    residual_equation,
)
from boxloop.estimate.equations.matching import match_moments
from boxloop.estimate.equations.objective import m_estimate
from boxloop.estimate.equations.result import Estimate, JTest
from boxloop.estimate.equations.roots import z_estimate
from boxloop.estimate.errors import ParameterErrors, standard_errors
from boxloop.estimate.gradient import AscentState, generalised_em, gradient_ascent
from boxloop.estimate.online import Batches, OnlinePlan, OnlineState, online_em
from boxloop.estimate.restarts import race
from boxloop.estimate.spectral import Spectral, match, spectral
from boxloop.estimate.spectral_errors import SpectralErrors, bootstrap, spectral_covariance, spectral_errors
from boxloop.estimate.start import PARTITIONS, Sample, start_mixture

__all__ = [
    "PARTITIONS",
    "AscentState",
    "Batches",
    "EMState",
    "EquationError",
    "Estimate",
    "EstimateWarning",
    "JTest",
    "NoRootError",
    "NotIdentifiedError",
    "OnlinePlan",
    "OnlineState",
    "ParameterErrors",
    "Sample",
    "Spectral",
    "SpectralError",
    "SpectralErrors",
    "accelerated_em",
    "bootstrap",
    "em",
    "generalised_em",
    "gradient_ascent",
    "huber",
    "linear_regression",
    "m_estimate",
    "match",
    "match_moments",
    "mean_equation",
    "online_em",
    "quantile",
    "quantile_step",
    "race",
    "residual_equation",
    "spectral",
    "spectral_covariance",
    "spectral_errors",
    "standard_errors",
    "start_mixture",
    "z_estimate",
]
