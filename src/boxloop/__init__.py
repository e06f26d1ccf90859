"""Latent-variable models as one loop: build, compute, criticise, repeat."""

from importlib import import_module
from typing import TYPE_CHECKING

from boxloop.version import __version__ as __version__

_HOMES = {
    "BayesianFactorAnalysis": "boxloop.estimators",
    "BayesianGaussianMixture": "boxloop.estimators",
    "BayesianLinearRegression": "boxloop.estimators",
    "BayesianMultinomialMixture": "boxloop.estimators",
    "BernoulliMixture": "boxloop.estimators",
    "EnergyBasedModel": "boxloop.estimators",
    "FactorAnalysis": "boxloop.estimators",
    "FitWarning": "boxloop.estimators",
    "GaussianMixture": "boxloop.estimators",
    "LogisticRandomEffects": "boxloop.estimators",
    "MultinomialMixture": "boxloop.estimators",
    "NetworkClassifier": "boxloop.estimators",
    "NetworkRegressor": "boxloop.estimators",
    "PoissonMixture": "boxloop.estimators",
    "PoissonRandomEffects": "boxloop.estimators",
    "ProbabilisticPCA": "boxloop.estimators",
    "RelevantClassifier": "boxloop.estimators",
    "RelevantFeatures": "boxloop.estimators",
    "RelevantGenerator": "boxloop.estimators",
    "VariationalAutoencoder": "boxloop.estimators",
    "load": "boxloop.estimators",
    "Cavi": "boxloop.estimate",
    "Estimate": "boxloop.estimate",
    "Node": "boxloop.laws.nodes",
    "cavi": "boxloop.estimate",
    "distributed": "boxloop.estimate",
    "m_estimate": "boxloop.estimate",
    "match_moments": "boxloop.estimate",
    "z_estimate": "boxloop.estimate",
    "ProgressBar": "boxloop.progress",
    "use_threads": "boxloop.numeric.threads",
    "OutlierDetector": "boxloop.select",
    "Select": "boxloop.select",
    "active_units": "boxloop.criticise",
    "aggregate_gap": "boxloop.criticise",
    "as_model": "boxloop.criticise",
    "compare": "boxloop.select",
    "make_report": "boxloop.report.making",
    "mega": "boxloop.criticise",
    "moment_penalty": "boxloop.criticise",
    "penalised_path": "boxloop.select",
    "topic_spectrum": "boxloop.select",
    "MultiPosterior": "boxloop.weights",
    "WeightPosterior": "boxloop.weights",
}
"""Each public name and the module it is loaded from on first use, so that importing boxloop is quick."""

if TYPE_CHECKING:
    from boxloop.criticise import active_units as active_units
    from boxloop.criticise import aggregate_gap as aggregate_gap
    from boxloop.criticise import as_model as as_model
    from boxloop.criticise import mega as mega
    from boxloop.criticise import moment_penalty as moment_penalty
    from boxloop.estimate import Cavi as Cavi
    from boxloop.estimate import Estimate as Estimate
    from boxloop.estimate import cavi as cavi
    from boxloop.estimate import distributed as distributed
    from boxloop.estimate import m_estimate as m_estimate
    from boxloop.estimate import match_moments as match_moments
    from boxloop.estimate import z_estimate as z_estimate
    from boxloop.estimators import BayesianFactorAnalysis as BayesianFactorAnalysis
    from boxloop.estimators import BayesianGaussianMixture as BayesianGaussianMixture
    from boxloop.estimators import BayesianLinearRegression as BayesianLinearRegression
    from boxloop.estimators import BayesianMultinomialMixture as BayesianMultinomialMixture
    from boxloop.estimators import BernoulliMixture as BernoulliMixture
    from boxloop.estimators import EnergyBasedModel as EnergyBasedModel
    from boxloop.estimators import FactorAnalysis as FactorAnalysis
    from boxloop.estimators import FitWarning as FitWarning
    from boxloop.estimators import GaussianMixture as GaussianMixture
    from boxloop.estimators import LogisticRandomEffects as LogisticRandomEffects
    from boxloop.estimators import MultinomialMixture as MultinomialMixture
    from boxloop.estimators import NetworkClassifier as NetworkClassifier
    from boxloop.estimators import NetworkRegressor as NetworkRegressor
    from boxloop.estimators import PoissonMixture as PoissonMixture
    from boxloop.estimators import PoissonRandomEffects as PoissonRandomEffects
    from boxloop.estimators import ProbabilisticPCA as ProbabilisticPCA
    from boxloop.estimators import RelevantClassifier as RelevantClassifier
    from boxloop.estimators import RelevantFeatures as RelevantFeatures
    from boxloop.estimators import RelevantGenerator as RelevantGenerator
    from boxloop.estimators import VariationalAutoencoder as VariationalAutoencoder
    from boxloop.estimators import load as load
    from boxloop.laws.nodes import Node as Node
    from boxloop.numeric.threads import use_threads as use_threads
    from boxloop.progress import ProgressBar as ProgressBar
    from boxloop.report.making import make_report as make_report
    from boxloop.select import OutlierDetector as OutlierDetector
    from boxloop.select import Select as Select
    from boxloop.select import compare as compare
    from boxloop.select import penalised_path as penalised_path
    from boxloop.select import topic_spectrum as topic_spectrum
    from boxloop.weights import MultiPosterior as MultiPosterior
    from boxloop.weights import WeightPosterior as WeightPosterior
else:
    __all__ = ["__version__", *_HOMES]

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'boxloop' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
