"""Posteriors over the weights of networks, and whether to believe them."""

from boxloop.weights.audit import Audit, audit
from boxloop.weights.classes import ClassificationPrediction
from boxloop.weights.decay import DecayCheck, check_decay, implied_precision, weight_decay
from boxloop.weights.ensemble import MultiPosterior
from boxloop.weights.factor import FactorEM
from boxloop.weights.fitting import Training, fit
from boxloop.weights.full import Full
from boxloop.weights.gradient import FactorGradient
from boxloop.weights.laplace import LastLayerPosterior, last_layer_laplace
from boxloop.weights.last_layer import LastLayer
from boxloop.weights.law import WeightLaw
from boxloop.weights.layout import Layout
from boxloop.weights.linear_regression import LinearPosterior, LinearPrediction, linear_regression
from boxloop.weights.method import Follower, Method, Part, Posterior, WeightWarning
from boxloop.weights.posterior import WeightPosterior
from boxloop.weights.posterior_files import load_posterior, save_posterior
from boxloop.weights.prediction import RegressionPrediction
from boxloop.weights.predictor import Predictor
from boxloop.weights.record import Record
from boxloop.weights.regression_moments import RegressionMoments, regression_moments
from boxloop.weights.swa import SWA
from boxloop.weights.swag import SWAG
from boxloop.weights.tuning import Tuning
from boxloop.weights.window import Windowed, window_length
from boxloop.weights.worries import Worry

__all__ = [
    "SWA",
    "SWAG",
    "Audit",
    "ClassificationPrediction",
    "DecayCheck",
    "FactorEM",
    "FactorGradient",
    "Follower",
    "Full",
    "LastLayer",
    "LastLayerPosterior",
    "Layout",
    "LinearPosterior",
    "LinearPrediction",
    "Method",
    "MultiPosterior",
    "Part",
    "Posterior",
    "Predictor",
    "Record",
    "RegressionMoments",
    "RegressionPrediction",
    "Training",
    "Tuning",
    "WeightLaw",
    "WeightPosterior",
    "WeightWarning",
    "Windowed",
    "Worry",
    "audit",
    "check_decay",
    "fit",
    "implied_precision",
    "last_layer_laplace",
    "linear_regression",
    "load_posterior",
    "regression_moments",
    "save_posterior",
    "weight_decay",
    "window_length",
]
