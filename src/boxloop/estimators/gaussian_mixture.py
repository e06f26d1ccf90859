"""Gaussian mixtures, and starts and precisions in the shapes of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.utils._param_validation import Interval, StrOptions

from boxloop.distributions import DiagonalGaussian, Family, FullGaussian, SphericalGaussian, TiedGaussian
from boxloop.estimators._base import Array, declare_latent_file, to_numpy
from boxloop.estimators._input import check_array
from boxloop.estimators.gaussian_pictures import GaussianPictures, check_component_class
from boxloop.estimators.mixture import MixtureEstimator
from boxloop.fit import Coordinates
from boxloop.models import Mixture
from boxloop.persist import ModelFile

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

    Le Corff, section 2.5. A drop-in for scikit-learn's class that also takes missing values, weights, streams of
    rows and files larger than memory, and that starts from the winner of a race between several kinds of start.

    Deviation: scikit-learn adds ``reg_covar`` to every variance, in the units of the data; here it is a floor on the
    eigenvalues of each covariance in standard units, the exact constrained maximum, so EM stays monotone and the
    fit does not depend on the scale of a column.

    Args:
        n_components: number of components k.
        covariance_type: ``full``, ``tied``, ``diag`` or ``spherical``.
        tol: stop when the mean log-likelihood per row rises by less.
        reg_covar: smallest variance, relative to that of a column.
        max_iter: most EM iterations; passes over the rows for the other methods.
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
        converged_: whether the likelihood converged.
        n_iter_: EM iterations.
        lower_bound_: mean log-likelihood per row.
        lower_bounds_: the same after each iteration.
        interrupted_: whether Ctrl-C ended the fit early.
        events_: concerns about the fit; each was a warning.

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

    _model_file: ClassVar[ModelFile] = declare_latent_file(
        Mixture, *COMPONENTS.values(), checks=(check_component_class(COMPONENTS, "family"),)
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
    def _coordinate_kind(self) -> Coordinates:
        return "common" if self.covariance_type == "spherical" else "columns"

    def _make_template(self, n_columns: int, device: torch.device) -> Family[Any]:
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

    def _read_user_start(
        self, template: Family[Any]
    ) -> tuple[Mixture[Any] | None, Callable[[Mixture[Any]], Mixture[Any]] | None]:
        given = (self.weights_init, self.means_init, self.precisions_init)
        missing = [value is None for value in given]
        if all(missing):
            return None, None
        if any(missing):
            return None, lambda start: complete_mixture(start, *given, self.covariance_type)
        return make_given_mixture(*given, template, self.covariance_type), None

    @property
    def _shown_components(self) -> NDArray[np.int64]:
        return np.arange(len(self.weights_))

    def _publish(self, model: Mixture[Any]) -> None:
        self.weights_: Array = to_numpy(model.log_weight.exp())
        self.means_: Array = to_numpy(model.family.mean)
        self.covariances_: Array = to_numpy(model.family.named_parameters()["covariances"])
        precisions, factors = compute_precisions(model.family)
        self.precisions_: Array = precisions
        self.precisions_cholesky_: Array = factors


def compute_precisions(family: Family[Any]) -> tuple[Array, Array]:
    """Precisions in the shape of the covariances, and their Cholesky factors or roots as scikit-learn has them."""
    if isinstance(family, FullGaussian | TiedGaussian):
        factor = to_numpy(family.whitener.mT)
        return factor @ np.swapaxes(factor, -1, -2), factor
    factor = 1.0 / np.sqrt(to_numpy(family.named_parameters()["covariances"]))
    return factor**2, factor


def make_given_mixture(
    weights: Any, means: Any, precisions: Any, template: Family[Any], covariance_type: str
) -> Mixture[Any]:
    """A mixture from weights, means and precisions given by a user, of the kind and floor of ``template``."""
    like = template.mean
    k, d = like.shape
    shapes = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
    weight = check_array("weights_init", weights, (k,))
    mean = check_array("means_init", means, (k, d))
    inverse = check_array("precisions_init", precisions, shapes[covariance_type])
    if (weight < 0).any() or not np.isclose(weight.sum(), 1.0):
        raise ValueError("weights_init must be non-negative and sum to 1")
    if covariance_type in ("full", "tied"):
        _check_positive_definite(inverse)
    family: Any = type(template)
    centre = torch.from_numpy(mean).to(like.device)
    if covariance_type in ("diag", "spherical"):
        if (inverse <= 0).any():
            raise ValueError("precisions_init must be positive")
        variance = torch.from_numpy(1.0 / inverse).to(like.device)
        variance = variance if covariance_type == "diag" else variance[:, None]
        members = family(centre, variance, template.floor)  # type: ignore[attr-defined]
    else:
        members = family.from_covariance(centre, torch.linalg.inv(torch.from_numpy(inverse)).to(like.device))
        members = family(members.mean, members.factor, template.floor)  # type: ignore[attr-defined]
    return Mixture(torch.from_numpy(weight).to(like.device).log(), members)


def complete_mixture(
    model: Mixture[Any], weights: Any, means: Any, precisions: Any, covariance_type: str
) -> Mixture[Any]:
    """A mixture with the parts that a user gave, and those of ``model`` for parts that are None.

    Where means are given, the members of ``model`` are matched to them, so that each mean gets the covariance of the
    cluster nearest to it. scikit-learn leaves that to chance.
    """
    if means is not None:
        places = check_array("means_init", means, tuple(model.family.mean.shape))
        deviation = model.moments()[1].diagonal().sqrt().cpu().numpy()
        _, order = linear_sum_assignment(
            cdist(places / deviation, model.family.mean.cpu().numpy() / deviation)
        )
        index = torch.from_numpy(order).to(model.log_weight.device)
        model = Mixture(model.log_weight[index], model.family.select(index))
    return make_given_mixture(
        model.log_weight.exp().cpu().numpy() if weights is None else weights,
        model.family.mean.cpu().numpy() if means is None else means,
        compute_precisions(model.family)[0] if precisions is None else precisions,
        model.family,
        covariance_type,
    )


def _check_positive_definite(precision: Array) -> None:
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError as error:
        raise ValueError("precisions_init must be positive definite") from error
    if not np.allclose(precision, np.swapaxes(precision, -1, -2)):
        raise ValueError("precisions_init must be symmetric")
