"""The fit of two views from rows to canonical variables: exact where features are fixed, trained where they are not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from boxloop.data import ArraySource
from boxloop.estimators._params import pick_dtype
from boxloop.estimators.relevant_train import Training, train_views
from boxloop.numeric import generator, seed
from boxloop.twoview import (
    FiniteView,
    FourierView,
    NetworkView,
    RelevanceFit,
    RelevanceModel,
    ViewPair,
    choose_ridge,
    fit_fixed,
)
from boxloop.types import Source

FOLDS = 5
"""Of the rows, among which a ridge is chosen."""

FEW = 5
"""Rows for each column of both views, below which linear relations look much stronger than they are."""


@dataclass(frozen=True)
class Fitted:
    """Canonical variables with the means of columns, the rows behind them, and how the fit went.

    Args:
        fit: the variables.
        rows: of the fit, both views.
        ridge: that was used.
        events: what went wrong on the way.
        training: how features were learned; None where they are fixed.
    """

    fit: RelevanceFit
    rows: Source
    ridge: float
    events: tuple[str, ...]
    training: Training | None = None

    @property
    def held(self) -> ArraySource | None:
        """Rows that neither trained nor chose the pass."""
        return None if self.training is None else self.training.held


def fit_views(
    estimator: BaseEstimator, pair: ViewPair, both: Source, first: Source | None, most: int
) -> Fitted:
    """Fit features by the parameters of an estimator.

    Args:
        estimator: a ``RelevantFeatures``, or another with its parameters of training.
        pair: features of both views, as they start.
        both: rows that hold both views.
        first: rows of the first view alone, where a channel draws the second anew at every step.
        most: pairs of canonical variables to keep.
    """
    ridge = _ridge(estimator, pair, both, most)
    if not pair.trainable():
        dtype = torch.float64 if estimator.dtype is None else pick_dtype(estimator.dtype)
        fit = fit_fixed(pair, both, most, ridge, dtype)
        return Fitted(fit, both, ridge, worries(fit.model, both.n_rows, most, ridge))
    training = train_views(estimator, pair, both, first, ridge)
    rows, ridge = training.rows, training.ridge
    model = RelevanceModel.solve(training.pair, rows, most, ridge)
    events = (*training.events, *worries(model, rows.n_rows, most, ridge))
    return Fitted(RelevanceFit.of(model, rows), rows, ridge, events, training)


def _ridge(estimator: BaseEstimator, pair: ViewPair, both: Source, most: int) -> float:
    """The ridge that was given, or one chosen by cross-validation: where it was asked for, and for random features."""
    asked = estimator.ridge == "validation"
    if estimator.ridge is not None and not asked:
        return float(estimator.ridge)
    if asked and pair.trainable():
        raise ValueError(
            "ridge='validation' is for fixed features: networks are validated as they are trained"
        )
    random = any(isinstance(view, FourierView) for view in (pair.left, pair.right))
    if not (random or asked) or pair.trainable() or both.n_rows < 2 * FOLDS:
        return 0.0
    return choose_ridge(pair, both, most, folds=FOLDS, key=seed(generator(estimator.random_state)))


def worries(model: RelevanceModel, rows: int, most: int, ridge: float) -> tuple[str, ...]:
    """What should make the reader doubt canonical variables."""
    said = []
    pair, found = model.pair, model.canonical.correlation
    width = pair.left.n_features + pair.right.n_features
    free = sum(view.n_features - isinstance(view, FiniteView) for view in (pair.left, pair.right))
    forced = not ridge and rows <= free  # centred features of both views then span more than there is
    for word, view in (("X", pair.left), ("Y", pair.right)):
        if not ridge and rows <= view.n_features:
            said.append(
                f"{rows} rows for {view.n_features} features of {word}: any rows are then related perfectly; lower "
                "the number of features or set ridge"
            )
    if forced and not said:
        said.append(
            f"{rows} rows for {width} features of both views: any rows are then related perfectly; lower the number "
            "of features or set ridge"
        )
    if not said and not ridge and not pair.trainable() and rows < FEW * width:
        said.append(
            f"{rows} rows for {width} features of both views: relations look stronger than they are, and inference is "
            "rough; set ridge='validation', and judge by rows held out"
        )
    if len(found) < most:
        said.append(
            f"the features have {len(found)} canonical variable{'s' * (len(found) != 1)}, fewer than "
            f"n_features={most}: {_why(pair, len(found))}"
        )
    if len(found) and float(found[0]) > 1.0 - 1e-9 and not forced:
        exact = int((found > 1.0 - 1e-9).sum())
        said.append(
            f"{exact} canonical variable{'s' * (exact > 1)} of one view {'are' if exact > 1 else 'is'} an exact "
            "function of the other view: do the views share a column?"
        )
    return tuple(said)


def _why(pair: ViewPair, found: int) -> str:
    """Why there are no more variables than were found."""
    if found < pair.possible or not pair.possible:
        learned = any(isinstance(view, NetworkView) for view in (pair.left, pair.right))
        cure = "; larger batches or a lower learning_rate may keep networks from it" if learned else ""
        return f"constant or collinear features add none{cure}"
    narrow = "X" if pair.left.n_features <= pair.right.n_features else "Y"
    return f"there are no more functions of {narrow} among its features; lower n_features, or take other features"
