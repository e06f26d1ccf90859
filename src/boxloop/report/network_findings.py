"""What a network with error bars is worth on held-out rows, beside simple methods."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.concerns import Concern, sort_by_level
from boxloop.criticise import (
    ClassificationScores,
    Difference,
    RegressionScores,
    classification_scores,
    regression_scores,
)
from boxloop.data import make_frame
from boxloop.estimators import (
    Array,
    BayesianLinearRegression,
    FitWarning,
    NetworkClassifier,
    NetworkRegressor,
)
from boxloop.networks import Audit
from boxloop.numeric import mean_and_error

Network = NetworkRegressor | NetworkClassifier
Scores = RegressionScores | ClassificationScores

NETWORK, MEAN_NETWORK = "network", "mean network alone"
SIGNIFICANT = 2.0
"""Standard errors from which a lead is one."""
LEVEL = 0.9
"""Of the intervals whose coverage is reported."""
WORST = 10
"""Rows that are listed."""
MAX_ITER = 5000
"""Most iterations of a logistic regression."""


@dataclass(frozen=True, eq=False)
class SupervisedTable:
    """A table of n rows with a column to predict, of which some rows are held out.

    Args:
        label: the file or the bundled data set.
        names: of the inputs.
        target: name of the column that is predicted.
        X: inputs, (n, d).
        y: numbers or labels, (n,).
        kind: ``regression`` or ``classification``.
        kind_reason: why it is of this kind.
        left_out: columns that are not used, with the reason.
        digest: SHA-256 of the data.
        held_out: which rows are, (n,).
    """

    label: str
    names: tuple[str, ...]
    target: str
    X: Array
    y: NDArray[Any]
    kind: str
    kind_reason: str
    left_out: Mapping[str, str]
    digest: str
    held_out: NDArray[np.bool_]

    @property
    def fit_data(self) -> tuple[Any, NDArray[Any]]:
        """Rows of the fit: a frame of inputs, and the target."""
        return self._frame(~self.held_out), self.y[~self.held_out]

    @property
    def held_out_data(self) -> tuple[Any, NDArray[Any]]:
        """Rows held out, likewise."""
        return self._frame(self.held_out), self.y[self.held_out]

    def _frame(self, mask: NDArray[np.bool_]) -> Any:
        return make_frame({name: self.X[mask, j] for j, name in enumerate(self.names)})


@dataclass(frozen=True, eq=False)
class NetworkFindings:
    """A fitted network: its predictions of the held-out rows, and the audit of its posterior.

    Scores are by name of the predictor, the network first, simple methods after it.
    """

    table: SupervisedTable
    network: Network
    predictions: Any
    scores: dict[str, Scores]
    audit: Audit
    seed: int

    @property
    def leads(self) -> dict[str, Difference]:
        """Log score of the network less that of each other predictor, row by row."""
        own = self.scores[NETWORK]
        return {
            name: _log_score_difference(own, other) for name, other in self.scores.items() if name != NETWORK
        }

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """Against simple methods, and all of the audit's; worst first."""
        return sort_by_level((self._compare_with_simple_methods(), *self.audit.concerns))

    @property
    def events(self) -> list[str]:
        """What was worth knowing of the fit."""
        return list(self.network.events_)

    def _compare_with_simple_methods(self) -> Concern:
        """Against the simple method of the best log score."""
        what = "Against simple methods"
        simple = {name: found for name, found in self.leads.items() if name != MEAN_NETWORK}
        other = min(simple, key=lambda name: simple[name].value)
        lead = simple[other]
        why = f"The mean log score differs from that of {other} by {lead}"
        if lead.z < -SIGNIFICANT:
            return Concern(
                "bad",
                what,
                f"{why}: it is worse",
                f"use {other}, or try more rows, another prior or other widths",
            )
        if not lead.z > SIGNIFICANT:
            return Concern(
                "doubtful", what, f"{why}, which is not significant", f"prefer {other}, which is simpler"
            )
        return Concern("good", what, f"{why}: it is better")


