from .adam import (
    Adam as Adam,
    Constant,
    Cooling,
    Warming,
    clipped as clipped,
    joined as joined,
    parted as parted,
    resumed as resumed,
    stream_at as stream_at,
)
from .cavi import Order as Order, cavi
from .cavi_evidence import Evidence, evidence as evidence
from .cavi_result import Cavi, NodeLaw
from .column_tiles import (
    bind_outer_sum as bind_outer_sum,
    bind_product as bind_product,
    blockwise_product as blockwise_product,
    cut_tiles as cut_tiles,
    draw_orthonormal as draw_orthonormal,
    tile_columns as tile_columns,
    update_mean_and_deviations as update_mean_and_deviations,
)
from .documents import Documents as Documents, SpectralError
from .em import (
    EMState,
    Step as Step,
    accelerated_em,
    em,
    extrapolate as extrapolate,
    mean_log_likelihood as mean_log_likelihood,
)
from .energy import SHORTER as SHORTER, EnergyPlan, EnergyState, at as at, contrast as contrast, energy_ascent
from .epochs import Epochs, hold_out as hold_out
from .equations.faults import EquationError, EstimateWarning, NoRootError, NotIdentifiedError
from .equations.functions import (
    huber,
    linear_regression,
    mean_equation,
    quantile,
    quantile_step,
    residual_equation,
)
from .equations.matching import match_moments
from .equations.objective import m_estimate
from .equations.result import Estimate, JTest
from .equations.roots import z_estimate
from .equations.sums import group_outer as group_outer, measure_equations as measure_equations
from .errors import ParameterErrors, standard_errors
from .factor_gradient import GradientState as GradientState, GradientStream as GradientStream
from .factor_stream import (
    FactorStream as FactorStream,
    PassWeights as PassWeights,
    StreamSettings as StreamSettings,
    StreamState as StreamState,
    Variant as Variant,
    factor_posterior as factor_posterior,
)
from .fit import (
    Coordinates as Coordinates,
    Fit as Fit,
    coordinates as coordinates,
    fit_mixture as fit_mixture,
    from_standard as from_standard,
    level_of as level_of,
    to_standard as to_standard,
)
from .gradient import AscentState, generalised_em, gradient_ascent
from .linear import RACED_ROUNDS as RACED_ROUNDS, fit_linear as fit_linear
from .mean_field import ConditionalError, MeanField as MeanField
from .monte_carlo import BurnIn, MonteCarloPlan, monte_carlo_em, squares as squares, warmed
from .monte_carlo_ascent import AscentPlan, ascent_em
from .monte_carlo_errors import Assessment, Named as Named, assess
from .monte_carlo_refine import Refined, refine
from .monte_carlo_walk import Kernels as Kernels, LogDensity as LogDensity, MonteCarloState, Walk as Walk
from .online import Batches, OnlinePlan, OnlineState, online_em
from .parallel import ALONE as ALONE, Workers, current as current, distributed
from .plan import Engine as Engine, Plan as Plan
from .profile import Profile as Profile, profiled as profiled
from .replay import OFTEN as OFTEN, CapturedGraph as CapturedGraph, Replays as Replays, kind_of as kind_of
from .restarts import race
from .spectral import (
    DIAGONALISERS as DIAGONALISERS,
    Spectral,
    largest as largest,
    match,
    spectral,
    to_simplex as to_simplex,
)
from .spectral_errors import (
    DocumentInfluence as DocumentInfluence,
    SpectralErrors,
    bootstrap,
    spectral_covariance,
    spectral_errors,
)
from .spectral_fit import (
    fit_spectral as fit_spectral,
    spectral_model as spectral_model,
    spectral_start as spectral_start,
    topic_errors as topic_errors,
)
from .spectral_gaussian import round_clusters as round_clusters, round_shares as round_shares
from .start import AUTO as AUTO, PARTITIONS, Sample, lineup as lineup, start_mixture
from .train_state import TrainPlan, TrainState, continued as continued, drawn_by_weight as drawn_by_weight
from .training import Trainer
from .variational import VariationalModel as VariationalModel, elbo
from .variational_fit import fit_variational as fit_variational, standard_covariance as standard_covariance
from .variational_linear import fit_variational_factor as fit_variational_factor
from .worries import AT_FLOOR as AT_FLOOR

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
