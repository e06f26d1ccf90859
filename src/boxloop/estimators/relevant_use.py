"""What fitted features of two views are used for: variables, expectations with error bars, and judgement."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from boxloop.data import Mapped, open_source, paired
from boxloop.estimators.autoencoder_rows import flat, match_columns
from boxloop.estimators.base import SOURCES, Array, to_numpy
from boxloop.estimators.options import pick_device
from boxloop.estimators.relevant_files import write
from boxloop.estimators.relevant_fit import Fitted
from boxloop.estimators.relevant_rows import Edge, labelled
from boxloop.estimators.warned import warn_of
from boxloop.twoview.inference import RelevanceFit
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Direction = Literal["y_given_x", "x_given_y"]


class TwoViewEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the estimators: rows in, the results of a fit out, and files."""

    x_edge_: Edge
    y_edge_: Edge

    def _store(self, fitted: Fitted, most: int) -> None:
        """Set the attributes of a fit that could have kept so many variables, and warn of what went wrong in it."""
        self._rows, self._held = fitted.rows, fitted.held
        self.history_, self.n_iter_, self.batch_size_ = fitted.history, fitted.epochs, fitted.batch
        self.converged_, self.interrupted_ = fitted.converged, fitted.interrupted
        self.events_, self.ridge_ = list(fitted.events), fitted.ridge
        self._publish(fitted.fit, most)
        warn_of(self.events_, depth=3)

    def _publish(self, fit: RelevanceFit, most: int) -> None:
        self.fit_, self.model_ = fit, fit.model
        self.correlation_ = to_numpy(self.model_.canonical.correlation)
        self.relevance_ = self.correlation_**2
        self.loss_ = float(most - self.relevance_.sum())

    def _validated(self, X: Any, *, reset: bool, finite: bool = False) -> Any:
        """X as scikit-learn would have it, where it is a table that scikit-learn knows; labels as they are."""
        rows, image = flat(X)
        if isinstance(rows, (str, PathLike, *SOURCES, np.memmap, Tensor)):
            match_columns(self, open_source(rows).names, reset)
            return X
        if (labelled(rows) or finite) if reset else self.x_edge_.values is not None:
            self.n_features_in_ = 1
            return X
        checked = validate_data(
            self, rows, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False
        )  # the source refuses infinite values, and names their column
        if image is not None:
            return checked.reshape(len(checked), *image)
        named = getattr(self, "feature_names_in_", None)
        return checked if named is None else open_source(checked, columns=list(named))

    def _x(self, X: Any) -> Source:
        check_is_fitted(self)
        return self.x_edge_.open(self._validated(X, reset=False), pick_device(self.device))

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

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to one safe file, own modules as their tensors; rows of the fit are left out."""
        check_is_fitted(self)
        write(self, path)


class FittedViews(TwoViewEstimator):
    """All that needs ``fit_``, and none of how it came to be."""

    def transform(self, X: Any, y: Any = None) -> Any:
        """The canonical variables of rows: u of X, (n, k), and v of Y beside it where y is given."""
        source = self._x(X)
        left = to_numpy(each(source, self.model_.left))
        return left if y is None else (left, to_numpy(each(self._y(y), self.model_.right)))

    def predict(self, X: Any) -> Array:
        """E[Y | X] in the shape of Y; of a finite Y the weight of each value, which may fall below 0."""
        source = self._x(X)
        found: Array = self.y_edge_.shown(to_numpy(each(source, self.fit_.infer_right)))
        return found

    def score(self, X: Any, y: Any) -> float:
        """Total correlation of the pairs of variables on these rows, at most k."""
        left, right = self.transform(X, y)
        left, right = left - left.mean(0), right - right.mean(0)
        size = np.sqrt((left**2).sum(0) * (right**2).sum(0))
        return float(((left * right).sum(0) / np.where(size > 0.0, size, 1.0)).sum())

    def _data(self, data: Any) -> Source:
        """Rows that hold both views: those of the fit, or a pair of tables."""
        if data is not None:
            X, Y = data
            return paired(self._x(X), self._y(Y))
        if "_rows" not in vars(self):
            raise ValueError("a file holds no rows: give data=(X, Y), those of the fit or others like them")
        rows: Source = self._rows
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.channel is None
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def each(source: Source, function: Any) -> Tensor:
    """What a function gives for all rows of a source, without gradients."""
    with torch.no_grad():
        return torch.cat([function(rows) for rows, _ in source.chunks()])


def turned(source: Source, first: int) -> Source:
    """Rows with the second view before the first."""
    return Mapped(source, lambda rows: torch.cat([rows[:, first:], rows[:, :first]], 1))
