"""What a fitted autoencoder is used for: codes, rows, bounds, pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from boxloop.estimators.autoencoder_rows import flat, opened
from boxloop.estimators.base import Array, to_numpy
from boxloop.estimators.options import pick_device
from boxloop.numeric import generator
from boxloop.select.scores import mean_error
from boxloop.types import Source

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


class FittedAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, BaseEstimator):
    """Base of the estimator: all that needs ``model_``, and none of how it came to be."""

    def _open(self, X: Any, sample_weight: Any = None, *, reset: bool) -> Source:
        X, shape = flat(X)
        if reset:
            self.image_shape_ = shape
        elif shape not in (None, self.image_shape_):
            raise ValueError(f"images of shape {shape} were given, the fit had {self.image_shape_ or 'rows'}")
        return opened(self, X, sample_weight, self.likelihood, pick_device(self.device), reset)

    def _each(self, X: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function(rows)`` of every tile, joined along rows."""
        check_is_fitted(self)
        source = self._open(X, reset=False)
        with torch.no_grad():
            return torch.cat([function(rows) for rows, _ in source.chunks()])

    def _shown(self, rows: Tensor) -> Array:
        """Rows in the shape in which they came."""
        found = to_numpy(rows)
        return found if self.image_shape_ is None else found.reshape(len(found), *self.image_shape_)

    def transform(self, X: Any) -> Array:
        """Mean of each row's code, (n, k)."""
        return self._coded(self._each(X, lambda rows: self.model_.posterior(rows).mean))

    def _coded(self, codes: Tensor) -> Any:
        """Codes in the precision of the networks: more digits would be noise."""
        return codes.cpu().numpy().astype(self.dtype)

    def posterior(self, X: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of each row's code under q(z|x), (n, k) each."""

        def both(rows: Tensor) -> Tensor:
            law = self.model_.posterior(rows)
            return torch.cat([law.mean, law.covariance().diagonal().sqrt()], 1)

        mean, deviation = self._each(X, both).chunk(2, dim=1)
        return self._coded(mean), self._coded(deviation)

    def inverse_transform(self, X: Any) -> Array:
        """E[x | z] of each code (n, k): rows (n, d), or images."""
        check_is_fitted(self)
        codes = torch.as_tensor(np.asarray(X, dtype=np.float64))
        if codes.dim() != 2 or codes.shape[1] != self._n_features_out:
            raise ValueError(
                f"codes of {self._n_features_out} columns are needed, got shape {tuple(codes.shape)}"
            )
        with torch.no_grad():
            found = [self.model_.emission(z.to(self.model_.origin)).mean for z in codes.split(4096)]
        return self._shown(torch.cat(found))

    def reconstruct(self, X: Any) -> Array:
        """E[x | z] at the mean of each row's code: rows (n, d), or images."""
        return self._shown(self._each(X, lambda rows: self.model_.reconstruct(rows)))

    def score_samples(self, X: Any) -> Array:
        """Importance-weighted lower bound of each row's log-density from ``score_draws`` codes, (n,), in nats.

        It is below log p(x) by what more draws would add: Burda, Grosse and Salakhutdinov (2016).
        """
        return to_numpy(self._each(X, lambda rows: self.model_.log_prob(rows)))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of :meth:`score_samples`, a lower bound of the mean log-density."""
        return float(np.mean(self.score_samples(X)))

    def elbo(self, X: Any, n_draws: int = 16) -> Evidence:
        """The evidence lower bound of the rows and its parts, with standard errors over rows.

        Args:
            X: rows or images.
            n_draws: draws of the code behind each row's bound.
        """
        check_is_fitted(self)
        stream = generator(self.random_state, self.model_.origin.device)

        def parts(rows: Tensor) -> Tensor:
            bound = self.model_.bound(rows, stream, n_draws)
            return torch.stack([bound.value(), bound.reconstruction, bound.divergence], 1)

        found = to_numpy(self._each(X, parts))
        return Evidence(*(number for column in found.T for number in mean_error(column)))

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Rows of the fitted model, (n, d) or images, and the codes behind them, (n, k)."""
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples}. At least one sample is needed.")
        with torch.no_grad():
            rows, codes = self.model_.sample(
                n_samples, generator(self.random_state, self.model_.origin.device)
            )
        return self._shown(rows), self._coded(codes)

    def n_parameters(self) -> int:
        """Number of trained parameters."""
        check_is_fitted(self)
        return sum(value.numel() for value in self.model_.trainable())

    @property
    def _n_features_out(self) -> int:
        return int(self.model_.latent.columns)

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """The bound after each pass: of validation rows where there are any, else of the training rows."""
        check_is_fitted(self)
        from boxloop.figures import trace

        name = "validation_elbo" if "validation_elbo" in self.history_ else "elbo"
        values = self.history_.get(name, [])
        told = "interrupted" if self.interrupted_ else ("settled" if self.converged_ else "not settled")
        up = f"{'validation ' if name != 'elbo' else ''}lower bound of a row"
        return trace(values, ax, title=f"{type(self).__name__}: the fit", up=up, told=told)
