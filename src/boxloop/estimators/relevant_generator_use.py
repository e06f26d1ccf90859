"""What a fitted generator is used for: codes, rows, samples, pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.estimators.autoencoder_rows import flat, opened
from boxloop.estimators.base import Array, to_numpy
from boxloop.estimators.options import pick_device
from boxloop.numeric import generator
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FittedGenerator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the estimator: all that needs ``model_``, and none of how it came to be."""

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        X, shape = flat(X)
        if reset:
            self.image_shape_ = shape
        elif shape not in (None, self.image_shape_):
            raise ValueError(f"images of shape {shape} were given, the fit had {self.image_shape_ or 'rows'}")
        return opened(self, X, sample_weight, "gaussian", pick_device(self.device), reset)

    def _each(self, X: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function(rows)`` of every tile, joined along rows."""
        check_is_fitted(self)
        source = self._open(X, reset=False)
        with torch.no_grad():
            return torch.cat([function(rows) for rows, _ in source.chunks()])

    def _shown(self, rows: Tensor) -> Array:
        found = to_numpy(rows)
        return found if self.image_shape_ is None else found.reshape(len(found), *self.image_shape_)

    def transform(self, X: Any) -> Array:
        """The code of each row, (n, k): mean 0, covariance I on the rows of the fit."""
        return to_numpy(self._each(X, lambda rows: self.model_.encode(rows)))

    def inverse_transform(self, X: Any) -> Array:
        """E[x | z] of each code (n, k): rows (n, d), or images."""
        check_is_fitted(self)
        codes = torch.from_numpy(np.array(X, dtype=np.float64))
        if codes.dim() != 2 or codes.shape[1] != self._n_features_out:
            raise ValueError(
                f"codes of {self._n_features_out} columns are needed, got shape {tuple(codes.shape)}"
            )
        with torch.no_grad():
            return self._shown(self.model_.decode(codes.to(self.model_.origin)))

    def reconstruct(self, X: Any) -> Array:
        """E[x | z] at the code of each row: rows (n, d), or images."""
        return self._shown(self._each(X, lambda rows: self.model_.reconstruct(rows)))

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the mean squared error of :meth:`reconstruct`, over rows and columns, in the units of the data."""

        def errors(rows: Tensor) -> Tensor:
            return (rows - self.model_.reconstruct(rows)).square().mean(1)

        return -float(self._each(X, errors).double().mean())

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Rows of the fitted model with their noise, (n, d) or images, and the codes behind them, (n, k).

        ``inverse_transform(codes)`` shows the same without the noise, as document 003 does.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples}. At least one sample is needed.")
        with torch.no_grad():
            stream = generator(self.random_state, self.model_.origin.device)
            rows, codes = self.model_.sample(n_samples, stream)
        return self._shown(rows), to_numpy(codes)

    @property
    def _n_features_out(self) -> int:
        return int(self.model_.latent.columns)

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """The mean squared error after each pass: of validation rows where there are any, else of the batches."""
        check_is_fitted(self)
        from boxloop.figures import trace

        name = "validation_loss" if "validation_loss" in self.history_ else "loss"
        told = "interrupted" if self.interrupted_ else ("settled" if self.converged_ else "not settled")
        up = f"mean squared error{' of rows held out' if name != 'loss' else ''}"
        return trace(self.history_[name], ax, title=f"{type(self).__name__}: the fit", up=up, told=told)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
