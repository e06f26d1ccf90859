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

from boxloop.concerns import Concern, worst_first
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

NETWORK, STILL = "network", "mean network alone"
SURE = 2.0
"""Standard errors from which a lead is one."""
LEVEL = 0.9
"""Of the intervals whose coverage is told."""
WORST = 10
"""Rows that are listed."""
PASSES = 5000
"""Most iterations of a logistic regression."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be predicted from what.

    Args:
        label: the file or the bundled data set.
        names: of the inputs.
        target: name of the column that is predicted.
        X: inputs, (n, d).
        y: numbers or labels, (n,).
        kind: ``regression`` or ``classification``.
        told: why it is of this kind.
        left_out: columns that are not used, with the reason.
        digest: SHA-256 of the data.
        held: which rows judge, (n,).
    """

    label: str
    names: tuple[str, ...]
    target: str
    X: Array
    y: NDArray[Any]
    kind: str
    told: str
    left_out: Mapping[str, str]
    digest: str
    held: NDArray[np.bool_]

    @property
    def trained(self) -> tuple[Any, NDArray[Any]]:
        """Rows of the fit: a frame of inputs, and the target."""
        return self._frame(~self.held), self.y[~self.held]

    @property
    def judged(self) -> tuple[Any, NDArray[Any]]:
        """Rows held out, likewise."""
        return self._frame(self.held), self.y[self.held]

    def _frame(self, mask: NDArray[np.bool_]) -> Any:
        return make_frame({name: self.X[mask, j] for j, name in enumerate(self.names)})


@dataclass(frozen=True, eq=False)
class NetworkFindings:
    """A fitted network and what was found about it.

    Args:
        problem: what it predicts.
        network: the fit.
        found: its predictions of the rows held out.
        scores: by name of the predictor, the network first, simple methods after it.
        audit: of its posterior.
        seed: of the split and the fit.
    """

    problem: Problem
    network: Network
    found: Any
    scores: dict[str, Scores]
    audit: Audit
    seed: int

    @property
    def ahead(self) -> dict[str, Difference]:
        """Log score of the network less that of each other predictor, row by row."""
        own = self.scores[NETWORK]
        return {name: _less(own, other) for name, other in self.scores.items() if name != NETWORK}

    @property
    def worries(self) -> tuple[Concern, ...]:
        """Against simple methods, and all of the audit's; worst first."""
        return worst_first((self._simple(), *self.audit.concerns))

    @property
    def events(self) -> list[str]:
        """What was worth knowing of the fit."""
        return list(self.network.events_)

    def _simple(self) -> Concern:
        """Against the simple method of the best log score."""
        what = "Against simple methods"
        simple = {name: found for name, found in self.ahead.items() if name != STILL}
        other = min(simple, key=lambda name: simple[name].value)
        lead = simple[other]
        why = f"The mean log score differs from that of {other} by {lead}"
        if lead.z < -SURE:
            return Concern(
                "bad",
                what,
                f"{why}: it is worse",
                f"use {other}, or try more rows, another prior or other widths",
            )
        if not lead.z > SURE:
            return Concern(
                "doubtful", what, f"{why}, which is not significant", f"prefer {other}, which is simpler"
            )
        return Concern("good", what, f"{why}: it is better")


def judge_network(problem: Problem, network: Network, *, chains: int | None, seed: int) -> NetworkFindings:
    """Score a fitted network and simple methods on the rows held out, and audit its posterior.

    Args:
        problem: with the rows that it was fitted to.
        network: the fit.
        chains: of Monte Carlo over all weights; None decides by size, 0 is none.
        seed: of the labels behind chance.
    """
    X, y = problem.judged
    still = copy.copy(network)
    still.predictor_ = network.predictor_.with_scale(0.0)
    found: Any = network.predict_distribution(X)
    both = {NETWORK: found, STILL: still.predict_distribution(X)}
    scores: dict[str, Scores] = {}
    if isinstance(network, NetworkRegressor):
        for name, one in both.items():
            wide = np.broadcast_to(one.noise, one.mean.shape)
            scores[name] = regression_scores(y, std=wide, draws=one.outputs, weight=one.allocation.weight)
        scores |= {name: regression_scores(y, *law) for name, law in _simple_numbers(problem).items()}
    else:
        codes = np.searchsorted(network.classes_, y)
        laws = {name: one.probability for name, one in both.items()} | _simple_classes(problem, network)
        scores |= {name: classification_scores(law, codes, random_state=seed) for name, law in laws.items()}
    looked = network.audit(*problem.trained, X, y, chains=chains)
    return NetworkFindings(problem, network, found, scores, looked, seed)


def _simple_numbers(problem: Problem) -> dict[str, tuple[Array, Array]]:
    """Mean and deviation of every row held out, by methods that need no training."""
    (X, y), (new, _) = problem.trained, problem.judged
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # columns that tell nothing make it the mean
        linear = BayesianLinearRegression(standardise=True).fit(X, y)
    wide = float(np.std(y, ddof=1)) * math.sqrt(1.0 + 1.0 / len(y))
    return {
        "linear regression": linear.predict(new, return_std=True),
        "mean": (np.full(len(new), y.mean()), np.full(len(new), wide)),
    }


def _simple_classes(problem: Problem, network: NetworkClassifier) -> dict[str, Array]:
    """Probabilities of every row held out, in the order of the network's classes."""
    from sklearn.linear_model import LogisticRegression

    X, new, y = problem.X[~problem.held], problem.X[problem.held], problem.y[~problem.held]
    mean, scale = X.mean(0), X.std(0)
    scale = np.where(scale > 0.0, scale, np.inf)
    logistic = LogisticRegression(max_iter=PASSES).fit((X - mean) / scale, y)
    share = np.array([(y == label).mean() for label in network.classes_])
    return {
        "logistic regression": logistic.predict_proba((new - mean) / scale),
        "shares of classes": np.tile(share, (len(new), 1)),
    }


def _less(one: Scores, other: Scores) -> Difference:
    if isinstance(one, RegressionScores) and isinstance(other, RegressionScores):
        return one.difference(other)["log score"]
    assert isinstance(one, ClassificationScores)
    assert isinstance(other, ClassificationScores)
    return one.difference(other)["log score"]


def measures(scores: Scores) -> dict[str, tuple[float, float]]:
    """Each score with its standard error, by name.

    Example:
        >>> found = measures(regression_scores([0.0, 2.0], [0.0, 0.0], [1.0, 1.0]))
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
