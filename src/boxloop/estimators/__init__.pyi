from ._base import Array as Array, FitWarning, LatentEstimator as LatentEstimator, to_numpy as to_numpy
from ._network import MemberTraining as MemberTraining, hold_out as hold_out, training_rows as training_rows
from ._params import pick_device as pick_device
from ._two_views import ViewSchema as ViewSchema
from .autoencoder import VariationalAutoencoder
from .autoencoder_fit import ALPHAS as ALPHAS, BoundLoss as BoundLoss, chosen as chosen
from .bayesian_factor_analysis import BayesianFactorAnalysis
from .bayesian_gaussian_mixture import BayesianGaussianMixture, root_gamma_moments as root_gamma_moments
from .bayesian_linear_regression import BayesianLinearRegression
from .bayesian_mixture import BayesianMixtureEstimator as BayesianMixtureEstimator
from .bayesian_multinomial_mixture import BayesianMultinomialMixture
from .bernoulli_mixture import BernoulliMixture
from .cca import CCA
from .counts import CountMixture as CountMixture
from .energy_fit import KERNELS as KERNELS, Means as Means, explore as explore, reference as reference
from .energy_model import EnergyBasedModel
from .factor_analysis import FactorAnalysis
from .gaussian_mixture import GaussianMixture
from .linear import LinearEstimator as LinearEstimator
from .loading import SAVED as SAVED, load
from .mixture import MixtureEstimator as MixtureEstimator
from .multinomial_mixture import MultinomialMixture
from .network_classifier import NetworkClassifier
from .network_regressor import NetworkRegressor
from .poisson_mixture import PoissonMixture
from .probabilistic_pca import ProbabilisticPCA
from .random_effects import LogisticRandomEffects, PoissonRandomEffects
from .relevant_classifier import (
    RelevantClassifier,
    apply_temperature as apply_temperature,
    fit_temperature as fit_temperature,
    project_to_simplex as project_to_simplex,
)
from .relevant_features import Direction as Direction, RelevantFeatures, inflate_errors as inflate_errors
from .relevant_generator import RelevantGenerator

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
