from boxloop.distributions import FactorPrior, MixturePrior

from .adapt import (
    LEAST_CHANCE as LEAST_CHANCE,
    SHORTEST as SHORTEST,
    WINDOWS as WINDOWS,
    PositionMoments as PositionMoments,
    TrajectoryLength as TrajectoryLength,
    Tuner as Tuner,
    fit_whole_steps as fit_whole_steps,
)
from .annealing import (
    Annealing,
    AnnealingPath as AnnealingPath,
    KernelFactory as KernelFactory,
    Ladder,
    LogDensity as LogDensity,
    WeightedDraws as WeightedDraws,
    annealed_importance,
    choose_temperatures,
)
from .checks import (
    JointCheck,
    KernelCheck,
    RankCheck,
    antisymmetric as antisymmetric,
    check_joint,
    check_ranks,
    check_reversible,
    transition,
    z_scores as z_scores,
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
from .draws import Draws, SampleWarning
from .factor_posterior import FactorPosterior, align as align, sample_factors
from .kernels.factor_gibbs import (
    FactorConditional as FactorConditional,
    Factors as Factors,
    Scatter as Scatter,
    draw_latent_sums as draw_latent_sums,
    factor_conditional as factor_conditional,
    gibbs_factor as gibbs_factor,
    pack_factors as pack_factors,
    shift_factors as shift_factors,
    start_factors as start_factors,
    unpack_factors as unpack_factors,
)
from .kernels.gibbs import Gibbs, restrict_to_support as restrict_to_support
from .kernels.hmc import HMC, OUTER as OUTER, TrajectoryEnd as TrajectoryEnd
from .kernels.independent import Independent, MetropolisHastings
from .kernels.mala import MALA
from .kernels.metric import (
    Metric as Metric,
    apply_metric_transpose as apply_metric_transpose,
    make_factor as make_factor,
)
from .kernels.metropolis import (
    RULES as RULES,
    RuleName as RuleName,
    metropolis as metropolis,
    select_chains as select_chains,
)
from .kernels.mixture_gibbs import (
    TILE_ENTRIES as TILE_ENTRIES,
    MixtureRows as MixtureRows,
    gibbs_mixture as gibbs_mixture,
    natural_parameters as natural_parameters,
    pack_mixture as pack_mixture,
    start_mixture as start_mixture,
    sweep as sweep,
    unpack_mixture as unpack_mixture,
)
from .kernels.pseudo_marginal import PseudoMarginal
from .kernels.random_walk import RandomWalk
from .mixture_posterior import OCCUPIED_DRAWS as OCCUPIED_DRAWS, MixturePosterior, sample_mixture
from .posterior import latent_target, parameter_target, sample_latent, sample_parameters
from .relabelling import (
    Relabelling as Relabelling,
    assign_labels as assign_labels,
    component_probabilities as component_probabilities,
    count_occupied as count_occupied,
    relabel as relabel,
    similarity_matrix as similarity_matrix,
)
from .sampler import STATES as STATES, sample_density
from .summary import spaced_indices as spaced_indices
from .target import (
    ParameterSpace as ParameterSpace,
    Target,
    make_target as make_target,
    without_validation as without_validation,
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
