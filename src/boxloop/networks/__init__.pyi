from boxloop.concerns import Concern

from .audit.audit import Audit, audit, score_held_out as score_held_out
from .audit.chains import (
    ChainComparison as ChainComparison,
    compare_chains as compare_chains,
    compare_predictions as compare_predictions,
    compute_laplace_root as compute_laplace_root,
    grade_agreement as grade_agreement,
    make_log_posterior as make_log_posterior,
)
from .audit.last_layer import build_mean_network as build_mean_network, check_last_layer as check_last_layer
from .audit.trajectory import check_trajectory as check_trajectory
from .constraints import CLASSES as CLASSES, CONSTRAINTS as CONSTRAINTS, METHODS as METHODS
from .distribution import Component, Method, Posterior, RunningEstimate, WeightDistribution, WeightWarning
from .draws import (
    DrawAllocation as DrawAllocation,
    InputBatches as InputBatches,
    NetworkDraws as NetworkDraws,
    has_batch_norm as has_batch_norm,
)
from .ensemble import MultiPosterior, stacking_weights as stacking_weights
from .function import NetworkFunction as NetworkFunction, check_row_independence as check_row_independence
from .inputs import (
    as_inputs as as_inputs,
    as_rows as as_rows,
    count_rows as count_rows,
    iterate_tensors as iterate_tensors,
    map_tensors as map_tensors,
    slice_rows as slice_rows,
)
from .linear_regression import (
    Centre as Centre,
    LinearPosterior,
    LinearPrediction,
    RegressionMoments,
    Spectrum as Spectrum,
    linear_regression,
    regression_moments,
)
from .methods.factor import MAX_STANDARDISED as MAX_STANDARDISED, FactorEM, FactorGradient
from .methods.laplace import LastLayer, LastLayerPosterior, last_layer_laplace
from .methods.sample_moments import SWA, SWAG, FullCovariance
from .methods.window_average import WindowAverage, window_length
from .perceptrons import (
    ACTIVATIONS as ACTIVATIONS,
    ShuffledBatches as ShuffledBatches,
    StackedLayers as StackedLayers,
    make_perceptron as make_perceptron,
    sum_loss_over_members as sum_loss_over_members,
    weight_loss_by_row as weight_loss_by_row,
)
from .posterior import (
    METHOD_NAMES as METHOD_NAMES,
    TRACED_WEIGHTS as TRACED_WEIGHTS,
    Layout,
    PosteriorState as PosteriorState,
    TraceRecorder as TraceRecorder,
    WeightPosterior,
    WeightTrace,
    load_posterior,
    pick_method as pick_method,
    save_posterior,
)
from .prediction import (
    ClassificationPrediction,
    RegressionPrediction,
    as_logits as as_logits,
    look_like_probabilities as look_like_probabilities,
    mixture_log_prob as mixture_log_prob,
    mixture_quantile as mixture_quantile,
)
from .predictor import KEEP as KEEP, Kind as Kind, Predictor
from .train import Loss as Loss, TrainingHistory, fit, train as train
from .tuning import (
    SCALES as SCALES,
    Profile as Profile,
    Tuning,
    find_best_noise as find_best_noise,
    find_best_temperature as find_best_temperature,
    log_scale_prior as log_scale_prior,
    tune_scale as tune_scale,
)
from .weight_decay import DecayCheck, check_weight_decay, implied_precision, weight_decay

__all__ = [
    "SWA",
    "SWAG",
    "Audit",
    "ClassificationPrediction",
    "Component",
    "Concern",
    "DecayCheck",
    "FactorEM",
    "FactorGradient",
    "FullCovariance",
    "LastLayer",
    "LastLayerPosterior",
    "Layout",
    "LinearPosterior",
    "LinearPrediction",
    "Method",
    "MultiPosterior",
    "Posterior",
    "Predictor",
    "RegressionMoments",
    "RegressionPrediction",
    "RunningEstimate",
    "TrainingHistory",
    "Tuning",
    "WeightDistribution",
    "WeightPosterior",
    "WeightTrace",
    "WeightWarning",
    "WindowAverage",
    "audit",
    "check_weight_decay",
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
