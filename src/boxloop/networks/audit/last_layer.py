r"""The distribution of the last layer against its posterior given the features of the mean network.

The reference is exact for regression, and Laplace's approximation for classes. It keeps the other layers fixed: a
distribution over all layers may have a larger variance, never a smaller one, as a Gaussian's marginal covariance is at
least its conditional one. For classes, adding the same vector to the weights of all classes changes no probability;
that direction is removed from both distributions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxloop.concerns import Concern, Level
from boxloop.data import make_frame
from boxloop.networks.audit.chains import BAD_DISTANCE, BAD_FACTOR, GOOD_DISTANCE, GOOD_FACTOR
from boxloop.networks.distribution import Component, WeightDistribution
from boxloop.networks.function import Buffers
from boxloop.networks.methods.laplace import LastLayerPosterior
from boxloop.numeric import relative_error, wasserstein_distance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

MAX_SHAPE_ERROR = 0.5
"""Relative error of a covariance of the right trace up to which its shape counts as right."""
MAX_WEIGHTS, MAX_WASSERSTEIN = 2048, 1024
"""Weights up to which covariances are compared, and up to which the Wasserstein distance is computed."""
ROUNDING = 1e-12  # variance, relative to the largest, that counts as zero


@dataclass(frozen=True)
class LastLayerCheck:
    """A distribution N(m, S) over the weights of the last layer beside the reference posterior N(m*, S*)."""

    kind: str  # regression, with an exact reference; classification, with Laplace's approximation
    only_last: bool  # whether no other layer varies, so that both distributions are of the same weights
    prior_precision: float  # alpha, of the reference
    noise: Array | None  # standard deviations of the outputs in the reference, (k,); None for classes
    mean_error: float  # |m - m*| / |m*|
    mean_distance: float  # root mean square of m - m* along the axes of S*, in posterior standard deviations
    covariance_error: float  # |S - S*| / |S*|, Frobenius
    shape_error: float  # the same, with S scaled to the trace of the reference
    variance_ratio: float  # tr S / tr S*; directions that the data do not determine have the prior's variance
    output_ratio: float  # of outputs at the training rows: tr(Phi S Phi') / tr(Phi S* Phi')
    wasserstein: float  # 2-Wasserstein distance; NaN for more than 1024 weights
    std: Array  # of each weight, (D,)
    exact_std: Array  # in the reference, (D,)

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """One."""
        reference = "exact posterior" if self.kind == "regression" else "Laplace approximation"
        level, verdict, remedy = self._assess_agreement()
        why = (
            f"Relative to the {reference} given the features, the variance is {self.output_ratio:.2g} times as large "
            f"for outputs and {self.variance_ratio:.2g} times as large for weights. The covariance differs by "
            f"{self.covariance_error:.0%}, the mean by {self.mean_error:.1%} ({self.mean_distance:.2g} posterior "
            f"standard deviations){verdict and f'. {verdict}'}"
        )
        return (Concern(level, "Last layer", why, remedy),)

    def table(self) -> Any:
        """A frame with one row per measure."""
        errors = ("mean_error", "mean_distance", "covariance_error", "shape_error")
        names = (*errors, "variance_ratio", "output_ratio", "wasserstein")
        return make_frame({"value": [float(getattr(self, name)) for name in names]}, list(names))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Standard deviations of the weights, relative to those of the reference."""
        from boxloop.figures import standard_deviation_ratios

        title = f"Last layer: outputs have {self.output_ratio:.2g} × the exact variance"
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.std / self.exact_std
        return standard_deviation_ratios(self.exact_std, ratio, ax, title=title)

    def _assess_agreement(self) -> tuple[Level, str, str]:
        """Level, verdict and remedy. Outputs count first: weights that the data do not determine affect them little."""
        low, high = min(self.output_ratio, GOOD_FACTOR * self.variance_ratio), self.output_ratio
        rescale = "scale the covariance on validation rows, or average over windows (WindowAverage)"
        converge = "check the weight decay, and whether the training has converged"
        if high < 1.0 / BAD_FACTOR:
            return "bad", "The variance of the outputs is far too small", rescale
        if self.mean_distance > BAD_DISTANCE:
            return "bad", "The mean is far from the posterior mean", converge
        if high > BAD_FACTOR and self.only_last:
            remedy = "use a smaller learning rate, larger batches or a smaller scale"
            return "bad", "The variance of the outputs is far too large", remedy
        if low < 1.0 / GOOD_FACTOR:
            if high < 1.0 / GOOD_FACTOR:
                verdict = "The variance of the outputs is too small"
            elif high > GOOD_FACTOR:
                verdict = "The variance is too large in directions that the data determine, "
                verdict += "too small in the others"
            else:
                verdict = "The variance is too small in directions that the data do not determine"
            return "doubtful", verdict, rescale
        if high > GOOD_FACTOR:
            verdict = "The variance of the outputs is too large"
            if not self.only_last:
                verdict += ", unless the other layers explain it"
            return "doubtful", verdict, rescale
        if self.mean_distance > GOOD_DISTANCE:
            return "doubtful", "The mean differs from the posterior mean", converge
        if self.shape_error > MAX_SHAPE_ERROR and self.only_last:
            verdict = "The total variance is right, the shape of the covariance is not"
            return "doubtful", verdict, "try another method: a scale factor cannot correct the shape"
        return "good", "", ""


