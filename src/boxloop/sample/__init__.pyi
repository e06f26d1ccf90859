from boxloop.distributions import FactorPrior, MixturePrior

from .adapt import (
    LEAST_CHANCE as LEAST_CHANCE,
    SHORTEST as SHORTEST,
    WINDOWS as WINDOWS,
    PositionMoments as PositionMoments,
    TrajectoryLength as TrajectoryLength,
    Tuner as Tuner,
    round_to_whole_steps as round_to_whole_steps,
)
from .annealing import (
    Annealing,
    AnnealingPath as AnnealingPath,
    KernelFactory as KernelFactory,
    Ladder,
    WeightedDraws as WeightedDraws,
    annealed_importance,
    choose_temperatures,
)
from .checks import (
    JointCheck,
    KernelCheck,
    RankCheck,
    check_joint,
    check_ranks,
    check_reversible,
    compute_z_scores as compute_z_scores,
    evaluate_antisymmetric_functions as evaluate_antisymmetric_functions,
    transition,
)
from .compilation import (
    CompiledSteps as CompiledSteps,
    GraphSteps as GraphSteps,
    NoiseBlock as NoiseBlock,
    StepResults as StepResults,
    check_compiled_steps as check_compiled_steps,
    extract_tensors as extract_tensors,
    insert_tensors as insert_tensors,
)
from .diagnostics import (
    ESS_LIMIT as ESS_LIMIT,
    MIN_DRAWS as MIN_DRAWS,
    R_HAT_LIMIT as R_HAT_LIMIT,
    diagnose as diagnose,
)
from .draws import Draws, SampleWarning, select_spaced_indices as select_spaced_indices
from .factor_posterior import FactorPosterior, align_loadings as align_loadings, sample_factors
from .kernels.factor_gibbs import (
    FactorConditional as FactorConditional,
    FactorParameters as FactorParameters,
    ScatterStatistics as ScatterStatistics,
    draw_latent_sums as draw_latent_sums,
    factor_conditional as factor_conditional,
    make_factor_kernel as make_factor_kernel,
    pack_factors as pack_factors,
    shift_factors as shift_factors,
    start_factors as start_factors,
    unpack_factors as unpack_factors,
)
from .kernels.gibbs import Gibbs, restrict_to_support as restrict_to_support
from .kernels.hmc import HMC, OUTER as OUTER, TrajectoryEnds as TrajectoryEnds
from .kernels.independent import Independent, MetropolisHastings
from .kernels.mala import MALA
from .kernels.metropolis import (
    RULES as RULES,
    Metric as Metric,
    RuleName as RuleName,
    apply_metric_transpose as apply_metric_transpose,
    make_metric as make_metric,
    make_metropolis_kernel as make_metropolis_kernel,
    select_accepted as select_accepted,
)
from .kernels.mixture_gibbs import (
    TILE_ENTRIES as TILE_ENTRIES,
    MixtureRows as MixtureRows,
    compute_natural_parameters as compute_natural_parameters,
    make_mixture_kernel as make_mixture_kernel,
    pack_mixture as pack_mixture,
    start_mixture as start_mixture,
    sweep_rows as sweep_rows,
    unpack_mixture as unpack_mixture,
)
from .kernels.pseudo_marginal import PseudoMarginal
from .kernels.random_walk import RandomWalk
from .mixture_posterior import (
    OCCUPIED_DRAWS as OCCUPIED_DRAWS,
    MixturePosterior,
    Relabelling as Relabelling,
    assign_labels as assign_labels,
    compute_component_probabilities as compute_component_probabilities,
    compute_similarity_matrix as compute_similarity_matrix,
    count_occupied_components as count_occupied_components,
    relabel_draws as relabel_draws,
    sample_mixture,
)
from .posterior import latent_target, parameter_target, sample_latent, sample_parameters
from .sampler import STATES as STATES, sample_density
from .target import (
    LogDensity as LogDensity,
    ParameterSpace as ParameterSpace,
    Target,
    disable_validation as disable_validation,
    make_target as make_target,
)

__all__ = [
    "HMC",
    "MALA",
    "Annealing",
    "Draws",
    "FactorPosterior",
    "FactorPrior",
    "Gibbs",
    "Independent",
    "JointCheck",
    "KernelCheck",
    "Ladder",
    "MetropolisHastings",
    "MixturePosterior",
    "MixturePrior",
    "PseudoMarginal",
    "RandomWalk",
    "RankCheck",
    "SampleWarning",
    "Target",
    "annealed_importance",
    "check_joint",
    "check_ranks",
    "check_reversible",
    "choose_temperatures",
    "latent_target",
    "parameter_target",
    "sample_density",
    "sample_factors",
    "sample_latent",
    "sample_mixture",
    "sample_parameters",
    "transition",
]