def judge_network(
    table: SupervisedTable, network: Network, *, chains: int | None, seed: int
) -> NetworkFindings:
    """Score a fitted network and simple methods on the held-out rows, and audit its posterior.

    ``chains`` are of Monte Carlo over all weights: None decides by size, 0 is none.
    """
    X, y = table.held_out_data
    mean_network = copy.copy(network)
    mean_network.predictor_ = network.predictor_.with_scale(0.0)
    predictions: Any = network.predict_distribution(X)
    both = {NETWORK: predictions, MEAN_NETWORK: mean_network.predict_distribution(X)}
    scores: dict[str, Scores] = {}
    if isinstance(network, NetworkRegressor):
        for name, one in both.items():
            noise = np.broadcast_to(one.noise, one.mean.shape)
            scores[name] = regression_scores(y, std=noise, draws=one.outputs, weight=one.allocation.weight)
        for name, mean_and_std in _fit_simple_regressions(table).items():
            scores[name] = regression_scores(y, *mean_and_std)
    else:
        codes = np.searchsorted(network.classes_, y)
        chances = {name: one.probability for name, one in both.items()}
        for name, chance in (chances | _fit_simple_classifiers(table, network)).items():
            scores[name] = classification_scores(chance, codes, random_state=seed)
    audit = network.audit(*table.fit_data, X, y, chains=chains)
    return NetworkFindings(table, network, predictions, scores, audit, seed)


def _fit_simple_regressions(table: SupervisedTable) -> dict[str, tuple[Array, Array]]:
    """Mean and standard deviation for each held-out row, by methods that need no training."""
    (X, y), (new, _) = table.fit_data, table.held_out_data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # columns without information make it the mean
        linear = BayesianLinearRegression(standardise=True).fit(X, y)
    std = float(np.std(y, ddof=1)) * math.sqrt(1.0 + 1.0 / len(y))
    return {
        "linear regression": linear.predict(new, return_std=True),
        "mean": (np.full(len(new), y.mean()), np.full(len(new), std)),
    }


def _fit_simple_classifiers(table: SupervisedTable, network: NetworkClassifier) -> dict[str, Array]:
    """Probabilities of each held-out row, in the order of the network's classes."""
    from sklearn.linear_model import LogisticRegression

    X, new, y = table.X[~table.held_out], table.X[table.held_out], table.y[~table.held_out]
    mean, scale = X.mean(0), X.std(0)
    scale = np.where(scale > 0.0, scale, np.inf)
    logistic = LogisticRegression(max_iter=MAX_ITER).fit((X - mean) / scale, y)
    share = np.array([(y == label).mean() for label in network.classes_])
    return {
        "logistic regression": logistic.predict_proba((new - mean) / scale),
        "shares of classes": np.tile(share, (len(new), 1)),
    }


def _log_score_difference(one: Scores, other: Scores) -> Difference:
    """The mean log score of one less that of the other, paired by row."""
    if isinstance(one, RegressionScores) and isinstance(other, RegressionScores):
        return one.difference(other)["log score"]
    assert isinstance(one, ClassificationScores)
    assert isinstance(other, ClassificationScores)
    return one.difference(other)["log score"]


def summarise_scores(scores: Scores) -> dict[str, tuple[float, float]]:
    """Each score with its standard error, by name.

    Example:
        >>> found = summarise_scores(regression_scores([0.0, 2.0], [0.0, 0.0], [1.0, 1.0]))
        >>> list(found), round(found["rmse"][0], 3)
        (['rmse', 'log_score', 'crps', 'coverage'], 1.414)
    """
    log_score = mean_and_error(np.ravel(scores.log_score))
    if isinstance(scores, RegressionScores):
        square, error = mean_and_error(np.ravel(scores.squared_error))
        root = math.sqrt(square)
        inside = scores.coverage([LEVEL])
        return {
            "rmse": (root, error / (2.0 * root) if root > 0.0 else 0.0),
            "log_score": log_score,
            "crps": mean_and_error(np.ravel(scores.crps)),
            "coverage": (float(inside["inside"][0]), float(inside["standard_error"][0])),
        }
    found = scores.reliability
    return {
        "accuracy": mean_and_error(scores.correct.astype(float)),
        "log_score": log_score,
        "brier": mean_and_error(scores.brier),
        "miscalibration": (found.calibration_error, found.standard_error),
    }
