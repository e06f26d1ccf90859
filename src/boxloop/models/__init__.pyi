from .constraints import CONSTRAINTS as CONSTRAINTS, LATENTS as LATENTS
from .energy import EnergyModel as EnergyModel, Perceptron as Perceptron
from .information import (
    central_differences as central_differences,
    derivatives_by_unit as derivatives_by_unit,
    factor_standard_errors as factor_standard_errors,
    flatten as flatten,
    jacobian as jacobian,
    likelihood_and_score as likelihood_and_score,
    observed_information as observed_information,
    unflatten as unflatten,
)
from .linear_gaussian import (
    FactorEStep as FactorEStep,
    FactorModel,
    LinearGaussian as LinearGaussian,
    LinearStatistics as LinearStatistics,
    PrincipalModel,
)
from .mixture import Mixture
from .networks import (
    Convolutions as Convolutions,
    Deconvolutions as Deconvolutions,
    Layers as Layers,
    ModuleNetwork as ModuleNetwork,
    Part as Part,
    SavedModule as SavedModule,
)
from .random_effects import (
    BernoulliResponse as BernoulliResponse,
    EffectSums as EffectSums,
    GroupedRows as GroupedRows,
    PoissonResponse as PoissonResponse,
    RandomEffects as RandomEffects,
    Response as Response,
    find_modes as find_modes,
    group_log_likelihood as group_log_likelihood,
)
from .vae import (
    MAX_SCORE_DRAWS as MAX_SCORE_DRAWS,
    Autoencoder as Autoencoder,
    BernoulliHead as BernoulliHead,
    CategoricalHead as CategoricalHead,
    GaussianHead as GaussianHead,
    LowRankHead as LowRankHead,
    NormalMixturePrior as NormalMixturePrior,
    PoissonHead as PoissonHead,
    StandardNormal as StandardNormal,
)
from .variational_factor import (
    RelevancePrior as RelevancePrior,
    VariationalFactor as VariationalFactor,
    best_transformation as best_transformation,
)
from .variational_mixture import VariationalMixture as VariationalMixture

__all__ = ["FactorModel", "Mixture", "PrincipalModel"]
