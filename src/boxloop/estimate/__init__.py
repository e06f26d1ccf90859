"""Engines that fit any model of the contract."""

from boxloop.estimate.adam import Constant, Cooling, Warming
from boxloop.estimate.cavi import cavi
from boxloop.estimate.cavi_evidence import Evidence
from boxloop.estimate.cavi_result import Cavi, NodeLaw
from boxloop.estimate.documents import SpectralError
from boxloop.estimate.em import EMState, accelerated_em, em
from boxloop.estimate.energy import EnergyPlan, EnergyState, energy_ascent
from boxloop.estimate.epochs import Epochs
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
from boxloop.estimate.mean_field import ConditionalError
from boxloop.estimate.monte_carlo import BurnIn, MonteCarloPlan, monte_carlo_em, warmed
from boxloop.estimate.monte_carlo_ascent import AscentPlan, ascent_em
from boxloop.estimate.monte_carlo_errors import Assessment, assess
from boxloop.estimate.monte_carlo_refine import Refined, refine
from boxloop.estimate.monte_carlo_walk import MonteCarloState
from boxloop.estimate.online import Batches, OnlinePlan, OnlineState, online_em
from boxloop.estimate.parallel import Workers, distributed
from boxloop.estimate.restarts import race
from boxloop.estimate.spectral import Spectral, match, spectral
from boxloop.estimate.spectral_errors import SpectralErrors, bootstrap, spectral_covariance, spectral_errors
from boxloop.estimate.start import PARTITIONS, Sample, start_mixture
from boxloop.estimate.train_state import TrainPlan, TrainState
from boxloop.estimate.training import Trainer
from boxloop.estimate.variational import elbo

__all__ = [
    "PARTITIONS",
    "AscentPlan",
    "AscentState",
    "Assessment",
    "Batches",
    "BurnIn",
    "Cavi",
    "ConditionalError",
    "Constant",
    "Cooling",
    "EMState",
    "EnergyPlan",
    "EnergyState",
    "Epochs",
    "EquationError",
    "Estimate",
    "EstimateWarning",
    "Evidence",
    "JTest",
    "MonteCarloPlan",
    "MonteCarloState",
    "NoRootError",
    "NodeLaw",
    "NotIdentifiedError",
    "OnlinePlan",
    "OnlineState",
    "ParameterErrors",
    "Refined",
    "Sample",
    "Spectral",
    "SpectralError",
    "SpectralErrors",
    "TrainPlan",
    "TrainState",
    "Trainer",
    "Warming",
    "Workers",
    "accelerated_em",
    "ascent_em",
    "assess",
    "bootstrap",
    "cavi",
    "distributed",
    "elbo",
    "em",
    "energy_ascent",
    "generalised_em",
    "gradient_ascent",
    "huber",
    "linear_regression",
    "m_estimate",
    "match",
    "match_moments",
    "mean_equation",
    "monte_carlo_em",
    "online_em",
    "quantile",
    "quantile_step",
    "race",
    "refine",
    "residual_equation",
    "spectral",
    "spectral_covariance",
    "spectral_errors",
    "standard_errors",
    "start_mixture",
    "warmed",
    "z_estimate",
]
