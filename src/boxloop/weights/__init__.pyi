from boxloop.concerns import Concern

from .audit import Audit, audit
from .audit_chain import (
    Chains as Chains,
    compare_chains as compare_chains,
    compare_with_chains as compare_with_chains,
    judged as judged,
    laplace_root as laplace_root,
    log_posterior as log_posterior,
)
from .audit_held import held_out as held_out
from .audit_iterates import iterates as iterates
from .audit_last import (
    check_last_layer as check_last_layer,
    exact_last_layer as exact_last_layer,
    mean_network as mean_network,
)
from .batch_norm import Batches as Batches, has_batch_norm as has_batch_norm, refreshed as refreshed
from .classes import (
    ClassificationPrediction,
    as_logits as as_logits,
    look_like_probabilities as look_like_probabilities,
)
from .constraints import CLASSES as CLASSES, CONSTRAINTS as CONSTRAINTS, METHODS as METHODS
from .decay import DecayCheck, check_decay, implied_precision, weight_decay
from .ensemble import MultiPosterior, stacking_weights as stacking_weights
from .factor import FactorEM
from .fitting import Loss as Loss, Training, fit, train as train
from .full import Full
from .functional import NetFunction as NetFunction, refuse_untracked as refuse_untracked
from .gradient import FAR as FAR, FactorGradient
from .inputs import (
    as_inputs as as_inputs,
    as_rows as as_rows,
    count as count,
    cut as cut,
    mapped as mapped,
    tensors as tensors,
)
from .laplace import LastLayerPosterior, last_layer_laplace
from .last_layer import LastLayer
from .law import WeightLaw
from .layout import Layout
from .likely import Found as Found, best_noise as best_noise, likely_temperature as likely_temperature
from .linear_evidence import Spectrum as Spectrum
from .linear_regression import LinearPosterior, LinearPrediction, linear_regression
from .members import (
    ACTIVATIONS as ACTIVATIONS,
    ShuffledRows as ShuffledRows,
    StackedLayers as StackedLayers,
    perceptron as perceptron,
    summed as summed,
    weighted as weighted,
)
from .method import Follower, Method, Part, Posterior, WeightWarning
from .methods import WORDS as WORDS, method_of as method_of
from .mixture_quantile import mixture_quantile as mixture_quantile
from .outputs import Draws as Draws, run_draws as run_draws
from .posterior import PosteriorState as PosteriorState, WeightPosterior, load_posterior, save_posterior
from .prediction import RegressionPrediction, mixture_log_prob as mixture_log_prob
from .predictor import NET as NET, Kind as Kind, Predictor
from .record import PROBES as PROBES, Record, Recorder as Recorder
from .regression_moments import Centre as Centre, RegressionMoments, regression_moments
from .strata import Strata as Strata
from .swa import SWA
from .swag import SWAG
from .tuning import SCALES as SCALES, Tuning, scale_prior as scale_prior, tune as tune
from .window import Windowed, window_length

__all__ = [
    "SWA",
    "SWAG",
    "Audit",
    "ClassificationPrediction",
    "Concern",
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
