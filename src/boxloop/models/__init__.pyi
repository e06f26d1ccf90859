from .asymptotic import factor_errors as factor_errors
from .autoencoder import Autoencoder as Autoencoder
from .constraints import CONSTRAINTS as CONSTRAINTS, LATENTS as LATENTS
from .drawn import Drawn as Drawn, Points as Points
from .energy import EnergyModel as EnergyModel, Perceptron as Perceptron
from .evidence import row_shifts as row_shifts
from .expected_linear import ExpectedLinear as ExpectedLinear
from .factor import FactorModel
from .grouped import GroupedRows as GroupedRows
from .heads import (
    BernoulliHead as BernoulliHead,
    CategoricalHead as CategoricalHead,
    GaussianHead as GaussianHead,
    LowRankHead as LowRankHead,
    PoissonHead as PoissonHead,
)
from .information import (
    differences as differences,
    information as information,
    jacobian as jacobian,
    likelihood_and_score as likelihood_and_score,
)
from .latent import NormalMixture as NormalMixture, StandardNormal as StandardNormal
from .linear import LinearGaussian as LinearGaussian, LinearStatistics as LinearStatistics
from .mixture import Mixture
from .networks import (
    Convolutions as Convolutions,
    Deconvolutions as Deconvolutions,
    Layers as Layers,
    ModuleNetwork as ModuleNetwork,
    Part as Part,
    SavedModule as SavedModule,
)
from .ppca import PrincipalModel
from .quadrature import group_log_likelihood as group_log_likelihood, modes as modes
from .random_effects import (
    BernoulliResponse as BernoulliResponse,
    EffectSums as EffectSums,
    PoissonResponse as PoissonResponse,
    RandomEffects as RandomEffects,
    Response as Response,
)
from .relevance import RelevancePrior as RelevancePrior, best_turn as best_turn
from .variational_factor import VariationalFactor as VariationalFactor
from .variational_mixture import VariationalMixture as VariationalMixture

__all__ = ["FactorModel", "Mixture", "PrincipalModel"]
