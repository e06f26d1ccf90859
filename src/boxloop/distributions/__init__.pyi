from .categorical import Categorical, CategoricalColumns
from .conjugate_gaussian import (
    NormalInverseGamma as NormalInverseGamma,
    NormalInverseWishart as NormalInverseWishart,
    SphericalNormalInverseGamma as SphericalNormalInverseGamma,
    TiedInverseWishart as TiedInverseWishart,
    wishart_root as wishart_root,
)
from .counts import Bernoulli, LogitBernoulli, LogPoisson, Poisson
from .dirichlet import Dirichlet as Dirichlet, StickBreaking as StickBreaking, WordDirichlet as WordDirichlet
from .empirical import Empirical as Empirical, PointMasses as PointMasses
from .exponential import (
    BernoulliFamily as BernoulliFamily,
    CategoricalFamily as CategoricalFamily,
    DirichletFamily as DirichletFamily,
    ExponentialFamily as ExponentialFamily,
    GammaFamily as GammaFamily,
    MultinomialFamily as MultinomialFamily,
    MultivariateNormalFamily as MultivariateNormalFamily,
    NormalFamily as NormalFamily,
    PoissonFamily as PoissonFamily,
    Statistic as Statistic,
    WaitingTimeFamily as WaitingTimeFamily,
)
from .family import Family as Family, PooledSums as PooledSums, Sums as Sums
from .gamma import InverseGamma as InverseGamma, draw_log_gamma as draw_log_gamma
from .gaussian_diagonal import CentredView as CentredView, DiagonalGaussian, SphericalGaussian
from .gaussian_full import (
    QUADRATIC_COLUMNS as QUADRATIC_COLUMNS,
    FullGaussian,
    QuadraticView as QuadraticView,
    WhitenedView as WhitenedView,
)
from .gaussian_lowrank import LowRankGaussian, TiedLowRankGaussian
from .gaussian_tied import TiedGaussian
from .missing import PatternView as PatternView, find_missing_patterns as find_missing_patterns
from .multinomial import Multinomial
from .nodes import Node as Node
from .normal_mixture import NormalMixture
from .priors import (
    Component as Component,
    ComponentDistribution as ComponentDistribution,
    CovarianceType as CovarianceType,
    FactorPrior as FactorPrior,
    MixturePrior as MixturePrior,
    weakly_informative_components as weakly_informative_components,
)
from .product import MissingValueView as MissingValueView, alternating_signs as alternating_signs

__all__ = [
    "Bernoulli",
    "Categorical",
    "CategoricalColumns",
    "DiagonalGaussian",
    "FullGaussian",
    "LogPoisson",
    "LogitBernoulli",
    "LowRankGaussian",
    "Multinomial",
    "NormalMixture",
    "Poisson",
    "SphericalGaussian",
    "TiedGaussian",
    "TiedLowRankGaussian",
]
