"""Estimators: made of options or loaded from files, how their fits went, and what their numbers are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from boxloop import estimators
from boxloop.cli.names import MODELS, TABLES
from boxloop.data import make_frame
from boxloop.estimators import (
    BayesianFactorAnalysis,
    BayesianMixtureEstimator,
    CountMixture,
    LatentEstimator,
    NetworkClassifier,
    NetworkRegressor,
    RelevantClassifier,
    RelevantFeatures,
    VariationalAutoencoder,
    load,
)
from boxloop.persist import ModelFileError, is_checkpoint
from boxloop.types import Source

Fitted = LatentEstimator | VariationalAutoencoder
TwoViews = RelevantFeatures | RelevantClassifier
Networks = NetworkRegressor | NetworkClassifier
Bayesian = BayesianMixtureEstimator | BayesianFactorAnalysis

FLAGS = {
    "n_components": "--components",
    "covariance_type": "--covariance",
    "init_params": "--init",
    "random_state": "--seed",
}
"""Options whose name is not that of the estimator's parameter."""

USUAL: dict[str, dict[str, Any]] = {
    "bayesian-mixture": {"n_components": 10},
    "bayesian-multinomial-mixture": {"n_components": 10},
}
"""Default number of components: an upper bound, for models that empty components."""


def load_model(path: Path) -> Fitted:
    """Read the file of a model that has a density of rows; its tensors are on the CPU, wherever they were fitted."""
    found = load_any(path)
    if isinstance(found, TwoViews):
        raise ModelFileError(
            f"{path}: holds {type(found).__name__}, two views, which have no density of rows to score or draw from; "
            "`boxloop show` and `boxloop score` take it, and `boxloop relate` judges its like"
        )
    if isinstance(found, Networks):
        raise ModelFileError(
            f"{path}: holds {type(found).__name__}, which predicts a column and has no density of rows; `boxloop show` "
            "and `boxloop score` take it, and `boxloop network` judges its like"
        )
    return found


def load_any(path: Path) -> Fitted | TwoViews | Networks:
    """Read any model file that commands know."""
    try:
        found = load(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such model file; `boxloop fit` writes one") from error
    except ModelFileError as error:
        if path.is_dir() or path.name.lower().endswith(TABLES):
            raise ModelFileError(
                f"{path}: a table or a folder where a model file is needed; `boxloop fit` makes a model of a table"
            ) from error
        if is_checkpoint(path):
            raise ModelFileError(
                f"{path}: a checkpoint of a fit, not a model; the same `boxloop fit` continues from it"
            ) from error
        raise ModelFileError(f"{error}; `boxloop fit` writes model files") from error
    if not isinstance(found, Fitted | TwoViews | Networks):
        raise ModelFileError(
            f"{path}: holds {type(found).__name__}, which commands do not read; boxloop.load does"
        )
    return found.set_params(device="cpu")


def has_lower_bound_scores(estimator: Fitted) -> bool:
    """Whether its log-densities are lower bounds."""
    return isinstance(estimator, VariationalAutoencoder)


def has_parameter_errors(estimator: Fitted) -> bool:
    """Whether the error of its parameters follows from the rows it was fitted to."""
    return not isinstance(estimator, Bayesian | VariationalAutoencoder)


def has_integer_rows(estimator: Fitted) -> bool:
    """Whether its rows are whole numbers."""
    if isinstance(estimator, VariationalAutoencoder):
        return estimator.likelihood != "gaussian"
    return isinstance(estimator, CountMixture)


def count_parameters(estimator: Fitted) -> int:
    """Number of parameters; of a Bayesian model, of the parts in use."""
    return (
        estimator.n_parameters()
        if isinstance(estimator, VariationalAutoencoder)
        else estimator._count_parameters()
    )


def name_likelihood(estimator: Fitted) -> str:
    """What its scores are."""
    if isinstance(estimator, Bayesian):
        return "log predictive density per row"
    return (
        "lower bound of log-likelihood per row"
        if has_lower_bound_scores(estimator)
        else "log-likelihood per row"
    )


def get_objective(estimator: Fitted) -> float:
    """What the fit raised, per row; of an autoencoder on validation rows, where there are any."""
    if not isinstance(estimator, VariationalAutoencoder):
        return float(estimator.lower_bound_)
    history = estimator.history_.get("validation_elbo") or estimator.history_.get("elbo")
    return float(max(history)) if history else float("nan")


def name_objective(estimator: Fitted) -> str:
    """What :func:`get_objective` is."""
    if isinstance(estimator, VariationalAutoencoder):
        held = "validation_elbo" in estimator.history_
        return f"evidence bound per row{', validation' if held else ''}"
    return "evidence bound per row" if isinstance(estimator, Bayesian) else "log-likelihood per row"


def get_fitted_columns(estimator: Fitted | Networks) -> list[str] | None:
    """The columns to look for in a table; None where an estimator was fitted to columns without names."""
    names = vars(estimator).get("feature_names_in_")
    return None if names is None else [str(name) for name in names]


def get_column_names(estimator: Fitted | Networks) -> list[str]:
    """The columns an estimator was fitted to; ``x0, x1, ...`` where they had no names."""
    return get_fitted_columns(estimator) or [f"x{j}" for j in range(estimator.n_features_in_)]


def list_changed_options(estimator: Any) -> str:
    """The options of an estimator that are not the defaults."""
    defaults: dict[str, Any] = type(estimator)().get_params(deep=False)
    chosen = estimator.get_params(deep=False).items()
    return ", ".join(f"{name}={value!r}" for name, value in chosen if value != defaults[name]) or "defaults"


def summarise_fit(estimator: Any, middle: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Lines for people: options, what is given, how the fit ended, and notes on it."""
    ended = (
        "interrupted" if estimator.interrupted_ else "converged" if estimator.converged_ else "not converged"
    )
    return [
        ("options", list_changed_options(estimator)),
        *middle,
        ("iterations", f"{estimator.n_iter_}, {ended}"),
        *(("note", event) for event in estimator.events_),
    ]


def join_first(names: Sequence[str], most: int = 16) -> str:
    """The first names of a list, and dots where there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def describe_fit(estimator: Fitted) -> dict[str, Any]:
    """How the fit went."""
    return {
        "iterations": estimator.n_iter_,
        "converged": estimator.converged_,
        "interrupted": estimator.interrupted_,
        "lower_bound": get_objective(estimator),
        "events": list(estimator.events_),
    }


def make_estimator(model: str, given: Mapping[str, Any]) -> Fitted:
    """The estimator with the options that were given, None being none; one that it does not have is wrong usage."""
    kind: Any = getattr(estimators, MODELS[model])
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in kind().get_params():
            raise click.UsageError(f"{model} has no option {option_name(name)}")
    streams = "method" in kind().get_params()
    if streams and "batch_size" in given and given.get("method", "em") in ("em", "spectral"):
        raise click.UsageError("--batch-size needs --method online or --method gradient")
    made: Fitted = kind(**{**USUAL.get(model, {}), **given})
    return made


def read_frame(source: Source) -> Any:
    """A table as a frame, for work that takes rows in and out."""
    values: Any = torch.cat([rows for rows, _ in source.chunks()]).numpy()
    return make_frame({name: values[:, j] for j, name in enumerate(source.names)})


def option_name(name: str) -> str:
    """The option that sets a parameter of an estimator."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
