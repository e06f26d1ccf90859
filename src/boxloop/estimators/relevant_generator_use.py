"""What a fitted generator is used for: codes, rows, samples, pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from boxloop.estimators._base import Array, check_no_overflow, to_numpy
from boxloop.estimators._decoder import DecoderEstimator
from boxloop.estimators._input import Likelihood

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FittedGenerator(DecoderEstimator):
    """Base of the estimator: all that needs ``model_``, and none of how it came to be."""

    @property
    def _row_likelihood(self) -> Likelihood:
        return "gaussian"

    def _format_codes(self, codes: Tensor) -> Array:
        return to_numpy(codes)

    def transform(self, X: Any) -> Array:
        """The code of each row, (n, k): mean 0, covariance I on the rows of the fit."""
        return self._format_codes(check_no_overflow(self._map_rows(X, lambda rows: self.model_.encode(rows))))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the mean squared error of :meth:`reconstruct`, over rows by their weights and over columns."""

        def errors(rows: Tensor) -> Tensor:
            return (rows - self.model_.reconstruct(rows)).square().mean(1)

        mean = self._sum_rows(X, sample_weight, errors).mean
        if math.isnan(mean):
            self.reconstruct(X)  # names the row
        return -mean

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """The mean squared error after each pass: of validation rows where there are any, else of the batches."""
        return self._plot_history(ax, "loss", "mean squared error", "mean squared error of rows held out")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
