from .cavi import Cavi, NodePosterior, Order as Order, cavi
from .column_tiles import (
    bind_outer_sum as bind_outer_sum,
    bind_product as bind_product,
    blockwise_product as blockwise_product,
    cut_tiles as cut_tiles,
    draw_orthonormal as draw_orthonormal,
    tile_columns as tile_columns,
    update_mean_and_deviations as update_mean_and_deviations,
)
from .distributed import (
    SINGLE_PROCESS as SINGLE_PROCESS,
    Workers,
    current_workers as current_workers,
    distributed,
)
from .em import (
    EMState,
    Step as Step,
    accelerated_em,
    em,
    extrapolate as extrapolate,
    mean_log_likelihood as mean_log_likelihood,
    rounding_error as rounding_error,
)
from .energy import (
    SHORTER as SHORTER,
    ChainState as ChainState,
    EnergyPlan,
    averaged as averaged,
    contrast as contrast,
    energy_trainer,
)
from .equations.averages import group_outer as group_outer, measure_equations as measure_equations
from .equations.estimate import (
    EquationError,
    Estimate,
    EstimateWarning,
    JTest,
    NoRootError,
    NotIdentifiedError,
)
from .equations.estimating_functions import (
    huber,
    linear_regression,
    mean_equation,
    quantile,
    quantile_step,
    residual_equation,
)
from .equations.moments import match_moments
from .equations.objective import m_estimate
from .equations.roots import z_estimate
from .errors import ParameterErrors, standard_errors
from .evidence import Evidence, compute_evidence as compute_evidence
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
    AT_FLOOR as AT_FLOOR,
    Coordinates as Coordinates,
    Engine as Engine,
    Fit as Fit,
    Plan as Plan,
    coordinates as coordinates,
    from_standard as from_standard,
    level_of as level_of,
    to_standard as to_standard,
    unstandardise as unstandardise,
)
from .gradient import AscentState, generalised_em, gradient_ascent
from .linear import RACED_ROUNDS as RACED_ROUNDS, fit_linear as fit_linear
from .mean_field import ConditionalError, MeanField as MeanField
from .minibatches import (
    Epochs,
    generator_at as generator_at,
    hold_out as hold_out,
    resample_rows as resample_rows,
)
from .monte_carlo import (
    AscentPlan,
    BurnIn,
    ChainSampler as ChainSampler,
    Kernels as Kernels,
    LogDensity as LogDensity,
    LouisErrors,
    MonteCarloPlan,
    MonteCarloState,
    NamedParameters as NamedParameters,
    RefinementState,
    ascent_em,
    louis_errors,
    monte_carlo_em,
    newton_refine,
    quadratic_draws as quadratic_draws,
    warm_up,
)
from .online import Batches, OnlinePlan, OnlineState, online_em
from .profile import Profile as Profile, profile_noise as profile_noise
from .schedules import Constant, Cooling, Warming
from .spectral import (
    DIAGONALISERS as DIAGONALISERS,
    DocumentInfluence as DocumentInfluence,
    DocumentMoments as DocumentMoments,
    SpectralError,
    SpectralErrors,
    SpectralTopics,
    bootstrap,
    largest_eigenvalues as largest_eigenvalues,
    match_topics,
    project_to_simplex as project_to_simplex,
    spectral,
    spectral_covariance,
    spectral_errors,
    spherical_clusters as spherical_clusters,
    spherical_responsibilities as spherical_responsibilities,
)
from .start import (
    AUTO as AUTO,
    PARTITIONS,
    Sample,
    best_start as best_start,
    lineup as lineup,
    race,
    start_mixture,
)
from .topics import (
    fit_spectral as fit_spectral,
    start_topics as start_topics,
    topic_errors as topic_errors,
    topic_mixture as topic_mixture,
)
from .train import (
    PATIENCE as PATIENCE,
    STATES as STATES,
    Follower,
    StepReport,
    Trainer,
    TrainPlan,
    TrainState,
)
from .variational import (
    VariationalModel as VariationalModel,
    elbo,
    fit_variational as fit_variational,
    fit_variational_factor as fit_variational_factor,
    standard_covariance as standard_covariance,
)

__all__ = [
    "PARTITIONS",
    "AscentPlan",
    "AscentState",
    "Batches",
    "BurnIn",
    "Cavi",
    "ConditionalError",
    "Constant",
    "Cooling",
    "EMState",
    "EnergyPlan",
    "Epochs",
    "EquationError",
    "Estimate",
    "EstimateWarning",
    "Evidence",
    "Follower",
    "JTest",
    "LouisErrors",
    "MonteCarloPlan",
    "MonteCarloState",
    "NoRootError",
    "NodePosterior",
    "NotIdentifiedError",
    "OnlinePlan",
    "OnlineState",
    "ParameterErrors",
    "RefinementState",
    "Sample",
    "SpectralError",
    "SpectralErrors",
    "SpectralTopics",
    "StepReport",
    "TrainPlan",
    "TrainState",
    "Trainer",
    "Warming",
    "Workers",
    "accelerated_em",
    "ascent_em",
    "bootstrap",
    "cavi",
    "distributed",
    "elbo",
    "em",
    "energy_trainer",
    "generalised_em",
    "gradient_ascent",
    "huber",
    "linear_regression",
    "louis_errors",
    "m_estimate",
    "match_moments",
    "match_topics",
    "mean_equation",
    "monte_carlo_em",
    "newton_refine",
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
    "warm_up",
    "z_estimate",
]
