from ._base import Array as Array, FitWarning, LatentEstimator as LatentEstimator, to_numpy as to_numpy
from ._network import MemberTraining as MemberTraining, hold_out as hold_out, training_rows as training_rows
from ._params import pick_device as pick_device
from .autoencoder import VariationalAutoencoder
from .autoencoder_fit import ALPHAS as ALPHAS, BoundLoss as BoundLoss, chosen as chosen
from .bayesian_factor_analysis import BayesianFactorAnalysis
from .bayesian_gaussian_mixture import BayesianGaussianMixture, root_gamma_moments as root_gamma_moments
from .bayesian_linear_regression import BayesianLinearRegression
from .bayesian_mixture import BayesianMixtureEstimator as BayesianMixtureEstimator
from .bayesian_multinomial_mixture import BayesianMultinomialMixture
from .bernoulli_mixture import BernoulliMixture
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
from .relevant_channel import BLOCK as BLOCK, drawn as drawn
from .relevant_classifier import RelevantClassifier
from .relevant_classifier_probability import (
    fitted_temperature as fitted_temperature,
    onto_simplex as onto_simplex,
    with_temperature as with_temperature,
)
from .relevant_features import RelevantFeatures
from .relevant_generator import RelevantGenerator
from .relevant_infer import Direction as Direction
from .relevant_refit import Refits as Refits
from .relevant_rows import Edge as Edge

__all__ = [
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
