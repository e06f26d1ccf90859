"""What a fitted autoencoder is used for: codes, rows, bounds, pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.data import check_count
from boxloop.estimators._base import Array, to_numpy
from boxloop.estimators._input import Likelihood
from boxloop.estimators.codes import CodedEstimator
from boxloop.numeric import generator, mean_and_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Evidence:
    """The evidence lower bound of a row and its parts, as means over rows with their standard errors.

    Args:
        elbo: reconstruction less divergence; below the log-density.
        elbo_error: its standard error over rows.
        reconstruction: E log p(x|z) under q(z|x).
        reconstruction_error: its standard error.
        divergence: KL(q(z|x) || p(z)).
        divergence_error: its standard error.
    """

    elbo: float
    elbo_error: float
    reconstruction: float
    reconstruction_error: float
    divergence: float
    divergence_error: float


class FittedAutoencoder(DensityMixin, CodedEstimator):
    """Base of the estimator: all that needs ``model_``, and none of how it came to be."""

    @property
    def _takes(self) -> Likelihood:
        taken: Likelihood = self.likelihood
        return taken

    def _coded(self, codes: Tensor) -> Any:
        """Codes in the precision of the networks: more digits would be noise."""
        return codes.cpu().numpy().astype(self.dtype)

    def transform(self, X: Any) -> Array:
        """Mean of each row's code, (n, k)."""
        return self._coded(self._each(X, lambda rows: self.model_.posterior(rows).mean))

    def posterior(self, X: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of each row's code under q(z|x), (n, k) each."""

        def both(rows: Tensor) -> Tensor:
            law = self.model_.posterior(rows)
            return torch.cat([law.mean, law.covariance().diagonal().sqrt()], 1)

        mean, deviation = self._each(X, both).chunk(2, dim=1)
        return self._coded(mean), self._coded(deviation)

    def score_samples(self, X: Any) -> Array:
        """Importance-weighted lower bound of each row's log-density from ``score_draws`` codes, (n,), in nats.

        It is below log p(x) by what more draws would add: Burda, Grosse and Salakhutdinov (2016). Minus infinity for a
        row beyond the reach of the numbers.

        Raises:
            ValueError: a row on which the networks overflow, so that there is no bound at all.
        """
        found = to_numpy(self._each(X, lambda rows: self.model_.log_prob(rows)))
        self._check_bounds(found, np.isnan(found))
        return found

    def _check_bounds(self, found: Array, bad: Any) -> None:
        """Refuse bounds that overflowed, naming the first row."""
        if bad.any():
            row = int(bad.argmax())
            remedy = "" if self.dtype == "float64" else ", or fit with dtype='float64'"
            raise ValueError(
                f"the bound of row {row} (counted from 0) of X is {found[row]}: it lies so far from the rows of the "
                f"fit that the networks overflow; leave it out or bring it to the scale of the fit{remedy}"
            )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean of :meth:`score_samples` by the weights of rows, a lower bound of the mean log-density.

        Raises:
            ValueError: a row whose bound is not finite.
        """
        mean = self._weighted(X, sample_weight, lambda rows: self.model_.log_prob(rows)).mean
        if not np.isfinite(mean):
            found = self.score_samples(X)
            self._check_bounds(found, ~np.isfinite(found))
        return mean

    def elbo(self, X: Any, n_draws: int = 16) -> Evidence:
        """The evidence lower bound of the rows and its parts, with standard errors over rows.

        Args:
            X: rows or images.
            n_draws: draws of the code behind each row's bound.

        Raises:
            ValueError: a row whose bound is not finite.
        """
        check_is_fitted(self)
        check_count(n_draws, "n_draws")
        stream = generator(self.random_state, self.model_.origin.device)

        def parts(rows: Tensor) -> Tensor:
            bound = self.model_.bound(rows, stream, n_draws)
            return torch.stack([bound.value(), bound.reconstruction, bound.divergence], 1)

        found = to_numpy(self._each(X, parts))
        self._check_bounds(found[:, 0], ~np.isfinite(found).all(1))
        return Evidence(*(number for column in found.T for number in mean_and_error(column)))

    def n_parameters(self) -> int:
        """Number of trained parameters."""
        check_is_fitted(self)
        return sum(value.numel() for value in self.model_.trainable())

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """The bound after each pass: of validation rows where there are any, else of the training rows."""
        return self._trace(ax, "elbo", "lower bound of a row", "validation lower bound of a row")