def build_mean_network(component: Component, buffers: Buffers | None = None) -> nn.Module:
    """A copy of the network with the mean as its weights."""
    net = copy.deepcopy(component.net)
    component.layout.write(net, component.distribution.mean)
    own = dict(net.named_buffers())
    for name, value in ({} if buffers is None else buffers).items():
        own[name].copy_(value[0])
    return net


def check_last_layer(component: Component, exact: LastLayerPosterior, X: Any, kind: str) -> LastLayerCheck:
    """Compare a distribution with the posterior of the last layer."""
    if missing := set(exact.layout.names) - set(component.layout.names):
        raise ValueError(f"The distribution does not include {', '.join(sorted(missing))} of the last layer")
    size = exact.layout.size
    if size > MAX_WEIGHTS:
        raise ValueError(
            f"Covariances are compared for at most {MAX_WEIGHTS} weights; the last layer has {size}"
        )
    slices = component.layout.slices
    index = torch.cat([torch.arange(component.layout.size)[slices[name]] for name in exact.layout.names])
    order, k = exact.last.order().argsort(), exact.last.n_outputs
    own = component.distribution.marginal(index.to(component.distribution.mean.device))
    (mean, covariance), (exact_mean, exact_covariance) = (
        _weight_moments(one, order, k, kind) for one in (own, exact.distribution)
    )
    phi = exact.features(X).double().cpu()
    gram = phi.mT @ phi / len(phi)
    if not float(exact_covariance.trace()) > 0.0:
        raise ValueError("The reference posterior has no variance: y does not vary, or is fitted exactly")
    gap, ratio = mean - exact_mean, float(covariance.trace() / exact_covariance.trace())
    distance = math.nan
    if size <= MAX_WASSERSTEIN:
        distance = wasserstein_distance(covariance, exact_covariance, mean, exact_mean)
    return LastLayerCheck(
        kind=kind,
        only_last=component.layout.size == size,
        prior_precision=float(exact.alpha.mean()),
        noise=None if exact.noise is None else exact.noise.double().cpu().numpy(),
        mean_error=float(gap.norm() / exact_mean.norm()),
        mean_distance=_rms_distance(exact_covariance, gap),
        covariance_error=relative_error(covariance, exact_covariance),
        shape_error=relative_error(covariance / ratio, exact_covariance) if ratio > 0.0 else 1.0,
        variance_ratio=ratio,
        output_ratio=_mean_output_variance(covariance, gram) / _mean_output_variance(exact_covariance, gram),
        wasserstein=distance,
        std=covariance.diagonal().clamp(min=0.0).sqrt().numpy(),
        exact_std=exact_covariance.diagonal().clamp(min=0.0).sqrt().numpy(),
    )


def _weight_moments(
    distribution: WeightDistribution, order: Tensor, k: int, kind: str
) -> tuple[Tensor, Tensor]:
    """Mean (k h,) and covariance of the weights, output by output, without the direction common to all classes."""
    own = distribution.to("cpu").map(Tensor.double).marginal(order)
    mean, covariance = own.mean, own.loadings @ own.loadings.mT + own.noise.diag()
    if kind == "classification":
        mean = _centre_outputs(mean, k)
        covariance = _centre_outputs(_centre_outputs(covariance, k).mT, k)
    return mean, covariance


def _centre_outputs(rows: Tensor, k: int) -> Tensor:
    """Rows (k h, ...) minus their mean over the k outputs."""
    parts = rows.reshape(k, -1, *rows.shape[1:])
    return (parts - parts.mean(0)).reshape(rows.shape)


def _mean_output_variance(covariance: Tensor, gram: Tensor) -> float:
    """Variance of all outputs, averaged over rows with second moment (h, h)."""
    h = len(gram)
    blocks = covariance.reshape(-1, h, len(covariance) // h, h).diagonal(dim1=0, dim2=2)
    return float((blocks.sum(2) * gram).sum())


def _rms_distance(covariance: Tensor, gap: Tensor) -> float:
    """Root mean square of a vector along the axes of a covariance, in standard deviations of each."""
    values, vectors = torch.linalg.eigh(covariance)
    positive = values > ROUNDING * values[-1]
    return float(((vectors.mT @ gap)[positive] / values[positive].sqrt()).square().mean().sqrt())
