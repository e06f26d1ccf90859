"""A fitted estimator from a file: what it is, how its fit went, and what its numbers are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from boxloop.cli.names import TABLES
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

Fitted = LatentEstimator | VariationalAutoencoder
TwoViews = RelevantFeatures | RelevantClassifier
Networks = NetworkRegressor | NetworkClassifier
Bayesian = BayesianMixtureEstimator | BayesianFactorAnalysis


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


def is_bound(estimator: Fitted) -> bool:
    """Whether its log-densities are lower bounds."""
    return isinstance(estimator, VariationalAutoencoder)


def errs_by_rows(estimator: Fitted) -> bool:
    """Whether the error of its parameters follows from the rows it was fitted to."""
    return not isinstance(estimator, Bayesian | VariationalAutoencoder)


def counts(estimator: Fitted) -> bool:
    """Whether its rows are whole numbers."""
    if isinstance(estimator, VariationalAutoencoder):
        return estimator.likelihood != "gaussian"
    return isinstance(estimator, CountMixture)


def size(estimator: Fitted) -> int:
    """Number of parameters; of a Bayesian model, of the parts in use."""
    return (
        estimator.n_parameters()
        if isinstance(estimator, VariationalAutoencoder)
        else estimator._n_parameters()
    )


def likelihood_word(estimator: Fitted) -> str:
    """What its scores are."""
    if isinstance(estimator, Bayesian):
        return "log predictive density per row"
    return "lower bound of log-likelihood per row" if is_bound(estimator) else "log-likelihood per row"


def bound(estimator: Fitted) -> float:
    """What the fit raised, per row; of an autoencoder on validation rows, where there are any."""
    if not isinstance(estimator, VariationalAutoencoder):
        return float(estimator.lower_bound_)
    history = estimator.history_.get("validation_elbo") or estimator.history_.get("elbo")
    return float(max(history)) if history else float("nan")


def bound_word(estimator: Fitted) -> str:
    """What :func:`bound` is."""
    if isinstance(estimator, VariationalAutoencoder):
        held = "validation_elbo" in estimator.history_
        return f"evidence bound per row{', validation' if held else ''}"
    return "evidence bound per row" if isinstance(estimator, Bayesian) else "log-likelihood per row"


def fitted_columns(estimator: Fitted | Networks) -> list[str] | None:
    """The columns to look for in a table; None where an estimator was fitted to columns without names."""
    names = vars(estimator).get("feature_names_in_")
    return None if names is None else [str(name) for name in names]


def column_names(estimator: Fitted | Networks) -> list[str]:
    """The columns an estimator was fitted to; ``x0, x1, ...`` where they had no names."""
    return fitted_columns(estimator) or [f"x{j}" for j in range(estimator.n_features_in_)]


def facts(estimator: Fitted) -> dict[str, Any]:
    """How the fit went."""
    return {
        "iterations": estimator.n_iter_,
        "converged": estimator.converged_,
        "interrupted": estimator.interrupted_,
        "lower_bound": bound(estimator),
        "events": list(estimator.events_),
    }
