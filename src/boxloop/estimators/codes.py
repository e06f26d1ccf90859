"""What estimators share whose model makes a row from its code: rows in, codes and rows out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import ConcatenatedRows, WeightedSum, check_count, to_float_table
from boxloop.estimators._base import Array, DeviceEstimator, check_no_overflow, to_numpy
from boxloop.estimators._input import Likelihood, find_shape_fault, flatten_images, open_rows
from boxloop.estimators._params import pick_device
from boxloop.numeric import generator
from boxloop.persist import Saved, SaveMixin
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TILE = 4096
"""Codes whose rows are made at once."""


class CodedEstimator(
    SaveMixin, DeviceEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base of the estimators: what needs ``model_`` and its codes, and nothing of how it came to be."""

    @property
    @abstractmethod
    def _takes(self) -> Likelihood:
        """The likelihood whose values rows may have."""

    @abstractmethod
    def _coded(self, codes: Tensor) -> Array:
        """Codes as they are shown."""

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        X, shape = flatten_images(X)
        if reset:
            self.image_shape_ = shape
        elif shape not in (None, self.image_shape_):
            raise ValueError(f"images of shape {shape} were given, the fit had {self.image_shape_ or 'rows'}")
        return open_rows(self, X, sample_weight, self._takes, pick_device(self.device), reset)

    def _each(self, X: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function(rows)`` of every tile, joined along rows."""
        check_is_fitted(self)
        source = self._open(X, reset=False)
        with torch.no_grad():
            return source.reduce(lambda rows, weight: ConcatenatedRows.of(function(rows))).concatenate()

    def _weighted(self, X: Any, sample_weight: Any, function: Callable[[Tensor], Tensor]) -> WeightedSum:
        """Of ``function(rows)``, one value a row."""
        check_is_fitted(self)
        with torch.no_grad():
            return WeightedSum.over(self._open(X, sample_weight, reset=False), function)

    def _shown(self, rows: Tensor) -> Array:
        """Rows in the shape in which they came."""
        found = to_numpy(rows)
        return found if self.image_shape_ is None else found.reshape(len(found), *self.image_shape_)

    def inverse_transform(self, X: Any) -> Array:
        """E[x | z] of each code (n, k): rows (n, d), or images."""
        check_is_fitted(self)
        codes = torch.from_numpy(to_float_table(X, "X", self._n_features_out))
        with torch.no_grad():
            found = [self.model_.emission(z.to(self.model_.origin)).mean for z in codes.split(TILE)]
        return self._shown(torch.cat(found))

    def reconstruct(self, X: Any) -> Array:
        """E[x | z] at the code of each row (the mean of its law, where it has one): rows (n, d), or images."""
        return self._shown(check_no_overflow(self._each(X, lambda rows: self.model_.reconstruct(rows))))

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Rows of the fitted model with their noise, (n, d) or images, and the codes behind them, (n, k).

        ``inverse_transform(codes)`` shows the same without the noise.
        """
        check_is_fitted(self)
        if check_count(n_samples, "n_samples", None) < 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples}. At least one sample is needed.")
        with torch.no_grad():
            stream = generator(self.random_state, self.model_.origin.device)
            rows, codes = self.model_.sample(n_samples, stream)
        return self._shown(rows), self._coded(codes)

    @property
    def _n_features_out(self) -> int:
        return int(self.model_.latent.columns)

    def _trace(self, ax: Axes | None, name: str, up: str, up_held: str) -> Axes:
        """A number of ``history_`` after each pass: of validation rows where there are any, else of the training.

        Args:
            ax: where to draw.
            name: of the number.
            up: its words.
            up_held: those of validation rows.
        """
        check_is_fitted(self)
        from boxloop.figures import trace

        held = f"validation_{name}"
        values = self.history_.get(held if held in self.history_ else name, [])
        told = "interrupted" if self.interrupted_ else ("settled" if self.converged_ else "not settled")
        words = up_held if held in self.history_ else up
        return trace(values, ax, title=f"{type(self).__name__}: the fit", up=words, told=told)


def has_image_shape(estimator: Any, saved: Saved) -> str | None:
    """A check of a file: images of the shape that it names have as many pixels as the model has columns."""
    return find_shape_fault(estimator.image_shape_, estimator.n_features_in_)
