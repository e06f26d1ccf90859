from ._base import Array as Array, FitWarning, LatentEstimator as LatentEstimator, to_numpy as to_numpy
from ._input import pick_device as pick_device
from ._network import MemberTraining as MemberTraining, hold_out as hold_out, training_rows as training_rows
from ._two_views import ViewSchema as ViewSchema
from .bayesian_factor_analysis import BayesianFactorAnalysis
from .bayesian_gaussian_mixture import BayesianGaussianMixture, root_gamma_moments as root_gamma_moments
from .bayesian_linear_regression import BayesianLinearRegression
from .bayesian_mixture import BayesianMixtureEstimator as BayesianMixtureEstimator
from .bayesian_multinomial_mixture import BayesianMultinomialMixture
from .bernoulli_mixture import BernoulliMixture
from .cca import CCA
from .count_mixture import CountMixture as CountMixture
from .energy_model import (
    KERNELS as KERNELS,
    ChainSettings as ChainSettings,
    EnergyBasedModel,
    anneal_chains as anneal_chains,
    reference_distribution as reference_distribution,
)
from .factor_analysis import FactorAnalysis
from .gaussian_mixture import GaussianMixture
from .linear_gaussian import LinearEstimator as LinearEstimator
from .mixture import MixtureEstimator as MixtureEstimator
from .multinomial_mixture import MultinomialMixture
from .network_classifier import NetworkClassifier
from .network_regressor import NetworkRegressor
from .poisson_mixture import PoissonMixture
from .probabilistic_pca import ProbabilisticPCA
from .random_effects import LogisticRandomEffects, PoissonRandomEffects
from .registry import load
from .relevant_classifier import (
    RelevantClassifier,
    apply_temperature as apply_temperature,
    fit_temperature as fit_temperature,
    project_to_simplex as project_to_simplex,
)
from .relevant_features import Direction as Direction, RelevantFeatures, inflate_errors as inflate_errors
from .relevant_generator import RelevantGenerator
from .variational_autoencoder import (
    ALPHAS as ALPHAS,
    BoundLoss as BoundLoss,
    VariationalAutoencoder,
    choose_alpha as choose_alpha,
)

__all__ = [
    "CCA",
    "BayesianFactorAnalysis",
    "BayesianGaussianMixture",
    "BayesianLinearRegression",
    "BayesianMultinomialMixture",
    "BernoulliMixture",
    "EnergyBasedModel",
    "FactorAnalysis",
    "FitWarning",
    "GaussianMixture",
    "LogisticRandomEffects",
    "MultinomialMixture",
    "NetworkClassifier",
    "NetworkRegressor",
    "PoissonMixture",
    "PoissonRandomEffects",
    "ProbabilisticPCA",
    "RelevantClassifier",
    "RelevantFeatures",
    "RelevantGenerator",
    "VariationalAutoencoder",
    "load",
]
