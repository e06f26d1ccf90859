"""Base of the estimators with a decoder: rows or images in, codes and rows out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import WeightedSum, flatten_images, to_float_table
from boxloop.estimators._base import Array, DeviceEstimator, check_no_overflow, to_numpy
from boxloop.estimators._input import (
    Likelihood,
    check_sample_size,
    find_shape_fault,
    map_rows,
    open_rows,
    pick_device,
)
from boxloop.numeric import generator
from boxloop.persist import Saved, SaveMixin
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TILE = 4096
"""Codes that are decoded at once."""


class DecoderEstimator(
    SaveMixin, DeviceEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base of the estimators whose ``model_`` decodes rows from codes."""

    @property
    @abstractmethod
    def _row_likelihood(self) -> Likelihood:
        """The likelihood whose support the rows must lie in."""

    @abstractmethod
    def _format_codes(self, codes: Tensor) -> Array:
        """Codes as an array for the user."""

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        X, shape = flatten_images(X)
        if reset:
            self.image_shape_ = shape
        elif shape not in (None, self.image_shape_):
            raise ValueError(
                f"X holds images of shape {shape}, but the fit had {self.image_shape_ or 'rows'}"
            )
        return open_rows(self, X, sample_weight, self._row_likelihood, pick_device(self.device), reset)

    def _sum_rows(self, X: Any, sample_weight: Any, function: Callable[[Tensor], Tensor]) -> WeightedSum:
        """The weighted sum of ``function(rows)``, one value per row."""
        check_is_fitted(self)
        with torch.no_grad():
            return WeightedSum.over(self._open(X, sample_weight, reset=False), function)

    def _restore_row_shape(self, rows: Tensor) -> Array:
        """Rows as an array for the user: of images if the fit had images."""
        array = to_numpy(rows)
        return array if self.image_shape_ is None else array.reshape(len(array), *self.image_shape_)

    def inverse_transform(self, X: Any) -> Array:
        """E[x | z] of each code (n, k): rows (n, d), or images."""
        check_is_fitted(self)
        codes = torch.from_numpy(to_float_table(X, "X", self._n_features_out))
        with torch.no_grad():
            found = [self.model_.emission(z.to(self.model_.origin)).mean for z in codes.split(TILE)]
        return self._restore_row_shape(torch.cat(found))

    def reconstruct(self, X: Any) -> Array:
        """E[x | z] at the code of each row (the mean of its distribution, if it has one): rows (n, d), or images."""
        return self._restore_row_shape(
            check_no_overflow(map_rows(self, X, lambda rows: self.model_.reconstruct(rows)))
        )

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Rows of the fitted model with their noise, (n, d) or images, and the codes behind them, (n, k).

        ``inverse_transform(codes)`` are the same without the noise.
        """
        check_is_fitted(self)
        check_sample_size(n_samples)
        with torch.no_grad():
            stream = generator(self.random_state, self.model_.origin.device)
            rows, codes = self.model_.sample(n_samples, stream)
        return self._restore_row_shape(rows), self._format_codes(codes)

    @property
    def _n_features_out(self) -> int:
        return int(self.model_.latent.columns)

    def _plot_history(self, ax: Axes | None, name: str, label: str, validation_label: str) -> Axes:
        """A column of ``history_`` by epoch: of validation rows if there are any, else of the training rows."""
        check_is_fitted(self)
        from boxloop.figures import trace

        validated = f"validation_{name}" in self.history_
        values = self.history_.get(f"validation_{name}" if validated else name, [])
        state = "interrupted" if self.interrupted_ else ("converged" if self.converged_ else "not converged")
        axis = validation_label if validated else label
        return trace(values, ax, title=f"{type(self).__name__}: the fit", up=axis, label=state)


def check_image_shape(estimator: Any, saved: Saved) -> str | None:
    """Check of a file: images of the shape that it names have as many pixels as the model has columns."""
    return find_shape_fault(estimator.image_shape_, estimator.n_features_in_)
