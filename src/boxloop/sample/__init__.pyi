from boxloop.distributions import FactorPrior, MixturePrior

from .adapt import (
    HOPELESS as HOPELESS,
    WINDOWS as WINDOWS,
    Spread as Spread,
    Tuner as Tuner,
    evened as evened,
)
from .annealed import Annealing, annealed_importance, pilot
from .bayesian import sample_factors, sample_mixture
from .bridge import (
    Bridge as Bridge,
    Kernels as Kernels,
    Ladder,
    LogDensity as LogDensity,
    Weighted as Weighted,
)
from .calibrate import JointCheck, RankCheck, check_joint, check_ranks
from .check import (
    KernelCheck,
    antisymmetric as antisymmetric,
    check_reversible,
    transition,
    z_scores as z_scores,
)
from .chees import SHORTEST as SHORTEST
from .diagnostics import AGREED as AGREED, ENOUGH as ENOUGH, FEWEST as FEWEST, diagnose as diagnose
from .draws import Draws, SampleWarning
from .factor_posterior import FactorPosterior
from .gibbs import Gibbs, restrict_to_support as restrict_to_support
from .gibbs_factor import (
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
from .gibbs_mixture import (
    TILE_ENTRIES as TILE_ENTRIES,
    MixtureRows as MixtureRows,
    gibbs_mixture as gibbs_mixture,
    natural_of as natural_of,
    pack_mixture as pack_mixture,
    start_mixture as start_mixture,
    sweep as sweep,
    unpack_mixture as unpack_mixture,
)
from .hmc import END as END, HMC, Landing as Landing
from .independent import Generalised, Independent
from .labels import (
    Relabelling as Relabelling,
    allocations as allocations,
    assign_labels as assign_labels,
    count_occupied as count_occupied,
    relabel as relabel,
    similarity_matrix as similarity_matrix,
)
from .lines import evenly as evenly
from .mala import MALA
from .metric import Metric as Metric, make_factor as make_factor, pull as pull
from .metropolis import RULES as RULES, RuleName as RuleName, choose as choose, metropolis as metropolis
from .mixture_posterior import COUNTED as COUNTED, MixturePosterior
from .movers import (
    Blocks as Blocks,
    Compiled as Compiled,
    Ends as Ends,
    Graphs as Graphs,
    check_compiled_steps as check_compiled_steps,
    extract_tensors as extract_tensors,
    insert_tensors as insert_tensors,
)
from .posterior import latent_target, parameter_target, sample_latent, sample_parameters
from .pseudo_marginal import PseudoMarginal
from .random_walk import RandomWalk
from .rotation import align as align
from .sampling import STATES as STATES, sample
from .space import Space as Space
from .target import Target, make_target as make_target, unvalidated as unvalidated

__all__ = [
    "HMC",
    "MALA",
    "Annealing",
    "Draws",
    "FactorPosterior",
    "FactorPrior",
    "Generalised",
    "Gibbs",
    "Independent",
    "JointCheck",
    "KernelCheck",
    "Ladder",
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
    "latent_target",
    "parameter_target",
    "pilot",
    "sample",
    "sample_factors",
    "sample_latent",
    "sample_mixture",
    "sample_parameters",
    "transition",
]
