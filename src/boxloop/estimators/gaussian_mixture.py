"""Gaussian mixtures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from boxloop.distributions import DiagonalGaussian, Family, FullGaussian, SphericalGaussian, TiedGaussian
from boxloop.estimators.base import latent_file, to_numpy
from boxloop.estimators.gaussian_pictures import GaussianPictures, components_are
from boxloop.estimators.given import completed, given_mixture, precision, precision_factor
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.fit import Coordinates, Fit, Plan
from boxloop.models import Mixture
from boxloop.numeric import ConditionError
from boxloop.persist import ModelFile
from boxloop.types import Source

COMPONENTS: dict[str, type] = {
    "full": FullGaussian,
    "tied": TiedGaussian,
    "diag": DiagonalGaussian,
    "spherical": SphericalGaussian,
}
"""By ``covariance_type``."""


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianMixture(GaussianPictures):
    r"""Gaussian mixture fitted by EM, online EM or gradient ascent.

    .. math:: p(x) = \sum_k \pi_k N(x; \mu_k, \Sigma_k)

    Document 002, section 2.5. A drop-in for scikit-learn's class that also takes missing values, weights, streams of
    rows and files larger than memory, and that starts from the winner of a race between several kinds of start.

    Deviation: scikit-learn adds ``reg_covar`` to every variance, in the units of the data; here it is a floor on the
    eigenvalues of each covariance in standard units, the exact constrained maximum, so EM stays monotone and the
    fit does not depend on the scale of a column.

    Args:
        n_components: number of components k.
        covariance_type: ``full``, ``tied``, ``diag`` or ``spherical``.
        tol: stop when the mean log-likelihood of a row rises by less.
        reg_covar: smallest variance, relative to that of a column.
        max_iter: most EM rounds; passes over the rows for the other methods.
        n_init: how many times the line-up of starts is repeated.
        init_params: ``auto`` races several kinds of start; or one of ``kmeans``, ``whitened``, ``pursuit``,
            ``projection``, ``k-means++``, ``random_from_data``, ``random``, ``spectral`` (round clusters from moments;
            needs as many columns as components).
        weights_init: starting weights, (k,). What is not given of a start comes from ``init_params``.
        means_init: starting means, (k, d).
        precisions_init: starting precisions, in the shape of ``precisions_``.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit.
        verbose: show a progress bar.
        method: ``em``, ``online`` (mini-batches) or ``gradient``.
        accelerate: extrapolate EM (guarded SQUAREM).
        batch_size: rows of a mini-batch.
        checkpoint: file to save progress in and to resume from.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of passes over the rows.

    Attributes:
        weights_: (k,).
        means_: (k, d).
        covariances_: (k, d, d), (d, d), (k, d) or (k,), by covariance type.
        precisions_: inverse covariances, in the same shape.
        precisions_cholesky_: their Cholesky factors, as in scikit-learn.
        model_: the fitted :class:`boxloop.models.Mixture`.
        converged_: whether the likelihood settled.
        n_iter_: EM rounds.
        lower_bound_: mean log-likelihood of a row.
        lower_bounds_: the same after each round.
        interrupted_: whether Ctrl-C ended the fit early.
        events_: what happened that deserves a look.

    Example:
        >>> import numpy as np
        >>> from boxloop import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(-3, 1, (200, 2)), rng.normal(3, 1, (200, 2))])
        >>> X[0, 0] = np.nan
        >>> mixture = GaussianMixture(2, random_state=0).fit(X)
        >>> np.sort(mixture.means_[:, 0]).round()
        array([-3.,  3.])
    """

    covariance_type: str = "full"
    reg_covar: float = 1e-6
    weights_init: Any = None
    means_init: Any = None
    precisions_init: Any = None

    _model_file: ClassVar[ModelFile] = latent_file(
        Mixture, *COMPONENTS.values(), checks=(components_are(COMPONENTS, "family"),)
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **MixtureEstimator._parameter_constraints,
        "covariance_type": [StrOptions({"full", "tied", "diag", "spherical"})],
        "reg_covar": [Interval(Real, 0.0, None, closed="left")],
        "weights_init": ["array-like", None],
        "means_init": ["array-like", None],
        "precisions_init": ["array-like", None],
    }

    @property
    def _kind(self) -> Coordinates:
        return "common" if self.covariance_type == "spherical" else "columns"

    def _template(self, n_columns: int, device: torch.device) -> Family[Any]:
        k, d, floor = self.n_components, n_columns, self.reg_covar
        mean = torch.zeros(k, d, dtype=torch.float64, device=device)
        eye = torch.eye(d, dtype=torch.float64, device=device)
        match self.covariance_type:
            case "full":
                return FullGaussian(mean, eye.expand(k, d, d).contiguous(), floor)
            case "tied":
                return TiedGaussian(mean, eye, floor)
            case "diag":
                return DiagonalGaussian(mean, mean + 1.0, floor)
            case _:
                return SphericalGaussian(mean, mean[:, :1] + 1.0, floor)

    def _fit(self, source: Source, plan: Plan, start: Any) -> Fit[Any]:
        try:
            return super()._fit(source, plan, start)
        except ConditionError as error:  # in the words of scikit-learn
            raise ValueError(
                "Fitting the mixture model failed because some components have ill-defined empirical covariance (for "
                "instance caused by singleton or collapsed samples). Try to decrease the number of components, "
                f"increase reg_covar, or scale the input data. Here reg_covar={self.reg_covar:g}, and {error}."
            ) from error

    @property
    def _given(self) -> tuple[Any, Any, Any]:
        return self.weights_init, self.means_init, self.precisions_init

    def _given_start(self, n_columns: int, device: torch.device) -> Mixture[Any] | None:
        if any(value is None for value in self._given):
            return None
        return given_mixture(*self._given, self._template(n_columns, device), self.covariance_type)

    def _adjustment(self) -> Callable[[Mixture[Any]], Mixture[Any]] | None:
        if all(value is None for value in self._given):
            return None
        return lambda start: completed(start, *self._given, self.covariance_type)

    @property
    def _shown(self) -> NDArray[np.int64]:
        return np.arange(len(self.weights_))

    def _publish(self, model: Mixture[Any]) -> None:
        self.weights_ = to_numpy(model.log_weight.exp())
        self.means_ = to_numpy(model.family.mean)
        self.covariances_ = to_numpy(model.family.named()["covariances"])
        self.precisions_cholesky_, self.precisions_ = precision_factor(model.family), precision(model.family)
