"""scikit-learn classes, thin: they choose an initialiser and an engine, nothing else."""

from boxloop.estimators.autoencoder import VariationalAutoencoder
from boxloop.estimators.bayesian_factor_analysis import BayesianFactorAnalysis
from boxloop.estimators.bayesian_gaussian_mixture import BayesianGaussianMixture
from boxloop.estimators.bayesian_linear_regression import BayesianLinearRegression
from boxloop.estimators.bayesian_multinomial_mixture import BayesianMultinomialMixture
from boxloop.estimators.bernoulli_mixture import BernoulliMixture
from boxloop.estimators.energy_model import EnergyBasedModel
from boxloop.estimators.factor_analysis import FactorAnalysis
from boxloop.estimators.files import load
from boxloop.estimators.gaussian_mixture import GaussianMixture
from boxloop.estimators.multinomial_mixture import MultinomialMixture
from boxloop.estimators.network_classifier import NetworkClassifier
from boxloop.estimators.network_regressor import NetworkRegressor
from boxloop.estimators.poisson_mixture import PoissonMixture
from boxloop.estimators.probabilistic_pca import ProbabilisticPCA
from boxloop.estimators.random_effects import LogisticRandomEffects, PoissonRandomEffects
from boxloop.estimators.relevant_classifier import RelevantClassifier
from boxloop.estimators.relevant_features import RelevantFeatures
from boxloop.estimators.relevant_generator import RelevantGenerator
from boxloop.estimators.warned import FitWarning

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
