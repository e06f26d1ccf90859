"""What every two-view estimator shares: rows in, the results of a fit out, and what its file holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import ConcatenatedRows, is_read_in_place, open_source, to_array, validate_rows
from boxloop.estimators._base import DeviceEstimator, to_numpy, warn_of
from boxloop.estimators._input import find_shape_fault, flatten_images, match_columns
from boxloop.estimators._params import pick_device
from boxloop.estimators.relevant_fit import Fitted
from boxloop.estimators.relevant_rows import Edge, labelled, name_of
from boxloop.models import Convolutions, Layers, Part, SavedModule
from boxloop.persist import PROGRESS, ModelFile, Saved, SaveMixin, is_of
from boxloop.twoview import (
    CONSTRAINTS,
    Canonical,
    FiniteView,
    FourierView,
    LinearView,
    NetworkView,
    RelevanceFit,
    RelevanceModel,
    View,
    ViewPair,
)
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PARTS: tuple[type, ...] = (
    RelevanceModel, Canonical, ViewPair, LinearView, FourierView, FiniteView, NetworkView, Part, Layers, Convolutions,
    SavedModule,
)  # fmt: skip
"""What a model of two views may consist of, in a file."""
FACTS: dict[str, Any] = {
    **PROGRESS,
    "batch_size_": int | None,
    "ridge_": float,
    "history_": dict[str, list[float]],
    "x_edge_": Edge,
    "y_edge_": Edge,
}
"""Fitted attributes of these estimators in a file, beside those that follow from the fit."""


def views_file(x_features: str, y_features: str | None = None, **facts: Any) -> ModelFile:
    """The file of an estimator of two views.

    Args:
        x_features: parameter that may be a module, the features of the first view.
        y_features: the same of the second view, if any.
        facts: types of other fitted attributes.
    """
    modules = {x_features: "model.pair.left.part"}
    if y_features is not None:
        modules[y_features] = "model.pair.right.part"
    return ModelFile(
        RelevanceFit, PARTS, CONSTRAINTS, {**FACTS, **facts}, modules, attribute="fit_", checks=(_edges_fit,)
    )


def _edges_fit(estimator: Any, saved: Saved) -> str | None:
    """Whether what is known of the table of each view fits the view."""
    fit: Any = saved.tree
    pair = fit.model.pair
    return _edge_fault(estimator.x_edge_, pair.left, saved.axes["v_left"]) or _edge_fault(
        estimator.y_edge_, pair.right, saved.axes["v_right"]
    )


def _edge_fault(edge: Edge, view: View, n_values: int) -> str | None:
    labels = list(edge.values or ())
    alike = is_of(labels, list[str]) or is_of(labels, list[bool | int | float])
    if not alike or any(isinstance(label, float) and not math.isfinite(label) for label in labels):
        return f"the values {labels} of {edge.word} must be text, or finite numbers"
    labelled = isinstance(view, FiniteView)
    distinct = None if edge.values is None else len(set(edge.values))
    wanted = (1, n_values) if labelled else (view.n_columns, None)
    if (len(edge.names), distinct) != wanted or (labelled and len(labels) != n_values):
        return f"the columns {edge.names} or values {edge.values} of {edge.word} do not fit its view"
    return find_shape_fault(edge.image, view.n_columns)


class TwoViewEstimator(
    SaveMixin, DeviceEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base of the estimators: rows in, the results of a fit out."""

    x_edge_: Edge
    y_edge_: Edge
    feature_names_in_: Any

    def _store(self, fitted: Fitted, most: int) -> None:
        """Set the attributes of a fit that could have kept so many variables, and warn of what went wrong in it."""
        training = fitted.training
        self._rows, self._held = fitted.rows, fitted.held
        self.history_ = {} if training is None else training.history
        self.n_iter_ = 1 if training is None else training.epochs
        self.batch_size_ = fitted.rows.n_rows if training is None else training.batch
        self.converged_ = training is None or training.converged
        self.interrupted_ = training is not None and training.interrupted
        self.events_, self.ridge_ = list(fitted.events), fitted.ridge
        self._publish(fitted.fit, most)
        warn_of(self.events_)

    def _publish(self, fit: RelevanceFit, most: int) -> None:
        self.fit_, self.model_ = fit, fit.model
        self.correlation_ = to_numpy(self.model_.canonical.correlation)
        self.relevance_ = self.correlation_**2
        self.loss_ = float(most - self.relevance_.sum())

    def _validated(self, X: Any, *, reset: bool, finite: bool = False) -> Any:
        """X as scikit-learn would have it, where it is a table that scikit-learn knows; labels as they are."""
        rows, image = flatten_images(to_array(X, "X"))
        if is_read_in_place(rows) or isinstance(rows, np.memmap | Tensor):
            match_columns(self, open_source(rows).names, reset)
            return X
        if (labelled(rows) or finite) if reset else self.x_edge_.values is not None:
            self.n_features_in_ = 1
            if reset:
                if hasattr(self, "feature_names_in_"):
                    del self.feature_names_in_
                if np.ndim(rows) == 2 and name_of(rows) is not None:
                    self.feature_names_in_ = np.asarray([name_of(rows)], dtype=object)
            return X
        checked = validate_rows(
            self, rows, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False
        )  # the source refuses infinite values, and names their column
        if image is not None:
            return checked.reshape(len(checked), *image)
        named = getattr(self, "feature_names_in_", None)
        return checked if named is None else open_source(checked, columns=list(named))

    def _x(self, X: Any, weight: Any = None) -> Source:
        check_is_fitted(self)
        return self.x_edge_.open(self._validated(X, reset=False), pick_device(self.device), weight)

    def _y(self, Y: Any) -> Source:
        check_is_fitted(self)
        return self.y_edge_.open(Y, pick_device(self.device))

    @property
    def _n_features_out(self) -> int:
        return len(self.correlation_)

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """Total relevance after each pass: of validation rows where there are any, else in the batches."""
        check_is_fitted(self)
        from boxloop.figures import trace

        name = "validation_relevance" if "validation_relevance" in self.history_ else "relevance"
        values = self.history_.get(name, [])
        told = "interrupted" if self.interrupted_ else ("settled" if self.converged_ else "not settled")
        up = f"total relevance {'of rows held out' if name != 'relevance' else 'in a batch'}"
        return trace(values, ax, title=f"{type(self).__name__}: the fit", up=up, told=told)


def each(source: Source, function: Any) -> Tensor:
    """What a function gives for all rows of a source, without gradients."""
    with torch.no_grad():
        return source.reduce(lambda rows, weight: ConcatenatedRows.of(function(rows))).concatenate()
